"""One replica: a process that campaigns with the public API, and reports what its callbacks hear.

It reads commands from standard input: ``step_down``; at the end of the input it shuts down.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time

from benchmarks import marks
from benchmarks.process import report
from pgelect import LeaderLock


async def replica(options: argparse.Namespace) -> None:
    lock = LeaderLock(
        options.dsn,
        options.key,
        options.key,
        identity=options.name,
        health_interval_s=options.health,
        lease_s=options.lease,
    )

    @lock.on_acquired
    def acquired() -> None:
        report("acquired", time.monotonic(), **marks.taken())

    @lock.on_lost
    def lost() -> None:
        report("lost", time.monotonic())

    def look(*_: object) -> None:
        # What runs first after SIGCONT, before the event loop does.
        at, leads = time.monotonic(), lock.is_leader
        report("look", at, is_leader=leads, state=lock.state.value)

    signal.signal(signal.SIGCONT, look)
    commands = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    async with lock:
        while line := await commands.readline():
            if line.strip() == b"step_down":
                at = time.monotonic()
                stepped = await lock.step_down()
                report("stepped_down", at, done=stepped, **marks.taken())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dsn", required=True)
    parser.add_argument("--key", type=int, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--health", type=float, required=True)
    parser.add_argument("--lease", type=float, required=True)
    parser.add_argument("--uvloop", action="store_true")
    parser.add_argument("--stages", action="store_true")
    options = parser.parse_args()
    factory = None
    if options.uvloop:
        import uvloop  # noqa: PLC0415 -- optional

        factory = uvloop.new_event_loop
    if options.stages:
        marks.take()
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(replica(options))


if __name__ == "__main__":
    main()
