"""Looking at a server through one connection that stays open, from another thread than the loop under test.

A new connection for each look would be most of what the contract suite costs.
"""

import asyncio
from typing import Any

import psycopg

SESSIONS = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'pgelect:%%' AND pid <> pg_backend_pid()
ORDER BY backend_start
"""


class Onlooker:
    """Asks as a superuser. After a restart it connects anew."""

    def __init__(self) -> None:
        self._conn: psycopg.Connection[Any] | None = None
        self._dsn = ""

    async def ask(self, dsn: str, statement: str, *params: object) -> list[tuple[Any, ...]]:
        """Run one statement there, and return its rows."""
        return await asyncio.to_thread(self._ask, dsn, statement, params)

    def close(self) -> None:
        if self._conn is not None:
            self._conn.close()

    def _ask(self, dsn: str, statement: str, params: tuple[object, ...]) -> list[tuple[Any, ...]]:
        if self._conn is not None and dsn == self._dsn:
            try:
                return self._rows(self._conn, statement, params)
            except psycopg.OperationalError:
                if not self._conn.closed:
                    raise
        self.close()
        self._conn, self._dsn = psycopg.connect(dsn, autocommit=True), dsn
        return self._rows(self._conn, statement, params)

    def _rows(self, conn: psycopg.Connection[Any], statement: str, params: tuple[object, ...]) -> list[tuple[Any, ...]]:
        cursor = conn.execute(statement.encode(), params or None, prepare=False)
        return cursor.fetchall() if cursor.description else []
