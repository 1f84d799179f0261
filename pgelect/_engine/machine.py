"""The rules of the election: what can happen next, as one pure table.

``step(machine, event, now) -> (machine, effects)`` has no side effects and reads no clock. How TABLE and IGNORED are
applied, what is stale, and that trust comes first, is in ``rulebook.py``. Beyond that:

- ``trusted_until`` is the send time of the last proof plus the lease less a margin.
- A session carries at most one term. Whatever ends a term or an attempt ends the session.
- At most one I/O is in flight (``machine.io``); ``_idle`` chooses the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from pgelect._engine import transitions as rules
from pgelect._engine.events import (
    Abort,
    Announced,
    Changed,
    Drained,
    Effect,
    Event,
    Failed,
    Heeded,
    LockGranted,
    LockRefused,
    Minted,
    Opened,
    ProofFailed,
    Proved,
    Reconfigure,
    Resumed,
    ResumeRefused,
    Shutdown,
    Start,
    StepDown,
    StepDownRequested,
    TermEnded,
    Tick,
    Unlocked,
    WatchEnded,
)
from pgelect._engine.model import LockState
from pgelect._engine.moves import Step
from pgelect._engine.rulebook import Rulebook, why
from pgelect._engine.state import Machine

STOPPED, FOLLOWER, ACQUIRING = LockState.STOPPED, LockState.FOLLOWER, LockState.ACQUIRING
LEADER, RECONNECTING, RELEASING = LockState.LEADER, LockState.RECONNECTING, LockState.RELEASING


Handler: TypeAlias = Callable[[Machine, Any, float], Step]


def step(machine: Machine, event: Event, now: float) -> Step:
    """Apply one event at the time ``now`` (seconds, any steady clock).

    Raises:
        IllegalEventError: the table has no such pair.
    """
    return RULEBOOK.step(machine, event, now)


def _changed(before: LockState, after: LockState, event: Event, effects: tuple[Effect, ...]) -> Changed:
    reason, cause = why(event, (effect.error for effect in effects if isinstance(effect, TermEnded)))
    by = f" by {event.by!r}" if isinstance(event, StepDownRequested) else ""
    return Changed(before, after, reason + by, cause)


TABLE: Mapping[LockState, Mapping[type[Event], tuple[Handler, tuple[LockState, ...]]]] = {
    STOPPED: {
        Start: (rules.start, (FOLLOWER,)),
        Reconfigure: (rules.reconfigure, (STOPPED,)),
    },
    FOLLOWER: {
        Opened: (rules.opened, (ACQUIRING, FOLLOWER)),
        Announced: (rules.confessed, (ACQUIRING,)),
        Tick: (rules.follower_tick, (FOLLOWER, ACQUIRING)),
        LockRefused: (rules.waited_refused, (FOLLOWER,)),
        LockGranted: (rules.granted, (ACQUIRING,)),
        Failed: (rules.retry, (FOLLOWER, STOPPED)),
        Reconfigure: (rules.reconfigure, (FOLLOWER,)),
        Shutdown: (rules.leave, (STOPPED,)),
        Abort: (rules.abort, (STOPPED,)),
    },
    ACQUIRING: {
        LockRefused: (rules.tried_refused, (FOLLOWER, STOPPED)),
        LockGranted: (rules.granted, (ACQUIRING,)),
        Minted: (rules.minted, (LEADER, ACQUIRING, FOLLOWER)),
        Tick: (rules.acquiring_tick, (ACQUIRING, LEADER)),
        Proved: (rules.proved, (ACQUIRING,)),
        ProofFailed: (rules.proof_failed, (ACQUIRING,)),
        WatchEnded: (rules.watch_ended, (ACQUIRING,)),
        Failed: (rules.retry, (FOLLOWER, STOPPED)),
        Reconfigure: (rules.reconfigure, (ACQUIRING,)),
        Shutdown: (rules.leave, (STOPPED,)),
        Abort: (rules.abort, (STOPPED,)),
    },
    LEADER: {
        Proved: (rules.proved, (LEADER,)),
        ProofFailed: (rules.proof_failed, (LEADER,)),
        WatchEnded: (rules.watch_ended, (LEADER,)),
        Announced: (rules.announced, (LEADER,)),
        Heeded: (rules.heeded, (LEADER,)),
        Reconfigure: (rules.reconfigure, (LEADER,)),
        Failed: (rules.lost, (RECONNECTING, FOLLOWER, STOPPED)),
        StepDown: (rules.step_down, (RELEASING,)),
        StepDownRequested: (rules.step_down_requested, (RELEASING,)),
        Shutdown: (rules.leader_shutdown, (RELEASING,)),
        Abort: (rules.abort, (STOPPED,)),
    },
    RECONNECTING: {
        Opened: (rules.reopened, (RECONNECTING,)),
        Resumed: (rules.resumed, (LEADER, RECONNECTING)),
        ResumeRefused: (rules.resume_refused, (RECONNECTING, FOLLOWER, STOPPED)),
        Failed: (rules.grace_retry, (RECONNECTING,)),
        Tick: (rules.reconnecting_tick, (RECONNECTING, FOLLOWER, STOPPED)),
        Reconfigure: (rules.reconfigure, (RECONNECTING,)),
        StepDown: (rules.reconnecting_step_down, (FOLLOWER, STOPPED)),
        Shutdown: (rules.reconnecting_shutdown, (STOPPED,)),
        Abort: (rules.abort, (STOPPED,)),
    },
    RELEASING: {
        Drained: (rules.drained, (RELEASING,)),
        Tick: (rules.releasing_tick, (RELEASING,)),
        Proved: (rules.proved, (RELEASING,)),
        ProofFailed: (rules.proof_failed, (RELEASING,)),
        WatchEnded: (rules.watch_ended, (RELEASING,)),
        Announced: (rules.announced, (RELEASING,)),
        Heeded: (rules.heeded, (RELEASING,)),
        StepDownRequested: (rules.requested_too_late, (RELEASING,)),
        Reconfigure: (rules.reconfigure, (RELEASING,)),
        Unlocked: (rules.released, (FOLLOWER, STOPPED)),
        Failed: (rules.releasing_lost, (FOLLOWER, STOPPED)),
        Shutdown: (rules.releasing_shutdown, (RELEASING,)),
        Abort: (rules.abort, (STOPPED,)),
    },
}

IGNORED: Mapping[LockState, frozenset[type[Event]]] = {
    STOPPED: frozenset({StepDown, Shutdown, Drained, Tick, Abort}),
    FOLLOWER: frozenset({StepDown, Drained}),
    ACQUIRING: frozenset({StepDown, Drained}),
    LEADER: frozenset({Drained, Tick}),
    RECONNECTING: frozenset({Drained}),
    RELEASING: frozenset({StepDown}),
}

RULEBOOK = Rulebook(TABLE, IGNORED, _changed)
