"""The benchmark's own session: it looks at who waits for a lock, and ends sessions."""

from __future__ import annotations

import time
from typing import Any

import psycopg

from benchmarks.process import STARTS_WITHIN_S, DidNotHappenError

_POLL_S = 0.01
_WAITS = """
SELECT 1 FROM pg_catalog.pg_locks AS l JOIN pg_catalog.pg_stat_activity AS a USING (pid)
WHERE l.locktype = 'advisory' AND NOT l.granted AND a.application_name LIKE '%%' || %s
"""
_WAITED = """
SELECT extract(epoch FROM pg_catalog.clock_timestamp() - l.waitstart)::pg_catalog.float8
FROM pg_catalog.pg_locks AS l JOIN pg_catalog.pg_stat_activity AS a USING (pid)
WHERE l.locktype = 'advisory' AND l.waitstart IS NOT NULL AND a.application_name LIKE '%%' || %s
"""
_HOLDER = """
SELECT pid FROM pg_catalog.pg_locks AS l JOIN pg_catalog.pg_stat_activity AS a USING (pid)
WHERE l.locktype = 'advisory' AND l.granted AND a.application_name LIKE '%%' || %s
"""


class Observer:
    """One session, for use by one thread."""

    def __init__(self, dsn: str) -> None:
        self._conn = psycopg.connect(dsn, autocommit=True, application_name="benchmark")

    def ask(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Run a query; return its rows."""
        return self._conn.execute(query.encode(), values or None).fetchall()

    def value(self, query: str) -> Any:
        """Run a query that has one value."""
        return self.ask(query)[0][0]

    def until_waiting(self, name: str) -> None:
        """Return when the session whose name ends in ``name`` is seen in the server's queue for a lock."""
        self._until(_WAITS, name, "wait for the lock")

    def waited_s(self, name: str) -> float:
        """Return for how long the session whose name ends in ``name`` has waited for a lock, once it waits."""
        return float(self._until(_WAITED, name, "wait for the lock"))

    def until_holding(self, name: str) -> int:
        """Return the server process of the session whose name ends in ``name``, once that holds a lock."""
        return int(self._until(_HOLDER, name, "hold the lock"))

    def terminate(self, pid: int) -> float:
        """End a session as an administrator would; return the time just before."""
        at = time.monotonic()
        if not self.ask("SELECT pg_catalog.pg_terminate_backend(%s)", pid)[0][0]:
            raise DidNotHappenError(f"there was no server process {pid} to terminate")
        return at

    def close(self) -> None:
        """Close the session."""
        self._conn.close()

    def _until(self, query: str, name: str, what: str) -> Any:
        deadline = time.monotonic() + STARTS_WITHIN_S
        while not (rows := self.ask(query, name)):
            if time.monotonic() > deadline:
                raise DidNotHappenError(f"{name} was not seen to {what} within {STARTS_WITHIN_S:g} s")
            time.sleep(_POLL_S)
        return rows[0][0]
