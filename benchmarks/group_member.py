"""One member of the benchmark's group: campaigns with the public API, and reports what it leads, in batches.

It waits for the line ``go`` on standard input before it starts, and shuts down at the end of the input.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from typing import TYPE_CHECKING

from benchmarks.process import report
from pgelect import LeaderGroup

if TYPE_CHECKING:
    from pgelect import Term


class Reporter:
    """Tells of all that changed in one turn of the event loop with one line."""

    def __init__(self) -> None:
        self._changes: list[tuple[int, bool, float]] = []

    def began(self, term: Term) -> None:
        """Note that a partition is led."""
        self._note(term, led=True)

    def ended(self, term: Term) -> None:
        """Note that it is not any more."""
        self._note(term, led=False)

    def _note(self, term: Term, *, led: bool) -> None:
        if not self._changes:
            asyncio.get_running_loop().call_soon(self._tell)
        self._changes.append((term.key.key2, led, time.monotonic()))

    def _tell(self) -> None:
        changes, self._changes = self._changes, []
        report("changed", changes[-1][2], changes=changes)


async def member(options: argparse.Namespace) -> None:
    """Run it."""
    keys = [(options.key, number) for number in range(options.partitions)]
    group = LeaderGroup(
        options.dsn,
        keys=keys,
        identity=options.name,
        lease_s=options.lease,
        health_interval_s=options.health,
        rebalance_interval_s=options.rebalance,
    )
    reporter = Reporter()
    group.on_acquired(reporter.began)
    group.on_lost(reporter.ended)
    group.on_released(reporter.ended)
    commands = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    report("ready", time.monotonic())
    if not await commands.readline():
        return
    async with group:
        report("started", time.monotonic())
        await commands.readline()
    report("ended", time.monotonic())


def main() -> None:
    """Read the command line, and run."""
    parser = argparse.ArgumentParser()
    for name in ("dsn", "name"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("key", "partitions"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("lease", "health", "rebalance"):
        parser.add_argument(f"--{name}", type=float, required=True)
    asyncio.run(member(parser.parse_args()))


if __name__ == "__main__":
    main()
