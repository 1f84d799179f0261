"""The rules of the election: what can happen next, as one pure table.

``step(machine, event, now) -> (machine, effects)`` has no side effects and reads no clock. Its rules:

- TABLE holds every transition: in this state, on this event, this rule runs, and it may end in these states.
  IGNORED holds the pairs that mean nothing. Any other pair is a bug and raises IllegalEventError.
- A result of I/O from another epoch than the present one is stale: it is dropped, and its session closed.
- Trust comes first: ``trusted_until`` is the send time of the last proof plus the lease less a margin. When it is past,
  the term is treated as lost before the event at hand is looked at, whatever that event says.
- A session carries at most one term. Whatever ends a term or an attempt ends the session.
- At most one I/O is in flight (``machine.io``); ``_idle`` chooses the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from pgelect._engine import transitions as rules
from pgelect._engine.causes import cause_of, words_of
from pgelect._engine.events import (
    Abort,
    Announced,
    Changed,
    Close,
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
    SessionEvent,
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
from pgelect._engine.state import Machine
from pgelect.errors import SessionLostError

STOPPED, FOLLOWER, ACQUIRING = LockState.STOPPED, LockState.FOLLOWER, LockState.ACQUIRING
LEADER, RECONNECTING, RELEASING = LockState.LEADER, LockState.RECONNECTING, LockState.RELEASING


class IllegalEventError(RuntimeError):
    """The table has no rule for this event in this state: a bug in the caller. The machine is unchanged."""


Handler: TypeAlias = Callable[[Machine, Any, float], Step]


def step(machine: Machine, event: Event, now: float) -> Step:
    """Apply one event at the time ``now`` (seconds, any steady clock).

    Raises:
        IllegalEventError: the table has no such pair.
    """
    effects: tuple[Effect, ...] = ()
    if _is_stale(machine, event):
        return machine, _close_stale(event)
    if machine.trusting and now >= machine.trusted_until and not isinstance(event, Abort):
        error = SessionLostError("expired", "the server has confirmed nothing for the length of the lease")
        machine, effects = _apply(machine, Failed(machine.epoch, error, 0.0), now)
        if _is_stale(machine, event):
            return machine, effects
    machine, more = _apply(machine, event, now)
    return machine, effects + more


def _is_stale(m: Machine, event: Event) -> bool:
    return isinstance(event, SessionEvent) and event.epoch != m.epoch


def _close_stale(event: Event) -> tuple[Effect, ...]:
    return (Close(event.epoch, orderly=False),) if isinstance(event, SessionEvent) else ()


def _apply(m: Machine, event: Event, now: float) -> Step:
    rule = TABLE[m.state].get(type(event))
    if rule is None:
        if type(event) in IGNORED[m.state]:
            return m, ()
        raise IllegalEventError(f"no rule for {type(event).__name__} in state {m.state.value}")
    handler, targets = rule
    after, effects = handler(m, event, now)
    if after.state not in targets:
        raise IllegalEventError(f"{type(event).__name__} led from {m.state.value} to {after.state.value}")
    if after.state is not m.state:
        effects = (Changed(m.state, after.state, *_why(event, effects)), *effects)
    return after, effects


def _why(event: Event, effects: tuple[Effect, ...]) -> tuple[str, str]:
    """Reason and cause."""
    ended = (effect.error for effect in effects if isinstance(effect, TermEnded))
    error = next(ended, None) or getattr(event, "error", None)
    if error:
        return str(error), cause_of(error)
    by = f" by {event.by!r}" if isinstance(event, StepDownRequested) else ""
    return words_of(event, " ") + by, words_of(event, "_")


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
