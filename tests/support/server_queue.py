"""Catching a session early in a wait in the server's queue, so that it is still there when the fault strikes."""

from tests.support.server import query

FRESH_S = 0.5
"""A wait lasts 0.9 s by default: one that is younger than this goes on for a while."""

_FRESH = """
SELECT pid FROM pg_catalog.pg_locks
WHERE locktype = 'advisory' AND NOT granted AND objsubid = 2 AND classid = %s AND objid = %s
  AND pg_catalog.clock_timestamp() - waitstart < %s * interval '1 s'
"""


def fresh_waits(dsn: str, key: tuple[int, int]) -> list[int]:
    """The pids of sessions whose present wait for the lock began just now."""
    return [pid for (pid,) in query(dsn, _FRESH, key[0] % 2**32, key[1] % 2**32, FRESH_S)]
