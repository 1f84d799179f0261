"""The soak runs, finds nothing, and would find whatever piles up. The full counts: `python -m benchmarks.soak`."""

import asyncio
import gc
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import footprint, soak_phases
from benchmarks.footprint import Holdings, Memory
from benchmarks.leaks import LEAKS
from benchmarks.measure import missed, table
from benchmarks.soak import Plan, main, parse, plan, soak
from benchmarks.soak_phases import Cycle, Ground, Tally
from benchmarks.soak_targets import Found, judge
from pgelect._engine.runner import Runner
from pgelect._postgres.session import PostgresSession
from pgelect.testing import Postgres
from tests.support.environment import in_ci
from tests.support.locks import Key, make_lock
from tests.support.server import sessions
from tests.support.waiting import eventually, scaled

ROOT = Path(__file__).parents[2]
COUNTS = {
    "asyncio": {"start-stop": 120, "lost": 60, "frozen": 20, "cancelled": 40, "stops": 40},
    "uvloop": {"start-stop": 30, "lost": 20, "frozen": 10, "cancelled": 20, "stops": 20},
}


def run(tmp_path: Path, *flags: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    written = tmp_path / "found.json"
    command = [sys.executable, "-m", "benchmarks.soak", *flags, "--json", str(written)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=scaled(270), check=False)
    return done, json.loads(written.read_text()) if written.exists() else {}


@pytest.mark.slow
@pytest.mark.timeout(300)  # on an idle machine it takes a tenth of that
@pytest.mark.parametrize("loop", COUNTS)
def test_starts_losses_cancels_and_stops_leave_nothing_behind(tmp_path: Path, loop: str) -> None:
    """Holds off tasks, threads, descriptors, sessions, locks and memory that pile up, one with each term."""
    if loop == "uvloop" and not in_ci():
        pytest.importorskip("uvloop")
    counts = COUNTS[loop]
    flags = [flag for name, number in counts.items() for flag in (f"--{name}", str(number))]
    done, found = run(tmp_path, *flags, *(["--uvloop"] if loop == "uvloop" else []))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing piled up" in done.stdout
    assert found["loop"] == loop

    phases = {each["name"].partition(":")[0]: each for each in found["results"]}
    assert list(phases) == list(counts)
    assert phases["start-stop"]["tally"]["begun"] >= counts["start-stop"], "all of them led"
    assert phases["lost"]["tally"]["sessions_lost"] >= counts["lost"]
    assert phases["frozen"]["tally"]["sessions_lost"] >= counts["frozen"]
    cancelled, stops = phases["cancelled"]["tally"], phases["stops"]["tally"]
    assert cancelled["cancels"] >= counts["cancelled"] * 0.7, "the rest of the shutdowns were over before"
    assert cancelled["swallowed"] == stops["swallowed"] == 0
    assert cancelled["starts_cancelled"] >= counts["cancelled"] * 0.25, "they were on their way to lead"
    assert stops["stops"] >= counts["stops"]
    assert stops["late"] == cancelled["late"] == 0
    for phase in phases.values():
        assert phase["after"]["sessions"] == phase["after"]["locks"] == phase["after"]["tasks"] == 0


async def test_a_second_cancel_that_meets_the_close_of_the_session_does_not_leave_it_open(
    database: str, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the soak found once in hundreds of cancels: the task that closes was cancelled before it had begun."""
    lock = make_lock(database, key, lease_s=60.0)
    await lock.start()
    await lock.wait_for_leadership(scaled(10))
    spawn = Runner._spawn
    met: list[str] = []

    def spawning(runner: Runner, work: Any) -> asyncio.Task[Any]:
        if work.cr_code is PostgresSession.close.__code__:
            met.append("close")
            stopping.cancel()
        return spawn(runner, work)

    monkeypatch.setattr(Runner, "_spawn", spawning)
    gc.disable()  # it would close the connection some time later
    try:
        stopping = asyncio.create_task(lock.shutdown())
        await asyncio.sleep(0)
        stopping.cancel()
        await asyncio.wait({stopping})
        assert stopping.cancelled()
        assert met == ["close"]
        await eventually(lambda: sessions(database) == [], 2.0, "its session is closed")
    finally:
        gc.enable()


@asynccontextmanager
async def idle(_: Ground) -> AsyncIterator[Cycle]:
    async def cycle(_: int) -> None:
        pass

    yield cycle


@pytest.fixture
def idling(monkeypatch: pytest.MonkeyPatch) -> None:
    """A phase in which nothing happens: what is found then is what the test leaks."""
    monkeypatch.setitem(soak_phases.PHASES, "idle", idle)
    monkeypatch.setattr(footprint, "AT_REST_WITHIN_S", 0.1)


SEEN_AS = {
    "memory": "traced",
    "object": "objects",
    "memory-below-python": "resident",
    "task": "more: tasks 240",
    "thread": "more: threads 240",
    "descriptor": "more: descriptors 240",
    "session": "more: descriptors 20, sessions 20",
    "lock": "more: descriptors 1, sessions 1, locks 240",
    "complaint": "complaints: 240 Future exception was never retrieved",
}


@pytest.mark.usefixtures("idling")
def test_where_nothing_is_leaked_nothing_is_found(server: Postgres) -> None:
    found = soak(Plan({"idle": 200}), server)
    assert missed(found) == 0, table(found)


@pytest.mark.parametrize("kind", LEAKS)
@pytest.mark.usefixtures("idling")
def test_what_is_leaked_in_each_cycle_is_found(server: Postgres, kind: str) -> None:
    """Holds off a soak that cannot fail: one kilobyte, or one of anything, in each cycle."""
    cycles = 2000 if kind == "object" else 200
    (found,) = soak(Plan({"idle": cycles}, leak=kind), server)
    told = [f"{target.measured}, not {target.text}" for target in found.targets if not target.met]
    assert any(SEEN_AS[kind] in line for line in told), told


def test_a_late_stop_a_swallowed_cancel_and_an_unpaired_term_are_found() -> None:
    held, weight = Holdings(0, 2, 15, 0, 0), Memory(1_000_000, 40_000, 40_000_000, 15)
    tally = Tally(begun=9, ended=9, cancels=5, stops=10, worst_stop_s=0.1)
    good = Found("stops", 10, 5, 1.0, held, held, (weight, weight, weight), tally, ())
    assert missed([judge(good)]) == 0
    for worse in (replace(tally, ended=8), replace(tally, late=1), replace(tally, swallowed=1)):
        assert missed([judge(replace(good, tally=worse))]) == 1


def test_without_options_it_runs_the_full_counts() -> None:
    assert plan(parse([])).cycles == {"start-stop": 1000, "lost": 1000, "frozen": 200, "cancelled": 500, "stops": 1000}
    assert plan(parse(["--quick", "--only", "lost", "--only", "stops", "--stops", "7"])).cycles == {
        "lost": 50,
        "stops": 7,
    }


def test_a_wrong_number_of_cycles_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--lost", "0"])
    assert "1 or more" in capsys.readouterr().err


def test_a_leak_of_sessions_is_the_exit_status_of_the_command(tmp_path: Path) -> None:
    done, found = run(tmp_path, "--only", "start-stop", "--start-stop", "10", "--leak", "session")
    assert done.returncode == 1, done.stderr
    assert "TARGETS MISSED" in done.stdout
    assert found["results"][0]["after"]["sessions"] >= 10
