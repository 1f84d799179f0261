"""All that the election knows at one instant, and the rules it plays by. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from pgelect._engine.model import LockState

if TYPE_CHECKING:
    from pgelect._engine.events import Io
    from pgelect._engine.model import Backend, Grant, LockKey, LostTerm, Term


@dataclass(frozen=True, slots=True)
class Rules:
    """What the machine needs of the settings, in seconds."""

    key: LockKey
    trust_s: float
    health_interval_s: float
    reconnect_grace_s: float
    takeover_delay_s: float
    queue: bool
    auto_reacquire: bool


@dataclass(frozen=True, slots=True)
class Machine:
    """All that the election knows, at one instant."""

    rules: Rules
    state: LockState = LockState.STOPPED
    epoch: int = 0  # of the present session; grows whenever a session is opened or dropped
    connected: bool = False  # the session of this epoch is open
    io: Io | None = None  # the one I/O in flight on it
    settled: bool = False  # the server has answered an attempt once: mistakes are no longer taken for permanent
    wake_at: float = inf  # FOLLOWER, RECONNECTING: the next attempt
    aside_s: float = 0.0  # FOLLOWER: how long it stands aside before it looks
    grant: Grant | None = None  # the token of the term, from its minting to its end
    number: int = 0  # of the term, counted in this process
    trusted_until: float = -inf  # leadership is not believed from here on
    proved_at: float = -inf  # when the last proof that succeeded was sent
    proof_at: float = inf  # the next proof is due
    lead_at: float = inf  # ACQUIRING: a takeover delay is over
    until: float = inf  # RECONNECTING: the grace is over. RELEASING: the drain is over
    drained: bool = False  # RELEASING: the duty has stopped
    cooldown_s: float = 0.0  # RECONNECTING, RELEASING: stay out for this long afterwards
    stopping: bool = False  # RELEASING: stop afterwards
    ghost: Backend | None = None  # a session of ours that the server may still keep alive
    untold: bool = False  # LEADER: the term is yet to be announced on this session
    tell_at: float = -inf  # not before; set when it could not be announced
    unheeded: bool = False  # LEADER: somebody called; requests to step down are to be looked at
    lost: LostTerm | None = None  # yet to be written down

    @property
    def trusting(self) -> bool:
        """A trust is running that can run out."""
        return self.grant is not None and self.state in {LockState.ACQUIRING, LockState.LEADER, LockState.RELEASING}

    @property
    def deadline(self) -> float:
        """When the next Tick is due."""
        due = [self.wake_at, self.until]
        if self.trusting:
            due.append(self.trusted_until)
        if self.state is LockState.ACQUIRING:
            due.append(self.lead_at)
        return min(due)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What everybody else may know, replaced as a whole at each step; safe to read from any thread."""

    state: LockState = LockState.STOPPED
    trusted_until: float = -inf
    proved_at: float = -inf
    number: int = 0
    term: Term | None = None


@dataclass(frozen=True, slots=True)
class Pulse:
    """What the health of a lock is told by, beside its snapshot. Times are of the lock's clock, in seconds.

    Attributes:
        now: the time.
        due_at: when the lock has to act next, whatever the server does.
        connected: its session is open.
        trouble: the last error, while nothing has gone well since.
        trouble_since: when the first error of that row came.
    """

    now: float
    due_at: float
    connected: bool
    trouble: Exception | None
    trouble_since: float
