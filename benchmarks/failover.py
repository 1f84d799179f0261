"""How fast leadership moves, beside a floor taken in the same run.

    python -m benchmarks.failover                   20 rounds of everything, about two minutes
    python -m benchmarks.failover --only crash      one scenario; may be repeated
    python -m benchmarks.failover --check           exit with 1 when a target is missed
    python -m benchmarks.failover --profile         and where the milliseconds of a crash go
    python -m benchmarks.failover --peers all       pgelect beside other electors, about ten minutes; or their names

The server is an embedded PostgreSQL of its own, reached over TCP on this machine. Leaders and followers are processes
of their own that use the public API. The floor is what the same server does for two sessions without the library: one
holds a lock and is killed, the other is blocked in pg_advisory_lock. Its rounds and those of the crash take turns. The
one that is killed is a Python process, as the leader is: most of the floor is the time that the system takes to take
such a process apart before it closes the socket. What it is when a psql is killed is shown beside it.

With --peers the same faults, and a frozen link, come to each of several electors in turn, with its defaults and with
fast settings: benchmarks/peers says which, and why. They come with pip install 'pgelect[bench]'. "x floor" is then
measured by the floor of the same scenario, where it has one. "Both lead" is for how long both processes believe it.

Exit status: 0 measured; 1 a target was missed and --check was given; 2 something did not happen at all.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks import scenarios, targets
from benchmarks.looking import Observer
from benchmarks.peers import run as peers
from benchmarks.stages import stages
from benchmarks.steady import steady
from benchmarks.telling import progress, tell, told
from pgelect.testing import throwaway_postgres

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.measure import Counts, Timing

SCENARIOS = ("crash", "step-down", "terminated", "stopped", "steady")
ROUNDS = 20


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run, and how long."""

    rounds: int
    only: tuple[str, ...]
    lease_s: float
    window_s: float
    phase_s: float
    durable: bool
    uvloop: bool
    profile: bool


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.failover", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, metavar="N", help=f"of each scenario; default {ROUNDS}")
    only = (*SCENARIOS, "frozen")
    parser.add_argument("--only", action="append", choices=only, help="run this scenario; may be repeated")
    parser.add_argument("--peers", metavar="NAMES", help="beside other electors: all, or some by their names, a,b,c")
    parser.add_argument("--seed", type=int, metavar="N", help="of the order in which --peers has its turns")
    parser.add_argument("--lease", type=float, metavar="S", help="lease_s of the scenario 'stopped'; default 3")
    parser.add_argument("--window", type=float, metavar="S", help="seconds that 'steady' counts; default 30")
    parser.add_argument("--durable", action="store_true", help="on a disk with fsync; default: in memory, without")
    parser.add_argument("--uvloop", action="store_true", help="run the replicas on uvloop")
    parser.add_argument("--quick", action="store_true", help="short waits: to see that it works, not how fast")
    parser.add_argument("--profile", action="store_true", help="also show where the milliseconds of a crash go")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was measured")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    options = parser.parse_args(arguments)
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds must be 1 or more")
    if options.peers is not None:
        _with_peers(parser, options)
    elif options.seed is not None or "frozen" in (options.only or ()):
        parser.error("--seed and --only frozen go with --peers")
    if options.uvloop and importlib.util.find_spec("uvloop") is None:
        parser.error("--uvloop needs uvloop: pip install 'pgelect[uvloop]'")
    return options


def _with_peers(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    try:
        options.peers = peers.chosen(options.peers)
    except ValueError as error:
        parser.error(str(error))
    if why := peers.refused(options):
        parser.error(why)


def plan(options: argparse.Namespace) -> Plan:
    """Fill in what was not given."""
    lease_s, window_s = (1.0, 3.0) if options.quick else (3.0, 30.0)
    return Plan(
        rounds=ROUNDS if options.rounds is None else options.rounds,
        only=tuple(options.only or SCENARIOS),
        lease_s=lease_s if options.lease is None else options.lease,
        window_s=window_s if options.window is None else options.window,
        phase_s=0.1 if options.quick else scenarios.SLICE_S,
        durable=options.durable,
        uvloop=options.uvloop,
        profile=options.profile,
    )


def measure(what: Plan) -> tuple[list[Timing | Counts], str, str]:
    """Run the plan; return what was found, the profile, and the server's version."""
    found: list[Timing | Counts] = []
    profile = ""
    with throwaway_postgres(durable=what.durable) as server:
        arena = scenarios.Arena(server, what.uvloop, what.phase_s)
        observer = Observer(server.dsn())
        version = str(observer.value("SHOW server_version"))
        floor_s: float | None = None
        if "crash" in what.only:
            progress("crash, and the floor")
            crashes = scenarios.crash(arena, observer, what.rounds)
            floor_s = median(crashes.floor)
            found += targets.crash(crashes)
        if "step-down" in what.only:
            progress("step-down")
            found.append(targets.step_down(scenarios.step_down(arena, observer, what.rounds), floor_s))
        if "terminated" in what.only:
            progress("terminated")
            found.append(targets.terminated(scenarios.terminated(arena, observer, what.rounds), floor_s))
        if "stopped" in what.only:
            progress("stopped")
            seen = scenarios.stopped(arena, observer, what.rounds, what.lease_s)
            found.append(targets.stopped(seen, what.lease_s))
        if what.profile:
            progress("profile")
            profile = stages(arena, observer, what.rounds)
        observer.close()
    if "steady" in what.only:
        progress("steady")
        found.append(targets.steady(steady(what.window_s, uvloop=what.uvloop, durable=what.durable)))
    return found, profile, version


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit status."""
    options = parse(arguments)
    if options.peers is not None:
        rounds = options.rounds or (1 if options.quick else ROUNDS)
        return told(lambda: peers.measured(options, rounds))
    what = plan(options)
    return told(lambda: _measured(what, options))


def _measured(what: Plan, options: argparse.Namespace) -> int:
    begun = time.monotonic()
    found, profile, version = measure(what)
    about = {
        "postgresql": version,
        "storage": "on disk, with fsync" if what.durable else "in memory where there is room, without fsync",
        "loop": "uvloop" if what.uvloop else "asyncio",
        "rounds": what.rounds,
        "seconds": round(time.monotonic() - begun),
    }
    return tell(about, found, more=profile, write=options.json, check=options.check)


if __name__ == "__main__":
    sys.exit(main())
