"""Does anything pile up? The same done many times over, and what the process and the server hold afterwards.

    python -m benchmarks.soak                   the full counts, about four minutes
    python -m benchmarks.soak --quick           a twentieth of them
    python -m benchmarks.soak --only lost       one phase; may be repeated
    python -m benchmarks.soak --uvloop          on uvloop
    python -m benchmarks.soak --leak session    leak on purpose, to see that it is seen

The phases: 'start-stop' starts, leads and stops; 'lost' ends the sessions of leaders and cuts their links; 'frozen'
gives up links on which nothing answers; 'cancelled' cancels starts and shutdowns at random moments, up to three times;
'stops' stops at random moments. After each phase there must be no more tasks, threads, descriptors, server sessions and
locks than before it. Memory is weighed after a warm-up, in the middle and at the end: the second half must not have
added more than a small fixed amount for each cycle. All of it runs in one process, on one event loop, against an
embedded PostgreSQL of its own on this machine.

Exit status: 0 nothing piled up; 1 something did, or a stop was late or a cancel was not heeded; 2 something did not
happen at all.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import random
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import footprint
from benchmarks.leaks import LEAKS, leak
from benchmarks.looking import Observer
from benchmarks.soak_phases import FROZEN_AT_ONCE, PHASES, Ground
from benchmarks.soak_targets import Found, judge
from benchmarks.telling import progress, tell, told
from pgelect.testing import throwaway_postgres
from tests.support.proxy import BreakableProxy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.measure import Counts, Timing
    from pgelect.testing import Postgres

_MORE_MOST = 40  # kinds of objects that there are more of: to see what it is that piles up
FULL: Mapping[str, int] = {"start-stop": 1000, "lost": 1000, "frozen": 200, "cancelled": 500, "stops": 1000}
QUICKLY = 20
"""The full counts are divided by this with --quick."""
_WARM_UP, _WARM_UP_LEAST, _WARM_UP_MOST = 5, 2, 50
"""A fifth of the cycles, within these bounds, are made beforehand and not counted: caches fill up."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run.

    Attributes:
        cycles: of each phase.
        leak: what to leak on purpose in each cycle; None: nothing.
    """

    cycles: Mapping[str, int]
    uvloop: bool = False
    seed: int = 0
    leak: str | None = None


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, number in FULL.items():
        parser.add_argument(f"--{name}", type=int, metavar="N", help=f"cycles of this phase; default {number}")
    parser.add_argument("--only", action="append", choices=PHASES, help="run this phase; may be repeated")
    parser.add_argument("--quick", action="store_true", help="a twentieth of the full counts")
    parser.add_argument("--uvloop", action="store_true", help="run on uvloop")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the random moments; default 0")
    parser.add_argument("--leak", choices=LEAKS, help="leak this on purpose in each cycle; the exit status must be 1")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was found")
    options = parser.parse_args(arguments)
    if any(number is not None and number < 1 for number in (_given(options, name) for name in FULL)):
        parser.error("a number of cycles must be 1 or more")
    if options.uvloop and importlib.util.find_spec("uvloop") is None:
        parser.error("--uvloop needs uvloop: pip install 'pgelect[uvloop]'")
    return options


def plan(options: argparse.Namespace) -> Plan:
    """Fill in what was not given."""
    divisor = QUICKLY if options.quick else 1
    return Plan(
        cycles={name: _given(options, name) or FULL[name] // divisor for name in options.only or PHASES},
        uvloop=options.uvloop,
        seed=options.seed,
        leak=options.leak,
    )


def _given(options: argparse.Namespace, name: str) -> int | None:
    number: int | None = getattr(options, name.replace("-", "_"))
    return number


def soak(what: Plan, server: Postgres, progress: Callable[[str], None] = lambda _: None) -> list[Timing | Counts]:
    """Run the plan on that server; return what was found."""
    with ExitStack() as stack:
        stack.enter_context(footprint.traced())
        proxy = stack.enter_context(BreakableProxy("127.0.0.1", server.port))
        observer = Observer(server.dsn())
        stack.callback(observer.close)
        runner = stack.enter_context(asyncio.Runner(loop_factory=_loops(what)))
        return runner.run(_soak(what, server.dsn(), proxy, observer, progress))


async def _soak(
    what: Plan, dsn: str, proxy: BreakableProxy, observer: Observer, progress: Callable[[str], None]
) -> list[Timing | Counts]:
    found: list[Timing | Counts] = []
    for name, cycles in what.cycles.items():
        progress(f"{name}, {cycles} times")
        ground = Ground(dsn, proxy, observer, random.Random(f"{what.seed} {name}"))
        found.append(judge(await _phase(name, ground, cycles, what.leak)))
    return found


async def _phase(name: str, ground: Ground, times: int, leaking: str | None) -> Found:
    each = FROZEN_AT_ONCE if name == "frozen" else 1
    cycles = -(-times // each)
    warm_up = min(max(-(-cycles // _WARM_UP), _WARM_UP_LEAST), _WARM_UP_MOST)
    done = 0
    begun = time.monotonic()

    async def run(number: int) -> footprint.Memory:
        nonlocal done
        for _ in range(number):
            await cycle(done)
            done += 1
            spill()
        return await footprint.weigh()

    with footprint.complaints(asyncio.get_running_loop()) as complaints:
        before = await footprint.at_rest(ground.observer)
        with leak(leaking, ground.dsn) as spill:
            async with PHASES[name](ground) as cycle:
                await run(warm_up)
                then = footprint.kinds()
                weights = (await run(0), await run(cycles // 2), await run(cycles - cycles // 2))
                more = footprint.kinds() - then
            after = await footprint.at_rest(ground.observer, before)
    return Found(
        name=name,
        cycles=cycles * each,
        half=(cycles - cycles // 2) * each,
        took_s=time.monotonic() - begun,
        before=before,
        after=after,
        weights=weights,
        tally=ground.tally,
        complaints=tuple(complaints),
        more=dict(more.most_common(_MORE_MOST)),
    )


def _loops(what: Plan) -> Callable[[], asyncio.AbstractEventLoop]:
    if not what.uvloop:
        return asyncio.new_event_loop
    import uvloop  # noqa: PLC0415 -- optional

    return uvloop.new_event_loop


def main(arguments: Sequence[str] | None = None) -> int:
    """Soak, print, and return the exit status."""
    options = parse(arguments)
    what = plan(options)
    return told(lambda: _soaked(what, options.json))


def _soaked(what: Plan, write: Path | None) -> int:
    begun = time.monotonic()
    with throwaway_postgres() as server:
        found = soak(what, server, progress)
        version = server.version
    about = {
        "postgresql": version,
        "loop": "uvloop" if what.uvloop else "asyncio",
        "seed": what.seed,
        "seconds": round(time.monotonic() - begun),
    }
    return tell(about, found, write=write, check=True, met="nothing piled up")


if __name__ == "__main__":
    sys.exit(main())
