"""A program that runs a LeaderLock and forks, for the tests of what the child may and may not do.

`python -m tests.support.forker '{"dsn": ..., "key": [1, 2], "lease_s": ...}'`; lines on standard input are commands:

    fork        os.fork(): the child tries everything a lock offers, collects garbage and ends
    process     the same with multiprocessing's fork
    hold        os.fork(): the child lives on, doing nothing
    elect       os.fork(): the child runs a lock of its own, and lives on
    status      is_leader, state and token of the parent

It prints JSON, one object a line, each with `event`: `leading` (token), `status`, `child` (pid, and what it saw),
`forked` (pid, the child's exit status), `child_leads` (token).
"""

import asyncio
import gc
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

from pgelect import ForkedError, LeaderLock, Term


def tell(event: str, **details: Any) -> None:
    os.write(1, (json.dumps({"event": event, **details}) + "\n").encode())  # whole: parent and child share the pipe


def first_step(call: Callable[[], Any]) -> str:
    """Begin a call, and say what it raised at once; in a child there is no loop to run it any further."""
    try:
        made = call()
        if isinstance(made, Coroutine):
            made.send(None)
            made.close()
    except ForkedError as error:
        return f"ForkedError {error.owner_pid}"
    except BaseException as error:  # noqa: BLE001 -- whatever it is, it is the answer
        return repr(error)
    return "nothing"


async def duty(_: Term) -> None:
    raise AssertionError("a duty ran in the child")


def look_around(lock: LeaderLock, term: Term | None) -> None:
    """In the child: everything that a lock can be asked."""
    calls: dict[str, Callable[[], Any]] = {
        "start": lock.start,
        "shutdown": lock.shutdown,
        "run": lock.run,
        "enter": lock.__aenter__,
        "wait_for_leadership": lock.wait_for_leadership,
        "step_down": lock.step_down,
        "lead": lambda: lock.lead(duty),
        "terms": lock.terms,
        "fence": lambda: lock.fence(None).__aenter__(),  # type: ignore[arg-type]  # it must not come to the connection
        "check_fence": lambda: lock.check_fence(None),  # type: ignore[arg-type]
    }
    tell(
        "child",
        pid=os.getpid(),
        is_leader=lock.is_leader,
        confirmed=lock.is_leader_confirmed_within(60),
        state=lock.state,
        term=lock.term is not None,
        token=lock.token,
        current=term is not None and term.is_current,
        only_leader=lock.leader_only(lambda: True)(),
        raised={name: first_step(call) for name, call in calls.items()},
    )
    gc.collect()


def in_child(work: Callable[[], object]) -> int:
    """Run it in a forked child; return the child's pid."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        work()
        status = 0
    finally:
        os._exit(status)


class Forker:
    """The commands."""

    def __init__(self, dsn: str, key: list[int], **settings: Any) -> None:
        self._dsn, self._key, self._settings = dsn, key, settings
        self.lock = self._make()
        self.lock.on_acquired(lambda term: tell("leading", token=term.token))

    async def fork(self) -> None:
        term = self.lock.term
        pid = in_child(lambda: look_around(self.lock, term))
        tell("forked", pid=pid, status=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    async def process(self) -> None:
        term = self.lock.term
        child = multiprocessing.get_context("fork").Process(target=look_around, args=(self.lock, term))
        child.start()
        child.join()
        tell("forked", pid=child.pid, status=child.exitcode)

    async def hold(self) -> None:
        tell("forked", pid=in_child(lambda: time.sleep(60)), status=None)

    async def elect(self) -> None:
        tell("forked", pid=in_child(self._elect), status=None)

    async def status(self) -> None:
        tell("status", is_leader=self.lock.is_leader, state=self.lock.state, token=self.lock.token)

    def _make(self) -> LeaderLock:
        return LeaderLock(self._dsn, *self._key, **self._settings)

    def _elect(self) -> None:
        async def main() -> None:
            async with self._make() as own:
                term = await own.wait_for_leadership()
                tell("child_leads", token=term.token)
                await asyncio.sleep(60)

        asyncio.run(main())

    async def run(self) -> None:
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        starting = loop.create_task(self.lock.start())
        while command := (await reader.readline()).decode().strip():
            await getattr(self, command)()
        await starting
        await self.lock.shutdown()


if __name__ == "__main__":
    asyncio.run(Forker(**json.loads(sys.argv[1])).run())
