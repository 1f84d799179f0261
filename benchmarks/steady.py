"""What leading and following cost while nothing happens, as the server itself counts it.

A server of its own logs every statement: one line a round trip. Nothing else on it writes WAL: no autovacuum, no timed
checkpoint, and ``wal_level = minimal``, under which the server does not log snapshots by itself. So nothing is
subtracted from what the WAL has grown by.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.looking import Observer
from benchmarks.process import STARTS_WITHIN_S, DidNotHappenError
from benchmarks.scenarios import HEALTH_S, Arena
from pgelect.testing import throwaway_postgres

if TYPE_CHECKING:
    from pgelect.testing import Postgres

_SETTINGS = {
    "log_statement": "all",
    "log_connections": "on",
    "log_line_prefix": "<%p> ",
    "autovacuum": "off",
    "checkpoint_timeout": "1d",
    "wal_level": "minimal",
    "max_wal_senders": "0",
}
_SESSIONS = """
SELECT pid, application_name FROM pg_catalog.pg_stat_activity
WHERE backend_type = 'client backend' AND pid <> pg_catalog.pg_backend_pid()
"""
_LSN = "SELECT (pg_catalog.pg_current_wal_insert_lsn() - '0/0')::pg_catalog.int8"
_STATEMENT = re.compile(r"^<(\d+)> LOG:  (?:statement|execute [^:]*): ", re.MULTILINE)
_ANY_LINE = re.compile(r"^<(\d+)> ", re.MULTILINE)
_LOOK_EVERY_S = 1.0
_SETTLED_AFTER = 2  # slices of the follower since it began to wait


@dataclass(frozen=True, slots=True)
class Steady:
    """What was counted in ``window_s`` seconds.

    Attributes:
        leader, follower: round trips.
        wal_bytes: by which the server's WAL has grown.
        sessions: the most client sessions seen at once, our own left out; the leader and the follower are two.
        connects: connections made.
        other_lines: lines of the server's log that are not statements.
    """

    window_s: float
    health_interval_s: float
    leader: int
    follower: int
    wal_bytes: int
    sessions: int
    connects: int
    other_lines: int


def steady(window_s: float, *, uvloop: bool, durable: bool) -> Steady:
    """Count for that long, on a server of its own."""
    with throwaway_postgres(settings=_SETTINGS, durable=durable) as server:
        arena = Arena(server, uvloop=uvloop)
        observer = Observer(server.dsn())
        with arena.replica("leader", 9) as leader:
            leader.wait_for("acquired", within_s=STARTS_WITHIN_S)
            with arena.replica("follower", 9) as follower:
                observer.until_waiting(follower.name)
                found = _count(server, observer, window_s)
                if leader.mark() != 1 or follower.mark() != 0:
                    raise DidNotHappenError("leadership moved while the steady state was counted")
        observer.close()
    return found


def _count(server: Postgres, observer: Observer, window_s: float) -> Steady:
    pids = {name.rpartition(":")[2]: pid for pid, name in observer.ask(_SESSIONS)}
    leader, follower = pids["leader"], pids["follower"]
    _until_settled(server, follower)
    logged, lsn = len(server.log_text()), observer.value(_LSN)
    begin = time.monotonic()
    sessions = 0
    while (left_s := begin + window_s - time.monotonic()) > 0:
        time.sleep(min(_LOOK_EVERY_S, left_s))
        sessions = max(sessions, len(observer.ask(_SESSIONS)))
    took_s = time.monotonic() - begin
    log = server.log_text()[logged:]
    grown = observer.value(_LSN) - lsn
    statements = _STATEMENT.findall(log)
    lines = _ANY_LINE.findall(log)
    return Steady(
        window_s=took_s,
        health_interval_s=HEALTH_S,
        leader=statements.count(str(leader)),
        follower=statements.count(str(follower)),
        wal_bytes=grown,
        sessions=sessions,
        connects=log.count("connection received"),
        other_lines=len(lines) - len(statements),
    )


def _until_settled(server: Postgres, follower: int) -> None:
    """Return when the follower has begun some more slices: what the beginning left to do is done by then."""
    wanted = _STATEMENT.findall(server.log_text()).count(str(follower)) + _SETTLED_AFTER
    deadline = time.monotonic() + STARTS_WITHIN_S
    while _STATEMENT.findall(server.log_text()).count(str(follower)) < wanted:
        if time.monotonic() > deadline:
            raise DidNotHappenError("the follower sent no statement that the server logged")
        time.sleep(0.05)
