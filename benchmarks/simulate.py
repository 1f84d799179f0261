"""Whole elections in simulated time, by the thousand: whether the promises hold in every schedule of faults.

    python -m benchmarks.simulate --seeds 2000                 seeds 0 to 1999, on all processors
    python -m benchmarks.simulate --seeds 100000 --from 50000
    python -m benchmarks.simulate --seed 4711                  one seed, with its trace
    python -m benchmarks.simulate --groups --seeds 1000        groups that share partitions, instead of single locks
    python -m benchmarks.simulate --list                       the deliberate faults it is known to find
    python -m benchmarks.simulate --mutant fence_by_plain_read how many seeds it takes to find one of them

Each seed is one schedule: two to eight processes with real runners, a fake server, a network and a nemesis, all in one
thread and in simulated time, the same each time. What is checked is said in tests/simulation/checks.py, and for groups
in tests/simulation/groups/checks.py.

Exit code: 0 no violation (or, with --mutant, one was found); 1 a violation (or none); 2 bad arguments.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.simulation.groups.simulation import GroupSimulation
from tests.simulation.mutants import MUTANTS
from tests.simulation.simulation import FoundError, Outcome, Simulation, first_found

if TYPE_CHECKING:
    from collections.abc import Iterator

BATCH = 50
SHOWN_MAX = 3
"""So many violations are shown with their trace; a broken build breaks thousands."""


@dataclass(slots=True)
class Sum:
    """What many seeds came to."""

    seeds: int = 0
    simulated_s: float = 0.0
    steps: int = 0
    terms: int = 0
    overlaps: int = 0
    writes: int = 0
    refused: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    deposed: Counter[str] = field(default_factory=Counter)
    nearest: dict[str, float] = field(default_factory=dict)
    recovered_s: list[float] = field(default_factory=list)
    violations: list[FoundError] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Count one seed that kept all promises."""
        self.seeds += 1
        self.simulated_s += outcome.simulated_s
        self.steps += outcome.steps
        self.terms += outcome.terms
        self.overlaps += outcome.overlaps > 0
        self.writes += outcome.writes
        self.refused += outcome.refused
        self.faults.update(outcome.faults)
        self.deposed[outcome.deposed_by] += 1
        self.recovered_s.append(outcome.recovered_s)
        for what, part in outcome.nearest.items():
            self.nearest[what] = max(self.nearest.get(what, 0.0), part)


def quiet() -> None:
    """Let the library log nothing: it would log every fault."""
    logging.getLogger("pgelect").setLevel(logging.CRITICAL + 1)


def simulation(seed: int, *, groups: bool) -> Simulation | GroupSimulation:
    """Make the schedule of a seed."""
    return GroupSimulation(seed) if groups else Simulation(seed)


def one_batch(seeds: range, *, groups: bool) -> list[Outcome | FoundError]:
    """Run some seeds, in a process of the pool."""
    quiet()
    found: list[Outcome | FoundError] = []
    for seed in seeds:
        try:
            found.append(simulation(seed, groups=groups).run())
        except FoundError as error:
            found.append(error)
    return found


def many(first: int, seeds: int, jobs: int, *, groups: bool = False) -> Iterator[list[Outcome | FoundError]]:
    """Run many seeds in several processes; batches come as they are done."""
    batches = [range(at, min(at + BATCH, first + seeds)) for at in range(first, first + seeds, BATCH)]
    work = partial(one_batch, groups=groups)
    if jobs == 1:
        yield from map(work, batches)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(work, batches)


def run_many(first: int, seeds: int, jobs: int, *, groups: bool = False) -> Sum:
    """Run many seeds and sum them up, telling how far it is on a terminal."""
    total = Sum()
    told_at = time.monotonic()
    for batch in many(first, seeds, jobs, groups=groups):
        for result in batch:
            if isinstance(result, FoundError):
                total.seeds += 1
                total.violations.append(result)
                if len(total.violations) <= SHOWN_MAX:
                    print(result.report(), file=sys.stderr)
            else:
                total.add(result)
        if sys.stderr.isatty() and time.monotonic() - told_at > 1.0:
            told_at = time.monotonic()
            print(f"\r{total.seeds} of {seeds} seeds, {len(total.violations)} violations", end="", file=sys.stderr)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    return total


def table(total: Sum, took_s: float, jobs: int) -> list[tuple[str, str]]:
    """Make the lines that are printed."""
    recovered = sorted(total.recovered_s) or [0.0]
    rows = [
        ("schedules", f"{total.seeds}"),
        ("simulated time", f"{total.simulated_s / 3600:.1f} h"),
        ("took", f"{took_s:.1f} s with {jobs} jobs"),
        ("schedules per second", f"{total.seeds / took_s:.1f}"),
        ("steps checked", f"{total.steps}"),
        ("terms", f"{total.terms}"),
        ("fenced writes committed", f"{total.writes}"),
        ("stale writes refused", f"{total.refused}"),
        ("schedules with two believers, within bounds", f"{total.overlaps}"),
        (
            "a leader again after one was deposed",
            f"median {recovered[len(recovered) // 2]:.2f} s, worst {recovered[-1]:.2f} s (simulated)",
        ),
    ]
    rows += [(f"nearest to its bound: {what}", f"{100 * part:.0f} %") for what, part in sorted(total.nearest.items())]
    rows += [(f"deposed by: {how}", str(number)) for how, number in sorted(total.deposed.items())]
    rows += [(f"fault: {fault}", str(number)) for fault, number in sorted(total.faults.items())]
    return [*rows, ("violations", str(len(total.violations)))]


def show_one(seed: int, *, groups: bool = False) -> int:
    """Run one seed and print its trace."""
    schedule = simulation(seed, groups=groups)
    try:
        outcome = schedule.run()
    except FoundError as error:
        print(error.report())
        return 1
    print("\n".join(schedule.readable()))
    print(f"seed {seed}: no violation; {json.dumps(asdict(outcome))}")
    return 0


def hunt(name: str, seeds: int) -> int:
    """Count the seeds that it takes to find a mutant."""
    mutant = MUTANTS[name]
    with mutant.applied():
        found = first_found(range(seeds), mutant.finds, lambda seed: simulation(seed, groups=mutant.groups).run())
    if found is None:
        print(f"{name}: not found within {seeds} seeds")
        return 1
    print(f"{name}: found by seed {found.seed}: {found.what}")
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.simulate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=2000, metavar="N", help="how many schedules (default 2000)")
    parser.add_argument("--from", type=int, default=0, metavar="S", dest="first", help="the first seed (default 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="J", help="processes (default: all)")
    parser.add_argument("--seed", type=int, metavar="S", help="only this one, with its trace")
    parser.add_argument("--groups", action="store_true", help="simulate groups instead of single locks")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), metavar="NAME", help="hunt a deliberate fault")
    parser.add_argument("--list", action="store_true", help="list the deliberate faults")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what is printed to a file, too")
    options = parser.parse_args(arguments)
    if options.seeds < 1 or options.jobs < 1:
        parser.error("--seeds and --jobs must be 1 or more")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Run as the command line says; return the exit code."""
    options = parse(arguments)
    quiet()
    if options.list:
        for name, mutant in MUTANTS.items():
            print(f"{name:<32} {mutant.what}")
        return 0
    if options.mutant is not None:
        return hunt(options.mutant, options.seeds)
    if options.seed is not None:
        return show_one(options.seed, groups=options.groups)
    began = time.monotonic()
    total = run_many(options.first, options.seeds, options.jobs, groups=options.groups)
    rows = table(total, time.monotonic() - began, options.jobs)
    width = max(len(label) for label, _ in rows)
    print("\n".join(f"{label:<{width}}  {value}" for label, value in rows))
    if options.json is not None:
        found: dict[str, Any] = dict(rows)
        found["broken"] = [{"seed": error.seed, "what": error.what} for error in total.violations]
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    return 1 if total.violations else 0


if __name__ == "__main__":
    sys.exit(main())
