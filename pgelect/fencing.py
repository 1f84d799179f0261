"""Fencing: hold off writes of a term that is over, in the same database.

A check locks the token row ``FOR SHARE`` until the transaction ends, so the next token cannot be minted before; a stale
token is refused. Everything works on any psycopg ``AsyncConnection``, pooled or not, whatever its row factory, cursor
class or search_path.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import lru_cache
from operator import index
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import AsyncConnection, AsyncCursor, pq
from psycopg.rows import tuple_row
from psycopg.sql import SQL, Identifier, Literal

from pgelect._postgres import install as _install
from pgelect._postgres.checked import CheckedTransaction, send_check
from pgelect._postgres.errors import mapped
from pgelect._postgres.install import schema_sql
from pgelect.errors import ConfigurationError, PgElectError, SchemaError, StaleTokenError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from psycopg import BaseConnection
    from psycopg.sql import Composable

    from pgelect._engine.model import LockKey

__all__ = ["check_token", "fenced", "guard_table", "install", "schema_sql", "schema_version", "unguard_table"]

_STALE = "PGE01"
_SERIALIZATION_FAILURE = "40001"
_MISSING = frozenset({"3F000", "42P01", "42883"})
_NO_RIGHT = "42501"
_NO_SUCH_TABLE = frozenset({"42601", "42602", "22023", "0A000", "42P01", "3F000"})
_CHECKS_KEPT = 256  # rendered: one for each term under which this process writes


async def install(conn: AsyncConnection[Any]) -> None:
    """Create the schema ``pgelect``, or upgrade it. Safe to call from many processes at once, and while locks are led.

    Nothing happens when it is there in this version. Inside an open transaction it becomes part of that, and the caller
    commits.

    Raises:
        SchemaError: the role may not; carries the SQL for an administrator.
        ConfigurationError: a later version made the schema; nothing was changed.
        PgElectError: the server refused for another reason, or the connection ended.
    """
    try:
        await _install.upgrade(conn)
    except psycopg.Error as error:
        raise mapped(error, conn, "creating the schema pgelect") from error


async def schema_version(conn: AsyncConnection[Any]) -> int | None:
    """Read the version of the schema ``pgelect``; None when there is none.

    The number itself is for the owner of the schema and for superusers. Other roles are told by what there is in it;
    a version later than that of this library is to them the version of this library.

    Raises:
        SchemaError: the schema belongs to a role that is not to be trusted with it.
        PgElectError: the server refused, or the connection ended.
    """
    try:
        return await _install.version(conn)
    except psycopg.Error as error:
        raise mapped(error, conn, "reading the version of the schema pgelect") from error


async def check_token(conn: AsyncConnection[Any], key: LockKey, token: int) -> None:
    """Check the token in the current transaction, and hold off the next one until that ends.

    Under REPEATABLE READ and SERIALIZABLE a token row that changed after the transaction's snapshot counts as stale,
    too: the server reports that as a serialization failure of this very check.

    Args:
        conn: in a transaction, or one that begins a transaction with its next statement.
        key: the lock.
        token: that of the term which the transaction's writes belong to.

    Raises:
        StaleTokenError: the term is over; roll back.
        ConfigurationError: the connection is in autocommit mode outside a transaction: the check would protect nothing.
        SchemaError: the schema is missing, or the role may not call the check.
        SessionLostError: the connection ended during the check.
        PgElectError: the server refused for another reason.
    """
    refuse_autocommit(conn)
    try:
        await send_check(conn, check_query(key.key1, key.key2, token))
    except psycopg.Error as error:
        raise check_failed(error, conn, key, token) from error


def refuse_autocommit(conn: BaseConnection[Any]) -> None:
    """Raise ConfigurationError where a check would end at once, and protect nothing."""
    if conn.autocommit and conn.info.transaction_status == pq.TransactionStatus.IDLE:
        raise ConfigurationError(
            "check_token needs a transaction: this connection is in autocommit mode, where the check would end "
            "at once. Use 'async with conn.transaction():' (or 'with') around the check and the writes, or fenced()."
        )


@lru_cache(_CHECKS_KEPT)
def check_query(key1: int, key2: int, token: int) -> bytes:
    """Return the check. Rendered, without parameters: the same for any prepare_threshold and any pooler."""
    return (
        f"SELECT pgelect.check_token('{index(key1)}'::pg_catalog.int4, '{index(key2)}'::pg_catalog.int4, "
        f"'{index(token)}'::pg_catalog.int8)"
    ).encode()


def check_failed(error: psycopg.Error, conn: BaseConnection[Any], key: LockKey, token: int) -> PgElectError:
    """Map the driver's error of a check."""
    if error.sqlstate in {_STALE, _SERIALIZATION_FAILURE}:
        return StaleTokenError(key, token)
    return _explained(error, conn, "checking a fencing token")


def check_answered(conn: BaseConnection[Any], key: LockKey, token: int) -> Callable[[BaseException | None], None]:
    """Make what raises the error of a check in place of the driver's."""

    def answered(error: BaseException | None) -> None:
        if isinstance(error, psycopg.Error):
            raise check_failed(error, conn, key, token) from error

    return answered


def fenced(conn: AsyncConnection[Any], key: LockKey, token: int) -> AbstractAsyncContextManager[None, bool | None]:
    """Open a transaction (a savepoint inside an open one) whose writes count only in the term of ``token``.

    It commits at the end of the block and rolls back on any exception.

    Raises:
        StaleTokenError: the term is over; nothing was written.
        PgElectError: as ``check_token``.
    """
    return _Fenced(conn, key, token)


class _Fenced(CheckedTransaction):
    __slots__ = ("_key", "_token")

    def __init__(self, conn: AsyncConnection[Any], key: LockKey, token: int) -> None:
        super().__init__(conn)
        self._key = key
        self._token = token

    async def __aenter__(self) -> None:
        key, token = self._key, self._token
        await self._open(check_query(key.key1, key.key2, token), check_answered(self._conn, key, token))


async def guard_table(conn: AsyncConnection[Any], table: str, key: LockKey) -> None:
    """Refuse every write to a table outside a transaction fenced by the current term of a lock.

    A statement trigger named ``pgelect_guard`` on INSERT, UPDATE, DELETE, TRUNCATE and COPY. A table that is guarded
    already gets the new key. Writes that name a partition directly pass the guard of its parent by: guard the
    partitions as well.

    Args:
        conn: of a role that may create triggers on the table and execute ``pgelect.guard()``.
        table: ``schema.table`` or ``table``, as one would write it in SQL; the server resolves it.
        key: the lock.

    Raises:
        ValueError: there is no such table.
        SchemaError: the schema ``pgelect`` is missing, or the role may not use it.
        PgElectError: the server refused for another reason, or the connection ended.
    """
    arguments = [Literal(str(key.key1)), Literal(str(key.key2))]
    if key.name is not None:
        arguments.append(Literal(key.name))
    create = SQL(
        "CREATE OR REPLACE TRIGGER pgelect_guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON {} "
        "FOR EACH STATEMENT EXECUTE FUNCTION pgelect.guard({})"
    )
    async with _on_table(conn, table) as found:
        await _execute(conn, create.format(found, SQL(", ").join(arguments)))


async def unguard_table(conn: AsyncConnection[Any], table: str) -> None:
    """Take the guard off a table. Nothing happens when it has none.

    Args:
        conn: of the table's owner.
        table: as for ``guard_table``.

    Raises:
        ValueError: there is no such table.
        PgElectError: the server refused, or the connection ended.
    """
    async with _on_table(conn, table) as found:
        await _execute(conn, SQL("DROP TRIGGER IF EXISTS pgelect_guard ON {}").format(found))


@asynccontextmanager
async def _on_table(conn: AsyncConnection[Any], table: str) -> AsyncIterator[Identifier]:
    """Open a transaction, and give the full name of the table; driver errors are explained."""
    try:
        async with conn.transaction():
            yield await _resolved(conn, table)
    except psycopg.Error as error:
        raise _explained(error, conn, f"changing the guard of {table}") from error


async def _resolved(conn: AsyncConnection[Any], table: str) -> Identifier:
    resolve = SQL("SELECT pg_catalog.to_regclass({})::pg_catalog.oid").format(Literal(table))
    try:
        async with conn.transaction():
            oid = (await _execute(conn, resolve))[0][0]
    except psycopg.Error as error:
        if error.sqlstate not in _NO_SUCH_TABLE:
            raise
        oid = None
    rows = await _execute(
        conn,
        SQL(
            "SELECT n.nspname::pg_catalog.text, c.relname::pg_catalog.text FROM pg_catalog.pg_class AS c "
            "JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace "
            "WHERE c.oid OPERATOR(pg_catalog.=) {}::pg_catalog.oid "
            "AND (c.relkind OPERATOR(pg_catalog.=) 'r' OR c.relkind OPERATOR(pg_catalog.=) 'p')"
        ).format(Literal(None if oid is None else str(oid))),
    )
    if not rows:
        raise ValueError(
            f"there is no table {table!r} on this connection; write it as in SQL: schema.table, names with capitals "
            "in double quotes"
        )
    return Identifier(*rows[0])


async def _execute(conn: AsyncConnection[Any], query: Composable) -> list[tuple[Any, ...]]:
    # The cursor class is named: the connection may have factories of its own.
    async with AsyncCursor(conn, row_factory=tuple_row) as cursor:
        await cursor.execute(query.as_string(conn).encode(), prepare=False)
        return await cursor.fetchall() if cursor.description is not None else []


def _explained(error: psycopg.Error, conn: BaseConnection[Any], doing: str) -> PgElectError:
    """Map the driver's error, with the SQL to run where the schema is what is missing."""
    text = error.diag.message_primary or str(error)
    if error.sqlstate in _MISSING and "pgelect" in text:
        return SchemaError(f"the schema pgelect is missing: {text}", schema_sql())
    if error.sqlstate == _NO_RIGHT and ("pgelect" in text or "check_token" in text or "guard" in text):
        return SchemaError(f"this role may not use the fence: {text}", _install.writer_grants_sql(conn.info.user))
    if error.sqlstate == _NO_RIGHT:
        return PgElectError(f"this role lacks a right for {doing}: {text}")
    return mapped(error, conn, doing)
