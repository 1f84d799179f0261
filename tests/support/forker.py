"""A program that runs a LeaderLock and forks, for the tests of what the child may and may not do.

`python -m tests.support.forker '{"dsn": ..., "key": [1, 2], "lease_s": ...}'`; lines on standard input are commands:

    fork        os.fork(): the child tries everything a lock offers, collects garbage and ends
    process     the same with multiprocessing's fork
    thread      the same with os.fork() in another thread than the loop's
    hold        os.fork(): the child does the same, and lives on
    twice       os.fork(): the child forks again; that one does the same, and lives on
    elect       os.fork(): the child runs a lock of its own, and lives on
    leave HOW   os.fork(): the child leaves through the loop of its parent: by `exit` (sys.exit(7)), `raise` or `return`
    close       os.fork(): the child closes the connection that connect_fn gave its parent, with sockets of its own open
    step_down   begin to step down; the duty of `duty` drains until `end_duty`
    status      is_leader, state and token of the parent

Members beside the arguments of LeaderLock: `duty` (run one that does not stop before `end_duty`), `connecting` (give
the connections by a connect_fn), `fork_in` (a callback, such as "on_acquired", in which to do `hold`). With the further
argument `uvloop` it runs on uvloop.

It prints JSON, one object a line, each with `event`: `leading` (token), `status`, `child` (pid, and what it saw),
`forked` (pid, the child's exit status), `child_leads` (token), `told` (pid of the process in which a callback ran),
`unharmed` (the child's own sockets).
"""

import asyncio
import gc
import json
import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

import psycopg

from pgelect import ForkedError, LeaderLock, Term

LEFT = 7  # the exit status of a child that left by sys.exit


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
    """In the child: everything that a lock can be asked, and rougher ways to end its session."""
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
    if term is not None:
        calls["ended"] = term.ended
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
        shown=repr(lock),
        raised={name: first_step(call) for name, call in calls.items()},
    )
    lock._runner.forsake()  # whatever of ours may still drop a link in here
    gc.collect()


def in_child(*work: Callable[[], None]) -> int:
    """Run it in a forked child, one after the other; return the child's pid."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        for part in work:
            part()
        status = 0
    finally:
        os._exit(status)


def stay() -> None:
    time.sleep(60)


async def ended(pid: int) -> None:
    """Tell of the child's end, once it has come; the loop goes on meanwhile."""
    _, status = await asyncio.to_thread(os.waitpid, pid, 0)
    tell("forked", pid=pid, status=os.waitstatus_to_exitcode(status))


class Forker:
    """The commands."""

    def __init__(self, dsn: str, key: list[int], **settings: Any) -> None:
        self._dsn, self._key = dsn, key
        self._serving, self._connecting = settings.pop("duty", False), settings.pop("connecting", False)
        fork_in = settings.pop("fork_in", None)
        self._settings = settings
        self._connections: list[psycopg.AsyncConnection[Any]] = []
        self._may_end = asyncio.Event()
        self._background: list[asyncio.Task[Any]] = []
        self.lock = self._make(**({"connect_fn": self._connect} if self._connecting else {}))
        for hook in (self.lock.on_lost, self.lock.on_released, self.lock.on_state_change, self.lock.on_error):
            hook(lambda: tell("told", pid=os.getpid()))
        if fork_in:
            getattr(self.lock, fork_in)(self._hold)
        self.lock.on_acquired(lambda term: tell("leading", token=term.token))

    async def fork(self) -> None:
        await ended(in_child(self._look()))

    async def process(self) -> None:
        child = multiprocessing.get_context("fork").Process(target=self._look())
        child.start()
        child.join()
        tell("forked", pid=child.pid, status=child.exitcode)

    async def thread(self) -> None:
        await ended(await asyncio.to_thread(in_child, self._look()))

    async def hold(self) -> None:
        self._hold()

    async def twice(self) -> None:
        look = self._look()

        def again() -> None:
            look()
            tell("forked", pid=in_child(look, stay), status=None)

        await ended(in_child(again))

    async def elect(self) -> None:
        tell("forked", pid=in_child(self._elect), status=None)

    async def leave(self, how: str) -> None:
        pid = os.fork()
        if pid == 0:
            if how == "exit":
                sys.exit(LEFT)
            raise EOFError if how == "return" else ZeroDivisionError
        await ended(pid)

    async def close(self) -> None:
        await ended(in_child(self._close))

    async def step_down(self) -> None:
        self._background.append(asyncio.create_task(self.lock.step_down(cooldown_s=0.0)))

    async def end_duty(self) -> None:
        self._may_end.set()

    async def status(self) -> None:
        tell("status", is_leader=self.lock.is_leader, state=self.lock.state, token=self.lock.token)

    def _make(self, **more: Any) -> LeaderLock:
        return LeaderLock(self._dsn, self._key[0], self._key[1], **self._settings, **more)

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        self._connections.append(await psycopg.AsyncConnection.connect(self._dsn, autocommit=True))
        return self._connections[-1]

    def _look(self) -> Callable[[], None]:
        term = self.lock.term
        return lambda: look_around(self.lock, term)

    def _hold(self) -> None:
        look = self._look()
        tell("forked", pid=in_child(look, stay), status=None)

    def _elect(self) -> None:
        async def main() -> None:
            async with self._make() as own:
                term = await own.wait_for_leadership()
                tell("child_leads", token=term.token)
                await asyncio.sleep(60)

        run(main())

    def _close(self) -> None:
        pairs = [socket.socketpair() for _ in range(8)]  # they take the lowest numbers that are free
        run(self._connections[-1].close())
        for one, other in pairs:
            one.sendall(b"mine")
            assert other.recv(100) == b"mine"
        tell("unharmed")

    async def _drain_slowly(self, _: Term) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await self._may_end.wait()

    async def run(self) -> None:
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        starting = loop.create_task(self.lock.start())
        if self._serving:
            self._background.append(loop.create_task(self.lock.lead(self._drain_slowly)))
        while command := (await reader.readline()).decode().split():
            try:
                await getattr(self, command[0])(*command[1:])
            except EOFError:
                return
        await starting
        await self.lock.shutdown()


def run(main: Coroutine[Any, Any, None]) -> None:
    if "uvloop" in sys.argv[2:]:
        import uvloop  # noqa: PLC0415 -- optional

        asyncio.Runner(loop_factory=uvloop.new_event_loop).run(main)
    else:
        asyncio.run(main)


if __name__ == "__main__":
    run(Forker(**json.loads(sys.argv[1])).run())
