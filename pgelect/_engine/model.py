"""The words of the library: states, keys, terms, records. Values only, frozen; nothing here does anything."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from datetime import datetime

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1


class LockState(StrEnum):
    """What a lock is doing. Only LEADER, within its trusted time, means leadership."""

    STOPPED = "stopped"
    """Not running: no task, no connection."""
    FOLLOWER = "follower"
    """Running without the lock: connecting, backing off, or waiting, in the server's queue or aside."""
    ACQUIRING = "acquiring"
    """An attempt is in flight: the lock is tried, then the term's token is minted and confirmed."""
    LEADER = "leader"
    """The lock is held, the token minted, and proofs succeed."""
    RECONNECTING = "reconnecting"
    """The session of a term was lost; within the grace a new one tries to prove that the term goes on."""
    RELEASING = "releasing"
    """Leadership is being given up on purpose: the duty drains, then the lock is unlocked."""


@dataclass(frozen=True, slots=True)
class LockKey:
    """The two signed 32-bit keys of a PostgreSQL advisory lock, and the name they came from, if any.

    Two keys are equal when their pairs are: the name takes no part.

    Raises:
        ValueError: a key is outside -2147483648 .. 2147483647.
        TypeError: a key is not an int.
    """

    key1: int
    key2: int
    name: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for label, value in (("key1", self.key1), ("key2", self.key2)):
            if type(value) is not int:
                raise TypeError(f"{label} must be an int, not {type(value).__name__}")
            if not INT32_MIN <= value <= INT32_MAX:
                raise ValueError(f"{label}={value} is outside the signed 32-bit range {INT32_MIN} .. {INT32_MAX}")

    @classmethod
    def from_name(cls, name: str) -> Self:
        """Map a name to a pair: the first 8 bytes of SHA-256 of its UTF-8 text, as two big-endian signed 32-bit ints.

        The mapping never changes, so processes of any version and language agree on it.

        Raises:
            ValueError: the name is empty or cannot be encoded.
            TypeError: the name is not a str.
        """
        if not isinstance(name, str):
            raise TypeError(f"name must be a str, not {type(name).__name__}")
        if not name:
            raise ValueError("name must not be empty")
        if "\0" in name:
            raise ValueError("name must not contain a NUL character: PostgreSQL cannot store it")
        try:
            text = name.encode("utf-8")
        except UnicodeEncodeError:  # bytes that are not UTF-8 come from a command line as lone surrogates
            raise ValueError(f"name {name!a} is not text in UTF-8") from None
        digest = hashlib.sha256(text).digest()
        key1 = int.from_bytes(digest[:4], "big", signed=True)
        return cls(key1, int.from_bytes(digest[4:8], "big", signed=True), name)

    @property
    def classid(self) -> int:
        """``pg_locks.classid`` of this lock: key1 as an unsigned 32-bit number."""
        return self.key1 & 0xFFFFFFFF

    @property
    def objid(self) -> int:
        """``pg_locks.objid`` of this lock: key2 as an unsigned 32-bit number."""
        return self.key2 & 0xFFFFFFFF

    def __str__(self) -> str:
        pair = f"({self.key1}, {self.key2})"
        return f"{self.name!r} {pair}" if self.name else pair


@dataclass(frozen=True, slots=True)
class Backend:
    """One server session, told apart from a later one with the same pid by its start."""

    pid: int
    started_at: datetime


@dataclass(frozen=True, slots=True)
class LeaderRecord:
    """Who leads, or led last: the token row of a lock as it was last seen.

    What only an onlooker asks the server for (see ``pgelect.observe``) is None in the record that a lock keeps. Some of
    it is hidden from roles that are neither the holder's role nor a member of ``pg_read_all_stats``, and None for them.

    Attributes:
        key1, key2, name: which lock; name is None where the keys were given as numbers.
        token: of the last term; grows with every term and is never reset.
        holder: identity of the process that led it.
        metadata: what that process said of itself.
        acquired_at: when the term began, by the server's clock.
        released_at: when it was given up cleanly; None while it lasts and after an unclean end.
        terms: how many terms there have been.
        lease_s: the lease of that term in seconds.
        backend: the server session that minted the token, or with which its term goes on.
        alive: that very session holds the lock now, and the term was not given up. None, and so are the next ones, when
            a standby was asked: locks are not replicated.
        client_addr: where that session comes from; None for a Unix socket and where hidden.
        application_name: of that session; None when it is gone.
        database: to which the lock belongs.
        last_contact_at: when the server last heard from that session; None when it is gone and where hidden.
        followers: how many others wait for the lock at this moment, in the server's queue or aside.
    """

    key1: int
    key2: int
    name: str | None
    token: int
    holder: str
    metadata: Mapping[str, Any]
    acquired_at: datetime
    released_at: datetime | None
    terms: int
    lease_s: float
    backend: Backend
    alive: bool | None = None
    client_addr: str | None = None
    application_name: str | None = None
    database: str | None = None
    last_contact_at: datetime | None = None
    followers: int | None = None

    @property
    def pid(self) -> int:
        """The server process of ``backend``."""
        return self.backend.pid


@dataclass(frozen=True, slots=True)
class Grant:
    """What the server confirmed when a token was minted: the raw material of a Term.

    Attributes:
        token: the new token; 0 without fencing.
        acquired_at: by the server's clock.
        backend: the session that holds the lock.
        timeline: of the server's WAL; a term never goes on across a promotion.
        predecessor_clean: the term before this one was given up cleanly, or there was none.
        record: the token row as written; None without fencing.
        prior: the row as it was before, of the last term; None when there was none.
    """

    token: int
    acquired_at: datetime
    backend: Backend
    timeline: int
    predecessor_clean: bool
    record: LeaderRecord | None
    prior: LeaderRecord | None = None


@dataclass(frozen=True, slots=True)
class LostTerm:
    """A term that this process has lost, to be written down when it is connected again.

    Attributes:
        token: of the term.
        reason: why it ended, in a sentence.
        at: when, on this process's steady clock, in seconds.
        untold: the term, if not even its beginning was written down.
    """

    token: int
    reason: str
    at: float
    untold: Grant | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """One unbroken leadership of one process.

    Attributes:
        token: fencing token, greater than that of every earlier term; 0 with ``fencing=False``.
        key: the lock.
        identity: of this process.
        acquired_at: when the token was minted, by the server's clock.
        metadata: as given to the lock.
    """

    token: int
    key: LockKey
    identity: str
    acquired_at: datetime
    metadata: Mapping[str, Any]
    _is_current: Callable[[], bool] = field(repr=False)
    _ended: Callable[[], Awaitable[object]] = field(repr=False)

    @property
    def is_current(self) -> bool:
        """True while this term is trusted at this very instant. Computed on each read; safe from any thread."""
        return self._is_current()

    async def ended(self) -> None:
        """Wait until this term is over: lost, or being given up. Returns at once when it already is.

        Raises:
            RuntimeError: called in another event loop than that of the lock.
            ForkedError: the lock belongs to a parent process.
        """
        await self._ended()
