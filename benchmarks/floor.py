"""The floor: what the server and libpq need without any library, as two sessions of psql would.

Each process queues in a plain ``pg_advisory_lock`` through libpq's blocking call, reports the return, and holds the
lock until it is killed. With ``--again`` it queues when it is told to by a line of input, and frees the lock at once.
"""

from __future__ import annotations

import argparse
import sys
import time

from psycopg import pq

from benchmarks.process import report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dsn", required=True)
    parser.add_argument("--key", type=int, required=True)
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    conn = pq.PGconn.connect(options.dsn.encode())
    if not options.again:
        _lock(conn, options.key)
    for _ in sys.stdin:  # ends with the benchmark
        _lock(conn, options.key)
        conn.exec_(b"SELECT pg_advisory_unlock_all()")


def _lock(conn: pq.abc.PGconn, key: int) -> None:
    result = conn.exec_(f"SELECT pg_advisory_lock({key}, {key})".encode())
    at = time.monotonic()
    if result.status != pq.ExecStatus.TUPLES_OK:
        sys.exit(conn.get_error_message())
    report("acquired", at)


if __name__ == "__main__":
    main()
