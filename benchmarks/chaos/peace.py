"""What the server says of the replicas when the faults are over, and again when all of them have ended."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks.chaos import plan
from benchmarks.chaos.book import now
from benchmarks.chaos.checks_end import EVERY_S, unsettled
from benchmarks.chaos.checks_groups import unshared
from benchmarks.chaos.history import Glance
from benchmarks.chaos.stage import KEY
from pgelect import LockKey
from pgelect._postgres.campaign_sql import aside_halves

if TYPE_CHECKING:
    from typing import Any

    from benchmarks.chaos.stage import Stage

_BACK_WITHIN_S = 12.0
_GONE_WITHIN_S = 5.0
_LOCK = (
    "l.locktype = 'advisory' AND (l.objsubid, l.classid, l.objid) IN "
    "((2, %s::int8::oid, %s::int8::oid), (1, %s::int8::oid, %s::int8::oid))"
)
_KEY = (KEY.classid, KEY.objid, *aside_halves(KEY))
# By role, not by name: connections of any purpose are seen. By the lock, too: whoever else is at it is seen.
# Who stands aside waits as well as those in the queue.
_SESSIONS = f"""
SELECT a.pid, coalesce(a.application_name, ''),
    coalesce(bool_or(l.granted AND l.objsubid = 2), false), coalesce(bool_or(NOT l.granted OR l.objsubid = 1), false)
FROM pg_stat_activity AS a LEFT JOIN pg_locks AS l ON l.pid = a.pid AND {_LOCK}
WHERE a.usename = '{plan.ROLE}' OR l.pid IS NOT NULL GROUP BY 1, 2
"""
_LOCKS = f"SELECT count(*) FROM pg_locks AS l WHERE {_LOCK}"
_QUEUED = """
SELECT a.application_name FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND NOT l.granted
  AND l.classid = %s::int8::oid AND l.objid = %s::int8::oid
"""
_TOKEN = "SELECT token, released_at IS NOT NULL FROM pgelect.token WHERE key1 = %s AND key2 = %s"
_ELECTION, _WRITER = f"pgelect:{plan.LOCK_NAME}:", "chaos-writer:"
_GROUP = f"pgelect:{plan.GROUP_NAME}:"
_KEYS = [LockKey.from_name(name) for name in plan.PARTITIONS]
# Each member with the partitions that it has locked.
_SHARES = f"""
SELECT a.application_name, (SELECT count(*) FROM pg_locks AS l WHERE l.pid = a.pid AND l.locktype = 'advisory'
    AND l.objsubid = 2 AND l.granted AND (l.classid::int8, l.objid::int8) IN (
    {", ".join(f"({key.classid}, {key.objid})" for key in _KEYS)}))
FROM pg_stat_activity AS a WHERE a.application_name LIKE '{_GROUP}%'
"""


def look_at_peace(stage: Stage) -> None:
    """Mend all links, and look until everybody is back where it belongs; not for ever: that is for the checker."""
    live = tuple(replica.process.name for replica in stage.troop.replicas)
    stage.book.write("peace", live=live)
    stage.troop.rest()
    glances: list[Glance] = []
    deadline = time.monotonic() + _BACK_WITHIN_S
    while unsettled(glances, live) and time.monotonic() < deadline:
        glances.append(_glance(stage))
        time.sleep(EVERY_S)
    _look_at_group(stage)


def _look_at_group(stage: Stage) -> None:
    """Write down how the partitions are shared, once that is as it should be, or after a while."""
    deadline = time.monotonic() + _BACK_WITHIN_S
    while True:
        rows = stage.cluster.ask(_SHARES)
        led = {name.removeprefix(_GROUP): int(number) for name, number in rows}
        if not unshared(led, len(rows)) or time.monotonic() > deadline:
            break
        time.sleep(EVERY_S)
    stage.book.write("group_peace", led=led, members=len(rows))


def look_at_remains(stage: Stage) -> None:
    """Write down what is left of replicas that have all ended, once the server has had a moment to notice."""
    deadline = time.monotonic() + _GONE_WITHIN_S
    while True:
        ((locks,),) = stage.cluster.ask(_LOCKS, *_KEY)
        names = [str(name) for _, name, *_ in _sessions(stage)]
        if (not locks and not names) or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    token, released = next(iter(stage.cluster.ask(_TOKEN, KEY.key1, KEY.key2)), (0, True))
    stage.book.write("left", locks=locks, sessions=names, token=token, released=released)


def queued_for_the_lock(stage: Stage) -> set[str]:
    """Name the processes that wait in the queue at this moment."""
    names = stage.cluster.ask(_QUEUED, KEY.classid, KEY.objid)
    return {name.removeprefix(_ELECTION) for (name,) in names}


def _glance(stage: Stage) -> Glance:
    at = now()
    elections: list[tuple[str, int]] = []
    holders: list[str] = []
    waiters: list[str] = []
    writers: list[str] = []
    strangers: list[str] = []
    for pid, name, holds, waits in _sessions(stage):
        who = name
        if name.startswith(_ELECTION):
            who = name.removeprefix(_ELECTION)
            elections.append((who, pid))
        elif name.startswith(_WRITER):
            writers.append(name.removeprefix(_WRITER))
        elif not name.startswith(_GROUP):
            strangers.append(name)
        if holds:
            holders.append(who)
        if waits:
            waiters.append(who)
    found = Glance(at, tuple(elections), tuple(holders), tuple(waiters), tuple(writers), tuple(strangers))
    stage.book.write(
        "glance",
        at,
        elections=elections,
        holders=holders,
        waiters=waiters,
        writers=writers,
        strangers=strangers,
    )
    return found


def _sessions(stage: Stage) -> list[tuple[Any, ...]]:
    return stage.cluster.ask(_SESSIONS, *_KEY)
