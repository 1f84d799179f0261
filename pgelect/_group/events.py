"""What the machine of a group hears (events) and what it asks for (effects). Values only.

What is the same for a single lock, starting, stopping and the life of a session, is that of ``_engine/events.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from pgelect._engine.events import (
    Abort,
    Close,
    Effect,
    Event,
    Failed,
    Halt,
    Interrupt,
    Opened,
    Report,
    SessionEvent,
    Shutdown,
    Start,
    Tick,
)

if TYPE_CHECKING:
    from pgelect._engine.model import Backend, Grant, LockKey
    from pgelect._group.shares import View
    from pgelect._group.state import GroupState

__all__ = [
    "Abort",
    "Asked",
    "AttemptFailed",
    "Changed",
    "Close",
    "Do",
    "Drain",
    "DrainTimedOut",
    "Drained",
    "Effect",
    "Event",
    "Failed",
    "Free",
    "Freed",
    "Halt",
    "Heed",
    "Heeded",
    "Interrupt",
    "Io",
    "Join",
    "Joined",
    "Look",
    "Looked",
    "Mint",
    "Open",
    "Opened",
    "Partitions",
    "Refused",
    "Report",
    "SessionEvent",
    "Shutdown",
    "Start",
    "StepDown",
    "Take",
    "Taken",
    "Tell",
    "TermBegan",
    "TermEnded",
    "Tick",
    "Told",
    "Watch",
    "WatchEnded",
]


# -- I/O on the session; at most one is in flight ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Io:
    """One call."""


@dataclass(frozen=True, slots=True)
class Open(Io):
    """Connect."""


@dataclass(frozen=True, slots=True)
class Join(Io):
    """Become a member; end ``ghost`` first."""

    ghost: Backend | None


@dataclass(frozen=True, slots=True)
class Look(Io):
    """Prove that all locks are held, and look at the group if it has changed since ``known``; None: in any case.

    ``wait_for``: before that, wait for the end of that member, for at most ``wait_s``.
    """

    known: int | None
    wait_for: int | None = None
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Take(Io):
    """Try for these locks, and mint the tokens of those that are granted."""

    keys: tuple[LockKey, ...]


@dataclass(frozen=True, slots=True)
class Mint(Io):
    """Mint one token, which fenced transactions of an earlier term hold up."""

    key: LockKey


@dataclass(frozen=True, slots=True)
class Tell(Io):
    """Write down that these terms have begun."""

    grants: tuple[tuple[LockKey, Grant], ...]


@dataclass(frozen=True, slots=True)
class Heed(Io):
    """Look who has asked these terms to end."""

    tokens: tuple[tuple[LockKey, int], ...]


@dataclass(frozen=True, slots=True)
class Free(Io):
    """Mark these terms as released, and unlock."""

    tokens: tuple[tuple[LockKey, int], ...]


@dataclass(frozen=True, slots=True)
class Watch(Io):
    """Idle on the socket."""

    for_s: float


# -- events ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Partitions(Event):
    """The user has changed the partitions to these."""

    keys: tuple[LockKey, ...]


@dataclass(frozen=True, slots=True)
class StepDown(Event):
    """Give up these partitions (None: all, and leave): drain for at most ``drain_s``, then stay out ``cooldown_s``."""

    keys: tuple[LockKey, ...] | None
    drain_s: float
    cooldown_s: float


@dataclass(frozen=True, slots=True)
class Drained(Event):
    """The duty of that term has stopped."""

    key: LockKey
    number: int


@dataclass(frozen=True, slots=True)
class Joined(SessionEvent):
    """A member now, with this id."""

    sent_at: float
    me: int
    backend: Backend


@dataclass(frozen=True, slots=True)
class Looked(SessionEvent):
    """All locks are held.

    ``view``: the group, if it has changed. ``orphaned``: the member waited for has died. ``called``: requests to step
    down are to be looked at.
    """

    sent_at: float
    print: int
    view: View | None = None
    orphaned: bool = False
    trust_s: float = inf
    called: bool = False


@dataclass(frozen=True, slots=True)
class Taken(SessionEvent):
    """Tokens that were minted, locks whose token is held up, and keys that failed and are not held."""

    grants: tuple[tuple[LockKey, Grant], ...]
    held_up: tuple[LockKey, ...] = ()
    failed: tuple[tuple[LockKey, Exception], ...] = ()
    retry_in_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Told(SessionEvent):
    """The terms were written down, or could not be."""

    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Heeded(SessionEvent):
    """These terms were asked to end, and by whom; or it could not be found out."""

    asked: tuple[tuple[LockKey, str], ...] = ()
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Freed(SessionEvent):
    """These locks were held, and are free now."""

    keys: tuple[LockKey, ...]


@dataclass(frozen=True, slots=True)
class WatchEnded(SessionEvent):
    """The watch is over."""


@dataclass(frozen=True, slots=True)
class Refused(SessionEvent):
    """The server refused the I/O in flight; the session is usable."""

    error: Exception


# -- effects -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Do(Effect):
    """Begin this I/O on the session of this epoch."""

    io: Io
    epoch: int


@dataclass(frozen=True, slots=True)
class Changed(Effect):
    """The state changed, and why."""

    before: GroupState
    after: GroupState
    reason: str


@dataclass(frozen=True, slots=True)
class TermBegan(Effect):
    """Leadership of a partition begins here."""

    key: LockKey
    number: int
    grant: Grant


@dataclass(frozen=True, slots=True)
class Drain(Effect):
    """Ask the duty of that term to stop, and say ``Drained`` when it has."""

    key: LockKey
    number: int


@dataclass(frozen=True, slots=True)
class Asked(Effect):
    """Somebody who may has asked the term of a partition to end."""

    key: LockKey
    by: str


@dataclass(frozen=True, slots=True)
class DrainTimedOut(Effect):
    """The duty did not stop in time; the lock is freed all the same."""

    key: LockKey


@dataclass(frozen=True, slots=True)
class TermEnded(Effect):
    """Leadership of a partition is over: given up cleanly, or lost (and why)."""

    key: LockKey
    number: int
    released: bool
    error: Exception | None = field(default=None)


@dataclass(frozen=True, slots=True)
class AttemptFailed(Effect):
    """A partition (None: the whole session) could not be had."""

    key: LockKey | None
    error: Exception
