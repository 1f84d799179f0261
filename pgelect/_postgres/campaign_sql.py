"""The statements by which a session tries for the lock, waits for it, stands aside, and proves that it has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg.sql import SQL, Composable, Composed, Literal

from pgelect._postgres import sql

if TYPE_CHECKING:
    from pgelect._engine.model import LockKey
    from pgelect._postgres.opened import Facts
    from pgelect._postgres.options import SessionOptions

_OUTCOME = SQL("'pgelect.granted'")


def _campaigns_for(key: LockKey, facts: Facts) -> Composed:
    """Render the condition on ``pg_locks AS l`` for this lock being held or waited for, or being stood aside from."""
    high, low = aside_halves(key)
    return SQL(
        "({} OR l.locktype = 'advisory' AND l.objsubid = 1 AND l.mode = 'ShareLock' AND l.database = "
        "{}::pg_catalog.oid AND l.classid = {}::pg_catalog.oid AND l.objid = {}::pg_catalog.oid)"
    ).format(sql.wants_lock(key, facts), *(Literal(str(value)) for value in (facts.database, high, low)))


def aside_halves(key: LockKey) -> tuple[int, int]:
    """Give both halves of the key of which everybody holds a lock, shared, who stands aside from the lock of ``key``.

    A single 64-bit key: those are a space of their own. Small numbers are what people take themselves, so none of ours
    is small: the constant is the first 8 bytes of SHA-256 of "pgelect: who stands aside". The schema has it, too.
    """
    return key.classid ^ 0xF8E877DE, key.objid ^ 0xB56F0E62


def _aside(key: LockKey) -> Composed:
    """Render that key as an argument."""
    high, low = aside_halves(key)
    return sql.int8(((high << 32 | low) ^ 1 << 63) - (1 << 63))


def _lease_first(lease_ms: int) -> Composed:
    """Have the server enforce the lease *before* the lock can be granted: committed apart, so no error undoes it."""
    return SQL("BEGIN; SELECT pg_catalog.set_config('idle_session_timeout', {}, false); COMMIT; ").format(
        Literal(f"{lease_ms}ms")
    )


def _unshared(options: SessionOptions, facts: Facts) -> Composable:
    """Render whether this server session is ours alone: as we set it up, and without a lock that we do not know of.

    We never take the lock twice; in a session that a pooler shares it may be another elector's, and granted once more.
    """
    if options.allow_pooler:
        return SQL("true")
    return SQL(
        "(pg_catalog.current_setting('pgelect.nonce', true) IS NOT DISTINCT FROM {nonce} AND NOT EXISTS (SELECT 1 "
        "FROM pg_catalog.pg_locks AS l WHERE {lock} AND l.pid = pg_catalog.pg_backend_pid()))"
    ).format(nonce=Literal(facts.nonce), lock=sql.lock_is(options.key, facts))


def try_lock(
    options: SessionOptions, facts: Facts, lease_ms: int, *, places: int | None = None, aside: bool = False
) -> Composed:
    """Try for the lock. Last results: (granted, unshared, full, others aside, _), then the token row if fencing.

    Granted is NULL for a name collision. A refused follower may sleep longer than the lease, so it is not held to it.

    ``places``: the queue is full when so many wait in it; then this session stands aside. ``aside``: it does already.
    Where it cannot, as a stranger has that lock for himself, the queue is never full.
    """
    key, fencing = options.key, options.fencing
    attempt: Composable = SQL("pg_catalog.pg_try_advisory_lock({})").format(sql.pair(key))
    if fencing and key.name is not None:
        attempt = SQL(
            "CASE WHEN EXISTS (SELECT 1 FROM pgelect.token AS t WHERE {} AND t.name <> {}) THEN NULL ELSE {} END"
        ).format(sql.row_is(key), Literal(key.name), attempt)
    counted: Composable = SQL("NULL::pg_catalog.int8[]")
    full: Composable = SQL("NULL::pg_catalog.bool")
    if places is not None:
        counted = SQL(
            "CASE WHEN NOT granted THEN (SELECT ARRAY[count(*) FILTER (WHERE NOT l.granted), "
            "count(*) FILTER (WHERE l.objsubid = 1)] FROM pg_catalog.pg_locks AS l WHERE {}) END"
        ).format(_campaigns_for(key, facts))
        full = SQL("CASE WHEN n[1] >= {} THEN pg_catalog.pg_try_advisory_lock_shared({}) END").format(
            Literal(places), _aside(key)
        )
    asked = SQL(
        "{first}{back}WITH session AS MATERIALIZED (SELECT {unshared} AS unshared), "
        "attempt AS MATERIALIZED (SELECT CASE WHEN unshared THEN {attempt} END AS granted, unshared FROM session), "
        "crowd AS MATERIALIZED (SELECT granted, unshared, {counted} AS n FROM attempt) "
        "SELECT granted, unshared, {full}, n[2], pg_catalog.set_config('idle_session_timeout', "
        "CASE WHEN granted OR NOT unshared THEN {lease} ELSE '0' END, false) FROM crowd"
    ).format(
        first=_lease_first(lease_ms),
        back=SQL("SELECT pg_catalog.pg_advisory_unlock_shared({}); ").format(_aside(key)) if aside else SQL(""),
        counted=counted,
        full=full,
        unshared=_unshared(options, facts),
        attempt=attempt,
        lease=Literal(f"{lease_ms}ms"),
    )
    return asked + sql.THEN + sql.record(key) if fencing else asked


def wait_lock(options: SessionOptions, facts: Facts, lease_ms: int, slice_ms: int) -> Composed:
    """Queue for the lock for ``slice_ms``. Last results as those of ``try_lock``.

    Full: ``options.places`` others with lower pids wait. Of those who leave their places at one time, not all go.

    The transaction lock is what can be waited for in bounded time; once it is ours the session lock cannot be refused.
    Errors are trapped here, so nothing is written to the server's log. ``unlock_all``: a cancel may have struck between
    a grant and its bookkeeping; it frees session locks only, and this session holds no other.
    """
    slice_ = SQL(
        "DO $pgelect$ DECLARE ours pg_catalog.bool := false; BEGIN "
        "PERFORM pg_catalog.set_config({outcome}, 'false', true), "
        "pg_catalog.set_config('lock_timeout', {slice}, true); "
        "BEGIN IF NOT {unshared} THEN PERFORM pg_catalog.set_config({outcome}, 'shared', true); RETURN; END IF; "
        "ours := true; PERFORM pg_catalog.pg_advisory_xact_lock({key}); "
        "PERFORM pg_catalog.set_config({outcome}, pg_catalog.pg_try_advisory_lock({key})::pg_catalog.text, true); "
        "EXCEPTION WHEN lock_not_available OR query_canceled THEN "
        "IF ours THEN PERFORM pg_catalog.pg_advisory_unlock_all(); END IF; END; "
        "END $pgelect$; SELECT pg_catalog.current_setting({outcome}) = 'true', "
        "pg_catalog.current_setting({outcome}) <> 'shared', {full}, 0"
    ).format(
        outcome=_OUTCOME,
        slice=Literal(f"{slice_ms}ms"),
        key=sql.pair(options.key),
        unshared=_unshared(options, facts),
        full=SQL("false") if options.places is None else _are_before(options.key, facts, options.places),
    )
    asked = _lease_first(lease_ms) + slice_
    return asked + sql.THEN + sql.record(options.key) if options.fencing else asked


def _are_before(key: LockKey, facts: Facts, places: int) -> Composed:
    return SQL(
        "CASE WHEN pg_catalog.current_setting({}) = 'false' THEN (SELECT count(*) >= {} FROM pg_catalog.pg_locks AS l "
        "WHERE NOT l.granted AND l.pid < pg_catalog.pg_backend_pid() AND {}) END"
    ).format(_OUTCOME, Literal(places), sql.wants_lock(key, facts))


def prove(key: LockKey, facts: Facts) -> Composed:
    """Whether this very session holds this very lock, how many others want it, and whether this is a standby.

    One look at the locks for both: on a server with a very full lock table that is not free.
    """
    return SQL(
        "SELECT coalesce(bool_or(l.granted AND l.objsubid = 2 AND l.pid = pg_catalog.pg_backend_pid() "
        "AND pg_catalog.current_setting('pgelect.nonce', true) = {}), false), "
        "count(*) FILTER (WHERE NOT l.granted OR l.objsubid = 1), pg_catalog.pg_is_in_recovery() "
        "FROM pg_catalog.pg_locks AS l WHERE {}"
    ).format(Literal(facts.nonce), _campaigns_for(key, facts))
