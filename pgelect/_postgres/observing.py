"""What an onlooker asks the server: who leads, who led, and a leader to step down.

It is asked under anybody's search_path: operators, functions and types are qualified. Times travel as microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psycopg.sql import SQL, Composed, Literal

from pgelect._engine.model import Backend, LeaderRecord, LockKey
from pgelect._postgres.asking import Ask, asking
from pgelect._postgres.errors import server_name
from pgelect._postgres.install import (
    STRANGER,
    foreign_schema,
    operator_grants_sql,
    reader_grants_sql,
    schema_sql,
)
from pgelect._postgres.sql import instant, pair
from pgelect.errors import NotPrimaryError, SchemaError

if TYPE_CHECKING:
    from datetime import datetime

    from psycopg import AsyncConnection


def _microseconds(column: str) -> Composed:
    return SQL("(extract(epoch FROM {}) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8").format(SQL(column))


# The catalogs only: nothing of the schema is touched before it is known whose it is.
_HERE = SQL(
    "pg_catalog.json_build_array(current_user::pg_catalog.text, pg_catalog.pg_is_in_recovery(), "
    "pg_catalog.pg_backend_pid(), {stranger}, "
    "(SELECT pg_catalog.has_schema_privilege(n.oid, 'USAGE') FROM pg_catalog.pg_namespace AS n "
    "WHERE n.nspname OPERATOR(pg_catalog.=) 'pgelect'), "
    "(SELECT CASE WHEN pg_catalog.count(*) OPERATOR(pg_catalog.=) 2 "
    "THEN pg_catalog.bool_and(pg_catalog.has_table_privilege(c.oid, 'SELECT')) END FROM pg_catalog.pg_class AS c "
    "JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace "
    "WHERE n.nspname OPERATOR(pg_catalog.=) 'pgelect' "
    "AND (c.relname OPERATOR(pg_catalog.=) 'leaders' OR c.relname OPERATOR(pg_catalog.=) 'history')), "
    "(SELECT pg_catalog.bool_and(pg_catalog.has_function_privilege(p.oid, 'EXECUTE')) "
    "FROM pg_catalog.pg_proc AS p "
    "JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) p.pronamespace "
    "WHERE n.nspname OPERATOR(pg_catalog.=) 'pgelect' AND p.proname OPERATOR(pg_catalog.=) 'request_step_down'))"
).format(stranger=STRANGER)
# As a number of 15 digits, whatever extra_float_digits says.
_RECORD = SQL(
    "pg_catalog.json_build_array(k.key1, k.key2, k.name, k.token, k.holder, k.metadata, {acquired}, {released}, "
    "k.terms, k.lease_s::pg_catalog.numeric, k.pid, {started}, k.alive, pg_catalog.host(k.client_addr), "
    "k.application_name, k.database, {contact}, k.followers)"
).format(
    acquired=_microseconds("k.acquired_at"),
    released=_microseconds("k.released_at"),
    started=_microseconds("k.backend_start"),
    contact=_microseconds("k.last_contact_at"),
)
_TERM = SQL(
    "pg_catalog.json_build_array(h.name, h.token, h.term, h.holder, h.metadata, {began}, {ended}, h.ending, h.reason)"
).format(began=_microseconds("h.began_at"), ended=_microseconds("h.ended_at"))


@dataclass(frozen=True, slots=True)
class Here:
    """What is known of a server before anything of the schema is touched.

    Attributes:
        role: the one that asks.
        in_recovery: it is a standby.
        pid: of the server process that answers.
        usage: the role may use the schema; None: there is none.
        may_read: it may read who leads and led; None: this version of the schema does not tell.
        may_ask: it may ask leaders to step down; None: this version of the schema cannot be asked.
    """

    role: str
    in_recovery: bool
    pid: int
    usage: bool | None
    may_read: bool | None
    may_ask: bool | None


@dataclass(frozen=True, slots=True)
class WrittenTerm:
    """A row of the history, as it is written."""

    name: str | None
    token: int
    term: int
    holder: str
    metadata: dict[str, Any]
    began_at: datetime
    ended_at: datetime | None
    ending: str | None
    reason: str | None


async def leaders(conn: AsyncConnection[Any], key: LockKey | None, *, own: bool) -> list[LeaderRecord]:
    """Read the records of all locks, or that of one if there is one.

    Args:
        conn: any.
        key: the lock; None: all.
        own: the connection is ours: it is dropped after an error, and its link says what that means.

    Raises:
        SchemaError: the schema is missing, too old, a stranger's, or closed to this role.
        PgElectError: the server refused, or the connection ended.
    """
    async with asking(conn, "reading who leads", own=own) as ask:
        return await look(ask, await look_around(ask), key)


async def history(
    conn: AsyncConnection[Any], key: LockKey, limit: int, *, own: bool
) -> tuple[LeaderRecord | None, list[WrittenTerm]]:
    """Read the record of a lock, and its last terms as they are written, newest first.

    Raises:
        SchemaError, PgElectError: as for ``leaders``.
    """
    async with asking(conn, "reading who led", own=own) as ask:
        here = await look_around(ask)
        query = SQL(
            "pg_catalog.json_build_array((SELECT pg_catalog.json_agg({term} ORDER BY h.token DESC) FROM (SELECT o.* "
            "FROM pgelect.history AS o WHERE {row} ORDER BY o.token DESC LIMIT {limit}) AS h), {records})"
        ).format(term=_TERM, row=_row_is("o", key), limit=Literal(limit), records=_records(key))
        terms, rows = await ask(query)
        records = _records_of(rows, here)
        if _may_have_changed_hands(records):
            terms, rows = await ask(query)
            records = _records_of(rows, here)
    return records[0] if records else None, [_term_of(row) for row in terms or []]


async def ask_to_step_down(conn: AsyncConnection[Any], key: LockKey, token: int | None, *, own: bool) -> int | None:
    """Ask the leader of a lock to step down; the token that was asked, or None.

    Raises:
        NotPrimaryError: the server is a standby.
        SchemaError: the schema is missing, too old, a stranger's, or this role may not ask.
        PgElectError: the server refused, or the connection ended.
    """
    async with asking(conn, "asking a leader to step down", own=own, writing=True) as ask:
        here = await _here(ask)
        if here.in_recovery:
            raise NotPrimaryError(server_name(conn))
        _check_may_ask(here)
        request = SQL("pg_catalog.json_build_array(pgelect.request_step_down({}, {}::pg_catalog.int8))").format(
            pair(key), Literal(None if token is None else str(token))
        )
        asked = (await ask(request))[0]
    return None if asked is None else int(asked)


async def look_around(ask: Ask) -> Here:
    """Look whose the schema is, and whether this role may read who leads.

    Raises:
        SchemaError: as for ``leaders``.
    """
    here = await _here(ask)
    _check_version(here, reader_grants_sql(here.role), complete=here.may_read is not None)
    if not here.usage or not here.may_read:
        raise SchemaError(f"the role {here.role!r} may not read who leads", reader_grants_sql(here.role))
    return here


async def look(ask: Ask, here: Here, key: LockKey | None) -> list[LeaderRecord]:
    """Read the records of all locks, or that of one if there is one."""
    query = _records(key)
    found = _records_of(await ask(query), here)
    return _records_of(await ask(query), here) if _may_have_changed_hands(found) else found


# What the answers mean


async def _here(ask: Ask) -> Here:
    role, in_recovery, pid, stranger, *rights = await ask(_HERE)
    if stranger is not None:
        raise foreign_schema(stranger)
    return Here(role, in_recovery, pid, *rights)


def _check_may_ask(here: Here) -> None:
    _check_version(here, operator_grants_sql(here.role), complete=here.may_ask is not None)
    if not here.usage or not here.may_ask:
        raise SchemaError(f"the role {here.role!r} may not ask leaders to step down", operator_grants_sql(here.role))


def _check_version(here: Here, grants: str, *, complete: bool) -> None:
    """Raise SchemaError if there is no schema, or not all that is asked of it."""
    if here.usage is None:
        problem = "there is no schema pgelect in this database: no lock with fencing was ever led here"
    elif not complete:
        problem = (
            "the schema pgelect in this database is of version 1, which does not tell who leads; "
            "'pgelect init' upgrades it, while locks are led"
        )
    else:
        return
    raise SchemaError(problem, f"{schema_sql()}\n{grants}")


def _row_is(table: str, key: LockKey) -> Composed:
    return SQL(
        "{t}.key1 OPERATOR(pg_catalog.=) {}::pg_catalog.int4 AND {t}.key2 OPERATOR(pg_catalog.=) {}::pg_catalog.int4"
    ).format(Literal(str(key.key1)), Literal(str(key.key2)), t=SQL(table))


def _records(key: LockKey | None) -> Composed:
    where = SQL("true") if key is None else _row_is("k", key)
    return SQL("(SELECT pg_catalog.json_agg({}) FROM pgelect.leaders AS k WHERE {})").format(_RECORD, where)


def _records_of(rows: list[list[Any]] | None, here: Here) -> list[LeaderRecord]:
    return [_record_of(row, here) for row in rows or []]


def _may_have_changed_hands(records: list[LeaderRecord]) -> bool:
    """Whether to look again, in another snapshot.

    Rows are of a snapshot, but locks of the moment at which they are read: one that was given up, or has changed hands,
    in between looks lost.
    """
    return any(record.alive is False and record.released_at is None for record in records)


def _maybe(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else instant(microseconds)


def _record_of(row: list[Any], here: Here) -> LeaderRecord:
    """Read the record of a row of _RECORD. A standby knows the rows, but not who holds a lock on the primary."""
    key1, key2, name, token, holder, metadata, acquired, released, terms, lease_s, pid, started, *now = row
    alive, client_addr, application_name, database, contact, followers = now
    return LeaderRecord(
        key1=key1,
        key2=key2,
        name=name,
        token=token,
        holder=holder,
        metadata=metadata,
        acquired_at=instant(acquired),
        released_at=_maybe(released),
        terms=terms,
        lease_s=float(lease_s),
        backend=Backend(pid, instant(started)),
        alive=None if here.in_recovery else alive,
        client_addr=None if here.in_recovery else client_addr,
        application_name=None if here.in_recovery else application_name,
        database=database,
        last_contact_at=None if here.in_recovery else _maybe(contact),
        followers=None if here.in_recovery else followers,
    )


def _term_of(row: list[Any]) -> WrittenTerm:
    name, token, term, holder, metadata, began, ended, ending, reason = row
    return WrittenTerm(name, token, term, holder, metadata, instant(began), _maybe(ended), ending, reason)
