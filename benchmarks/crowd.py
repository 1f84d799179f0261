"""Many replicas that are cheap to start: one process imports the library, and forks once for each of them.

Each is a process of its own, with its own event loop and session, and can be killed on its own. What they imported they
share, so hundreds of them fit into a small machine. Commands on standard input: a line of JSON with the names of those
to be forked, and how they connect. All report on the same standard output. They end with the process that forked them,
however that ends: nobody but it holds the other end of a pipe that each of them watches.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import signal
import time
import traceback

from benchmarks.process import report
from pgelect import LeaderLock


async def one(dsn: str, key: int, name: str, lifeline: int) -> None:
    """Campaign until the other end of the lifeline is closed."""
    lock = LeaderLock(dsn, key, key, identity=name)
    lock.on_acquired(lambda _: report("acquired", time.monotonic(), name=name))
    lock.on_lost(lambda _: report("lost", time.monotonic(), name=name))
    over = asyncio.Event()
    asyncio.get_running_loop().add_reader(lifeline, over.set)
    await lock.start()
    await over.wait()


def fork(dsn: str, key: int, names: list[str], lifeline: tuple[int, int]) -> None:
    """Fork one for each name, and report their processes."""
    pids = {}
    for name in names:
        pid = os.fork()
        if pid == 0:
            os.close(lifeline[1])
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            try:
                asyncio.run(one(dsn, key, name, lifeline[0]))
            except Exception:  # noqa: BLE001 -- a child must not come back from here
                traceback.print_exc()
            finally:
                os._exit(0)
        pids[name] = pid
    report("forked", time.monotonic(), pids=pids)


def main() -> None:
    """Read the command line, and fork as told until the end of the input."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--key", type=int, required=True)
    options = parser.parse_args()
    os.setpgrp()  # they are ended as one
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    lifeline = os.pipe()
    gc.collect()
    gc.freeze()  # what is never collected stays shared
    with open(0, "rb", buffering=0, closefd=False) as commands:  # a fork must not take along what was read ahead
        while line := commands.readline():
            command = json.loads(line)
            fork(command["dsn"], options.key, command["names"], lifeline)


if __name__ == "__main__":
    main()
