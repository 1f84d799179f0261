"""The election on PostgreSQL. It is looked at from another thread: the sessions under test live on this loop."""

import asyncio
import os
import secrets
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psutil
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from benchmarks.chaos.links import LossyProxy
from pgelect._engine.model import Grant, LockKey
from pgelect._engine.session import Session
from pgelect._postgres.announcing import step_down_channel
from pgelect._postgres.install import grants_sql, schema_sql
from pgelect._postgres.session import PostgresSession, SessionOptions
from pgelect.testing import Postgres
from tests.contract.client import Client
from tests.contract.election import METADATA, WITHIN_S, Election, End, Restart, Row, Way, soon
from tests.contract.onlooker import SESSIONS, Onlooker
from tests.contract.postgres_client import CREATE_LEDGER, READ_LEDGER, PostgresClient
from tests.support.server import LOCKS, query

_GATE = 20261129  # the advisory lock that an uncommitted mint waits for
_PREPARE = f"""
CREATE FUNCTION public.wait_at_gate(bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    PERFORM pg_catalog.pg_advisory_xact_lock({_GATE});
    RETURN $1;
END $$
"""
# Evaluated when the row has been written. A trigger would do, too, but no elector uses a table that has one.
_GATED = """
CREATE INDEX ON pgelect.token (public.wait_at_gate(token)) WHERE key1 = {} AND key2 = {}
"""
_AT_GATE = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND objid = %s AND NOT granted"
_ASIDE = """
SELECT pid FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND mode = 'ShareLock' AND granted
  AND classid = %s AND objid = %s
  AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()) ORDER BY pid
"""
_SHARED = "this server is shared: ask for the fixture own_election"
_ROW = """
SELECT name, token, holder, metadata, terms, lease_s, released_at IS NOT NULL, backend_pid
FROM pgelect.token WHERE key1 = %s AND key2 = %s
"""


def prepare(database: str) -> None:
    """Make what elections need in a new database."""
    query(database, f"{schema_sql()}; {CREATE_LEDGER}; {_PREPARE}")


class PostgresElection(Election):
    """On a database that was prepared; with ``server`` it may be restarted."""

    def __init__(self, key: LockKey, dsn: str, server: Postgres | None = None) -> None:
        super().__init__(key)
        self.dsn = dsn  # of a superuser
        self._server = server
        self._session_dsn = dsn
        self._role: str | None = None
        self._onlooker = Onlooker()
        self._proxies: dict[Session, LossyProxy] = {}
        self._stands_still = False

    async def weaken(self) -> None:
        role = self._role = f"test_{secrets.token_hex(6)}"
        await self._ask(f"CREATE ROLE {role} LOGIN; {grants_sql(role)}")
        self._session_dsn = make_conninfo(self.dsn, user=role)

    async def close(self) -> None:
        await super().close()
        for proxy in self._proxies.values():
            proxy.close()
        try:
            await soon(self._none_remain, "no session remains after the test")
            if self._role is not None:
                await self._ask(f"DROP OWNED BY {self._role}; DROP ROLE {self._role}")
        finally:
            self._onlooker.close()

    async def _none_remain(self) -> bool:
        return not await self.pids()

    # Sessions and clients

    def new_session(self, key: LockKey, identity: str, lease_s: float, fencing: bool) -> Session:
        return self._session(key, identity, lease_s, fencing, self._session_dsn)

    def _session(self, key: LockKey, identity: str, lease_s: float, fencing: bool, dsn: str) -> Session:
        options = SessionOptions(
            key=key,
            identity=identity,
            metadata=METADATA,
            lease_s=lease_s,
            fencing=fencing,
            places=self.places,
            dsn=dsn,
        )
        return PostgresSession(options)

    def new_client(self) -> Client:
        return PostgresClient(self.key, self.dsn)

    async def terminate(self, pid: int) -> bool:
        if self._stands_still:
            os.kill(pid, signal.SIGTERM)  # nobody can be asked to
            return True
        return bool((await self._ask("SELECT pg_terminate_backend(%s)", pid))[0][0])

    async def cancel(self, pid: int) -> bool:
        if self._stands_still:
            os.kill(pid, signal.SIGINT)
            return True
        rows = await self._ask("SELECT pg_cancel_backend(%s)", pid)
        return bool(rows[0][0])

    async def lock_again(self, session: Session) -> None:
        await self._behind(session, f"SELECT pg_advisory_lock({self.key.key1}, {self.key.key2})")

    async def unlock_all(self, session: Session) -> None:
        await self._behind(session, "SELECT pg_advisory_unlock_all()")

    async def history(self) -> list[tuple[int, str | None, str | None]]:
        found = "SELECT token, ending, reason FROM pgelect.history WHERE key1 = %s AND key2 = %s ORDER BY token"
        return [(token, ending, reason) for token, ending, reason in await self._ask(found, *self._pair)]

    async def request_step_down(self, token: int | None = None) -> int | None:
        asked = "SELECT pgelect.request_step_down(%s, %s, %s)"
        return (await self._ask(asked, *self._pair, token))[0][0]  # type: ignore[no-any-return]  # a row of the driver

    async def call(self) -> None:
        await self._ask("SELECT pg_notify(%s, 'nothing')", step_down_channel(self.key))

    @property
    def _pair(self) -> tuple[int, int]:
        return self.key.key1, self.key.key2

    async def _behind(self, session: Session, statement: str) -> None:
        assert isinstance(session, PostgresSession)
        assert session._link is not None
        await session._link.conn.execute(statement.encode())

    # Links

    async def linked(self, identity: str = "a", *, lease_s: float = 15.0) -> Session:
        port = conninfo_to_dict(self.dsn)["port"]
        assert port is not None
        proxy = LossyProxy("127.0.0.1", int(port))
        session = self._session(self.key, identity, lease_s, True, proxy.dsn(self._session_dsn))
        self._proxies[session] = proxy
        self.made.append(session)
        await session.open(WITHIN_S)
        return session

    async def cut(self, session: Session, end: End = "both") -> None:
        proxy = self._proxies[session]
        assert (proxy.cut() if end == "both" else proxy.cut_end(end)) == 1

    async def notice(self, session: Session) -> None:
        self._proxies[session].close()  # and with it the server's end, which was left open

    async def silence(self, session: Session, way: Way = "both") -> None:
        self._proxies[session].freeze(way)

    async def heal(self, session: Session) -> None:
        self._proxies[session].thaw()

    # What there is to see

    async def holders(self) -> list[int]:
        return await self._lock_pids(granted=True)

    async def waiters(self) -> list[int]:
        return await self._lock_pids(granted=False)

    async def aside(self) -> list[int]:
        key1, key2 = self.key.key1 % 2**32, self.key.key2 % 2**32
        return [pid for (pid,) in await self._ask(_ASIDE, key1 ^ 0xF8E877DE, key2 ^ 0xB56F0E62)]

    async def pids(self) -> list[int]:
        return [pid for (pid,) in await self._ask(SESSIONS)]

    async def _lock_pids(self, *, granted: bool) -> list[int]:
        rows = await self._ask(LOCKS, self.key.key1 % 2**32, self.key.key2 % 2**32, granted)
        return [pid for (pid,) in rows]

    async def _ask(self, statement: str, *params: object) -> list[tuple[Any, ...]]:
        return await self._onlooker.ask(self.dsn, statement, *params)

    async def row(self) -> Row | None:
        rows = await self._ask(_ROW, self.key.key1, self.key.key2)
        return Row(*rows[0]) if rows else None

    async def ledger(self) -> list[tuple[int, int]]:
        rows = await self._ask(READ_LEDGER, self.key.key1, self.key.key2)
        return [(token, value) for token, value in rows]

    async def blocked(self, pid: int) -> bool:
        rows = await self._ask("SELECT cardinality(pg_blocking_pids(%s)) > 0", pid)
        return bool(rows[0][0])

    # The server

    @asynccontextmanager
    async def uncommitted_mint(self, session: Session) -> AsyncIterator["asyncio.Task[Grant]"]:
        async def at_gate() -> bool:
            return bool(await self._ask(_AT_GATE, _GATE))

        await self._ask(_GATED.format(self.key.key1, self.key.key2))
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as gate:
            await gate.execute("SELECT pg_advisory_lock(%s)", [_GATE])
            mint = asyncio.create_task(session.mint(WITHIN_S))
            await soon(at_gate, "the mint has written its row")
            yield mint

    async def restart(self, mode: Restart) -> None:
        assert self._server is not None, _SHARED
        await asyncio.to_thread(self._server.restart, mode)

    @asynccontextmanager
    async def standstill(self) -> AsyncIterator[None]:
        assert self._server is not None, _SHARED
        postmaster = psutil.Process(self._server.postmaster_pid)
        stopped = [postmaster.pid, *(child.pid for child in postmaster.children(recursive=True))]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        self._stands_still = True
        try:
            yield
        finally:
            self._stands_still = False
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
