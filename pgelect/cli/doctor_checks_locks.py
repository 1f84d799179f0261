"""What the doctor thinks of keys and their holders, of open transactions, and of the room on the server."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from pgelect._engine.model import LockKey
from pgelect.cli.doctor_facts import AdvisoryLock, Fenced, Finding, Room, Severity, TokenRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import TypeAlias

    Pair: TypeAlias = tuple[int, int]

_PAIR, _SINGLE = 2, 1  # objsubid of a lock on two keys, and on one 64-bit key
_OPEN_TOO_LONG_S = 5.0
_FEW, _FULL = 10, 0.9
_ELECTOR = "pgelect:"


def check_keys(key: LockKey | None, tokens: Sequence[TokenRow], locks: Sequence[AdvisoryLock]) -> Iterator[Finding]:
    """Judge whether each lock is used by one name, and held by electors only."""
    rows = {(row.key1, row.key2): row for row in tokens}
    found = [*_names(key, rows)]
    held: Mapping[Pair, list[AdvisoryLock]] = _by_unsigned_pair(locks)
    for wanted in [key] if key is not None else [LockKey(row.key1, row.key2, row.name) for row in tokens]:
        found += _holders(wanted, held[wanted.classid, wanted.objid])
    yield from found
    if not found:
        number = f"{len(rows)} lock{'s' * (len(rows) != 1)} in this database"
        yield Finding(Severity.OK, "keys", f"nothing else uses the key of {key}" if key else f"{number}, none collides")


def _by_unsigned_pair(locks: Iterable[AdvisoryLock]) -> Mapping[Pair, list[AdvisoryLock]]:
    found: dict[Pair, list[AdvisoryLock]] = defaultdict(list)
    for lock in locks:
        found[lock.classid, lock.objid].append(lock)
    return found


def _names(key: LockKey | None, rows: Mapping[Pair, TokenRow]) -> Iterator[Finding]:
    ours = rows.get((key.key1, key.key2)) if key is not None else None
    if key is not None and ours is not None and key.name and ours.name and key.name != ours.name:
        yield Finding(
            Severity.ERROR,
            "keys",
            f"the name {key.name!r} maps to the keys of {ours.name!r}, which this database already has",
            "Choose another name, or give --key1 and --key2 that nobody else uses.",
        )
    for row in rows.values() if key is None else [ours]:
        if row is None or row.name is None:
            continue
        if LockKey.from_name(row.name) != LockKey(row.key1, row.key2):
            yield Finding(
                Severity.WARNING,
                "keys",
                f"the row of the keys ({row.key1}, {row.key2}) has the name {row.name!r}, which maps to "
                f"{LockKey.from_name(row.name)}: pgelect did not write it",
                "Find out who writes to pgelect.token; only electors should have the right to.",
            )


def _holders(key: LockKey, locks: Iterable[AdvisoryLock]) -> Iterator[Finding]:
    for lock in locks:
        who = _holder(lock)
        if lock.objsubid == _SINGLE:
            if lock.here:
                yield Finding(
                    Severity.WARNING,
                    "keys",
                    f"{who} holds one 64-bit key of the same bits as {key}: to PostgreSQL that is another lock, and "
                    "the two do not exclude each other",
                    f"If it is meant to be the same lock, let it use pg_advisory_lock({key.key1}, {key.key2}).",
                )
        elif lock.objsubid != _PAIR:
            continue
        elif not lock.here:
            yield Finding(
                Severity.WARNING,
                "keys",
                f"{who} holds {key} in the database {lock.database}: locks of two databases do not exclude each other",
                "If there is to be one leader, all candidates must use the same database.",
            )
        elif lock.pid is None:
            yield Finding(
                Severity.ERROR,
                "keys",
                f"{key} is held by {who}: nobody can lead until that ends",
                f"ROLLBACK PREPARED {_quoted(lock.gid)};" if lock.gid else "SELECT gid FROM pg_prepared_xacts;",
            )
        elif lock.shared or not (lock.application_name or "").startswith(_ELECTOR):
            yield Finding(
                Severity.WARNING,
                "keys",
                f"{key} is held by {who}, which is no session of pgelect: no candidate leads as long as it does",
                f"Find out what it is; to end it: SELECT pg_terminate_backend({lock.pid});",
            )


def _holder(lock: AdvisoryLock) -> str:
    if lock.pid is None:
        return f"the prepared transaction {lock.gid!r}" if lock.gid else "a prepared transaction"
    return f"pid {lock.pid} ({lock.application_name!r})" if lock.application_name else f"pid {lock.pid}"


def _quoted(text: str | None) -> str:
    return "'" + (text or "").replace("'", "''") + "'"


def check_fenced(fenced: Sequence[Fenced]) -> Iterator[Finding]:
    """Judge open transactions that a new term would have to wait for."""
    for one in fenced:
        age = f" for {one.open_s:.0f} s" if one.open_s is not None else ""
        user = f" of {one.user}" if one.user else ""
        if one.pid is None:
            yield Finding(
                Severity.ERROR,
                "transactions",
                f"a prepared transaction{user} that is fenced has been open{age}: no new term of its lock can begin",
                f"ROLLBACK PREPARED {_quoted(one.gid)};" if one.gid else "SELECT gid FROM pg_prepared_xacts;",
            )
        elif one.open_s is not None and one.open_s >= _OPEN_TOO_LONG_S:
            yield Finding(
                Severity.WARNING,
                "transactions",
                f"pid {one.pid}{user} has had a fenced transaction open{age}: the next term of its lock waits for it, "
                "or ends it",
                f"Make fenced transactions short; to end this one: SELECT pg_terminate_backend({one.pid});",
            )
    if not any(one.pid is None or (one.open_s or 0.0) >= _OPEN_TOO_LONG_S for one in fenced):
        yield Finding(Severity.OK, "transactions", "no fenced transaction is open for long, and none is prepared")


def check_room(room: Room) -> Iterator[Finding]:
    """Judge how many more candidates can connect: each keeps a connection."""
    kept = 0 if room.superuser else room.kept_for_superusers + (0 if room.may_use_those else room.kept_for_some)
    limits = [("the server", room.most - kept, room.used)]
    if room.role_limit >= 0 and not room.superuser:
        limits.append(("the role", room.role_limit, room.role_used))
    if room.database_limit >= 0 and not room.superuser:
        limits.append(("the database", room.database_limit, room.database_used))
    whose, most, used = min(limits, key=lambda limit: limit[1] - limit[2])
    left = max(0, most - used)
    said = f"{left} more can connect: {used} of {most} connections of {whose} are in use"
    if left < _FEW or used >= _FULL * most:
        yield Finding(
            Severity.WARNING,
            "connections",
            said,
            "Each candidate keeps one connection, and needs a second for moments. Raise max_connections, or the "
            "CONNECTION LIMIT of role or database, or run fewer candidates.",
        )
    else:
        yield Finding(Severity.OK, "connections", said)
    if room.locks >= _FULL * room.lock_table:
        yield Finding(
            Severity.WARNING,
            "lock table",
            f"{room.locks} of about {room.lock_table} places in the server's lock table are taken: when it is full, "
            "nobody can lock",
            "Find out who holds so many (pg_locks), or raise max_locks_per_transaction.",
        )
