"""What a leader tells the database of itself for those who look on, and what it hears from those who may ask it to end.

Nothing of this decides who leads, and nothing of it may hold up who does: each statement waits for locks for a moment
only, comes after the term has begun, and may fail. Anybody can notify a channel, so a call is only a reason to look;
what counts is the row that only whoever may can write.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from psycopg.sql import SQL, Composed, Identifier, Literal

from pgelect._postgres import sql
from pgelect._postgres.sql import pair

if TYPE_CHECKING:
    from psycopg import AsyncConnection

    from pgelect._engine.model import Grant, LeaderRecord, LockKey, LostTerm
    from pgelect._postgres.link import Deadline
    from pgelect._postgres.opened import Opened

CHANGES = "pgelect"
"""The channel on which terms that begin and end are told."""
# Of databases in which whatever anybody sends can be said in UTF-8, the encoding of our sessions. Elsewhere (SQL_ASCII,
# WIN1252) a neighbour can send what cannot, and the server ends each session that hears it.
_HEARD_IN = frozenset({"UTF8", "LATIN1", "LATIN2", "LATIN5", "LATIN9"})

_LOCK_WAIT_S, _STATEMENT_S = 0.1, 0.5
_said: set[LockKey] = set()  # of these locks of this process, that nothing is written down

log = logging.getLogger("pgelect")


def step_down_channel(key: LockKey) -> str:
    """Name the channel on which the leader of a lock is called."""
    return f"pgelect_step_down_{key.classid}_{key.objid}"


def may_listen(conn: AsyncConnection[Any]) -> bool:
    """Whether a session of ours can listen here without risk to itself; where not, it looks from time to time."""
    return conn.info.parameter_status("server_encoding") in _HEARD_IN


async def announce(
    session: Opened, grant: Grant | None, lost: LostTerm | None, ago_s: float, deadline: Deadline, *, outdated: bool
) -> None:
    """Listen, write down what has begun and what was lost, and tell whoever observes.

    ``outdated``: the token row may name another session than this, or another lease than that in force.

    Raises:
        SessionLostError: the session ended.
        PgElectError: a part of it was refused; the session is usable.
    """
    key = session.options.key
    if grant is not None and not session.facts.announces:
        _say_once(key)
    if grant is not None and session.facts.announces and may_listen(session.link.conn):
        await session.ask(SQL("LISTEN {}").format(Identifier(step_down_channel(key))), deadline, "listening")
    try:
        if grant is not None and grant.record is not None and outdated:
            await _bring_up_to_date(session, grant, deadline)
        if session.facts.announces:
            await session.ask(_write_down(session, grant, lost, ago_s, deadline), deadline, "announcing a term")
    finally:
        if grant is not None and not session.link.dropped:
            await tell(session, grant.token, "began", deadline)


def _say_once(key: LockKey) -> None:
    if key not in _said:
        _said.add(key)
        log.info(
            "%s: this role may not write down who leads, or the schema pgelect is of an earlier version: there is no "
            "history, and nobody can ask for a step-down. 'pgelect init' upgrades the schema, and prints the grants",
            key,
        )


async def _bring_up_to_date(session: Opened, grant: Grant, deadline: Deadline) -> None:
    """See that the row names this session and the lease in force: a term may go on with others than it began with."""
    options, backend = session.options, session.facts.backend
    query = bounded(deadline) + sql.bring_up_to_date(options.key, grant.token, backend, options.lease_s)
    await session.ask(query, deadline, "bringing the token row up to date")


async def tell(session: Opened, token: int, event: str, deadline: Deadline) -> None:
    """Notify whoever observes. In a transaction of its own: it fails when the server's queue is full."""
    await session.ask(_notify(session.options.key, token, event), deadline, "telling of a term")


async def tell_released(session: Opened, token: int, deadline: Deadline) -> None:
    """Notify whoever observes, and listen no more: a pooler may hand this server session to somebody else."""
    query = SQL("UNLISTEN *; ") + _notify(session.options.key, token, "released")
    await session.ask(query, deadline, "telling of a release")


def _notify(key: LockKey, token: int, event: str) -> Composed:
    text = json.dumps({"key1": key.key1, "key2": key.key2, "token": token, "event": event})
    return SQL("SELECT pg_catalog.pg_notify({}, {})").format(Literal(CHANGES), Literal(text))


async def heed(session: Opened, token: int, deadline: Deadline) -> str | None:
    """Look who has asked the term of that token to end.

    Raises:
        SessionLostError: the session ended.
        PgElectError: it could not be found out; the session is usable.
    """
    if not session.facts.announces:
        return None
    query = bounded(deadline) + SQL("SELECT pgelect.asked_to_step_down({}, {}::pg_catalog.int8)").format(
        pair(session.options.key), Literal(str(token))
    )
    by = (await session.ask(query, deadline, "looking for a request to step down"))[-1][0][0]
    return None if by is None else str(by)


def bounded(deadline: Deadline) -> Composed:
    """Bound what follows in the same transaction, well within the deadline: to miss that costs the session."""
    bounds = (("lock_timeout", _LOCK_WAIT_S), ("statement_timeout", _STATEMENT_S))
    settings = [
        SQL("pg_catalog.set_config({}, {}, true)").format(
            Literal(name), Literal(f"{max(1, round(min(most_s, deadline.left_s() / 4) * 1000))}ms")
        )
        for name, most_s in bounds
    ]
    return SQL("SELECT pg_catalog.set_config('synchronous_commit', 'off', true), {}; ").format(SQL(", ").join(settings))


def _write_down(
    session: Opened, grant: Grant | None, lost: LostTerm | None, ago_s: float, deadline: Deadline
) -> Composed:
    key = pair(session.options.key)
    words = []
    if lost is not None:
        if lost.untold is not None:
            words.append(begun(session.options.key, lost.untold))
        words.append(
            SQL("SELECT pgelect.report_lost({}, {}::pg_catalog.int8, {}, {}::pg_catalog.float8)").format(
                key, Literal(str(lost.token)), Literal(lost.reason), Literal(str(ago_s))
            )
        )
    if grant is not None:
        words.append(begun(session.options.key, grant))
    return bounded(deadline) + SQL("; ").join(words)


def begun(key: LockKey, grant: Grant) -> Composed:
    """Write down that a term has begun, and how the one before it ended."""
    return SQL("SELECT pgelect.announce({}, {}::pg_catalog.int8, {})").format(
        pair(key), Literal(str(grant.token)), _prior(grant.prior)
    )


def _prior(prior: LeaderRecord | None) -> Composed:
    values: tuple[str | None, ...] = (None,) * 7
    if prior is not None:
        released = prior.released_at
        values = (
            str(prior.token),
            prior.name,
            prior.holder,
            json.dumps(dict(prior.metadata)),
            str(prior.terms),
            prior.acquired_at.isoformat(),
            None if released is None else released.isoformat(),
        )
    types = ("int8", "text", "text", "jsonb", "int8", "timestamptz", "timestamptz")
    return SQL(", ").join(
        SQL("{}::pg_catalog.{}").format(Literal(value), Identifier(kind))
        for value, kind in zip(values, types, strict=True)
    )
