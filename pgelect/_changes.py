"""What has changed between two looks at the locks of a database. Values and a comparison; nothing here acts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from pgelect._engine.model import LeaderRecord, LockKey


class ChangeKind(StrEnum):
    """What has been seen to change."""

    PRESENT = "present"
    """How it is when the observation begins: the first word about a lock."""
    BEGAN = "began"
    """A new term has begun."""
    RELEASED = "released"
    """A term was given up cleanly, and nobody leads yet."""
    LOST = "lost"
    """The session of the leader is gone, and nobody leads yet."""
    RESUMED = "resumed"
    """The same term goes on with another session: the leader had lost its own, and came back within its grace."""
    BLIND = "blind"
    """The observer has lost its connection: from here on changes may be missed."""
    BACK = "back"
    """The observer sees again. What has changed meanwhile follows, as changes of their own."""


@dataclass(frozen=True, slots=True)
class LeadershipChange:
    """One change, as an observer has seen it.

    Attributes:
        kind: what happened.
        key: the lock; None for BLIND and BACK of an observer of all locks of a database, and for the PRESENT of one
            that finds no lock at all.
        record: how it is now; None when the lock was never led, while blind, and where ``key`` is None.
        previous: how it was when last seen; None at first, and where ``key`` is None.
        missed_terms: of BEGAN: how many terms have begun and ended unseen since ``previous``, which happens without
            any blindness, too, when they are short. Of BACK: how many terms began while the observer was blind, the
            last of which may go on. 0 mostly.
        error: why the observer is blind; None otherwise.
        seen_at: when the observer saw it, by its own clock, in UTC.
    """

    kind: ChangeKind
    key: LockKey | None
    record: LeaderRecord | None
    previous: LeaderRecord | None
    missed_terms: int
    error: Exception | None
    seen_at: datetime


def is_led(record: LeaderRecord) -> bool:
    """Whether somebody leads, as far as that record tells: on a standby nobody knows who holds a lock."""
    return record.released_at is None and record.alive is not False


def kinds_of(before: LeaderRecord | None, now: LeaderRecord) -> Iterator[ChangeKind]:
    """Tell what has happened to a lock between two looks, in order; nothing if nothing has."""
    led = before is not None and is_led(before)
    if before is None or before.token != now.token:
        yield ChangeKind.BEGAN
        led = True
    if led and not is_led(now):
        yield ChangeKind.LOST if now.released_at is None else ChangeKind.RELEASED
    elif before is not None and before.token == now.token and before.released_at is None:
        if now.released_at is not None:  # of a term that had looked lost
            yield ChangeKind.RELEASED
        elif is_led(now) and (not led or before.backend != now.backend):
            yield ChangeKind.RESUMED


def terms_between(before: LeaderRecord | None, now: LeaderRecord | None) -> int:
    """Count the terms that began between two looks."""
    return max(0, (now.terms if now is not None else 0) - (before.terms if before is not None else 0))
