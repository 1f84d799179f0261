"""One election on one server, fake or real: what the contract suite needs to make, to break and to see."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pgelect._engine.model import Grant, LockKey
from pgelect._engine.session import LockAnswer, Session
from tests.contract.client import Client
from tests.support.waiting import eventually, scaled

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

WITHIN_S = 10.0  # for calls that are expected to succeed: long, as nothing here measures it
METADATA = {"host": "größe", "ports": [1, 2], "nested": {"a": None}}

Restart = Literal["fast", "immediate"]
Way = Literal["up", "down", "both"]  # of a link; up is from client to server
End = Literal["client", "server", "both"]  # of a link


@dataclass(frozen=True, slots=True)
class Row:
    """The token row."""

    name: str | None
    token: int
    holder: str
    metadata: dict[str, Any]
    terms: int
    lease_s: float
    released: bool
    pid: int


class Election(ABC):
    """Sessions that compete for one lock, and clients that write under its tokens."""

    def __init__(self, key: LockKey) -> None:
        self.key = key
        self.places: int | None = None  # in the queue, for sessions that are made from now on
        self.made: list[Session] = []
        self.clients: list[Client] = []

    # Sessions

    def session(
        self, identity: str = "a", *, name: str | None = None, lease_s: float = 15.0, fencing: bool = True
    ) -> Session:
        """A new session, closed at the end of the test."""
        session = self.new_session(LockKey(self.key.key1, self.key.key2, name), identity, lease_s, fencing)
        self.made.append(session)
        return session

    async def opened(self, identity: str = "a", *, name: str | None = None, lease_s: float = 15.0) -> Session:
        """A new session, open."""
        session = self.session(identity, name=name, lease_s=lease_s)
        await session.open(WITHIN_S)
        return session

    async def holding(self, identity: str = "a", *, name: str | None = None, lease_s: float = 15.0) -> Session:
        """A new session that holds the lock."""
        session = await self.opened(identity, name=name, lease_s=lease_s)
        assert (await session.try_lock(None, WITHIN_S)).granted
        return session

    async def leading(self, identity: str = "a", *, lease_s: float = 15.0) -> tuple[Session, Grant]:
        """A new session that holds the lock, and its term."""
        session = await self.holding(identity, lease_s=lease_s)
        return session, await session.mint(WITHIN_S)

    async def deposed(self) -> tuple[int, Session]:
        """The token of a term that ended by force, and the session that holds the lock now but has minted nothing."""
        first, grant = await self.leading("a")
        await first.close(WITHIN_S)
        await self.is_free()
        return grant.token, await self.holding("b")

    async def queued(self, identity: str = "b") -> tuple[Session, "asyncio.Task[LockAnswer]"]:
        """A new session, and its wait that has reached the server's queue."""
        session = await self.opened(identity)
        return session, await self.queue(session)

    async def queue(self, session: Session, within_s: float = WITHIN_S) -> "asyncio.Task[LockAnswer]":
        """The wait of an open session, when it has reached the server's queue."""
        before = set(await self.waiters())
        wait = asyncio.create_task(session.wait_lock(within_s))

        async def is_queued() -> bool:
            return bool(set(await self.waiters()) - before)

        await soon(is_queued, "the wait reached the queue")
        return wait

    async def holder(self) -> int:
        """The pid that holds the lock."""
        (pid,) = await self.holders()
        return pid

    async def is_free(self) -> None:
        """Wait until nobody holds the lock or waits for it."""

        async def free() -> bool:
            return not await self.holders() and not await self.waiters()

        await soon(free, "the lock is free")

    async def are_gone(self) -> None:
        """Wait until the server has ended every lock session."""

        async def gone() -> bool:
            return not await self.pids()

        await soon(gone, "all sessions have ended")

    async def is_gone(self, pid: int) -> None:
        """Wait until the server has ended this lock session, which frees its lock a little before."""

        async def gone() -> bool:
            return pid not in await self.pids()

        await soon(gone, f"session {pid} has ended")

    async def is_blocked(self, pid: int) -> None:
        """Wait until this session or client waits for another one to let go of a row."""

        async def waits() -> bool:
            return await self.blocked(pid)

        await soon(waits, f"{pid} waits for a row")

    async def last_row(self) -> Row:
        """The token row, which is there."""
        row = await self.row()
        assert row is not None
        return row

    # Clients

    async def client(self) -> Client:
        """A new writer's connection, open; closed at the end of the test."""
        client = self.new_client()
        self.clients.append(client)
        await client.open()
        return client

    async def checked(self, token: int, isolation: str = "read committed") -> Client:
        """A client in a transaction that is fenced by the token. Or raise StaleTokenError."""
        client = await self.client()
        await client.begin(isolation)
        await client.check(token)
        return client

    async def write_fenced(self, token: int, value: int) -> None:
        """One whole fenced transaction."""
        client = await self.checked(token)
        await client.write(value)
        await client.commit()

    async def close(self) -> None:
        """Close all that was made."""
        for client in self.clients:
            await client.close()
        for session in self.made:
            await session.close(WITHIN_S)

    # What each server does in its own way

    @abstractmethod
    async def weaken(self) -> None:
        """Sessions made from now on may not end clients, nor sessions made before."""

    @abstractmethod
    def new_session(self, key: LockKey, identity: str, lease_s: float, fencing: bool) -> Session: ...
    @abstractmethod
    def new_client(self) -> Client: ...
    @abstractmethod
    async def terminate(self, pid: int) -> bool:
        """As pg_terminate_backend does. On a server that stands still, too."""

    @abstractmethod
    async def cancel(self, pid: int) -> bool:
        """As pg_cancel_backend does. On a server that stands still, too."""

    @abstractmethod
    async def lock_again(self, session: Session) -> None:
        """Have a holder's server session lock once more, behind its back, as whoever shares it may."""

    @abstractmethod
    async def unlock_all(self, session: Session) -> None: ...
    @abstractmethod
    async def holders(self) -> list[int]: ...
    @abstractmethod
    async def waiters(self) -> list[int]: ...
    @abstractmethod
    async def aside(self) -> list[int]:
        """The pids that stand aside, in their order."""

    @abstractmethod
    async def pids(self) -> list[int]: ...
    @abstractmethod
    async def row(self) -> Row | None: ...

    @abstractmethod
    async def history(self) -> list[tuple[int, str | None, str | None]]:
        """The terms that were announced, the oldest first: token, how it ended, and why it was lost."""

    @abstractmethod
    async def request_step_down(self, token: int | None = None) -> int | None:
        """Ask the leader of a token, or whoever leads, to step down; the token that was asked."""

    @abstractmethod
    async def call(self) -> None:
        """Notify the leader of nothing at all, as anybody may."""

    @abstractmethod
    async def ledger(self) -> list[tuple[int, int]]:
        """What clients wrote and committed, in the order of the commits: token and value."""

    @abstractmethod
    async def blocked(self, pid: int) -> bool:
        """Whether this session or client waits for another one to let go of a row."""

    @abstractmethod
    def uncommitted_mint(self, session: Session) -> "AbstractAsyncContextManager[asyncio.Task[Grant]]":
        """A mint that has written its row and cannot commit before the end of the block, or before a slice is over."""

    @abstractmethod
    async def restart(self, mode: Restart) -> None:
        """Stop the server, fast or as in a crash, and start it. Only where the fixture gave a server of our own."""

    @abstractmethod
    def standstill(self) -> "AbstractAsyncContextManager[None]":
        """Inside the block the whole server stands still. Only where the fixture gave a server of our own."""

    @abstractmethod
    async def linked(self, identity: str = "a", *, lease_s: float = 15.0) -> Session:
        """A new session, open, whose link can be broken."""

    @abstractmethod
    async def cut(self, session: Session, end: End = "both") -> None:
        """Break its link: both ends hear of it, or only one."""

    @abstractmethod
    async def notice(self, session: Session) -> None:
        """After a cut of which only the client heard: the server's system finds out that nobody is there any more."""

    @abstractmethod
    async def silence(self, session: Session, way: Way = "both") -> None:
        """From now on nothing travels this way over its link, and neither end is told."""

    @abstractmethod
    async def heal(self, session: Session) -> None:
        """End the silence: what was sent meanwhile arrives, the end of the session included."""


async def granted(session: Session) -> LockAnswer:
    """Wait for the lock, slice after slice, as a follower does."""
    async with asyncio.timeout(scaled(10.0)):
        while not (answer := await session.wait_lock(WITHIN_S)).granted:
            pass
    return answer


async def soon(condition: Callable[[], Awaitable[bool]], message: str) -> None:
    """Wait until an asynchronous condition holds."""
    check: Callable[[], bool | Awaitable[bool]] = condition
    await eventually(check, message=message)


Break = Callable[[Election, Session], Awaitable[None]]
"""A way for a holder to lose or let go of the lock."""
