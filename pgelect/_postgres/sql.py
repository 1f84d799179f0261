"""Every statement of a lock's session, literal and schema-qualified.

They have no parameters on purpose: psycopg then uses the simple query protocol, in which several statements travel in
one round trip. Values are rendered by ``Literal``. Within one such query, statements share an implicit transaction
unless an explicit BEGIN and COMMIT set some of them apart.

Keys are rendered as ``'-5'::int4``: a bare -2147483648 would be a bigint and choose another function.
Times travel as microseconds since 1970: no DateStyle, TimeZone or loader takes part.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, LiteralString

from psycopg.sql import SQL, Composable, Composed, Literal

from pgelect._engine.model import Backend, LeaderRecord, LockKey

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgelect._postgres.opened import Facts
    from pgelect._postgres.options import SessionOptions

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def record_columns(row: LiteralString) -> Composed:
    """Render the columns that ``record_of`` reads."""
    return SQL(
        "{0}.key1, {0}.key2, {0}.name, {0}.token, {0}.holder, {0}.metadata::pg_catalog.text, "
        "(extract(epoch FROM {0}.acquired_at) * 1000000)::pg_catalog.int8, "
        "(extract(epoch FROM {0}.released_at) * 1000000)::pg_catalog.int8, "
        "{0}.terms, {0}.lease_s, {0}.backend_pid, (extract(epoch FROM {0}.backend_start) * 1000000)::pg_catalog.int8"
    ).format(SQL(row))


RECORD = record_columns("t")
RECORD_COLUMNS = 12
# Not pg_control_checkpoint(): that still names the old timeline just after a promotion.
TIMELINE = SQL(
    "('x' || pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8))"
    "::bit(32)::pg_catalog.int8"
)
THEN = SQL("; ")
ROLLBACK = SQL("ROLLBACK; ")
REPEATED = "something else than pgelect wrote the token "
"""In the error of a mint whose row does not carry a greater token."""


def instant(microseconds: int) -> datetime:
    """Give the UTC time of a number of microseconds since 1970."""
    return _EPOCH + timedelta(microseconds=microseconds)


def record_of(row: Sequence[Any]) -> LeaderRecord:
    """Read the record of a row selected by RECORD."""
    key1, key2, name, token, holder, metadata, acquired, released, terms, lease_s, pid, started = row
    return LeaderRecord(
        key1=key1,
        key2=key2,
        name=name,
        token=token,
        holder=holder,
        metadata=json.loads(metadata),
        acquired_at=instant(acquired),
        released_at=None if released is None else instant(released),
        terms=terms,
        lease_s=lease_s,
        backend=Backend(pid, instant(started)),
    )


def pair(key: LockKey) -> Composed:
    """Render the two keys as arguments."""
    return SQL("{}::pg_catalog.int4, {}::pg_catalog.int4").format(Literal(str(key.key1)), Literal(str(key.key2)))


def row_is(key: LockKey) -> Composed:
    return SQL("t.key1 = {}::pg_catalog.int4 AND t.key2 = {}::pg_catalog.int4").format(
        Literal(str(key.key1)), Literal(str(key.key2))
    )


def int8(value: int) -> Composed:
    return SQL("{}::pg_catalog.int8").format(Literal(str(value)))


def lock_is(key: LockKey, facts: Facts) -> Composed:
    """Render the condition on ``pg_locks AS l`` for this lock being held, in this database.

    The database's oid is known: to look it up takes a lock on a shared catalog, for which there is no room where a
    stranger has filled the server's lock table.
    """
    return SQL("l.granted AND {}").format(wants_lock(key, facts))


def wants_lock(key: LockKey, facts: Facts) -> Composed:
    """Render the condition on ``pg_locks AS l`` for this lock being held, or waited for."""
    return SQL(
        "l.locktype = 'advisory' AND l.objsubid = 2 AND l.mode = 'ExclusiveLock' AND l.database = "
        "{}::pg_catalog.oid AND l.classid = {}::pg_catalog.oid AND l.objid = {}::pg_catalog.oid"
    ).format(Literal(str(facts.database)), Literal(str(key.classid)), Literal(str(key.objid)))


def _held_here(key: LockKey, facts: Facts) -> Composed:
    """Render whether this very session, still as we set it up, holds this very lock."""
    return SQL(
        "EXISTS (SELECT 1 FROM pg_catalog.pg_locks AS l WHERE {} AND l.pid = pg_catalog.pg_backend_pid() "
        "AND pg_catalog.current_setting('pgelect.nonce', true) = {})"
    ).format(lock_is(key, facts), Literal(facts.nonce))


def record(key: LockKey) -> Composed:
    """Read the token row, or nothing."""
    return SQL("SELECT {} FROM pgelect.token AS t WHERE {}").format(RECORD, row_is(key))


def mint(options: SessionOptions, facts: Facts, wait_ms: int) -> Composed:
    """Write the next token. Last result: NULL, timeline, lock held, prior clean, then RECORD, and that of before.

    NULLs instead of the first record: this session does not hold the lock, or the row carries another name. Waits
    ``wait_ms`` for fenced transactions, whether new ones keep coming or not.
    """
    return _bounded(wait_ms) + _next_token(options, facts)


def _bounded(wait_ms: int) -> Composed:
    """Bound a wait for a row, within this transaction: ``lock_timeout`` starts anew with each who shares the row."""
    wait = Literal(f"{wait_ms}ms")
    return SQL(
        "SELECT pg_catalog.set_config('lock_timeout', {}, true), pg_catalog.set_config('statement_timeout', {}, true); "
    ).format(wait, wait)


def _next_token(options: SessionOptions, facts: Facts) -> Composed:
    # Clean: the prior term was released, or there was none; on this timeline. After a promotion, what is seen may be
    # older than the last term, whose row was lost.
    # The token's part above 40 bits goes up with each promotion since the row was written, so that tokens of a lost
    # tail are passed over: it is the timeline less one, or more where pg_upgrade has set the timeline back to 1.
    # A token that is not what was asked for, by a trigger for one, is written by nobody: the cast fails.
    return SQL(
        "WITH tl AS MATERIALIZED (SELECT {timeline} AS n, {held} AS held), "
        "prior AS MATERIALIZED (SELECT t.released_at IS NOT NULL AND t.timeline = tl.n AS clean, t.* "
        "FROM pgelect.token AS t, tl WHERE {row}), "
        "next AS MATERIALIZED (SELECT ((tl.n - 1) << 40) + pg_catalog.nextval('pgelect.token_seq') AS token "
        "FROM tl WHERE tl.held), "
        "t AS (INSERT INTO pgelect.token AS old (key1, key2, name, token, timeline, holder, metadata, acquired_at, "
        "released_at, terms, lease_s, backend_pid, backend_start) "
        "SELECT {keys}, {name}::pg_catalog.text, next.token, tl.n, "
        "{holder}::pg_catalog.text, {metadata}::pg_catalog.jsonb, pg_catalog.clock_timestamp(), NULL, 1, "
        "{lease}::pg_catalog.float8, {pid}::pg_catalog.int4, {start}::pg_catalog.timestamptz FROM tl, next "
        "ON CONFLICT (key1, key2) DO UPDATE SET name = coalesce(excluded.name, old.name), "
        "token = greatest(old.token + 1, excluded.token, (((old.token >> 40) + excluded.timeline "
        "- CASE WHEN old.timeline <= excluded.timeline THEN old.timeline ELSE 0 END) << 40) "
        "+ (excluded.token & 1099511627775)), timeline = excluded.timeline, "
        "holder = excluded.holder, metadata = excluded.metadata, "
        "acquired_at = pg_catalog.clock_timestamp(), released_at = NULL, terms = old.terms + 1, "
        "lease_s = excluded.lease_s, backend_pid = excluded.backend_pid, backend_start = excluded.backend_start "
        "WHERE old.name IS NULL OR excluded.name IS NULL OR old.name = excluded.name RETURNING old.*) "
        "SELECT CASE WHEN t.token <= prior.token OR t.token < next.token THEN ({repeated} || t.token)::pg_catalog.bool "
        "END, tl.n, tl.held, coalesce(prior.clean, tl.n = 1), {record}, {prior} "
        "FROM tl LEFT JOIN next ON true LEFT JOIN prior ON true LEFT JOIN t ON true"
    ).format(
        timeline=TIMELINE,
        held=_held_here(options.key, facts),
        row=row_is(options.key),
        keys=pair(options.key),
        name=Literal(options.key.name),
        holder=Literal(options.identity),
        metadata=Literal(json.dumps(dict(options.metadata))),
        lease=Literal(str(options.lease_s)),
        pid=Literal(str(facts.backend.pid)),
        start=Literal(facts.backend.started_at.isoformat()),
        record=RECORD,
        prior=record_columns("prior"),
        repeated=Literal(REPEATED),
    )


def begin_unfenced() -> Composed:
    """Begin a term without a token: (timeline, time)."""
    return SQL("SELECT {}, (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::pg_catalog.int8").format(
        TIMELINE
    )


def close(key: LockKey, facts: Facts) -> Composed:
    """Let no more transactions in under the token of the row, which is that of a term before this session's.

    Waits for nobody who is fenced, and hardly for anybody. Its commit does not wait for the disk: it is no promise.
    """
    return _close(key, _held_here(key, facts))


def _close(key: LockKey, condition: Composable) -> Composed:
    # Equal, not less: what is below the row's token is refused in any case, and should a row ever go back (restored
    # from an old copy), its lock is not shut for good. Only the holder of the lock writes here, so no two disagree.
    return SQL(
        "SELECT pg_catalog.set_config('lock_timeout', '20ms', true), "
        "pg_catalog.set_config('synchronous_commit', 'off', true); "
        "INSERT INTO pgelect.closed AS c (key1, key2, token) "
        "SELECT t.key1, t.key2, t.token FROM pgelect.token AS t WHERE {} AND {} "
        "ON CONFLICT (key1, key2) DO UPDATE SET token = excluded.token WHERE c.token <> excluded.token"
    ).format(row_is(key), condition)


def closed(key: LockKey) -> Composed:
    """Read the token that lets no more transactions in: (token,) or nothing."""
    return SQL("SELECT t.token FROM pgelect.closed AS t WHERE {}").format(row_is(key))


def holder(key: LockKey, facts: Facts) -> Composed:
    """Who holds the lock: (pid, start or NULL when hidden from this role, whether it is this session)."""
    return SQL(
        "SELECT l.pid, (extract(epoch FROM a.backend_start) * 1000000)::pg_catalog.int8, "
        "l.pid = pg_catalog.pg_backend_pid() FROM pg_catalog.pg_locks AS l "
        "LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid WHERE {}"
    ).format(lock_is(key, facts))


def end_ghost(key: LockKey, facts: Facts, ghost: Backend) -> Composed:
    """End the session ``ghost``, and no other, if it is what holds the lock: (ended,) or nothing."""
    return SQL(
        "SELECT pg_catalog.pg_terminate_backend(l.pid) FROM pg_catalog.pg_locks AS l "
        "JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid WHERE {} AND l.pid = {}::pg_catalog.int4 "
        "AND a.backend_start = {}::pg_catalog.timestamptz AND l.pid <> pg_catalog.pg_backend_pid()"
    ).format(lock_is(key, facts), Literal(str(ghost.pid)), Literal(ghost.started_at.isoformat()))


def timeline() -> Composed:
    """Read the timeline of the server's WAL: (timeline,)."""
    return SQL("SELECT {}").format(TIMELINE)


def adopt(key: LockKey, token: int, backend: Backend) -> Composed:
    """Name the new session of a resumed term in its row, for observers: nothing depends on it.

    Never waits: skipped while a fenced transaction is open, and its commit does not wait for a synchronous standby.
    """
    return SQL(
        "BEGIN; SET LOCAL synchronous_commit = off; "
        "WITH mine AS (SELECT t.key1, t.key2 FROM pgelect.token AS t WHERE {} AND t.token = {} "
        "AND t.released_at IS NULL FOR NO KEY UPDATE SKIP LOCKED) "
        "UPDATE pgelect.token AS t SET backend_pid = {}::pg_catalog.int4, backend_start = {}::pg_catalog.timestamptz "
        "FROM mine WHERE t.key1 = mine.key1 AND t.key2 = mine.key2; COMMIT"
    ).format(row_is(key), int8(token), Literal(str(backend.pid)), Literal(backend.started_at.isoformat()))


def bring_up_to_date(key: LockKey, token: int, backend: Backend, lease_s: float) -> Composed:
    """Name the session and the lease of a term in its row where another is named."""
    return SQL(
        "UPDATE pgelect.token AS t SET backend_pid = {pid}::pg_catalog.int4, "
        "backend_start = {start}::pg_catalog.timestamptz, lease_s = {lease}::pg_catalog.float8 "
        "WHERE {row} AND t.token = {token} AND t.released_at IS NULL AND (t.backend_pid <> {pid}::pg_catalog.int4 "
        "OR t.backend_start <> {start}::pg_catalog.timestamptz OR t.lease_s <> {lease}::pg_catalog.float8)"
    ).format(
        row=row_is(key),
        token=int8(token),
        pid=Literal(str(backend.pid)),
        start=Literal(backend.started_at.isoformat()),
        lease=Literal(str(lease_s)),
    )


def unlock(key: LockKey) -> Composed:
    """Free the lock: (freed,)."""
    return SQL("SELECT pg_catalog.pg_advisory_unlock({})").format(pair(key))


def _mark_released(key: LockKey, token: int) -> Composed:
    return SQL(
        "UPDATE pgelect.token AS t SET released_at = pg_catalog.clock_timestamp() WHERE {} AND t.token = {}"
    ).format(row_is(key), int8(token))


def release(key: LockKey, token: int, wait_ms: int) -> Composed:
    """Mark the term as cleanly given up, then free the lock. Last result: (freed,).

    Waits ``wait_ms`` for fenced transactions, whether new ones keep coming or not: ``lock_timeout`` starts anew with
    each, ``statement_timeout`` does not. Losing the mark in a crash is harmless (the term then looks unclean), so its
    commit does not wait for the disk.
    """
    return SQL("BEGIN; SET LOCAL synchronous_commit = off; {}{}; COMMIT; {}").format(
        _bounded(wait_ms), _mark_released(key, token), unlock(key)
    )


def close_own(key: LockKey, token: int) -> Composed:
    """After a release that could not mark the row: let no more transactions into the term that is being given up."""
    own = SQL("t.token = {}").format(int8(token))
    return ROLLBACK + SQL("BEGIN; {}; COMMIT; ").format(_close(key, own))


def rehearse(options: SessionOptions, facts: Facts) -> Composed:
    """Plan, but do not run, what a leader runs first and last.

    A new server process reads the catalogs at its first look at a table; here it does so while there is time.
    """
    return SQL("BEGIN; EXPLAIN {}; EXPLAIN {}; COMMIT; ").format(
        _next_token(options, facts), _mark_released(options.key, 0)
    )
