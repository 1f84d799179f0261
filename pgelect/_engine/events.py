"""What the machine hears (events) and what it asks for (effects). Values only. A group's machine shares some."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgelect._engine.model import Backend, Grant, LockState
    from pgelect._engine.state import Rules


class Io(Enum):
    """The kinds of I/O on a session. At most one is in flight."""

    OPEN = "open"
    TRY = "try"
    WAIT = "wait"
    ASIDE = "aside"
    MINT = "mint"
    RESUME = "resume"
    PROVE = "prove"
    WATCH = "watch"
    UNLOCK = "unlock"
    ANNOUNCE = "announce"
    HEED = "heed"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened."""


@dataclass(frozen=True, slots=True)
class SessionEvent(Event):
    """A result of I/O on the session of ``epoch``. From another epoch than the present one it is stale."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Start(Event):
    """The user started the lock, or the group."""


@dataclass(frozen=True, slots=True)
class StepDown(Event):
    """The user gives leadership up: drain for at most ``drain_s``, then stay out for ``cooldown_s``."""

    drain_s: float
    cooldown_s: float


@dataclass(frozen=True, slots=True)
class Shutdown(Event):
    """The user stops the lock, or the group: drain for at most ``drain_s``."""

    drain_s: float


@dataclass(frozen=True, slots=True)
class Reconfigure(Event):
    """The user changed the settings: these rules from now on."""

    rules: Rules


@dataclass(frozen=True, slots=True)
class Abort(Event):
    """The runner is going down: no time for anything but dropping the link."""

    error: Exception | None


@dataclass(frozen=True, slots=True)
class Drained(Event):
    """The duty of the term of that number has stopped."""

    number: int


@dataclass(frozen=True, slots=True)
class Tick(Event):
    """A timer of the machine may be due."""


@dataclass(frozen=True, slots=True)
class Opened(SessionEvent):
    """Connected, all settings set, all guards passed."""


@dataclass(frozen=True, slots=True)
class LockRefused(SessionEvent):
    """Somebody else holds the lock. ``retry_in_s`` is for polling; None: the retry strategy gave up.

    ``aside_s`` is for the queue: enough others wait in it, so stand aside that long before the next look; None: wait.
    """

    retry_in_s: float | None
    aside_s: float | None = None


@dataclass(frozen=True, slots=True)
class LockGranted(SessionEvent):
    """The lock is held, by the session ``backend`` where that is known; there is no token yet."""

    backend: Backend | None = None


@dataclass(frozen=True, slots=True)
class Minted(SessionEvent):
    """The token is confirmed. ``sent_at``: when the question was sent, on our clock.

    ``trust_s``: for how long the lease that the server was told of then can be trusted; here and below, the rules may
    have changed since.
    """

    sent_at: float
    grant: Grant
    trust_s: float = inf


@dataclass(frozen=True, slots=True)
class Failed(SessionEvent):
    """An attempt failed or the session is gone. ``retry_in_s`` None: the retry strategy gave up."""

    error: Exception
    retry_in_s: float | None


@dataclass(frozen=True, slots=True)
class Proved(SessionEvent):
    """The server confirmed that the lock is ours. ``sent_at``: when the question was sent, on our clock."""

    sent_at: float
    trust_s: float = inf


@dataclass(frozen=True, slots=True)
class ProofFailed(SessionEvent):
    """The question could not be asked, but the session is usable: no loss while trust lasts."""

    error: Exception


@dataclass(frozen=True, slots=True)
class WatchEnded(SessionEvent):
    """The idle wait is over: its time was up, it was interrupted, or somebody called (``heard``)."""

    heard: bool = False


@dataclass(frozen=True, slots=True)
class Announced(SessionEvent):
    """What there was to be told of terms is written down, or could not be; nothing depends on it."""

    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Heeded(SessionEvent):
    """Nobody has asked this term to end, or it could not be found out."""

    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class StepDownRequested(SessionEvent):
    """Somebody who may has asked this very term to end: drain for ``drain_s``, then stay out for ``cooldown_s``."""

    by: str
    drain_s: float
    cooldown_s: float


@dataclass(frozen=True, slots=True)
class Resumed(SessionEvent):
    """On a new session, ``backend``, the same term goes on."""

    sent_at: float
    backend: Backend
    trust_s: float = inf


@dataclass(frozen=True, slots=True)
class ResumeRefused(SessionEvent):
    """The term does not go on: for good (``final``), or the lock was merely still taken."""

    final: bool
    error: Exception


@dataclass(frozen=True, slots=True)
class Unlocked(SessionEvent):
    """The answer to the unlock: whether the server says that the lock had been held."""

    was_held: bool


@dataclass(frozen=True, slots=True)
class Effect:
    """Something the runner is to do."""


@dataclass(frozen=True, slots=True)
class Do(Effect):
    """Begin this I/O on the session of this epoch."""

    io: Io
    epoch: int


@dataclass(frozen=True, slots=True)
class Interrupt(Effect):
    """End the wait that is in flight; the session is needed."""


@dataclass(frozen=True, slots=True)
class Close(Effect):
    """End the session of this epoch: in an orderly way, or by dropping the link at once."""

    epoch: int
    orderly: bool


@dataclass(frozen=True, slots=True)
class Changed(Effect):
    """The state changed, and why: in a sentence, and in one of a few words."""

    before: LockState
    after: LockState
    reason: str
    cause: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class TermBegan(Effect):
    """Leadership begins here."""

    grant: Grant


@dataclass(frozen=True, slots=True)
class Drain(Effect):
    """Ask the duty of the term of that number to stop, and say ``Drained`` when it has."""

    number: int


@dataclass(frozen=True, slots=True)
class DrainTimedOut(Effect):
    """The duty did not stop in time; the lock is freed all the same."""


@dataclass(frozen=True, slots=True)
class TermEnded(Effect):
    """Leadership is over: given up cleanly, or lost (and why)."""

    grant: Grant
    released: bool
    error: Exception | None


@dataclass(frozen=True, slots=True)
class AttemptFailed(Effect):
    """An attempt for leadership did not succeed. ``error`` None: somebody else leads."""

    error: Exception | None


@dataclass(frozen=True, slots=True)
class Report(Effect):
    """An error that the user should hear of."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Halt(Effect):
    """The lock, or the group, stopped by itself: the retry strategy gave up (``exhausted``), or as ``error`` says."""

    error: Exception | None
    exhausted: bool
