"""Every statement of a group's session. The rules are those of ``sql.py``; keys and tokens travel as arrays.

What others see of a member is three kinds of locks that its session holds, in a key space of the group's own (GROUP,
WEIGHT and LIMIT are the first parts of the keys, from the SHA-256 of its name):

- (GROUP, id), exclusively: it lives. Whoever waits for that lock in shared mode hears of its end at once.
- (WEIGHT, its weight as the bits of a 32-bit float) and, if it has one, (LIMIT, its limit): shared, for others may have
  the same.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from psycopg.sql import SQL, Composed, Literal

from pgelect._group.shares import Member, View
from pgelect._postgres.sql import RECORD, REPEATED, TIMELINE, record_columns

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from pgelect._engine.model import Backend, LockKey
    from pgelect._postgres.opened import Facts
    from pgelect._postgres.options import SessionOptions

_ORPHANED = SQL("'pgelect.orphaned'")
_OURS = SQL(
    "l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted AND l.mode = 'ExclusiveLock' "
    "AND l.pid = pg_catalog.pg_backend_pid()"
)
_TOKEN_COLUMNS = SQL(
    "key1, key2, name, token, timeline, holder, metadata, acquired_at, released_at, terms, lease_s, backend_pid, "
    "backend_start"
)


@dataclass(frozen=True, slots=True)
class Ring:
    """The key space of one group: signed 32-bit numbers."""

    group: int
    weight: int
    limit: int

    @classmethod
    def of(cls, name: str) -> Ring:
        """Map a name to it: the first 12 bytes of the SHA-256 of ``pgelect group`` NUL name."""
        return cls(*struct.unpack(">iii", sha256(b"pgelect group\0" + name.encode()).digest()[:12]))


def weight_bits(weight: float) -> int:
    """Give the bits of a 32-bit float as a signed number."""
    bits: int = struct.unpack(">i", struct.pack(">f", weight))[0]
    return bits


def _int4(value: int) -> Composed:
    return SQL("{}::pg_catalog.int4").format(Literal(str(value)))


def _pair(first: int, second: int) -> Composed:
    return SQL("{}, {}").format(_int4(first), _int4(second))


def _unnested(keys: Iterable[LockKey]) -> Composed:
    """Render keys as rows (key1, key2)."""
    keys = tuple(keys)
    return SQL("unnest({}::pg_catalog.int4[], {}::pg_catalog.int4[])").format(
        Literal(_array(key.key1 for key in keys)), Literal(_array(key.key2 for key in keys))
    )


def _array(values: Iterable[int]) -> str:
    return "{" + ",".join(map(str, values)) + "}"


def join(ring: Ring, me: int, weight: float, most: int | None) -> Composed:
    """Become a member: (locked,)."""
    words = [SQL("pg_catalog.pg_try_advisory_lock_shared({})").format(_pair(ring.weight, weight_bits(weight)))]
    if most is not None:
        words.append(SQL("pg_catalog.pg_try_advisory_lock_shared({})").format(_pair(ring.limit, most)))
    words.append(SQL("pg_catalog.pg_try_advisory_lock({})").format(_pair(ring.group, me)))
    return SQL("SELECT {}").format(SQL(" AND ").join(words))


def end_session(ghost: Backend) -> Composed:
    """End that session, and no other: (ended,) or nothing."""
    return SQL(
        "SELECT pg_catalog.pg_terminate_backend(a.pid, 300) FROM pg_catalog.pg_stat_activity AS a "
        "WHERE a.pid = {} AND a.backend_start = {}::pg_catalog.timestamptz AND a.pid <> pg_catalog.pg_backend_pid()"
    ).format(_int4(ghost.pid), Literal(ghost.started_at.isoformat()))


def wait_for(ring: Ring, member: int, wait_ms: int) -> Composed:
    """Wait for the end of a member, and note whether that came; errors are trapped, so nothing is logged.

    The members of a ring wait for each other, all at once: less long than the server takes to look for a deadlock.
    """
    return SQL(
        "DO $pgelect$ BEGIN "
        "PERFORM pg_catalog.set_config({orphaned}, 'false', true), "
        "pg_catalog.set_config('lock_timeout', {wait}, true); "
        "BEGIN PERFORM pg_catalog.pg_advisory_xact_lock_shared({key}); "
        "PERFORM pg_catalog.set_config({orphaned}, 'true', true); "
        "EXCEPTION WHEN lock_not_available OR query_canceled OR deadlock_detected THEN NULL; END; "
        "END $pgelect$; "
    ).format(orphaned=_ORPHANED, wait=Literal(f"{wait_ms}ms"), key=_pair(ring.group, member))


def look(ring: Ring, facts: Facts, known: int | None, *, waited: bool) -> Composed:
    """Prove the locks and look at the group: (orphaned, ours, exclusive locks held, in recovery, print, view or NULL).

    The print is of all exclusive locks of all members, and of who holds them. One look at the locks for everything: on
    a server with a very full lock table that is not free.
    """
    orphaned = SQL("pg_catalog.current_setting({}, true) = 'true'").format(_ORPHANED) if waited else SQL("false")
    return SQL(
        "WITH l AS MATERIALIZED (SELECT l.classid::pg_catalog.int8 AS c, l.objid::pg_catalog.int8 AS o, l.pid, "
        "l.mode = 'ExclusiveLock' AS x FROM pg_catalog.pg_locks AS l WHERE l.locktype = 'advisory' AND l.objsubid = 2 "
        "AND l.granted AND l.mode IN ('ExclusiveLock', 'ShareLock') AND l.database = {database}::pg_catalog.oid), "
        "m AS MATERIALIZED (SELECT DISTINCT l.pid FROM l WHERE l.x AND l.c = {group}), "
        "f AS MATERIALIZED (SELECT count(*) FILTER (WHERE l.pid = pg_catalog.pg_backend_pid()) AS mine, "
        "coalesce(bit_xor(pg_catalog.hashint8extended((l.c << 32) | l.o, l.pid)), 0) AS print "
        "FROM l JOIN m ON m.pid = l.pid WHERE l.x) "
        "SELECT {orphaned}, pg_catalog.current_setting('pgelect.nonce', true) IS NOT DISTINCT FROM {nonce}, f.mine, "
        "pg_catalog.pg_is_in_recovery(), f.print, CASE WHEN f.print IS DISTINCT FROM {known}::pg_catalog.int8 THEN "
        "(SELECT string_agg(pg_catalog.concat_ws(' ', l.c, l.o, l.pid, l.x), ',') FROM l "
        "WHERE l.x OR l.c IN ({weight}, {limit})) END FROM f"
    ).format(
        database=Literal(str(facts.database)),
        group=_unsigned(ring.group),
        weight=_unsigned(ring.weight),
        limit=_unsigned(ring.limit),
        orphaned=orphaned,
        nonce=Literal(facts.nonce),
        known=Literal(None if known is None else str(known)),
    )


def _unsigned(value: int) -> Composed:
    return SQL("{}::pg_catalog.int8").format(Literal(str(value & 0xFFFFFFFF)))


def _signed(value: int) -> int:
    return value - 2**32 if value >= 2**31 else value


def view_of(text: str, ring: Ring) -> View:
    """Read the view of a look."""
    ids: dict[int, int] = {}  # by pid
    weights: dict[int, float] = {}
    limits: dict[int, int] = {}
    holders: dict[tuple[int, int], int] = {}
    for row in text.split(",") if text else ():
        first, second, pid_text, exclusive = row.split(" ")
        key1, key2, pid = _signed(int(first)), _signed(int(second)), int(pid_text)
        if exclusive == "t" and key1 == ring.group:
            ids[pid] = key2
        elif exclusive == "t":
            holders[key1, key2] = pid
        elif key1 == ring.weight:
            weights[pid] = struct.unpack(">f", struct.pack(">i", key2))[0]
        elif key1 == ring.limit:
            limits[pid] = key2
    members = [Member(me, pid, _sane(weights.get(pid, 1.0)), limits.get(pid)) for pid, me in sorted(ids.items())]
    return View(tuple(members), holders)


def _sane(weight: float) -> float:
    """Make nothing of a weight that no member of ours can have: anybody can take such a lock."""
    return weight if 0 < weight < float("inf") else 1.0


def try_locks(keys: Collection[LockKey]) -> Composed:
    """Try for locks, none of which this session holds: rows (key1, key2) of those that are granted."""
    return SQL(
        "SELECT k.key1, k.key2 FROM {} AS k (key1, key2) WHERE pg_catalog.pg_try_advisory_lock(k.key1, k.key2)"
    ).format(_unnested(keys))


def unlock_others(keys: Collection[LockKey], ring: Ring, me: int) -> Composed:
    """Unlock what this session holds beyond those and its own member's lock."""
    return SQL(
        "SELECT pg_catalog.pg_advisory_unlock(h.key1, h.key2) FROM (SELECT "
        "(CASE WHEN l.classid::pg_catalog.int8 > 2147483647 THEN l.classid::pg_catalog.int8 - 4294967296 "
        "ELSE l.classid::pg_catalog.int8 END)::pg_catalog.int4 AS key1, "
        "(CASE WHEN l.objid::pg_catalog.int8 > 2147483647 THEN l.objid::pg_catalog.int8 - 4294967296 "
        "ELSE l.objid::pg_catalog.int8 END)::pg_catalog.int4 AS key2 FROM pg_catalog.pg_locks AS l WHERE {ours}) AS h "
        "WHERE (h.key1, h.key2) NOT IN (SELECT k.key1, k.key2 FROM {keys} AS k (key1, key2)) "
        "AND (h.key1, h.key2) <> ({me})"
    ).format(ours=_OURS, keys=_unnested(keys), me=_pair(ring.group, me))


def mint_all(options: SessionOptions, facts: Facts, keys: Collection[LockKey]) -> Composed:
    """Write the next tokens of those of these keys whose locks this session holds, as ``sql.mint`` does for one.

    Rows: key pair, timeline, prior clean, other name or NULL, then RECORD (NULLs: not minted: the row is locked by a
    fenced transaction, or carries another name), then that of before. Waits for nobody.
    """
    keys = tuple(keys)
    return SQL(
        "WITH tl AS MATERIALIZED (SELECT {timeline} AS n), "
        "wanted AS MATERIALIZED (SELECT k.key1, k.key2, k.name FROM unnest({key1}::pg_catalog.int4[], "
        "{key2}::pg_catalog.int4[], {names}::pg_catalog.text[]) AS k (key1, key2, name) "
        "JOIN pg_catalog.pg_locks AS l ON l.classid = (k.key1::pg_catalog.int8 & 4294967295)::pg_catalog.oid "
        "AND l.objid = (k.key2::pg_catalog.int8 & 4294967295)::pg_catalog.oid WHERE {ours} "
        "AND l.database = {database}::pg_catalog.oid "
        "AND pg_catalog.current_setting('pgelect.nonce', true) = {nonce}), "
        "seen AS MATERIALIZED (SELECT w.key1, w.key2, w.name AS our_name, t.name AS other_name, "
        "t.key1 IS NOT NULL AND t.name <> w.name IS TRUE AS collides, t.key1 IS NULL AS new "
        "FROM wanted AS w LEFT JOIN pgelect.token AS t ON t.key1 = w.key1 AND t.key2 = w.key2), "
        "prior AS MATERIALIZED (SELECT t.*, s.our_name, "
        "((tl.n - 1) << 40) + pg_catalog.nextval('pgelect.token_seq') AS next "
        "FROM pgelect.token AS t JOIN seen AS s ON s.key1 = t.key1 AND s.key2 = t.key2 AND NOT s.collides, tl "
        "FOR NO KEY UPDATE OF t SKIP LOCKED), "
        "updated AS (UPDATE pgelect.token AS t SET name = coalesce(p.our_name, t.name), "
        "token = greatest(t.token + 1, p.next, (((t.token >> 40) + tl.n "
        "- CASE WHEN t.timeline <= tl.n THEN t.timeline ELSE 0 END) << 40) + (p.next & 1099511627775)), "
        "timeline = tl.n, holder = {holder}, metadata = {metadata}, acquired_at = pg_catalog.clock_timestamp(), "
        "released_at = NULL, terms = t.terms + 1, lease_s = {lease}, backend_pid = {pid}, backend_start = {start} "
        "FROM prior AS p, tl WHERE t.key1 = p.key1 AND t.key2 = p.key2 RETURNING t.*), "
        "made AS (INSERT INTO pgelect.token AS t ({columns}) SELECT s.key1, s.key2, s.our_name, "
        "((tl.n - 1) << 40) + pg_catalog.nextval('pgelect.token_seq'), tl.n, {holder}, {metadata}, "
        "pg_catalog.clock_timestamp(), NULL, 1, {lease}, {pid}, {start} FROM seen AS s, tl WHERE s.new "
        "ON CONFLICT (key1, key2) DO NOTHING RETURNING t.*), "
        "minted AS (SELECT * FROM updated UNION ALL SELECT * FROM made) "
        "SELECT s.key1, s.key2, tl.n, "
        "CASE WHEN s.new THEN tl.n = 1 ELSE prior.released_at IS NOT NULL AND prior.timeline = tl.n END, "
        "CASE WHEN s.collides THEN s.other_name END, {record}, {before}, "
        "CASE WHEN t.token <= prior.token OR t.token < prior.next THEN ({repeated} || t.token)::pg_catalog.bool END "
        "FROM seen AS s CROSS JOIN tl "
        "LEFT JOIN minted AS t ON t.key1 = s.key1 AND t.key2 = s.key2 "
        "LEFT JOIN prior ON prior.key1 = s.key1 AND prior.key2 = s.key2"
    ).format(
        timeline=TIMELINE,
        key1=Literal(_array(key.key1 for key in keys)),
        key2=Literal(_array(key.key2 for key in keys)),
        names=Literal([key.name for key in keys]),
        ours=_OURS,
        database=Literal(str(facts.database)),
        nonce=Literal(facts.nonce),
        holder=SQL("{}::pg_catalog.text").format(Literal(options.identity)),
        metadata=SQL("{}::pg_catalog.jsonb").format(Literal(json.dumps(dict(options.metadata)))),
        lease=SQL("{}::pg_catalog.float8").format(Literal(str(options.lease_s))),
        pid=_int4(facts.backend.pid),
        start=SQL("{}::pg_catalog.timestamptz").format(Literal(facts.backend.started_at.isoformat())),
        columns=_TOKEN_COLUMNS,
        record=RECORD,
        before=record_columns("prior"),
        repeated=Literal(REPEATED),
    )


def free_all(tokens: Collection[tuple[LockKey, int]], wait_ms: int) -> Composed:
    """Mark terms as cleanly given up, then free their locks: rows (key1, key2, freed).

    A row that a fenced transaction holds is left unmarked: its next leader will take the end for an unclean one.
    """
    tokens = tuple(tokens)
    keys = [key for key, _ in tokens]
    return SQL(
        "BEGIN; SET LOCAL synchronous_commit = off; SELECT pg_catalog.set_config('statement_timeout', {wait}, true); "
        "WITH mine AS MATERIALIZED (SELECT t.key1, t.key2 FROM pgelect.token AS t JOIN unnest("
        "{key1}::pg_catalog.int4[], {key2}::pg_catalog.int4[], {tokens}::pg_catalog.int8[]) AS k (key1, key2, token) "
        "ON t.key1 = k.key1 AND t.key2 = k.key2 AND t.token = k.token FOR NO KEY UPDATE OF t SKIP LOCKED) "
        "UPDATE pgelect.token AS t SET released_at = pg_catalog.clock_timestamp() FROM mine "
        "WHERE t.key1 = mine.key1 AND t.key2 = mine.key2; COMMIT; {unlock}"
    ).format(
        wait=Literal(f"{wait_ms}ms"),
        key1=Literal(_array(key.key1 for key in keys)),
        key2=Literal(_array(key.key2 for key in keys)),
        tokens=Literal(_array(token for _, token in tokens)),
        unlock=unlock_all(keys),
    )


def asked(tokens: Collection[tuple[LockKey, int]]) -> Composed:
    """Who has asked which of these terms to end: rows (key1, key2, by)."""
    return SQL(
        "SELECT k.key1, k.key2, k.by FROM (SELECT u.key1, u.key2, "
        "pgelect.asked_to_step_down(u.key1, u.key2, u.token) AS by FROM unnest({}::pg_catalog.int4[], "
        "{}::pg_catalog.int4[], {}::pg_catalog.int8[]) AS u (key1, key2, token)) AS k WHERE k.by IS NOT NULL"
    ).format(
        Literal(_array(key.key1 for key, _ in tokens)),
        Literal(_array(key.key2 for key, _ in tokens)),
        Literal(_array(token for _, token in tokens)),
    )


def unlock_all(keys: Collection[LockKey]) -> Composed:
    """Free locks: rows (key1, key2, freed)."""
    return SQL("SELECT k.key1, k.key2, pg_catalog.pg_advisory_unlock(k.key1, k.key2) FROM {} AS k (key1, key2)").format(
        _unnested(keys)
    )


def grant_columns(row: tuple[Any, ...], width: int) -> tuple[list[Any], list[Any]]:
    """Split the columns of a row of ``mint_all`` into the record written and that of before."""
    columns = list(row[5:])
    return columns[:width], columns[width : 2 * width]
