"""How a table of rules is applied to a machine: the same for a single lock and for a group. Pure.

- A table holds every transition: in this state, on this event, this rule runs, and it may end in these states.
  ``ignored`` holds the pairs that mean nothing. Any other pair is a bug and raises IllegalEventError.
- A result of I/O from another epoch than the present one is stale: it is dropped, and its session closed.
- Trust comes first: when ``trusted_until`` is past, what is led is treated as lost before the event at hand is looked
  at, whatever that event says.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

from pgelect._engine.causes import cause_of, words_of
from pgelect._engine.events import Abort, Close, Effect, Event, Failed, SessionEvent
from pgelect.errors import SessionLostError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

S = TypeVar("S", bound=StrEnum)
S_co = TypeVar("S_co", bound=StrEnum, covariant=True)


class Stateful(Protocol[S_co]):
    """What is asked of a machine."""

    @property
    def state(self) -> S_co:
        """What it is doing."""

    @property
    def epoch(self) -> int:
        """Of the present session."""

    @property
    def trusting(self) -> bool:
        """A trust is running that can run out."""

    @property
    def trusted_until(self) -> float:
        """When that is."""


Effects: TypeAlias = tuple[Effect, ...]
M = TypeVar("M", bound=Stateful[Any])


class IllegalEventError(RuntimeError):
    """The table has no rule for this event in this state: a bug in the caller. The machine is unchanged."""


@dataclass(frozen=True, slots=True)
class Rulebook(Generic[M, S]):
    """All the rules of one kind of machine.

    Attributes:
        table: for each state and event the rule, and the states that it may end in.
        ignored: for each state the events that mean nothing.
        changed: what tells of a change of state, given both states, the event and its effects.
    """

    table: Mapping[S, Mapping[type[Event], tuple[Callable[[M, Any, float], tuple[M, Effects]], tuple[S, ...]]]]
    ignored: Mapping[S, frozenset[type[Event]]]
    changed: Callable[[S, S, Event, Effects], Effect]

    def step(self, machine: M, event: Event, now: float) -> tuple[M, Effects]:
        """Apply one event at the time ``now`` (seconds, any steady clock).

        Raises:
            IllegalEventError: the table has no such pair.
        """
        effects: Effects = ()
        if is_stale(machine, event):
            return machine, _close_stale(event)
        if machine.trusting and now >= machine.trusted_until and not isinstance(event, Abort):
            error = SessionLostError("expired", "the server has confirmed nothing for the length of the lease")
            machine, effects = self.apply(machine, Failed(machine.epoch, error, 0.0), now)
            if is_stale(machine, event):
                return machine, effects
        machine, more = self.apply(machine, event, now)
        return machine, effects + more

    def apply(self, m: M, event: Event, now: float) -> tuple[M, Effects]:
        """Apply one event that is not stale, of a machine whose trust has not run out."""
        rule = self.table[m.state].get(type(event))
        if rule is None:
            if type(event) in self.ignored[m.state]:
                return m, ()
            raise IllegalEventError(f"no rule for {type(event).__name__} in state {m.state.value}")
        handler, targets = rule
        after, effects = handler(m, event, now)
        if after.state not in targets:
            raise IllegalEventError(f"{type(event).__name__} led from {m.state.value} to {after.state.value}")
        if after.state is not m.state:
            effects = (self.changed(m.state, after.state, event, effects), *effects)
        return after, effects


def is_stale(m: Stateful[Any], event: Event) -> bool:
    """Tell whether this is a result of I/O on a session that is not the present one."""
    return isinstance(event, SessionEvent) and event.epoch != m.epoch


def _close_stale(event: Event) -> Effects:
    return (Close(event.epoch, orderly=False),) if isinstance(event, SessionEvent) else ()


def why(event: Event, ended: Iterator[Exception | None]) -> tuple[str, str]:
    """Give the reason and the cause of a change: the error that a term ended with, else the event's, else its words."""
    error = next(ended, None) or getattr(event, "error", None)
    return (str(error), cause_of(error)) if error else (words_of(event, " "), words_of(event, "_"))
