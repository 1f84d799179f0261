"""The rules of a group, as one pure table: ``step(machine, event, now) -> (machine, effects)``.

How TABLE and IGNORED are applied is the same for a single lock, and in ``_engine/rulebook.py``. Beyond that, one
session carries many terms:

- One proof covers all locks of the session, and whatever ends the session ends all of its terms.
- At most one I/O is in flight; ``moves.idle`` chooses the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from pgelect._engine.rulebook import Rulebook, why
from pgelect._group import transitions as rules
from pgelect._group.events import (
    Abort,
    Changed,
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

Handler: TypeAlias = Callable[[Machine, Any, float], Step]


def step(machine: Machine, event: Event, now: float) -> Step:
    """Apply one event at the time ``now`` (seconds, any steady clock).

    Raises:
        IllegalEventError: the table has no such pair.
    """
    return RULEBOOK.step(machine, event, now)


def _changed(before: GroupState, after: GroupState, event: Event, effects: tuple[Effect, ...]) -> Changed:
    reason, _ = why(event, (effect.error for effect in effects if isinstance(effect, TermEnded)))
    return Changed(before, after, reason)


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

RULEBOOK = Rulebook(TABLE, IGNORED, _changed)
