"""Who leads, who led, and why it changed; and a request to step down. For people and programs that look on.

Everything here reads what the server says: the row that a leader has written, and whether the session that it names
holds the lock at this moment. An onlooker needs ``USAGE`` on the schema ``pgelect`` and ``SELECT`` on
``pgelect.leaders`` and ``pgelect.history``; whoever asks for a step-down, ``EXECUTE`` on ``pgelect.request_step_down``.
Locks with ``fencing=False`` leave no trace in the database and are not seen here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from psycopg import AsyncConnection

from pgelect._changes import ChangeKind, LeadershipChange, is_led
from pgelect._engine.model import LeaderRecord, LockKey
from pgelect._observer import observed
from pgelect._postgres import observing
from pgelect._postgres.client import Client
from pgelect._postgres.dsn import check_dsn

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
    from datetime import datetime

__all__ = [
    "ChangeKind",
    "LeadershipChange",
    "TermEnding",
    "TermRecord",
    "get_history",
    "get_leader",
    "list_leaders",
    "observe",
    "request_step_down",
]

Server: TypeAlias = str | AsyncConnection[Any]
Key: TypeAlias = str | LockKey | tuple[int, int]
T = TypeVar("T")

_MOST_TERMS = 10_000
_TOKENS_END = 2**63
_LOOK_LEAST_S, _LOOK_MOST_S = 0.05, 3600.0


class TermEnding(StrEnum):
    """How a term ended, as far as anybody has told."""

    RELEASED = "released"
    """Given up cleanly."""
    LOST = "lost"
    """Lost, and the process that led has said so afterwards, with the reason."""
    SUPERSEDED = "superseded"
    """The next term began, and the holder of this one has said nothing of its end: it died, or was cut off."""
    UNKNOWN = "unknown"
    """It is over, and nobody has told how."""


@dataclass(frozen=True, slots=True)
class TermRecord:
    """One term of a lock, past or present.

    Attributes:
        key1, key2, name: which lock; name is None where the keys were given as numbers.
        token: of the term.
        term: its number, counted from 1 since the lock was first used; a gap means that a term was not written down.
        holder: identity of the process that led.
        metadata: what that process said of itself.
        began_at: when it began, by the server's clock.
        ended_at: when it ended; None while it lasts, and where nobody knows.
        ending: how it ended; None while it lasts.
        reason: why it was lost, in the words of the process that led; None otherwise.
    """

    key1: int
    key2: int
    name: str | None
    token: int
    term: int
    holder: str
    metadata: Mapping[str, Any]
    began_at: datetime
    ended_at: datetime | None
    ending: TermEnding | None
    reason: str | None


async def get_leader(server: Server, key: Key) -> LeaderRecord | None:
    """Who leads a lock, or led it last, and what the server knows of it now; None when it was never led.

    Whether somebody leads at this moment is said by ``record.alive``. Only the primary knows: a standby can be asked,
    too, but what it knows of now (``alive``, ``followers`` ...) is None then, and the rest as old as its data.

    On a connection of yours this is a transaction, or a savepoint of yours; your timeouts bound it, and where you are
    in a transaction of REPEATABLE READ or above, the row is that of its snapshot.

    Args:
        server: a DSN, for which a connection is made and closed again, all bounded in time; or an ``AsyncConnection``
            of yours.
        key: the name of the lock, its ``LockKey``, or its two keys.

    Raises:
        SchemaError: the schema is missing, of version 1, or closed to this role; carries the SQL for an administrator.
        SessionLostError: no connection, no answer in time, or the connection ended.
        PgElectError: the server refused for another reason.
        ValueError, TypeError: an argument is no DSN, name or pair of keys.
    """
    wanted = _key_of(key)
    found = await _on(server, lambda conn, *, own: observing.leaders(conn, wanted, own=own), "reading who leads")
    return found[0] if found else None


async def list_leaders(server: Server) -> list[LeaderRecord]:
    """Do the same for every lock that was ever led: sorted by name, then keys; those without a name last."""
    found = await _on(server, lambda conn, *, own: observing.leaders(conn, None, own=own), "reading who leads")
    return sorted(found, key=_place_of)


async def get_history(server: Server, key: Key, *, limit: int = 20) -> list[TermRecord]:
    """Give the last terms of a lock, newest first; about a thousand are kept.

    The last term is among them even where its leader could not write it down.

    Args:
        server: as for ``get_leader``; the same errors are raised.
        key: as for ``get_leader``.
        limit: how many terms at most; 1 or more.
    """
    wanted = _key_of(key)
    if type(limit) is not int:
        raise TypeError(f"limit must be an int, not {type(limit).__name__}")
    if limit < 1:
        raise ValueError(f"limit={limit} must be 1 or more")
    most = min(limit, _MOST_TERMS)
    record, written = await _on(
        server, lambda conn, *, own: observing.history(conn, wanted, most, own=own), "reading who led"
    )
    terms = [_term_of(wanted, term, record) for term in written]
    if record is not None and (not terms or terms[0].token < record.token):
        terms.insert(0, _last_term(wanted, record))
    return terms[:limit]


def observe(dsn: str, key: Key | None = None, *, look_every_s: float = 2.0) -> AsyncGenerator[LeadershipChange, None]:
    """Iterate over the changes of leadership of a lock, or of all locks of the database, for ever.

    Each change is pushed by the server (NOTIFY); what nobody announces, such as a leader that died without a follower,
    is found by a look every ``look_every_s`` seconds. Behind a pooler and on a standby there are the looks only.

    First comes a PRESENT for each lock, or one without a record when there is none. When the connection breaks or
    answers no more, that is told (BLIND), it is made anew for as long as it takes, and what has changed meanwhile is
    told after BACK. Terms that begin and end between two looks are not seen, but counted in ``missed_terms``.

    Leave it with ``contextlib.aclosing``, or cancel the task that iterates: the connection is closed at once. To cancel
    a single ``anext``, as ``wait_for`` does, ends the iteration, too. Whoever takes more than a minute for a change may
    lose the connection, and hears BLIND next: the server keeps nothing for the slow.

    Args:
        dsn: where; a connection of its own is made.
        key: as for ``get_leader``; None: all locks.
        look_every_s: seconds between two looks when nothing is heard; from 0.05 to 3600. Default 2.

    Raises:
        SessionLostError, SchemaError, PgElectError: as ``get_leader``, and only before the first change is given.
        ForkedError: in a child of the process in which the iteration began.
        ValueError, TypeError: an argument is out of range.
    """
    if not isinstance(dsn, str):
        raise TypeError(f"observe() makes a connection of its own and needs a DSN, not {type(dsn).__name__}")
    check_dsn(dsn)
    wanted = None if key is None else _key_of(key)
    if isinstance(look_every_s, bool) or not isinstance(look_every_s, int | float):
        raise TypeError(f"look_every_s must be a number of seconds, not {type(look_every_s).__name__}")
    if not _LOOK_LEAST_S <= look_every_s <= _LOOK_MOST_S:
        raise ValueError(f"look_every_s={look_every_s!r} must be from {_LOOK_LEAST_S:g} to {_LOOK_MOST_S:g} seconds")
    return observed(dsn, wanted, look_every_s)


async def request_step_down(server: Server, key: Key, token: int | None = None) -> int | None:
    """Ask the leader of a lock to step down: it drains, hands over, and stays out for its cooldown.

    It hears of it within milliseconds; this returns as soon as the request is written. On a connection of yours that
    is in a transaction, the request is part of that: nobody hears of it before you commit.

    Args:
        server: as for ``get_leader``.
        key: as for ``get_leader``.
        token: only the leader of this token is asked. None: whoever leads now.

    Returns:
        The token that was asked; None when that term is over, or nobody leads: nothing is done then. Whether a leader
        that has given no sign of its end is still there is not known: see ``get_leader``.

    Raises:
        NotPrimaryError: the server is a standby.
        SchemaError: the schema is missing, of version 1, or this role may not ask; carries the SQL.
        SessionLostError, PgElectError, ValueError, TypeError: as ``get_leader``.
    """
    wanted = _key_of(key)
    if token is not None:
        if type(token) is not int:
            raise TypeError(f"token must be an int, not {type(token).__name__}")
        if not 0 < token < _TOKENS_END:
            raise ValueError(f"token={token} is no token: they are positive numbers of 63 bits")
    return await _on(
        server,
        lambda conn, *, own: observing.ask_to_step_down(conn, wanted, token, own=own),
        "asking a leader to step down",
    )


# Arguments


def _key_of(key: object) -> LockKey:
    if isinstance(key, LockKey):
        return key
    if isinstance(key, str):
        return LockKey.from_name(key)
    if isinstance(key, tuple) and len(key) == 2:
        return LockKey(*key)
    raise TypeError(f"key must be the name of a lock, a LockKey or a pair (key1, key2), not {type(key).__name__}")


async def _on(server: Server, ask: Callable[..., Awaitable[T]], doing: str) -> T:
    """Ask on the connection, which is not ours then; or on one of our own, within bounded time."""
    if isinstance(server, AsyncConnection):
        return await ask(server, own=False)
    if not isinstance(server, str):
        raise TypeError(f"server must be a DSN or a psycopg AsyncConnection, not {type(server).__name__}")

    async def work(conn: AsyncConnection[Any]) -> T:
        return await ask(conn, own=True)

    async with Client.connected(server) as client:
        return await client.run(work, doing)


# Records


def _place_of(record: LeaderRecord) -> tuple[bool, str, int, int]:
    return record.name is None, record.name or "", record.key1, record.key2


def _term_of(key: LockKey, term: observing.WrittenTerm, record: LeaderRecord | None) -> TermRecord:
    """Say how a term ended; where that is not written yet, as the record of its lock says."""
    ending, ended_at = _ending_of(term.ending), term.ended_at
    if ending is None:
        if record is None or record.token != term.token:
            ending = TermEnding.UNKNOWN
        else:
            ending, ended_at = _end_of(record)
    return TermRecord(
        key1=key.key1,
        key2=key.key2,
        name=term.name,
        token=term.token,
        term=term.term,
        holder=term.holder,
        metadata=term.metadata,
        began_at=term.began_at,
        ended_at=ended_at,
        ending=ending,
        reason=term.reason,
    )


def _last_term(key: LockKey, record: LeaderRecord) -> TermRecord:
    """Give the term of a record that is not written down."""
    written = observing.WrittenTerm(
        record.name,
        record.token,
        record.terms,
        record.holder,
        dict(record.metadata),
        record.acquired_at,
        ended_at=None,
        ending=None,
        reason=None,
    )
    return _term_of(key, written, record)


def _end_of(record: LeaderRecord) -> tuple[TermEnding | None, datetime | None]:
    if is_led(record):
        return None, None
    return (TermEnding.UNKNOWN if record.released_at is None else TermEnding.RELEASED), record.released_at


def _ending_of(written: str | None) -> TermEnding | None:
    if written is None:
        return None
    return TermEnding(written) if written in set(TermEnding) else TermEnding.UNKNOWN  # a later version may know more
