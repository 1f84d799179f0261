"""The rules of a group, as one pure table: ``step(machine, event, now) -> (machine, effects)``.

Its rules are those of a single lock's machine, with one session that carries many terms:

- TABLE holds every transition, IGNORED the pairs that mean nothing; any other pair is a bug and raises.
- A result of I/O from another epoch is stale: it is dropped, and its session closed.
- Trust comes first: when ``trusted_until`` is past, every term is lost, whatever the event at hand says.
- One proof covers all locks of the session, and whatever ends the session ends all of its terms.
- At most one I/O is in flight; ``moves.idle`` chooses the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from pgelect._group import transitions as rules
from pgelect._group.events import (
    Abort,
    Changed,
    Close,
    Drained,
    Effect,
    Event,
    Failed,
    Freed,
    Heeded,
    Joined,
    Looked,
    Opened,
    Partitions,
    Refused,
    SessionEvent,
    Shutdown,
    Start,
    StepDown,
    Taken,
    TermEnded,
    Tick,
    Told,
    WatchEnded,
)
from pgelect._group.moves import CONNECTING, LEAVING, MEMBER, STOPPED, Step
from pgelect._group.state import GroupState, Machine
from pgelect.errors import SessionLostError


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
        effects = (Changed(m.state, after.state, _why(event, effects)), *effects)
    return after, effects


def _why(event: Event, effects: tuple[Effect, ...]) -> str:
    ended = (effect.error for effect in effects if isinstance(effect, TermEnded))
    error = next(ended, None) or getattr(event, "error", None)
    words = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in type(event).__name__)
    return str(error) if error else words.strip()


TABLE: Mapping[GroupState, Mapping[type[Event], tuple[Handler, tuple[GroupState, ...]]]] = {
    STOPPED: {
        Start: (rules.start, (CONNECTING,)),
        Partitions: (rules.repartition, (STOPPED,)),
    },
    CONNECTING: {
        Opened: (rules.opened, (CONNECTING,)),
        Joined: (rules.joined, (MEMBER, CONNECTING)),
        Failed: (rules.retry, (CONNECTING, STOPPED)),
        Tick: (rules.connecting_tick, (CONNECTING,)),
        Partitions: (rules.repartition, (CONNECTING,)),
        Shutdown: (rules.leave_unjoined, (STOPPED,)),
        Abort: (rules.abort, (STOPPED,)),
    },
    MEMBER: {
        Looked: (rules.looked, (MEMBER,)),
        Taken: (rules.taken, (MEMBER,)),
        Told: (rules.told, (MEMBER,)),
        Heeded: (rules.heeded, (MEMBER,)),
        Freed: (rules.freed, (MEMBER,)),
        WatchEnded: (rules.watch_ended, (MEMBER,)),
        Refused: (rules.refused, (MEMBER,)),
        Failed: (rules.lost, (CONNECTING,)),
        Drained: (rules.drained, (MEMBER,)),
        Tick: (rules.tick, (MEMBER,)),
        Partitions: (rules.member_repartition, (MEMBER,)),
        StepDown: (rules.step_down, (MEMBER, LEAVING, CONNECTING)),
        Shutdown: (rules.shutdown, (LEAVING, STOPPED)),
        Abort: (rules.abort, (STOPPED,)),
    },
    LEAVING: {
        Looked: (rules.looked_leaving, (LEAVING, CONNECTING, STOPPED)),
        Taken: (rules.taken, (LEAVING, CONNECTING, STOPPED)),
        Told: (rules.told, (LEAVING, CONNECTING, STOPPED)),
        Heeded: (rules.heeded, (LEAVING, CONNECTING, STOPPED)),
        Freed: (rules.freed, (LEAVING, CONNECTING, STOPPED)),
        WatchEnded: (rules.watch_ended, (LEAVING, CONNECTING, STOPPED)),
        Refused: (rules.refused, (LEAVING, CONNECTING, STOPPED)),
        Failed: (rules.lost, (CONNECTING, STOPPED)),
        Drained: (rules.drained, (LEAVING,)),
        Tick: (rules.tick, (LEAVING,)),
        Partitions: (rules.repartition, (LEAVING,)),
        Shutdown: (rules.leaving_shutdown, (LEAVING,)),
        Abort: (rules.abort, (STOPPED,)),
    },
}

IGNORED: Mapping[GroupState, frozenset[type[Event]]] = {
    STOPPED: frozenset({StepDown, Shutdown, Drained, Tick, Abort}),
    CONNECTING: frozenset({StepDown, Drained}),
    MEMBER: frozenset(),
    LEAVING: frozenset({StepDown}),
}
