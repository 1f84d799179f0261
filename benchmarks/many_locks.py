"""Many locks in one process, each with a key of its own, so that it leads them all.

It reports ``led`` when it leads all, with the time since it began. A command on standard input, ``lag S``, has it look
for so many seconds how late its event loop runs what is due, and report that; at the end of the input it ends.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time

from benchmarks.process import report
from pgelect import LeaderLock

_TICK_S = 0.01
_LEADS_WITHIN_S = 60.0


async def lateness(seconds: float) -> list[float]:
    """Ask again and again to be woken, and note how much later it was, in seconds."""
    late: list[float] = []
    until = time.monotonic() + seconds
    while (now := time.monotonic()) < until:
        await asyncio.sleep(_TICK_S)
        late.append(time.monotonic() - now - _TICK_S)
    return late


async def many(options: argparse.Namespace) -> None:
    """Lead them all, and answer."""
    commands = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    locks = [LeaderLock(options.dsn, options.key, number) for number in range(options.locks)]
    begun = time.monotonic()
    await asyncio.gather(*(lock.start() for lock in locks))
    await asyncio.gather(*(lock.wait_for_leadership(_LEADS_WITHIN_S) for lock in locks))
    now = time.monotonic()
    report("led", now, took_s=now - begun)
    while words := (await commands.readline()).split():
        late = await lateness(float(words[1]))
        report("lag", time.monotonic(), late_s=late)
    os._exit(0)  # what shutting down takes is no part of this


def main() -> None:
    """Read the command line, and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dsn", required=True)
    parser.add_argument("--key", type=int, required=True)
    parser.add_argument("--locks", type=int, required=True)
    asyncio.run(many(parser.parse_args()))


if __name__ == "__main__":
    main()
