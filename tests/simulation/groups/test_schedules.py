"""Some schedules of groups in every run of the tests; thousands: `python -m benchmarks.simulate --groups`."""

from collections import Counter

import pytest

from benchmarks.simulate import main
from tests.simulation.groups.simulation import GroupSimulation, run
from tests.simulation.simulation import FoundError, Outcome

SEEDS, CHUNK = 80, 20
SHOULD_HAPPEN = 12  # of the kinds of faults, in any chunk


def outcome(seed: int) -> Outcome:
    try:
        return run(seed)
    except FoundError as error:
        pytest.fail(error.report(), pytrace=False)


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_schedule_of_faults_breaks_what_is_promised_of_groups(first: int) -> None:
    outcomes = [outcome(seed) for seed in range(first, first + CHUNK)]
    faults = sum((Counter(found.faults) for found in outcomes), Counter())
    assert len(faults) >= SHOULD_HAPPEN, faults  # no schedule passes because nothing happened
    assert sum(found.terms for found in outcomes) > 10 * CHUNK
    assert sum(found.writes for found in outcomes) > 10 * CHUNK


def test_a_seed_is_the_same_schedule_each_time() -> None:
    traces = []
    for _ in range(2):
        simulation = GroupSimulation(5)
        simulation.run()
        traces.append(simulation.readable())
    assert len(traces[0]) > 20
    assert traces[0] == traces[1]


def test_the_command_runs_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--groups", "--seeds", "3", "--jobs", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == ["violations", "0"]
    assert main(["--groups", "--seed", "2"]) == 0
    assert "on_acquired" in capsys.readouterr().out
