"""One election on one server, fake or real: what the contract suite needs to make, to break and to see."""

import asyncio
import secrets
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgelect._engine.model import LockKey
from pgelect._engine.session import LockAnswer, Session
from pgelect._postgres.session import PostgresSession, SessionOptions
from pgelect.errors import StaleTokenError
from pgelect.testing.fake import FakeServer, FakeSession, FakeTransaction
from tests.support.server import lock_holders, lock_waiters, query, sessions, terminate
from tests.support.waiting import eventually, scaled

WITHIN_S = 10.0  # for calls that are expected to succeed: long, as nothing here measures it
METADATA = {"host": "größe", "ports": [1, 2], "nested": {"a": None}}


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


class Fenced(ABC):
    """A transaction fenced by a token."""

    pid: int

    @abstractmethod
    async def commit(self) -> None:
        """Commit, or raise."""

    @abstractmethod
    async def rollback(self) -> None:
        """Roll back and let go. Never raises."""


class Election(ABC):
    """Sessions that compete for one lock."""

    def __init__(self, key: LockKey) -> None:
        self.key = key
        self.made: list[Session] = []
        self.fenced: list[Fenced] = []

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

    async def queued(self, identity: str = "b") -> tuple[Session, "asyncio.Task[LockAnswer]"]:
        """A new session, and its wait that has reached the server's queue."""
        session = await self.opened(identity)
        before = len(await self.waiters())
        wait = asyncio.create_task(session.wait_lock(WITHIN_S))

        async def is_queued() -> bool:
            return len(await self.waiters()) > before

        await soon(is_queued, "the wait reached the queue")
        return session, wait

    async def holder(self) -> int:
        """The pid that holds the lock."""
        (pid,) = await self.holders()
        return pid

    async def is_free(self) -> None:
        """Wait until nobody holds the lock or waits for it."""

        async def free() -> bool:
            return not await self.holders() and not await self.waiters()

        await soon(free, "the lock is free")

    async def fence(self, token: int) -> Fenced:
        """Begin a transaction fenced by the token, rolled back at the end of the test. Or raise StaleTokenError."""
        fenced = await self.begin_fenced(token)
        self.fenced.append(fenced)
        return fenced

    async def close(self) -> None:
        """Close all that was made."""
        for fenced in self.fenced:
            await fenced.rollback()
        for session in self.made:
            await session.close(WITHIN_S)

    @abstractmethod
    async def weaken(self) -> None:
        """From now on, new sessions may not end fenced transactions."""

    @abstractmethod
    def new_session(self, key: LockKey, identity: str, lease_s: float, fencing: bool) -> Session: ...
    @abstractmethod
    async def begin_fenced(self, token: int) -> Fenced: ...
    @abstractmethod
    async def terminate(self, pid: int) -> bool: ...
    @abstractmethod
    async def unlock_all(self, session: Session) -> None: ...
    @abstractmethod
    async def holders(self) -> list[int]: ...
    @abstractmethod
    async def waiters(self) -> list[int]: ...
    @abstractmethod
    async def pids(self) -> list[int]: ...
    @abstractmethod
    async def row(self) -> Row | None: ...


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


class _FakeFenced(Fenced):
    def __init__(self, transaction: FakeTransaction) -> None:
        self.pid = transaction.pid
        self._transaction = transaction

    async def commit(self) -> None:
        self._transaction.commit()

    async def rollback(self) -> None:
        self._transaction.rollback()


class FakeElection(Election):
    """On the fake server."""

    def __init__(self, key: LockKey, server: FakeServer) -> None:
        super().__init__(key)
        self.server = server
        self._weak = False

    async def weaken(self) -> None:
        self._weak = True

    def new_session(self, key: LockKey, identity: str, lease_s: float, fencing: bool) -> Session:
        return self.server.session(key=key, identity=identity, metadata=METADATA, lease_s=lease_s, fencing=fencing)

    async def begin_fenced(self, token: int) -> Fenced:
        return _FakeFenced(self.server.begin_fenced(self.key, token, killable=not self._weak))

    async def terminate(self, pid: int) -> bool:
        return self.server.terminate(pid)

    async def unlock_all(self, session: Session) -> None:
        assert isinstance(session, FakeSession)
        assert session.pid is not None
        self.server.unlock_all(session.pid)

    async def holders(self) -> list[int]:
        return list(self.server.holders(self.key))

    async def waiters(self) -> list[int]:
        return list(self.server.waiters(self.key))

    async def pids(self) -> list[int]:
        return list(self.server.sessions())

    async def row(self) -> Row | None:
        row = self.server.row(self.key)
        if row is None:
            return None
        released = row.released_at is not None
        metadata = dict(row.metadata)
        return Row(row.name, row.token, row.holder, metadata, row.terms, row.lease_s, released, row.backend.pid)


class _RealFenced(Fenced):
    def __init__(self, conn: psycopg.AsyncConnection[Any]) -> None:
        self.pid = conn.info.backend_pid
        self._conn = conn

    async def commit(self) -> None:
        await self._conn.commit()

    async def rollback(self) -> None:
        await self._conn.close()


class RealElection(Election):
    """On PostgreSQL. It is looked at from another thread: the sessions under test live on this loop."""

    def __init__(self, key: LockKey, dsn: str) -> None:
        super().__init__(key)
        self.dsn = dsn  # of a superuser
        self._session_dsn = dsn
        self._role: str | None = None

    async def weaken(self) -> None:
        role = self._role = f"test_{secrets.token_hex(6)}"
        dbname = conninfo_to_dict(self.dsn)["dbname"]
        await asyncio.to_thread(
            query, self.dsn, f"CREATE ROLE {role} LOGIN; GRANT CREATE ON DATABASE {dbname} TO {role}"
        )
        self._session_dsn = make_conninfo(self.dsn, user=role)

    async def close(self) -> None:
        await super().close()
        if self._role is not None:
            await asyncio.to_thread(query, self.dsn, f"DROP OWNED BY {self._role} CASCADE; DROP ROLE {self._role}")

    def new_session(self, key: LockKey, identity: str, lease_s: float, fencing: bool) -> Session:
        options = SessionOptions(
            key=key, identity=identity, metadata=METADATA, lease_s=lease_s, fencing=fencing, dsn=self._session_dsn
        )
        return PostgresSession(options)

    async def begin_fenced(self, token: int) -> Fenced:
        conn = await psycopg.AsyncConnection.connect(self.dsn)
        try:
            await conn.execute("SELECT pgelect.check_token(%s, %s, %s)", (self.key.key1, self.key.key2, token))
        except psycopg.Error as error:
            await conn.close()
            if error.sqlstate == "PGE01":
                raise StaleTokenError(self.key, token) from error
            raise
        return _RealFenced(conn)

    async def terminate(self, pid: int) -> bool:
        return await asyncio.to_thread(terminate, self.dsn, pid)

    async def unlock_all(self, session: Session) -> None:
        assert isinstance(session, PostgresSession)
        assert session._link is not None
        await session._link.conn.execute("SELECT pg_advisory_unlock_all()")

    async def holders(self) -> list[int]:
        return await asyncio.to_thread(lock_holders, self.dsn, self.key.key1, self.key.key2)

    async def waiters(self) -> list[int]:
        return await asyncio.to_thread(lock_waiters, self.dsn, self.key.key1, self.key.key2)

    async def pids(self) -> list[int]:
        return [found.pid for found in await asyncio.to_thread(sessions, self.dsn)]

    async def row(self) -> Row | None:
        rows = await asyncio.to_thread(
            query,
            self.dsn,
            "SELECT name, token, holder, metadata, terms, lease_s, released_at IS NOT NULL, backend_pid "
            "FROM pgelect.token WHERE key1 = %s AND key2 = %s",
            self.key.key1,
            self.key.key2,
        )
        return Row(*rows[0]) if rows else None


Break = Callable[[Election, Session], Awaitable[None]]
"""A way for a holder to lose or let go of the lock."""
