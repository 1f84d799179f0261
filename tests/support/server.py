"""Looking at the server: who holds a lock, who waits for it, which sessions are there. And ending a session."""

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import class_row

from tests.support.waiting import eventually, eventually_sync

__all__ = ["Session", "eventually", "eventually_sync", "lock_holders", "lock_waiters", "query", "sessions", "terminate"]

# A pair of int4 keys: classid and objid are the same bits as unsigned numbers, objsubid is 2 (1 is a bigint key).
LOCKS = """
SELECT pid FROM pg_catalog.pg_locks
WHERE locktype = 'advisory' AND objsubid = 2 AND classid = %s AND objid = %s AND granted = %s
  AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
ORDER BY waitstart NULLS FIRST, pid
"""
_SESSIONS = """
SELECT pid, application_name, state, backend_xmin::text, wait_event
FROM pg_catalog.pg_stat_activity
WHERE datname = pg_catalog.current_database() AND application_name LIKE %s AND pid <> pg_catalog.pg_backend_pid()
ORDER BY backend_start
"""


@dataclass(frozen=True, slots=True)
class Session:
    """One row of pg_stat_activity."""

    pid: int
    application_name: str
    state: str | None
    backend_xmin: str | None
    wait_event: str | None


def query(dsn: str, statement: str, *params: object) -> list[tuple[Any, ...]]:
    """Run one statement on a connection of its own, and return its rows."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        cursor = conn.execute(statement.encode(), params or None)
        return cursor.fetchall() if cursor.description else []


def lock_holders(dsn: str, key1: int, key2: int) -> list[int]:
    """The pids that hold the advisory lock, in this database."""
    return _lock_pids(dsn, key1, key2, granted=True)


def lock_waiters(dsn: str, key1: int, key2: int) -> list[int]:
    """The pids that wait for the advisory lock, in this database, the longest waiting first."""
    return _lock_pids(dsn, key1, key2, granted=False)


def sessions(dsn: str, like: str = "pgelect:%") -> list[Session]:
    """The sessions in this database whose application_name matches, oldest first."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        return conn.cursor(row_factory=class_row(Session)).execute(_SESSIONS, (like,)).fetchall()


def terminate(dsn: str, pid: int) -> bool:
    """End a session, as an administrator would; whether there was one."""
    return bool(query(dsn, "SELECT pg_catalog.pg_terminate_backend(%s)", pid)[0][0])


def _lock_pids(dsn: str, key1: int, key2: int, *, granted: bool) -> list[int]:
    rows = query(dsn, LOCKS, key1 % 2**32, key2 % 2**32, granted)
    return [pid for (pid,) in rows]
