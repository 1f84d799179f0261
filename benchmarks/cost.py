"""What leading and waiting cost, and how that grows.

    python -m benchmarks.cost                        everything, about six minutes
    python -m benchmarks.cost --only followers       one part; may be repeated
    python -m benchmarks.cost --only followers --followers 1 --followers 400
    python -m benchmarks.cost --check                exit with 1 when a target is missed

The parts: ``systems``, one leader and one follower of each elector while nothing happens; ``followers``, many that wait
for one key, and how soon one of them leads when the leader is killed, or the leader and many with it; ``locks``, many
locks that are led by one process; ``partitions``, a group of many that has one member.

Servers are embedded ones of their own, on this machine; leaders and followers are processes that use the public API.
All traffic goes through a relay that counts round trips (see ``benchmarks.relay``). A statement is a round trip, unless
somebody sends several at once.

Exit status: 0 measured; 1 a target was missed and --check was given; 2 something did not happen at all.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import cost_tables as tables
from benchmarks.cost_followers import Effort, by_followers
from benchmarks.cost_sizes import Patience, by_locks, by_partitions
from benchmarks.cost_systems import by_system
from benchmarks.stores import PostgresStore
from benchmarks.systems import lacking, systems
from benchmarks.telling import progress, tell, told
from benchmarks.usage import Metered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.measure import Counts, Timing
    from benchmarks.systems import System

PARTS = ("systems", "followers", "locks", "partitions")
FOLLOWERS, LOCKS, PARTITIONS = (1, 10, 100, 400), (1, 10, 50, 200), (1, 100, 1000, 5000)
SPARE = 30
"""Sessions of the server beside those measured: ours, those it reserves, and of the dead that it still has."""
LOCKS_FOR_EACH = "256"
"""The server's max_locks_per_transaction: for each connection, and one may hold 5,000."""
LONGER = 1.5
"""The window of the systems is so many times as long: some do what they do every five seconds, and some less often."""
FEW_FOLLOWERS, FEW_LOCKS, FEW_PARTITIONS = (1, 4), (3,), (20,)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run, and how long."""

    only: tuple[str, ...]
    systems: tuple[System, ...]
    followers: tuple[int, ...]
    locks: tuple[int, ...]
    partitions: tuple[int, ...]
    settle_s: float
    window_s: float
    systems_s: float
    effort: Effort
    patience: Patience


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cost", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=PARTS, help="measure this part; may be repeated")
    said = "measure this one; may be repeated; default: all, or the first if --quick"
    parser.add_argument("--system", action="append", choices=list(systems()), help=said)
    for part, default in (("followers", FOLLOWERS), ("locks", LOCKS), ("partitions", PARTITIONS)):
        numbers = ", ".join(map(str, default))
        said = f"so many; may be repeated; default {numbers}"
        parser.add_argument(f"--{part}", type=int, action="append", metavar="N", help=said)
    parser.add_argument("--window", type=float, metavar="S", help="seconds that are counted each time; default 10")
    parser.add_argument("--rounds", type=int, metavar="N", help="crashes with each number of followers; default 8")
    parser.add_argument("--quick", action="store_true", help="few and short: to see that it works, not what it costs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was measured")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    options = parser.parse_args(arguments)
    for part in ("followers", "locks", "partitions"):
        if min(getattr(options, part) or [1]) < 1:
            parser.error(f"--{part} must be 1 or more")
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds must be 1 or more")
    if options.window is not None and options.window <= 0:
        parser.error("--window must be more than 0")
    return options


def plan(options: argparse.Namespace) -> Plan:
    """Fill in what was not given."""
    quick, known = options.quick, systems()
    settle_s, window_s, lag_s = (0.2, 1.0, 0.2) if quick else (3.0, 10.0, 2.0)
    window_s = window_s if options.window is None else options.window
    crashes = (2 if quick else 8) if options.rounds is None else options.rounds

    def numbers(part: str, full: tuple[int, ...], few: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(set(getattr(options, part) or (few if quick else full))))

    return Plan(
        only=tuple(options.only or PARTS),
        systems=tuple(known[name] for name in options.system or list(known)[: 1 if quick else None]),
        followers=numbers("followers", FOLLOWERS, FEW_FOLLOWERS),
        locks=numbers("locks", LOCKS, FEW_LOCKS),
        partitions=numbers("partitions", PARTITIONS, FEW_PARTITIONS),
        settle_s=settle_s,
        window_s=window_s,
        systems_s=window_s if quick else LONGER * window_s,
        effort=Effort(window_s, settle_s, crashes, deaths=1 if quick else 3),
        patience=Patience(settle_s, 0.3 * window_s if quick else window_s, lag_s),
    )


def measure(what: Plan) -> tuple[list[Timing | Counts], list[str]]:
    """Run the plan; return what was found, and the tables that show it."""
    found: list[Timing | Counts] = []
    shown: list[str] = []
    if "systems" in what.only:
        for name, lacks in lacking().items():
            progress(f"without {name}: {lacks}")
        costs = by_system(what.systems, what.settle_s, what.systems_s)
        found.append(tables.judged_systems(costs))
        shown.append(tables.show_systems(costs))
    if what.only != ("systems",):
        connections = max(*what.followers, *what.locks) + SPARE
        with (
            PostgresStore(connections=connections, max_locks_per_transaction=LOCKS_FOR_EACH) as store,
            Metered(store) as metered,
        ):
            _grow(what, store, metered, found, shown)
    return found, [*shown, tables.UNITS]


def _grow(what: Plan, store: PostgresStore, metered: Metered, found: list[Timing | Counts], shown: list[str]) -> None:
    """Measure what grows, on one server."""
    if "followers" in what.only:
        points = by_followers(what.followers, metered, store, what.effort)
        found.append(tables.judged_followers(points))
        shown.append(tables.show_followers(points))
    for part, name, numbers, measured in (
        ("locks", "locks of one process", what.locks, by_locks),
        ("partitions", "partitions of a group with one member", what.partitions, by_partitions),
    ):
        if part in what.only:
            sizes = measured(numbers, metered, what.patience)
            found.append(tables.judged_sizes(name, part, sizes))
            shown.append(tables.show_sizes(name, part, sizes))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit status."""
    options = parse(arguments)
    return told(lambda: _measured(options))


def _measured(options: argparse.Namespace) -> int:
    begun, what = time.monotonic(), plan(options)
    found, shown = measure(what)
    about = {"window": f"{what.window_s:g} s", "seconds": round(time.monotonic() - begun)}
    return tell(about, found, more="\n\n".join(shown), write=options.json, check=options.check)


if __name__ == "__main__":
    sys.exit(main())
