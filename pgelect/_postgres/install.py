"""Make the schema ``pgelect``, once, however many processes boot at the same time."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import psycopg
from psycopg import AsyncConnection, AsyncCursor
from psycopg.rows import tuple_row
from psycopg.sql import SQL, Identifier, Literal

from pgelect._postgres.schema_version import SEEN
from pgelect.errors import ConfigurationError, SchemaError

# A pair of its own; "pgel" and "ect1" as bytes. Creation is serialised by the transaction lock of this pair.
_INSTALL_KEYS = (0x7067656C, 0x65637431)
_TAKEN_MEANWHILE = frozenset({"23505", "42P07", "42710", "42P06", "42723"})
_NO_RIGHT = "42501"
_NEWER = "PGE04"
_ATTEMPTS = 3

# What the schema consists of. All of it is looked up by name, so that a database of many tables costs nothing.
SCHEMA_VERSION = 3
RELATIONS = ("schema_version", "token", "token_seq", "closed", "history", "step_down", "leaders")
ANNOUNCING = ("announce", "report_lost", "asked_to_step_down")  # what a lock calls of version 2, and can do without
FUNCTIONS = ("check_token", "guard", *ANNOUNCING, "request_step_down")

# Operators are qualified because this runs with the user's search_path, too.
_RELATION = SQL(
    "c.relnamespace OPERATOR(pg_catalog.=) n.oid "
    "AND c.relname OPERATOR(pg_catalog.=) ANY (ARRAY[{}]::pg_catalog.name[])"
).format(SQL(", ").join(map(Literal, RELATIONS)))
_FUNCTION = SQL(
    "p.pronamespace OPERATOR(pg_catalog.=) n.oid "
    "AND p.proname OPERATOR(pg_catalog.=) ANY (ARRAY[{}]::pg_catalog.name[])"
).format(SQL(", ").join(map(Literal, FUNCTIONS)))

STRANGER = SQL(
    "(SELECT pg_catalog.min(pg_catalog.pg_get_userbyid(o.owner)::pg_catalog.text) FROM pg_catalog.pg_namespace AS n "
    "CROSS JOIN LATERAL (SELECT n.nspowner "
    "UNION ALL SELECT c.relowner FROM pg_catalog.pg_class AS c WHERE {relation} "
    "UNION ALL SELECT p.proowner FROM pg_catalog.pg_proc AS p WHERE {function}) AS o (owner) "
    "WHERE n.nspname OPERATOR(pg_catalog.=) 'pgelect' "
    "AND pg_catalog.pg_get_userbyid(o.owner) OPERATOR(pg_catalog.<>) current_user "
    "AND NOT pg_catalog.pg_has_role(o.owner, (SELECT d.datdba FROM pg_catalog.pg_database AS d "
    "WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()), 'USAGE'))"
).format(relation=_RELATION, function=_FUNCTION)
"""A role that owns the schema or a part of it and is not to be trusted, as SQL; NULL when there is none.

Trusted are the role that asks, and roles with the rights of the owner of the database, as superusers have them. That
the asking role is a member of another one says nothing: it may be the other role that made it one.
"""

INTRUDER = SQL(
    "(SELECT pg_catalog.min(i.removal) FROM pg_catalog.pg_namespace AS n JOIN pg_catalog.pg_class AS c ON {relation} "
    "CROSS JOIN LATERAL ("
    "SELECT pg_catalog.format('DROP TRIGGER %I ON pgelect.%I', g.tgname, c.relname) FROM pg_catalog.pg_trigger AS g "
    "WHERE g.tgrelid OPERATOR(pg_catalog.=) c.oid AND NOT g.tgisinternal "
    "UNION ALL SELECT pg_catalog.format('DROP RULE %I ON pgelect.%I', r.rulename, c.relname) "
    "FROM pg_catalog.pg_rewrite AS r WHERE r.ev_class OPERATOR(pg_catalog.=) c.oid "
    "AND (c.relkind OPERATOR(pg_catalog.<>) 'v' OR r.rulename OPERATOR(pg_catalog.<>) '_RETURN') "
    "UNION ALL SELECT pg_catalog.format('ALTER TABLE pgelect.%I DISABLE ROW LEVEL SECURITY', c.relname) "
    "WHERE c.relrowsecurity) AS i (removal) WHERE n.nspname OPERATOR(pg_catalog.=) 'pgelect')"
).format(relation=_RELATION)
"""What would come between an elector and the schema's tables, as SQL: the statement that removes it; NULL for nothing.

Triggers, rules and policies run with the rights of whoever writes, and may change what is written. A trigger needs no
more than the right TRIGGER, which GRANT ALL gives; the rest may be left from an earlier owner. None is the schema's.
"""

_LOOK = SQL(
    "SELECT (SELECT pg_catalog.count(*) FROM pg_catalog.pg_namespace AS n JOIN pg_catalog.pg_class AS c ON {relation} "
    "WHERE n.nspname OPERATOR(pg_catalog.=) 'pgelect') OPERATOR(pg_catalog.=) {relations} "
    "AND (SELECT pg_catalog.count(*) FROM pg_catalog.pg_namespace AS n JOIN pg_catalog.pg_proc AS p ON {function} "
    "WHERE n.nspname OPERATOR(pg_catalog.=) 'pgelect') OPERATOR(pg_catalog.=) {functions} "
    "AND (SELECT {seen} FROM pg_catalog.pg_namespace AS n WHERE n.nspname OPERATOR(pg_catalog.=) 'pgelect') "
    "OPERATOR(pg_catalog.>=) {version}, current_user::pg_catalog.text, {stranger}, {intruder}"
).format(
    relation=_RELATION,
    function=_FUNCTION,
    relations=Literal(len(RELATIONS)),
    functions=Literal(len(FUNCTIONS)),
    seen=SEEN,
    version=Literal(SCHEMA_VERSION),
    stranger=STRANGER,
    intruder=INTRUDER,
)
# The number is only for who may change the schema; for others, the catalogs tell.
_VERSIONS = SQL(
    "SELECT n.nspname IS NOT NULL, (SELECT pg_catalog.bool_and(pg_catalog.has_table_privilege(c.oid, 'SELECT')) "
    "AND pg_catalog.has_schema_privilege(n.oid, 'USAGE') FROM pg_catalog.pg_class AS c "
    "WHERE c.relnamespace OPERATOR(pg_catalog.=) n.oid AND c.relname OPERATOR(pg_catalog.=) 'schema_version'), "
    "{stranger}, {seen} FROM (VALUES (1)) AS one (row) "
    "LEFT JOIN pg_catalog.pg_namespace AS n ON n.nspname OPERATOR(pg_catalog.=) 'pgelect'"
).format(stranger=STRANGER, seen=SEEN)
_VERSION = SQL("SELECT pg_catalog.max(v.version) FROM pgelect.schema_version AS v")
_SERIALISE = SQL("SELECT pg_catalog.pg_advisory_xact_lock({}, {})").format(*map(Literal, _INSTALL_KEYS))


def schema_sql() -> str:
    """Give the DDL of the schema, safe to run again. It refuses a schema that a stranger made or meddled with."""
    text = files("pgelect._postgres").joinpath("schema.sql").read_text(encoding="utf-8")
    values = {"stranger": STRANGER.as_string(None), "intruder": INTRUDER.as_string(None), "version": SCHEMA_VERSION}
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


def grants_sql(role: str) -> str:
    """Give the SQL that lets a role lead, and write fenced transactions: who leads mostly does.

    To check a token opens nothing to a role that may write tokens.
    """
    name = Identifier(role).as_string(None)
    return "\n".join(
        (
            f"GRANT USAGE ON SCHEMA pgelect TO {name};",
            f"GRANT SELECT, INSERT, UPDATE ON pgelect.token, pgelect.closed TO {name};",
            f"GRANT USAGE ON SEQUENCE pgelect.token_seq TO {name};",
            f"GRANT EXECUTE ON FUNCTION pgelect.check_token(integer, integer, bigint) TO {name};",
            f"GRANT EXECUTE ON FUNCTION {', '.join(f'pgelect.{function}' for function in ANNOUNCING)} TO {name};",
        )
    )


def reader_grants_sql(role: str) -> str:
    """Give the SQL that lets a role see who leads and who led."""
    name = Identifier(role).as_string(None)
    return "\n".join(
        (f"GRANT USAGE ON SCHEMA pgelect TO {name};", f"GRANT SELECT ON pgelect.leaders, pgelect.history TO {name};")
    )


def operator_grants_sql(role: str) -> str:
    """Give the SQL that lets a role ask leaders to step down."""
    name = Identifier(role).as_string(None)
    return "\n".join(
        (
            f"GRANT USAGE ON SCHEMA pgelect TO {name};",
            f"GRANT EXECUTE ON FUNCTION pgelect.request_step_down TO {name};",
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


# All that a lock calls of them, first creation included.
ADVISORY = (
    "pg_try_advisory_lock(integer, integer)",
    "pg_advisory_xact_lock(integer, integer)",
    "pg_advisory_unlock(integer, integer)",
    "pg_advisory_unlock_all()",
    "pg_try_advisory_lock_shared(bigint)",
    "pg_advisory_unlock_shared(bigint)",
)


def lock_grants_sql(role: str) -> str:
    """Give the SQL that lets a role lock in a database where an administrator took that right from PUBLIC."""
    name = Identifier(role).as_string(None)
    return "\n".join(f"GRANT EXECUTE ON FUNCTION pg_catalog.{function} TO {name};" for function in ADVISORY)


def foreign_schema(stranger: str) -> SchemaError:
    """Make the error about a schema that a role made who is not to be trusted with it."""
    name = Identifier(stranger).as_string(None)
    return SchemaError(
        f"the schema pgelect, or a part of it, belongs to the role {name}, which is neither this role nor has the "
        "rights of the owner of this database; it could run code with the rights of everybody who uses the schema",
        "-- Stop all electors, and look at what is in the schema and who made it. Either drop it:\n"
        "--   DROP SCHEMA pgelect CASCADE;\n"
        "-- or, if all of it is as pgelect.schema_sql() makes it, give it and its parts to the owner of the database:\n"
        "--   ALTER SCHEMA pgelect OWNER TO ...;",
    )


def check_untouched(stranger: str | None, intruder: str | None) -> None:
    """Raise SchemaError for what STRANGER and INTRUDER found."""
    if stranger is not None:
        raise foreign_schema(stranger)
    if intruder is not None:
        raise meddled_schema(intruder)


def meddled_schema(removal: str) -> SchemaError:
    """Make the error about something that comes between an elector and what it writes, removed by that statement."""
    return SchemaError(
        "something that does not belong there acts on what is written to the tables of pgelect: it could run code with "
        f"the rights of every elector, and repeat tokens. It is removed by: {removal}",
        "-- Find out who made it, and take the right TRIGGER on the tables of pgelect from everybody.\n"
        "-- Tokens may have been given out twice: stop what works under them.\n"
        f"{removal};",
    )


def rewritten_token() -> SchemaError:
    """Make the error about a mint after which the row did not carry what was written."""
    return SchemaError(
        "no term was begun: something changed the new token while it was written, and it was not greater than the last",
        "-- What acts on the table, and what it does; then drop it:\n"
        "SELECT t.tgname, pg_catalog.pg_get_triggerdef(t.oid) FROM pg_catalog.pg_trigger AS t\n"
        "WHERE t.tgrelid = 'pgelect.token'::pg_catalog.regclass AND NOT t.tgisinternal;\n"
        "-- DROP TRIGGER ... ON pgelect.token;",
    )


async def version(conn: AsyncConnection[Any]) -> int | None:
    """Read the version of the schema; None when there is none.

    A role that may not read the number is told by the schema's comment, and before version 3 by its parts.

    Raises:
        SchemaError: it belongs to a stranger.
        psycopg.Error: anything else.
    """
    async with conn.transaction(), AsyncCursor(conn, row_factory=tuple_row) as cursor:
        await cursor.execute(_VERSIONS)
        row = await cursor.fetchone()
        assert row is not None  # noqa: S101 -- for the type checker: the query gives one row
        exists, readable, stranger, seen = row
        if stranger is not None:
            raise foreign_schema(stranger)
        if readable:
            await cursor.execute(_VERSION)
            (found,) = await cursor.fetchone() or (None,)
            return None if found is None else int(found)
        return None if not exists or readable is None else int(seen)


async def upgrade(conn: AsyncConnection[Any]) -> None:
    """Create what is missing, as ``create`` does, and refuse a schema of a later version.

    Raises:
        ConfigurationError: the schema is of a later version.
        SchemaError, psycopg.Error: as for ``create``.
    """
    found = await version(conn)
    if found is not None and found > SCHEMA_VERSION:
        raise newer_schema(found)
    await create(conn)


def newer_schema(found: int) -> ConfigurationError:
    """Make the error about a schema that a later version of pgelect made."""
    return ConfigurationError(
        f"the schema pgelect in this database is of version {found}, and this pgelect makes version {SCHEMA_VERSION}. "
        "Nothing was changed. Upgrade pgelect, or leave the schema as it is: locks of this version work with it."
    )


async def create(conn: AsyncConnection[Any], *, wait_ms: int | None = None) -> None:
    """Create what is missing. Inside an open transaction it becomes part of that; the caller commits.

    Nothing is done where all parts are there, of this version or a later one.

    Args:
        conn: any; the transaction is its own, or a savepoint.
        wait_ms: how long to wait for another process that creates it, in milliseconds; None: the session's own setting.

    Raises:
        SchemaError: the role may not; carries the SQL for an administrator.
        ConfigurationError: a later version made the schema, and left a part out.
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
        if (await _look(cursor))[0]:
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
            if error.sqlstate == _NEWER:
                raise ConfigurationError(
                    f"{error.diag.message_primary}. Nothing was changed; a part of it is missing. "
                    "Upgrade pgelect, and run 'pgelect init'."
                ) from error
            if error.sqlstate != _NO_RIGHT:
                raise
            raise SchemaError(
                f"the schema pgelect is missing, incomplete or of an earlier version, and the role {role!r} may not "
                "create it",
                f"{schema_sql()}\n{grants_sql(role)}",
            ) from error


async def _look(cursor: AsyncCursor[tuple[Any, ...]]) -> tuple[bool, str]:
    """Whether the schema is complete, and our role. Nothing is to be done where a stranger has been at work."""
    await cursor.execute(_LOOK)
    row = await cursor.fetchone()
    assert row is not None  # noqa: S101 -- for the type checker: a SELECT without FROM gives one row
    complete, role, stranger, intruder = row
    check_untouched(stranger, intruder)
    return bool(complete), str(role)
