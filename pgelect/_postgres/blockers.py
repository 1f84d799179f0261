"""Transactions that an earlier token fenced and that keep a session from the token row: who they are, and their end.

Asked from a second session, while the first one waits: see ``minting.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg.sql import SQL, Composed, Literal

from pgelect.errors import PgElectError, SessionLostError

if TYPE_CHECKING:
    from pgelect._engine.model import Backend
    from pgelect._postgres.link import Deadline
    from pgelect._postgres.opened import Opened

# For a session without settings of its own: within this query only.
_HERE = SQL("SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);")
# The condition on ``pg_locks AS l`` for a session that has locked rows of the token table for share.
_SHARES_ROWS = SQL(
    "l.locktype = 'relation' AND l.granted AND l.relation = 'pgelect.token'::pg_catalog.regclass "
    "AND l.mode = 'RowShareLock'"
)


def fence_blockers(waiting: Backend) -> Composed:
    """Who keeps that session from the token row, asked from another one: (pid,) each.

    Only sessions that have locked rows of the table for share are fenced transactions; others are left alone. The start
    is compared in case that the two sessions are not on the same server.
    """
    return SQL(
        "{} SELECT DISTINCT b.pid FROM pg_catalog.pg_stat_activity AS a "
        "CROSS JOIN LATERAL pg_catalog.unnest(pg_catalog.pg_blocking_pids(a.pid)) AS b (pid) "
        "JOIN pg_catalog.pg_locks AS l ON l.pid = b.pid WHERE {} AND {}"
    ).format(_HERE, _is_session(waiting), _SHARES_ROWS)


def end_blocker(waiting: Backend, pid: int) -> Composed:
    """End a session if it still keeps that one from the token row: (told or NULL,), or nothing.

    The look and the end are one statement: a pooled connection may have committed since the last look, and be in a
    transaction of somebody else by now. One session at a time: a right that is missing for one fails the statement.
    """
    return SQL(
        "{here} SELECT CASE WHEN l.pid = ANY (pg_catalog.pg_blocking_pids(a.pid)) "
        "THEN pg_catalog.pg_terminate_backend(l.pid) END FROM pg_catalog.pg_stat_activity AS a "
        "CROSS JOIN pg_catalog.pg_locks AS l WHERE {waiting} AND {shares} AND l.pid = {pid}::pg_catalog.int4"
    ).format(here=_HERE, waiting=_is_session(waiting), shares=_SHARES_ROWS, pid=Literal(str(pid)))


def _is_session(backend: Backend) -> Composed:
    """Render the condition on ``pg_stat_activity AS a`` for this being that session."""
    return SQL("a.pid = {}::pg_catalog.int4 AND a.backend_start = {}::pg_catalog.timestamptz").format(
        Literal(str(backend.pid)), Literal(backend.started_at.isoformat())
    )


async def end(beside: Opened, waiting: Backend, pid: int, deadline: Deadline) -> bool:
    """End a session that is in the way. False: it is not any more."""
    query = end_blocker(waiting, pid)
    try:
        rows = (await beside.ask(query, deadline, "ending a fenced transaction of an earlier term"))[-1]
    except SessionLostError:
        raise
    except PgElectError:  # no right to; it may end by itself
        return True
    return bool(rows and rows[0][0])
