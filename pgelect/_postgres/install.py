"""Make the schema ``pgelect``, once, however many processes boot at the same time."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import psycopg
from psycopg import AsyncConnection, AsyncCursor
from psycopg.rows import tuple_row
from psycopg.sql import SQL, Identifier, Literal

from pgelect.errors import SchemaError

# A pair of its own; "pgel" and "ect1" as bytes. Creation is serialised by the transaction lock of this pair.
_INSTALL_KEYS = (0x7067656C, 0x65637431)
_TAKEN_MEANWHILE = frozenset({"23505", "42P07", "42710", "42P06", "42723"})
_NO_RIGHT = "42501"
_ATTEMPTS = 3

# Operators are qualified because this runs with the user's search_path, too.
_COMPLETE = SQL(
    "SELECT (SELECT pg_catalog.count(*) FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n "
    "ON n.oid OPERATOR(pg_catalog.=) c.relnamespace WHERE n.nspname OPERATOR(pg_catalog.=) 'pgelect' "
    "AND c.relname OPERATOR(pg_catalog.=) ANY (ARRAY['schema_version', 'token', 'token_seq']::pg_catalog.name[])) "
    "OPERATOR(pg_catalog.=) 3 AND (SELECT pg_catalog.count(*) FROM pg_catalog.pg_proc AS p "
    "JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) p.pronamespace "
    "WHERE n.nspname OPERATOR(pg_catalog.=) 'pgelect' "
    "AND p.proname OPERATOR(pg_catalog.=) ANY (ARRAY['check_token', 'guard']::pg_catalog.name[])) "
    "OPERATOR(pg_catalog.=) 2, current_user::pg_catalog.text"
)
_SERIALISE = SQL("SELECT pg_catalog.pg_advisory_xact_lock({}, {})").format(*map(Literal, _INSTALL_KEYS))


def schema_sql() -> str:
    """Give the DDL of the schema, safe to run again."""
    return files("pgelect._postgres").joinpath("schema.sql").read_text(encoding="utf-8")


def grants_sql(role: str) -> str:
    """Give the SQL that lets a role lead and to write fenced transactions."""
    name = Identifier(role).as_string(None)
    return "\n".join(
        (
            f"GRANT USAGE ON SCHEMA pgelect TO {name};",
            f"GRANT SELECT ON pgelect.schema_version TO {name};",
            f"GRANT SELECT, INSERT, UPDATE ON pgelect.token TO {name};",
            f"GRANT USAGE ON SEQUENCE pgelect.token_seq TO {name};",
            f"GRANT EXECUTE ON FUNCTION pgelect.check_token(integer, integer, bigint) TO {name};",
            f"GRANT EXECUTE ON FUNCTION pgelect.guard() TO {name};",
        )
    )


def writer_grants_sql(role: str) -> str:
    """Give the SQL that lets a role write fenced transactions and guard its tables, without leading."""
    name = Identifier(role).as_string(None)
    return "\n".join(
        (
            f"GRANT USAGE ON SCHEMA pgelect TO {name};",
            f"GRANT EXECUTE ON FUNCTION pgelect.check_token(integer, integer, bigint) TO {name};",
            f"GRANT EXECUTE ON FUNCTION pgelect.guard() TO {name};",
        )
    )


async def create(conn: AsyncConnection[Any], *, wait_ms: int | None = None) -> None:
    """Create what is missing. Inside an open transaction it becomes part of that; the caller commits.

    Args:
        conn: any; the transaction is its own, or a savepoint.
        wait_ms: how long to wait for another process that creates it, in milliseconds; None: the session's own setting.

    Raises:
        SchemaError: the role may not; carries the SQL for an administrator.
        psycopg.Error: anything else.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return await _create(conn, wait_ms)
        except psycopg.Error as error:
            if error.sqlstate not in _TAKEN_MEANWHILE or attempt == _ATTEMPTS:
                raise
    return None


async def _create(conn: AsyncConnection[Any], wait_ms: int | None) -> None:
    async with conn.transaction(), AsyncCursor(conn, row_factory=tuple_row) as cursor:
        complete, role = await _look(cursor)
        if complete:
            return
        if wait_ms is not None:
            await cursor.execute(
                SQL("SELECT pg_catalog.set_config('lock_timeout', {}, true)").format(Literal(f"{wait_ms}ms"))
            )
        await cursor.execute(_SERIALISE)
        complete, role = await _look(cursor)
        if complete:
            return
        try:
            async with conn.transaction():
                await cursor.execute(schema_sql().encode())
        except psycopg.Error as error:
            if error.sqlstate != _NO_RIGHT:
                raise
            raise SchemaError(
                f"the schema pgelect is missing or incomplete, and the role {role!r} may not create it",
                f"{schema_sql()}\n{grants_sql(role)}",
            ) from error


async def _look(cursor: AsyncCursor[tuple[Any, ...]]) -> tuple[bool, str]:
    await cursor.execute(_COMPLETE)
    row = await cursor.fetchone()
    assert row is not None  # noqa: S101 -- for the type checker: a SELECT without FROM gives one row
    return bool(row[0]), str(row[1])
