"""The benchmark of what leading and waiting cost runs, measures what it says, and leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.cost import main
from benchmarks.cost_followers import Deaths, Point
from benchmarks.cost_tables import judged_followers
from benchmarks.measure import missed
from benchmarks.meters import Memory
from benchmarks.systems import lacking, systems
from benchmarks.usage import Usage
from tests.support.waiting import eventually_sync, scaled

ROOT = Path(__file__).parents[2]


def test_what_leading_and_waiting_cost_is_measured(tmp_path: Path) -> None:
    written = tmp_path / "found.json"
    command = [sys.executable, "-m", "benchmarks.cost", "--quick", "--json", str(written)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=scaled(100), check=False)
    assert done.returncode == 0, done.stderr
    for row in ("pgelect-queue", "followers on one key", "died at once", "locks of one process"):
        assert row in done.stdout
    systems, followers, locks, partitions = (result["series"] for result in json.loads(written.read_text())["results"])

    (one,) = systems
    assert one["second"]["trips_per_s"] > 0
    assert not one["second_leads"]
    for used in (one["alone"], one["second"]):
        assert (used["connections"], used["connects"]) == (1, 0)
        assert used["client"]["rss"] > used["client"]["pss"] > 0
    assert one["server_both_ms_per_s"] > 0
    assert one["written_both_per_s"] == 0
    assert [one["followers"] for one in followers] == [1, 4]
    for one in followers:
        used = one["all_followers"]
        assert (used["connections"], used["connects"]) == (one["followers"], 0)
        assert used["trips_per_s"] > 0
        assert used["client_ms_per_s"] > 0
        assert used["session_ms_per_s"] > 0
        assert len(one["crash_s"]) == 2
        assert min(one["crash_s"]) > 0
    assert [len(one["deaths"]) for one in followers] == [0, 1]
    assert followers[1]["deaths"][0]["died"] >= 2, "the leader, and of those who waited at least one"
    assert [one["number"] for one in locks] == [one["usage"]["connections"] for one in locks] == [3]
    assert all(one["late_s"] for one in locks)
    assert [one["number"] for one in partitions] == [20]
    assert all(one["usage"]["connections"] == 1 for one in partitions)


def test_only_the_asked_system_is_measured(tmp_path: Path) -> None:
    written = tmp_path / "found.json"
    flags = ["--quick", "--only", "systems", "--system", "pgelect-poll", "--window", "0.2", "--json", str(written)]
    command = [sys.executable, "-m", "benchmarks.cost", *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=scaled(60), check=False)
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(written.read_text())["results"]
    assert [one["system"] for one in result["series"]] == ["pgelect-poll"]


@pytest.mark.slow
def test_the_cost_of_every_elector_is_measured(tmp_path: Path) -> None:
    if lacks := lacking():
        assert not os.environ.get("PGELECT_TEST_PEERS"), lacks
        pytest.skip("; ".join(f"{name}: {said}" for name, said in lacks.items()))
    names = [name for name in systems() if name.endswith("-fast")]
    written = tmp_path / "found.json"
    command = [sys.executable, "-m", "benchmarks.cost", "--quick", "--only", "systems", "--json", str(written)]
    command += [f"--system={name}" for name in names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=scaled(110), check=False)
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(written.read_text())["results"]
    assert [one["system"] for one in result["series"]] == names
    for one in result["series"]:
        has_log = not one["system"].startswith("redis")
        assert (one["written_alone_per_s"] is not None) is has_log, one["system"]
        assert (one["second"]["sessions"]["pss"] > 0) is has_log, one["system"]
        if not one["second_leads"]:  # then it may be that both are busy electing
            assert one["alone"]["trips_per_s"] > 0, one["system"]


def test_an_interrupt_ends_a_whole_fleet() -> None:
    command = [sys.executable, "-m", "benchmarks.cost", "--quick", "--only", "followers", "--followers", "12"]
    command += ["--window", "100"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        me = psutil.Process(running.pid)
        seen: set[psutil.Process] = set()

        def all_are_there() -> bool:
            seen.update(me.children(recursive=True))
            return sum("benchmarks.crowd" in command_of(child) for child in seen) == 14

        def command_of(child: psutil.Process) -> list[str]:
            try:
                return child.cmdline()
            except (psutil.NoSuchProcess, psutil.ZombieProcess):
                return []

        eventually_sync(all_are_there, 30.0, "12 followers and a leader were forked by another one")
        os.kill(running.pid, signal.SIGINT)
        assert running.wait(scaled(30)) == 130
        _, left = psutil.wait_procs(seen, timeout=scaled(15))
        assert not left


def test_waiting_that_grows_with_those_who_wait_misses_its_targets() -> None:
    def point(followers: int, trips_per_s: float, crash_s: list[float], *leader_s: float) -> Point:
        used = Usage(trips_per_s, trips_per_s, followers, 0, 1.0, 1.0, Memory(1, 1, 1), Memory(1, 1, 1))
        deaths = [Deaths(3, 3, each) for each in leader_s]
        return Point(followers, 10.0, 1.0, used, used, 1.0, 0.0, 1, crash_s, deaths)

    kept = [point(1, 1.1, [0.008, 0.010, 0.9]), point(400, 19.0, [0.012, 0.019, 0.9], 0.4, 1.9)]
    assert missed([judged_followers(kept)]) == 0, "medians are compared, and the worst of the deaths"
    broken = [point(1, 1.1, [0.008, 0.010]), point(400, 21.0, [0.021, 0.022], 0.4, 2.1)]
    assert missed([judged_followers(broken)]) == 3
    assert missed([judged_followers([point(400, 440.0, [])])]) == 1, "nothing to compare a crash with"


@pytest.mark.parametrize(
    "flags",
    [["--followers", "0"], ["--rounds", "0"], ["--window", "0"], ["--only", "nothing"], ["--system", "nobody"]],
)
def test_nonsense_is_refused_before_anything_is_measured(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(flags)
    assert flags[0] in capsys.readouterr().err
