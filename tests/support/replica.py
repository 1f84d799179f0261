"""A replica: a program that runs one LeaderLock, prints what happens as JSON, and obeys lines on standard input.

`python -m tests.support.replica '{"dsn": ..., "key": [1, 2], ...}'`; further members are arguments of LeaderLock.

It prints one object a line, each with `event` and `at` (the library's clock): `started`, `start_raised`, `stopped`,
`state` (from, to), `acquired` / `lost` / `released` (token), `error` (type, text), `look` (leader: is_leader changed),
`gap` (the process was stopped: what is_leader said at the very first look after it, and until when it was trusted),
and the answer to a command, named like it:

    status                is_leader, state and token
    step_down, shutdown   as the lock's methods; `shutdown` ends the program
    begin                 open a fenced transaction and insert the token into the table `ledger`
    commit                commit it
    write                 both
    write_as TOKEN        the same with that token, whatever the lock says

Writes answer with `error`: the type and text of what was raised, or null.
"""

import asyncio
import json
import sys
import threading
from contextlib import AsyncExitStack
from typing import Any

import psycopg

from pgelect import FixedInterval, LeaderLock
from pgelect.fencing import fenced
from tests.support.looks import Gap, Looks, now

_printing = threading.Lock()


def tell(event: str, at: float | None = None, **details: Any) -> None:
    line = json.dumps({"event": event, "at": now() if at is None else at, **details})
    with _printing:
        sys.stdout.write(line + "\n")


def described(error: BaseException | None) -> str | None:
    return None if error is None else f"{type(error).__name__}: {error}"


class Replica:
    """The lock, and a connection of its own for writing."""

    def __init__(self, dsn: str, key: list[int], **settings: Any) -> None:
        retry = FixedInterval(settings.pop("retry_s", 0.1))
        self.lock = LeaderLock(dsn, *key, retry_strategy=retry, **settings)
        self._dsn = dsn
        self._open = AsyncExitStack()
        self._trusted_until = -float("inf")
        for what in ("acquired", "lost", "released"):
            getattr(self.lock, f"on_{what}")(lambda term, what=what: tell(what, token=term.token))
        self.lock.on_state_change(lambda before, after: tell("state", **{"from": before, "to": after}))
        self.lock.on_error(lambda error: tell("error", type=type(error).__name__, text=str(error)))

    async def run(self) -> None:
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        async with await psycopg.AsyncConnection.connect(self._dsn, application_name="writer") as self._writer:
            with Looks(self._look, self._seen):
                await self.lock.start()
                tell("started")
                while line := (await reader.readline()).decode().split():
                    command, *words = line
                    tell(command, **await getattr(self, command)(*words))
                    if command == "shutdown":
                        break
                await self.lock.shutdown()
        tell("stopped")

    async def status(self) -> dict[str, Any]:
        return {"is_leader": self.lock.is_leader, "state": self.lock.state, "token": self.lock.token}

    async def step_down(self) -> dict[str, Any]:
        return {"was_leader": await self.lock.step_down()}

    async def shutdown(self) -> dict[str, Any]:
        await self.lock.shutdown()
        return {}

    async def begin(self) -> dict[str, Any]:
        async def work() -> None:
            term = await self._open.enter_async_context(self.lock.fence(self._writer))
            await self._insert(term.token)

        return await self._tried(work())

    async def commit(self) -> dict[str, Any]:
        return await self._tried(self._open.aclose())

    async def write(self) -> dict[str, Any]:
        async def work() -> None:
            async with self.lock.fence(self._writer) as term:
                await self._insert(term.token)

        return await self._tried(work())

    async def write_as(self, token: str) -> dict[str, Any]:
        async def work() -> None:
            async with fenced(self._writer, self.lock.key, int(token)):
                await self._insert(int(token))

        return await self._tried(work())

    async def _insert(self, token: int) -> None:
        await self._writer.execute("INSERT INTO public.ledger (token) VALUES (%s)", (token,))

    async def _tried(self, work: Any) -> dict[str, Any]:
        try:
            await work
        except Exception as error:  # noqa: BLE001 -- whatever it is, it is the answer
            return {"error": described(error)}
        return {"error": None}

    def _look(self) -> bool:
        leading = self.lock.is_leader
        if leading:  # no public name says until when
            self._trusted_until = max(self._trusted_until, self.lock._runner.snapshot.trusted_until)
        return leading

    def _seen(self, seen: bool | Gap, at: float) -> None:
        if isinstance(seen, Gap):
            tell("gap", at, leader=seen.then, last_look_at=seen.last_look_at, trusted_until=self._trusted_until)
        else:
            tell("look", at, leader=seen)


async def main() -> None:
    given = json.loads(sys.argv[1])
    try:
        await Replica(**given).run()
    except Exception as error:
        tell("start_raised", error=described(error))
        raise


if __name__ == "__main__":
    asyncio.run(main())
