"""The demo's ledger: numbered lines, each written in a transaction that is fenced by the leader's token.

A writer reads the last number, adds one and writes: two statements and no lock of its own, so two writers at once would
write a number twice. Only the fence keeps them apart. The table is guarded, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import psycopg
from psycopg.rows import class_row

from pgelect import LockKey, guard_table, install
from pgelect._postgres.client import Client

if TYPE_CHECKING:
    from psycopg import AsyncConnection

LOCK_NAME = "demo/scheduler"
KEY = LockKey.from_name(LOCK_NAME)
SCHEMA = "pgelect_demo"

_MAKING = LockKey.from_name("pgelect/demo/ledger")  # replicas on their own make it one at a time
_DROPPED = "Made by pgelect demo, which drops it."
_KEPT = "Made by pgelect.cli.demo_worker, which keeps it."

_NOTE = (
    "SELECT pg_catalog.obj_description(oid, 'pg_namespace') FROM pg_catalog.pg_namespace WHERE nspname = 'pgelect_demo'"
)
_CREATE = """
CREATE SCHEMA pgelect_demo;
COMMENT ON SCHEMA pgelect_demo IS '{note}';
CREATE TABLE pgelect_demo.ledger (
    seq bigint NOT NULL,
    token bigint NOT NULL,
    replica text NOT NULL,
    written_at timestamp with time zone NOT NULL DEFAULT pg_catalog.clock_timestamp()
);
CREATE INDEX ON pgelect_demo.ledger (seq);
"""  # not UNIQUE: a number that was written twice is what the check is there to find
_DROP = "SET lock_timeout = '5s'; DROP SCHEMA IF EXISTS pgelect_demo CASCADE"
_LAST = "SELECT coalesce(max(seq), 0) FROM pgelect_demo.ledger"
_APPEND = "INSERT INTO pgelect_demo.ledger (seq, token, replica) VALUES (%s, %s, %s)"
_LINES = "SELECT seq, token, replica FROM pgelect_demo.ledger ORDER BY seq, written_at"
_LOCKS = (
    "SELECT pid FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND classid = %s AND objid = %s "
    "AND granted = %s AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())"
)


class LedgerError(Exception):
    """The ledger cannot be made: its schema is there and not the demo's to use, or the role may not."""


@dataclass(frozen=True, slots=True)
class Line:
    """One write."""

    seq: int
    token: int
    replica: str


async def append(conn: AsyncConnection[Any], token: int, replica: str) -> int:
    """Write the next line in the open transaction, and return its number."""
    row = await (await conn.execute(_LAST)).fetchone()
    seq = 1 + (row[0] if row is not None else 0)
    await conn.execute(_APPEND, (seq, token, replica))
    return int(seq)


async def keep_ledger(conn: AsyncConnection[Any]) -> None:
    """Make the ledger of replicas that run on their own, unless it is there; several may try at once."""
    await install(conn)
    async with conn.transaction():
        await conn.execute("SELECT pg_catalog.pg_advisory_xact_lock(%s, %s)", (_MAKING.key1, _MAKING.key2))
        if await (await conn.execute(_NOTE)).fetchone() is None:
            await conn.execute(_CREATE.format(note=_KEPT).encode())
            await guard_table(conn, f"{SCHEMA}.ledger", KEY)


class Ledger:
    """The demo's own view of the database: it makes the ledger, watches the lock, checks and drops."""

    def __init__(self, dsn: str, client: Client) -> None:
        self._dsn = dsn
        self._client = client
        self._made = False

    @classmethod
    async def open(cls, dsn: str) -> Self:
        """Connect.

        Raises:
            ValueError, PgElectError: the server cannot be reached like this.
        """
        return cls(dsn, await Client.connect(dsn))

    @property
    def server(self) -> str:
        """The server's version, such as 18.4."""
        told = self._client.conn.info.parameter_status("server_version") or "(unknown)"
        return told.split(" ")[0]  # some add what they were built for

    @property
    def place(self) -> str:
        """Host, port and database."""
        info = self._client.conn.info
        return f"{info.host}:{info.port}, database {info.dbname}"

    async def make(self) -> None:
        """Make the ledger; what a killed demo left behind is replaced. Only one demo may do so at a time.

        Raises:
            LedgerError: it is not ours to use, or this role may not make it.
            PgElectError: the server refused otherwise.
        """
        await self._client.run(self._make, "making the ledger")

    async def _make(self, conn: AsyncConnection[Any]) -> None:
        note = await (await conn.execute(_NOTE)).fetchone()
        if note is not None and note[0] != _DROPPED:
            raise LedgerError(
                f"this database has a schema {SCHEMA} that no demo made, and it is left alone; use another database"
            )
        await install(conn)
        try:
            async with conn.transaction():
                self._made = True
                await conn.execute(f"{_DROP}; {_CREATE.format(note=_DROPPED)}".encode())
                await guard_table(conn, f"{SCHEMA}.ledger", KEY)
        except psycopg.errors.InsufficientPrivilege as error:
            self._made = False
            raise LedgerError(f"this role may not make the demo's schema: {error.diag.message_primary}") from error

    async def holder(self) -> int | None:
        """Look who holds the lock: a server process, or nobody."""
        pids = await self._pids(granted=True)
        return pids[0] if pids else None

    async def waiting(self) -> int:
        """Count the sessions that stand in the server's queue for the lock at this moment."""
        return len(await self._pids(granted=False))

    async def _pids(self, *, granted: bool) -> list[int]:
        async def look(conn: AsyncConnection[Any]) -> list[int]:
            return [pid for (pid,) in await (await conn.execute(_LOCKS, (KEY.classid, KEY.objid, granted))).fetchall()]

        return await self._client.run(look, "looking at the lock")

    async def end_session(self, pid: int) -> None:
        """End a server process, as an administrator would."""

        async def end(conn: AsyncConnection[Any]) -> None:
            await conn.execute("SELECT pg_catalog.pg_terminate_backend(%s)", (pid,))

        await self._client.run(end, "ending the leader's session")

    async def lines(self) -> list[Line]:
        """Read the ledger, in the order of its numbers."""

        async def read(conn: AsyncConnection[Any]) -> list[Line]:
            async with conn.cursor(row_factory=class_row(Line)) as cursor:
                return await (await cursor.execute(_LINES)).fetchall()

        return await self._client.run(read, "reading the ledger")

    async def drop(self) -> None:
        """Take the ledger away again, on a new connection if need be, and disconnect.

        Raises:
            PgElectError: it could not be done.
        """
        try:
            if self._made:
                if self._client.closed:
                    self._client = await Client.connect(self._dsn)
                await self._client.run(lambda conn: conn.execute(_DROP), f"dropping the schema {SCHEMA}")
        finally:
            self._client.close()
