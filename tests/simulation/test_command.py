"""`python -m benchmarks.simulate`, as a stranger runs it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TREE = Path(__file__).parents[2]


def simulate(*arguments: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.simulate", *arguments],
        cwd=TREE,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_it_prints_what_happened_and_exits_with_0(tmp_path: Path) -> None:
    found = simulate("--seeds", "12", "--jobs", "2", "--json", str(tmp_path / "found.json"))
    assert (found.returncode, found.stderr) == (0, "")
    lines = dict(line.split("  ", 1) for line in found.stdout.splitlines())
    assert lines["schedules"].strip() == "12"
    assert lines["violations"].strip() == "0"
    assert {"simulated time", "schedules per second", "fault: terminate"} <= lines.keys()
    assert json.loads((tmp_path / "found.json").read_text())["broken"] == []


def test_one_seed_is_shown_with_its_trace_the_same_in_every_process() -> None:
    """A schedule that depended on addresses, sets or hash() could not be replayed."""
    shown = [simulate("--seed", "7", hash_seed=hash_seed) for hash_seed in ("1", "2")]
    assert [found.returncode for found in shown] == [0, 0]
    assert "on_acquired" in shown[0].stdout
    assert shown[0].stdout == shown[1].stdout


def test_a_deliberate_fault_is_hunted() -> None:
    found = simulate("--mutant", "fence_by_plain_read")
    assert found.returncode == 0
    assert "found by seed" in found.stdout


@pytest.mark.parametrize("arguments", [("--seeds", "0"), ("--jobs", "0"), ("--mutant", "nothing"), ("--seed", "x")])
def test_bad_arguments_exit_with_2_and_say_why(arguments: tuple[str, str]) -> None:
    found = simulate(*arguments)
    assert found.returncode == 2
    assert arguments[0] in found.stderr
