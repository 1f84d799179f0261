"""Some schedules in every run of the tests; CI runs thousands (`python -m benchmarks.simulate`)."""

from collections import Counter

import pytest

from tests.simulation.simulation import FoundError, Outcome, Simulation, run

SEEDS, CHUNK = 160, 20
SHOULD_HAPPEN = 12  # of the kinds of faults, in any chunk
DEPOSED_BY = 3  # ways, at least


def outcome(seed: int) -> Outcome:
    try:
        return run(seed)
    except FoundError as error:
        pytest.fail(error.report(), pytrace=False)


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_schedule_of_faults_breaks_a_promise(first: int) -> None:
    outcomes = [outcome(seed) for seed in range(first, first + CHUNK)]
    faults = sum((Counter(found.faults) for found in outcomes), Counter())
    assert len(faults) >= SHOULD_HAPPEN, faults  # no schedule passes because nothing happened
    assert len({found.deposed_by for found in outcomes}) >= DEPOSED_BY
    assert all(found.recovered_s > 0 for found in outcomes)
    assert sum(found.terms for found in outcomes) > CHUNK
    assert sum(found.writes for found in outcomes) > CHUNK
    assert sum(found.overlaps for found in outcomes) > 0  # the window that bounds() speaks of is there


def test_a_seed_is_the_same_schedule_each_time() -> None:
    traces = []
    for _ in range(2):
        simulation = Simulation(4)
        simulation.run()
        traces.append(simulation.readable())
    assert len(traces[0]) > 20
    assert traces[0] == traces[1]


def test_two_seeds_are_two_schedules() -> None:
    assert outcome(1) != outcome(2)
