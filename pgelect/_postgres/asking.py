"""How an onlooker asks: on any connection, one of our own or one of the user's.

The user's may have a row factory, an encoding, a search_path and timeouts of theirs, and be in a transaction or not.
So every answer is one value, JSON in hexadecimal digits, which no loader and no encoding of a client changes. The work
is a transaction, or a savepoint of theirs: the connection is then left as it was.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import psycopg
from psycopg import AsyncConnection, AsyncCursor, pq
from psycopg.rows import tuple_row
from psycopg.sql import SQL, Composable

from pgelect._postgres.errors import mapped, one_line, server_name
from pgelect.errors import NotPrimaryError, PgElectError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_TRIES = 3
_IN_THE_WAY = {
    "25P02": "a transaction that has not failed: roll this one back first",
    "25006": "a transaction that may write",
}

_HEX = SQL("SELECT pg_catalog.encode(pg_catalog.convert_to({}::pg_catalog.text, 'UTF8'), 'hex')")
_OUR_LIMITS = SQL("SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0; ")


class Batches:
    """Asks on a connection of our own: each question is a transaction, in one round trip."""

    def __init__(self, conn: AsyncConnection[Any], *, writing: bool = False) -> None:
        self._conn = conn
        self._mode = _mode(writing=writing)

    async def __call__(self, value: Composable) -> Any:
        """Give the value of an SQL expression of type json."""
        query = SQL("BEGIN ISOLATION LEVEL READ COMMITTED, {}, NOT DEFERRABLE; {}{}; COMMIT").format(
            self._mode, _OUR_LIMITS, _HEX.format(value)
        )
        for _ in range(_TRIES - 1):
            try:
                return await _value(self._conn, query)
            except psycopg.errors.QueryCanceled:  # a hostile statement_timeout, before it was set to 0
                await self._conn.rollback()
        return await _value(self._conn, query)


class Statements:
    """Asks in the transaction that is open."""

    def __init__(self, conn: AsyncConnection[Any]) -> None:
        self._conn = conn

    async def __call__(self, value: Composable) -> Any:
        """Give the value of an SQL expression of type json."""
        return await _value(self._conn, _HEX.format(value))


Ask: TypeAlias = Callable[[Composable], Awaitable[Any]]
"""Gives the value of an SQL expression of type json."""


def _mode(*, writing: bool) -> SQL:
    return SQL("READ WRITE") if writing else SQL("READ ONLY")


@asynccontextmanager
async def asking(conn: AsyncConnection[Any], doing: str, *, own: bool, writing: bool = False) -> AsyncIterator[Ask]:
    """Open what the questions run in."""
    if own:
        yield Batches(conn, writing=writing)
        return
    if conn.pgconn.pipeline_status != pq.PipelineStatus.OFF:
        raise PgElectError(f"{doing} needs a connection that is not in pipeline mode")
    status = conn.info.transaction_status
    if status == pq.TransactionStatus.INERROR:  # else older psycopg counts a block that cannot begin as open, for ever
        raise PgElectError(f"{doing} needs {_IN_THE_WAY['25P02']}")
    try:
        idle = status == pq.TransactionStatus.IDLE
        async with conn.transaction():
            if idle:
                await _our_way(conn, writing=writing)
            yield Statements(conn)
    except psycopg.Error as error:
        if error.sqlstate in _IN_THE_WAY:
            raise PgElectError(f"{doing} needs {_IN_THE_WAY[error.sqlstate]}: {one_line(error)}") from error
        raise mapped(error, conn, doing) from error


async def _our_way(conn: AsyncConnection[Any], *, writing: bool) -> None:
    """Begin as we need it, whatever the user's connections, role or database begin with.

    What could hide there: a snapshot older than the question, a wait for one (DEFERRABLE), a promise to read only.
    """
    query = SQL("SET TRANSACTION ISOLATION LEVEL READ COMMITTED, {}, NOT DEFERRABLE").format(_mode(writing=writing))
    await _value(conn, query)


async def _value(conn: AsyncConnection[Any], query: Composable) -> Any:
    """Run a query of one or more statements, of which one has an answer."""
    # The cursor class is named: the connection may have factories of its own.
    async with AsyncCursor(conn, row_factory=tuple_row) as cursor:
        try:
            await cursor.execute(query.as_string(conn).encode(), prepare=False)
        except psycopg.errors.FeatureNotSupported as error:  # a transaction that may write, on a standby
            raise NotPrimaryError(server_name(conn)) from error
        value = None
        while True:
            answer = cursor.pgresult
            if answer is not None and answer.ntuples == 1:
                value = answer.get_value(0, 0)  # not by a loader: there may be some of the user's
            if not cursor.nextset():
                return None if value is None else json.loads(bytes.fromhex(value.decode()))
