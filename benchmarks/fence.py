"""What a fence costs: a transaction of one insert, without it and with it, over 1, 4 and 16 connections.

    python -m benchmarks.fence                      all of it, about two minutes
    python -m benchmarks.fence --connections 4      only over so many; may be repeated
    python -m benchmarks.fence --check              exit with 1 when a target is missed

The writer is the process that leads, with its connections on one event loop, as a program would have them; the server
is an embedded PostgreSQL of its own, reached over TCP on this machine. The ways of writing take short turns, in an
order drawn anew each time, so that a noisy machine hurts all alike. 'bare' and the ways after it go through the library
and psycopg's transactions; those of plain SQL send BEGIN and COMMIT themselves. One of them sends the check together
with BEGIN: lock.fence must not be worse than that. One has a mere SELECT in its place that locks the row for share, and
one a SELECT that looks at nothing: what of that cost is the check's own, what the lock's, and what that of any answer
from the server. Each way is compared with the bare one of its kind, turn by turn.

Exit status: 0 measured; 1 a target was missed and --check was given; 2 something did not happen at all.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypeAlias

from psycopg import AsyncConnection

from benchmarks.measure import Counts, Target, Timing
from benchmarks.telling import progress, tell, told
from pgelect import LeaderLock, guard_table
from pgelect.testing import throwaway_postgres

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from pgelect import Term

CONNECTIONS = (1, 4, 16)
SHARE_OF_BARE = 0.70
"""Of the rate of bare transactions, with 16 connections on two cores: what plain SQL left of it when it was first tried
to send the check together with BEGIN."""

Connection: TypeAlias = AsyncConnection[Any]
Write: TypeAlias = "Callable[[Connection], Awaitable[None]]"
_INSERT = "INSERT INTO entry (text) VALUES ('fenced or not')"
_INSERT_GUARDED = "INSERT INTO guarded (text) VALUES ('fenced')"
_TABLES = """
CREATE UNLOGGED TABLE entry (id int8 GENERATED ALWAYS AS IDENTITY, text text NOT NULL);
CREATE UNLOGGED TABLE guarded (id int8 GENERATED ALWAYS AS IDENTITY, text text NOT NULL);
"""
BARE, PLAIN = "bare", "plain SQL: bare"
FENCE, CHECK, GUARDED, FOLDED = "lock.fence", "check_token", "guarded table", "plain SQL: check with BEGIN"
SHARE, NOTHING = "plain SQL: FOR SHARE with BEGIN", "plain SQL: SELECT 1 with BEGIN"
FLOORS = {FENCE: BARE, CHECK: BARE, GUARDED: BARE, FOLDED: PLAIN, SHARE: PLAIN, NOTHING: PLAIN}


@dataclass(slots=True)
class Turns:
    """What one way of writing did over so many connections: all times, and the median and the rate of each turn."""

    way: str
    connections: int
    times_s: list[float]
    medians_s: list[float]
    per_s: list[float]


def ways(lock: LeaderLock, term: Term) -> dict[str, Write]:
    """Give one transaction of each way of writing."""
    check = f"SELECT pgelect.check_token({term.key.key1}, {term.key.key2}, {term.token})".encode()
    share = (
        "SELECT 1 FROM pgelect.token AS t "
        f"WHERE t.key1 = {term.key.key1} AND t.key2 = {term.key.key2} AND t.token = {term.token} FOR SHARE"
    ).encode()

    async def bare(conn: Connection) -> None:
        async with conn.transaction():
            await conn.execute(_INSERT)

    async def fence(conn: Connection) -> None:
        async with lock.fence(conn):
            await conn.execute(_INSERT)

    async def check_token(conn: Connection) -> None:
        async with conn.transaction():
            await conn.execute(check)
            await conn.execute(_INSERT)

    async def guarded(conn: Connection) -> None:
        async with lock.fence(conn):
            await conn.execute(_INSERT_GUARDED)

    async def plain(conn: Connection) -> None:
        await conn.execute("BEGIN")
        await conn.execute(_INSERT)
        await conn.execute("COMMIT")

    def folded(first: bytes) -> Write:
        together = b"BEGIN; " + first

        async def write(conn: Connection) -> None:
            await conn.execute(together)
            await conn.execute(_INSERT)
            await conn.execute("COMMIT")

        return write

    return {
        BARE: bare,
        FENCE: fence,
        CHECK: check_token,
        GUARDED: guarded,
        PLAIN: plain,
        FOLDED: folded(check),
        SHARE: folded(share),
        NOTHING: folded(b"SELECT 1"),
    }


async def turn(write: Write, conns: Sequence[Connection], for_s: float) -> list[float]:
    """Have all connections write for that long; return the times of all transactions."""
    times: list[float] = []
    until = time.perf_counter() + for_s

    async def writer(conn: Connection) -> None:
        begun = time.perf_counter()
        while begun < until:
            await write(conn)
            ended = time.perf_counter()
            times.append(ended - begun)
            begun = ended

    await asyncio.gather(*map(writer, conns))
    return times


async def measure(dsn: str, options: argparse.Namespace) -> list[Turns]:
    """Take the turns."""
    found: list[Turns] = []
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(await AsyncConnection.connect(dsn, autocommit=True))
        await admin.execute(_TABLES)
        lock = await stack.enter_async_context(LeaderLock(dsn, name="benchmark"))
        term = await lock.wait_for_leadership(30)
        await guard_table(admin, "guarded", lock.key)
        writes = ways(lock, term)
        conns = [
            await stack.enter_async_context(await AsyncConnection.connect(dsn, autocommit=True))
            for _ in range(max(options.connections))
        ]
        for number in options.connections:
            progress(_many(number))
            by_way: dict[str, Turns] = {}
            for past in range(options.rounds + 1):
                if past <= 1:  # the first round was to warm up
                    by_way = {way: Turns(way, number, [], [], []) for way in writes}
                for way, write in random.sample(list(writes.items()), len(writes)):
                    begun = time.perf_counter()
                    times = await turn(write, conns[:number], options.turn)
                    by_way[way].per_s.append(len(times) / (time.perf_counter() - begun))
                    by_way[way].medians_s.append(median(times))
                    by_way[way].times_s += times
            found += by_way.values()
            await admin.execute("TRUNCATE entry")
    return found


@dataclass(frozen=True, slots=True)
class Cost:
    """What one way of writing costs over so many connections.

    Attributes:
        per_s: transactions a second, all connections together; the median of the turns.
        share: of the rate of the bare way of its kind; the median of the turns.
        slower: how many times as long as the bare one a transaction takes, in the median; the median of the turns.
    """

    way: str
    connections: int
    transactions: int
    per_s: float
    share: float
    median_ms: float
    p95_ms: float
    slower: float


def costs(found: list[Turns]) -> list[Cost]:
    """Compare each way with the bare one of its kind, over as many connections, turn by turn."""
    by_name = {(one.way, one.connections): one for one in found}

    def cost(one: Turns) -> Cost:
        bare = by_name[FLOORS.get(one.way, one.way), one.connections]
        timing = Timing(one.way, tuple(one.times_s))
        return Cost(
            way=one.way,
            connections=one.connections,
            transactions=len(one.times_s),
            per_s=median(one.per_s),
            share=beside(one, bare)[0],
            median_ms=timing.median_ms,
            p95_ms=timing.p95_ms,
            slower=median(mine / its for mine, its in zip(one.medians_s, bare.medians_s, strict=True)),
        )

    return [cost(one) for one in found]


def beside(mine: Turns, its: Turns) -> tuple[float, float, float]:
    """Compare the rates turn by turn: the median share, and the interval that holds it with a probability of 95 %.

    The interval of a median is that of Conover, Practical Nonparametric Statistics, 3.2, by the normal distribution.
    """
    shares = sorted(a / b for a, b in zip(mine.per_s, its.per_s, strict=True))
    lowest = max(0, math.floor(len(shares) / 2 - 0.98 * math.sqrt(len(shares))))
    return median(shares), shares[lowest], shares[-1 - lowest]


def judged(found: list[Turns]) -> list[Timing | Counts]:
    """Hold lock.fence against the same in plain SQL, in the same run: worse is what chance does not explain."""
    by_name = {(one.way, one.connections): one for one in found}
    targets: list[Target] = []
    for number in sorted({one.connections for one in found}):
        share, low, high = beside(by_name[FENCE, number], by_name[FOLDED, number])
        said = f"{_many(number)}, rate beside plain SQL: {share:.2f} ({low:.2f} to {high:.2f})"
        targets.append(Target(">= 1", high >= 1, said))
        if number == CONNECTIONS[-1]:
            share, low, high = beside(by_name[FENCE, number], by_name[BARE, number])
            said = f"{_many(number)}, rate beside bare: {share:.2f} ({low:.2f} to {high:.2f})"
            targets.append(Target(f">= {SHARE_OF_BARE:.2f}", share >= SHARE_OF_BARE, said))
    compared = {"costs": [asdict(one) for one in costs(found)]}
    return [Counts("lock.fence, no worse than plain SQL", tuple(targets), compared)]


def _many(connections: int) -> str:
    return f"{connections} connection{'s' if connections > 1 else ''}"


def shown(found: list[Cost]) -> str:
    """Render all that was measured."""
    head = f"{'connections':>11}  {'one insert':<32}{'a second':>9}{'of bare':>9}{'ms':>8}{'95 %':>8}{'x bare':>8}"
    lines = [head, "-" * len(head)]
    for one in found:
        first = f"{one.connections}" if one.way == BARE else ""
        lines.append(
            f"{first:>11}  {one.way:<32}{one.per_s:>9.0f}{one.share:>9.2f}"
            f"{one.median_ms:>8.2f}{one.p95_ms:>8.2f}{one.slower:>8.2f}"
        )
    return "\n".join(lines)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fence", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--connections", type=int, action="append", metavar="N", help="default: 1, 4 and 16")
    parser.add_argument("--rounds", type=int, metavar="N", help="turns of each way; default 60")
    parser.add_argument("--durable", action="store_true", help="on a disk with fsync; default: in memory, without")
    parser.add_argument("--quick", action="store_true", help="short turns: to see that it works, not how fast")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was measured")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    options = parser.parse_args(arguments)
    options.connections = sorted(set(options.connections or CONNECTIONS))
    if not 1 <= options.connections[0] <= options.connections[-1] <= 90:  # the server has room for 100
        parser.error("--connections must be from 1 to 90")
    if options.rounds is None:
        options.rounds = 2 if options.quick else 60
    if options.rounds < 1:
        parser.error("--rounds must be 1 or more")
    options.turn = 0.05 if options.quick else 0.1
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit status."""
    options = parse(arguments)
    return told(lambda: _measured(options))


def _measured(options: argparse.Namespace) -> int:
    with throwaway_postgres(durable=options.durable) as server:
        found = asyncio.run(measure(server.dsn(), options))
        version = server.version
    about = {
        "postgresql": version,
        "storage": "on disk, with fsync" if options.durable else "in memory where there is room, without fsync",
        "turns": f"{options.rounds} of {options.turn:g} s",
    }
    return tell(about, judged(found), more=shown(costs(found)), write=options.json, check=options.check)


if __name__ == "__main__":
    sys.exit(main())
