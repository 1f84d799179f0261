"""The simulation can find faults: each deliberate one is found, and what it says names the promise that is broken."""

import pytest

from benchmarks.simulate import main
from tests.simulation.groups.simulation import run as run_groups
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.simulation import FoundError, first_found, run

WITHIN = 2000


def found_by_its_seed_or_another(mutant: Mutant) -> FoundError | None:
    return first_found((mutant.seed, *range(WITHIN)), mutant.finds, run_groups if mutant.groups else run)


@pytest.mark.parametrize("name", MUTANTS)
def test_the_simulation_finds(name: str) -> None:
    mutant = MUTANTS[name]
    with mutant.applied():
        found = found_by_its_seed_or_another(mutant)
    assert found is not None, f"{mutant.what}: not found within {WITHIN} seeds"
    assert mutant.finds  # whatever it says must name what is broken
    (run_groups if mutant.groups else run)(found.seed)  # without the fault, the same schedule keeps all promises


def test_a_violation_names_its_seed_and_shows_a_trace_that_replays(capsys: pytest.CaptureFixture[str]) -> None:
    mutant = MUTANTS["fence_by_plain_read"]
    with mutant.applied():
        found, again = found_by_its_seed_or_another(mutant), found_by_its_seed_or_another(mutant)
        assert found is not None
        assert again is not None
        assert found.report() == again.report()
        assert main(["--seed", str(found.seed)]) == 1
        shown = capsys.readouterr().out
        assert f"seed {found.seed}: a write fenced by token" in shown
        assert "on_acquired" in shown
        assert main(["--from", str(found.seed), "--seeds", "1", "--jobs", "1"]) == 1
        printed = capsys.readouterr()
        assert printed.out.splitlines()[-1].split() == ["violations", "1"]
        assert f"seed {found.seed}:" in printed.err
