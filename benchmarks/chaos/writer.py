"""What a leader does in this run: fenced transactions on a ledger, driven by the client, one after the other.

Each reads the number of the last entry and inserts the next one, as a program would that carries state on. Some stay
open for a while, so that pauses and broken links strike in their midst. And the writer is stubborn: when its term has
ended it goes on trying with its last token, and is to be refused.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import AsyncConnection, IsolationLevel

from benchmarks.chaos import plan
from benchmarks.chaos.book import now
from pgelect import NotLeaderError, StaleTokenError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from random import Random

    from benchmarks.chaos.book import Book
    from benchmarks.chaos.looking import Looking
    from pgelect import LeaderLock

_CONNECT_WITHIN_S = 6.0
_ATTEMPT_WITHIN_S = 5.0
_STUBBORN_FOR_S = 8.0
_REFUSALS_UNTIL_RESIGNED = 4
_STALE = ("PGE01", "40001")
_TIMELINE = "('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int8"


@dataclass(slots=True)
class Attempt:
    """One transaction, as far as it got."""

    ident: str
    token: int
    how: str
    isolation: IsolationLevel
    stubborn: bool
    hold_s: tuple[float, float]
    checked: bool = False
    commit_sent: bool = False
    number: int = 0
    timeline: int = 0
    low: str = ""


class Writer:
    """Writes while its lock leads, and stubbornly for a while after that."""

    def __init__(
        self, process: str, lock: LeaderLock, looking: Looking, *, dsn: Callable[[], str], book: Book, rng: Random
    ) -> None:
        self._process = process
        self._lock = lock
        self._looking = looking
        self._dsn = dsn
        self._book = book
        self._rng = rng
        self._conn: AsyncConnection[Any] | None = None
        self._made = 0
        self._past: tuple[int, float] | None = None  # token of the last term, and when it ended
        self._refusals = 0
        self._rests = False

    def rest(self) -> None:
        """From now on, hold no transaction open: a release then has not to wait for one."""
        self._rests = True

    def term_ended(self, token: int) -> None:
        """Remember a token that is over."""
        self._past, self._refusals = (token, now()), 0

    async def run(self, stop: asyncio.Event) -> None:
        """Write until ``stop`` is set."""
        try:
            while not stop.is_set():
                attempt = self._next()
                if attempt is not None:
                    await self._bounded(attempt)
                await asyncio.sleep(self._rng.uniform(0.005, 0.03))
        finally:
            self._sever()

    def _next(self) -> Attempt | None:
        token = self._looking.look()
        stubborn = self._stubborn_token()
        if stubborn is not None and (token is None or self._rng.random() < 0.2):
            return self._attempt(stubborn, "sql", stubborn=True)
        if token is None:
            return None
        return self._attempt(token, "fence" if self._rng.random() < 0.7 else "sql", stubborn=False)

    def _stubborn_token(self) -> int | None:
        if self._past is None or self._refusals >= _REFUSALS_UNTIL_RESIGNED:
            return None
        token, since = self._past
        return token if now() - since < _STUBBORN_FOR_S else None

    def _attempt(self, token: int, how: str, *, stubborn: bool) -> Attempt:
        self._made += 1
        hold_s = (0.0, 0.0)
        if self._rng.random() < 0.2 and not self._rests:
            hold_s = (self._rng.uniform(0.0, 0.3), self._rng.uniform(0.05, 1.2))
        return Attempt(
            ident=f"{self._process}:{self._made}",
            token=token,
            how=how,
            isolation=IsolationLevel[self._rng.choice(plan.ISOLATIONS)],
            stubborn=stubborn,
            hold_s=hold_s,
        )

    # -- one attempt ---------------------------------------------------------------------------------------------------

    async def _bounded(self, attempt: Attempt) -> None:
        """Make the attempt; when it takes too long, break the connection and await its end."""
        error = await self._finished(self._tried(attempt), _ATTEMPT_WITHIN_S + sum(attempt.hold_s))
        if error is None:
            return
        stale = isinstance(error, StaleTokenError) or (
            not attempt.checked and getattr(error, "sqlstate", None) in _STALE
        )
        if stale and attempt.stubborn:
            self._refusals += 1
        if not isinstance(error, NotLeaderError):
            self._book.write(
                "refused" if stale else "failed",
                id=attempt.ident,
                token=attempt.token,
                stubborn=attempt.stubborn,
                isolation=attempt.isolation.name,
                unknown=attempt.commit_sent,
                error=f"{type(error).__name__}: {' '.join(str(error).split())[:200]}",
            )
        if self._conn is not None and (self._conn.closed or not stale):
            self._sever()
        if not stale:
            await asyncio.sleep(self._rng.uniform(0.05, 0.3))

    async def _finished(self, work: Coroutine[Any, Any, None], within_s: float) -> Exception | None:
        task = asyncio.get_running_loop().create_task(work)
        try:
            await asyncio.wait({task}, timeout=within_s)
        finally:
            if not task.done():
                self._sever()
                await asyncio.wait({task}, timeout=1.0)
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=1.0)
            return TimeoutError(f"not within {within_s:.1f} s, nor after its link was broken")
        if task.cancelled():
            return TimeoutError(f"not within {within_s:.1f} s")
        error = task.exception()
        if error is not None and not isinstance(error, Exception):
            raise error
        return error

    async def _tried(self, attempt: Attempt) -> None:
        conn = await self._connection()
        await conn.set_isolation_level(attempt.isolation)
        if attempt.how == "fence":
            async with self._lock.fence(conn) as term:
                attempt.token = term.token
                await self._work(conn, attempt)
        else:
            async with conn.transaction():
                key = self._lock.key
                check = "SELECT pgelect.check_token(%s::int4, %s::int4, %s::int8)"
                await conn.execute(check, (key.key1, key.key2, attempt.token))
                await self._work(conn, attempt)
        self._book.write(
            "acked",
            id=attempt.ident,
            token=attempt.token,
            n=attempt.number,
            timeline=attempt.timeline,
            low=attempt.low,
            isolation=attempt.isolation.name,
            how=attempt.how,
            stubborn=attempt.stubborn,
        )
        self._looking.look()
        await self._note_position(conn, attempt)

    async def _work(self, conn: AsyncConnection[Any], attempt: Attempt) -> None:
        attempt.checked = True
        cursor = await conn.execute("SELECT coalesce(max(n), 0) + 1 FROM public.ledger")
        row = await cursor.fetchone()
        assert row is not None
        attempt.number = row[0]
        await asyncio.sleep(attempt.hold_s[0])
        cursor = await conn.execute(
            "INSERT INTO public.ledger (id, process, token, n, isolation, timeline) "
            f"VALUES (%s, %s, %s, %s, %s, {_TIMELINE}) RETURNING timeline, pg_current_wal_insert_lsn()::text",
            (attempt.ident, self._process, attempt.token, attempt.number, attempt.isolation.name),
        )
        row = await cursor.fetchone()
        assert row is not None
        attempt.timeline, attempt.low = row
        await asyncio.sleep(attempt.hold_s[1])
        attempt.commit_sent = True

    async def _note_position(self, conn: AsyncConnection[Any], attempt: Attempt) -> None:
        """Where the WAL is now: the acknowledged commit ends before that."""
        asked_at = now()
        cursor = await conn.execute(f"SELECT {_TIMELINE}, pg_current_wal_insert_lsn()::text")
        row = await cursor.fetchone()
        assert row is not None
        self._book.write("position", asked_at=asked_at, id=attempt.ident, timeline=row[0], lsn=row[1])

    # -- the connection ------------------------------------------------------------------------------------------------

    async def _connection(self) -> AsyncConnection[Any]:
        if self._conn is not None and not self._conn.closed:
            return self._conn
        name = f"chaos-writer:{self._process}"
        task = asyncio.get_running_loop().create_task(
            AsyncConnection.connect(
                self._dsn(), autocommit=True, application_name=name, target_session_attrs="read-write"
            )
        )
        try:
            await asyncio.wait({task}, timeout=_CONNECT_WITHIN_S)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=1.0)
        if task.cancelled() or not task.done():
            raise psycopg.OperationalError("no connection in time")
        self._conn = task.result()
        return self._conn

    def _sever(self) -> None:
        """Break the connection without asking the server: a call that is in flight ends by that."""
        conn, self._conn = self._conn, None
        if conn is None or conn.closed:
            return
        with suppress(OSError, psycopg.Error):
            sock = socket.socket(fileno=conn.fileno())
            try:
                sock.shutdown(socket.SHUT_RDWR)
            finally:
                sock.detach()
