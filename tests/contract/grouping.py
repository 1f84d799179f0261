"""A group's session on the fake server and on PostgreSQL, for the tests that hold both to one contract."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from itertools import count
from typing import TYPE_CHECKING, Any

import psycopg

from pgelect import LockKey, StaleTokenError, request_step_down
from pgelect._postgres.group_session import PostgresGroupSession
from pgelect._postgres.group_sql import Ring
from pgelect._postgres.options import SessionOptions
from pgelect.fencing import check_token
from pgelect.testing import FakeServer
from tests.contract.election import WITHIN_S
from tests.contract.onlooker import Onlooker

if TYPE_CHECKING:
    from pgelect._group.session import GroupSession

NAME = "a group"


class Stage(ABC):
    """Sessions of one group, and what else can be done to their server."""

    def __init__(self, key1: int) -> None:
        self._key1 = key1
        self._numbers = count(1)
        self._sessions: list[GroupSession] = []

    def keys(self, number: int) -> tuple[LockKey, ...]:
        """Partitions that nobody has used."""
        return tuple(LockKey(self._key1, next(self._numbers)) for _ in range(number))

    async def member(self, **options: Any) -> GroupSession:
        """A session that has joined."""
        session = self.session(**options)
        await session.open(WITHIN_S)
        await session.join(None, WITHIN_S)
        return session

    def session(self, *, weight: float = 1.0, most: int | None = None) -> GroupSession:
        """A session that is not open."""
        session = self._new_session(weight, most)
        self._sessions.append(session)
        return session

    @abstractmethod
    def _new_session(self, weight: float, most: int | None) -> GroupSession: ...

    @abstractmethod
    async def terminate(self, session: GroupSession) -> None:
        """End a session from outside."""

    @abstractmethod
    async def unlock_all(self, session: GroupSession) -> None:
        """Free its locks behind its back."""

    @abstractmethod
    async def begin_fenced(self, key: LockKey, token: int) -> None:
        """Begin a transaction under that token, which stays open."""

    @abstractmethod
    async def request_step_down(self, key: LockKey) -> None:
        """Ask whoever leads to step down, as an operator does."""

    @abstractmethod
    def pid(self, session: GroupSession) -> int:
        """Its server process."""

    async def close(self) -> None:
        """End all sessions."""
        for session in self._sessions:
            await session.close(1.0)


class FakeStage(Stage):
    """On the fake server."""

    def __init__(self, key1: int) -> None:
        super().__init__(key1)
        self.server = FakeServer()

    def _new_session(self, weight: float, most: int | None) -> GroupSession:
        return self.server.group_session(group=LockKey.from_name(NAME), weight=weight, max_share=most)

    async def terminate(self, session: GroupSession) -> None:
        self.server.terminate(self.pid(session))

    async def unlock_all(self, session: GroupSession) -> None:
        self.server.unlock_all(self.pid(session))

    async def begin_fenced(self, key: LockKey, token: int) -> None:
        self.server.begin_fenced(key, token)

    async def request_step_down(self, key: LockKey) -> None:
        self.server.request_step_down(key)

    def pid(self, session: GroupSession) -> int:
        pid: int = session.pid  # type: ignore[attr-defined]
        return pid


class PostgresStage(Stage):
    """On a database that was prepared."""

    def __init__(self, key1: int, dsn: str) -> None:
        super().__init__(key1)
        self._dsn = dsn
        self._onlooker = Onlooker()
        self._writers: list[psycopg.AsyncConnection[Any]] = []
        self._name = f"{NAME} {key1}"

    def _new_session(self, weight: float, most: int | None) -> GroupSession:
        key = LockKey.from_name(self._name)
        options = SessionOptions(key=key, identity="test", lease_s=15.0, dsn=self._dsn)
        return PostgresGroupSession(options, Ring.of(self._name), weight, most)

    async def terminate(self, session: GroupSession) -> None:
        async with await psycopg.AsyncConnection.connect(self._dsn, autocommit=True) as conn:
            await conn.execute("SELECT pg_terminate_backend(%s)", (self.pid(session),))

    async def unlock_all(self, session: GroupSession) -> None:
        assert isinstance(session, PostgresGroupSession)
        assert session._link is not None
        await session._link.conn.execute("SELECT pg_advisory_unlock_all()")

    async def begin_fenced(self, key: LockKey, token: int) -> None:
        conn = await psycopg.AsyncConnection.connect(self._dsn)
        self._writers.append(conn)
        await check_token(conn, key, token)

    async def request_step_down(self, key: LockKey) -> None:
        assert await request_step_down(self._dsn, key) is not None

    def pid(self, session: GroupSession) -> int:
        assert isinstance(session, PostgresGroupSession)
        assert session._opened is not None
        return session._opened.facts.backend.pid

    async def close(self) -> None:
        await super().close()
        for conn in self._writers:
            await conn.close()
        self._onlooker.close()


async def is_stale(stage: Stage, key: LockKey, token: int) -> bool:
    """Whether a transaction under that token is refused."""
    try:
        await stage.begin_fenced(key, token)
    except StaleTokenError:
        return True
    return False


async def in_time(waiting: asyncio.Task[Any]) -> Any:
    """What a task gives, which must not take long."""
    done, _ = await asyncio.wait({waiting}, timeout=10.0)
    assert done, "it does not end"
    return waiting.result()
