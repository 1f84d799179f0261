"""A leader made by hand: a session that holds the lock, and the rows that a leader writes. No engine, no waiting."""

import json
from types import TracebackType
from typing import Any, Self

import psycopg

from pgelect import LockKey

BEGIN = """
INSERT INTO pgelect.token AS t (key1, key2, name, token, timeline, holder, metadata, acquired_at, terms, lease_s,
    backend_pid, backend_start)
SELECT %(key1)s, %(key2)s, %(name)s, nextval('pgelect.token_seq'), 1, %(holder)s, %(metadata)s, clock_timestamp(), 1,
    15, a.pid, a.backend_start FROM pg_stat_activity AS a WHERE a.pid = pg_backend_pid()
ON CONFLICT (key1, key2) DO UPDATE SET token = excluded.token, holder = excluded.holder, metadata = excluded.metadata,
    acquired_at = excluded.acquired_at, released_at = NULL, terms = t.terms + 1, backend_pid = excluded.backend_pid,
    backend_start = excluded.backend_start
RETURNING token, terms
"""
ANNOUNCE = """
SELECT pgelect.announce(%s, %s, %s, p.token, p.name, p.holder, p.metadata, p.terms, p.acquired_at, p.released_at)
FROM (SELECT 1) AS one LEFT JOIN prior AS p ON true
"""


class Puppet:
    """Leads a lock when and as told. `silent` ones write the token row, and announce nothing."""

    def __init__(
        self, dsn: str, key: LockKey, *, holder: str = "puppet", silent: bool = False, **metadata: Any
    ) -> None:
        self.key = key
        self.holder = holder
        self.token = 0
        self._silent = silent
        self._metadata = metadata
        self.conn = psycopg.connect(dsn, autocommit=True)

    def begin(self) -> int:
        """Take the lock, and begin a term; its token."""
        pair = (self.key.key1, self.key.key2)
        self.conn.execute("SELECT pg_advisory_lock(%s::int, %s::int)", pair)
        self.conn.execute("DROP TABLE IF EXISTS prior")
        prior = f"SELECT * FROM pgelect.token WHERE key1 = {pair[0]} AND key2 = {pair[1]}"
        self.conn.execute(f"CREATE TEMP TABLE prior AS {prior}".encode())
        row = self.conn.execute(
            BEGIN.encode(),
            {
                "key1": pair[0],
                "key2": pair[1],
                "name": self.key.name,
                "holder": self.holder,
                "metadata": json.dumps(self._metadata),
            },
        ).fetchone()
        assert row is not None
        self.token = row[0]
        if not self._silent:
            self.conn.execute(ANNOUNCE.encode(), (*pair, self.token))
            self.notify("began")
        return self.token

    def release(self) -> None:
        """Give the term up cleanly."""
        self.conn.execute(
            "UPDATE pgelect.token SET released_at = clock_timestamp() WHERE key1 = %s AND key2 = %s AND token = %s",
            (self.key.key1, self.key.key2, self.token),
        )
        self.conn.execute("SELECT pg_advisory_unlock(%s::int, %s::int)", (self.key.key1, self.key.key2))
        if not self._silent:
            self.notify("released")

    def report_lost(self, token: int, reason: str) -> None:
        """Say of an earlier term that it was lost, as its holder does when it is connected again."""
        self.conn.execute(
            "SELECT pgelect.report_lost(%s, %s, %s, %s, 0)", (self.key.key1, self.key.key2, token, reason)
        )

    def notify(self, event: str) -> None:
        """Tell observers."""
        told = {"key1": self.key.key1, "key2": self.key.key2, "token": self.token, "event": event}
        self.conn.execute("SELECT pg_notify('pgelect', %s)", (json.dumps(told),))

    def die(self) -> None:
        """End the session without a word."""
        self.conn.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.conn.close()
