"""The arithmetic of belief: from when to when a process believed that it led, and for how long two did at once."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_TOLD = {"acquired": True, "lost": False}


@dataclass(frozen=True, slots=True)
class Length:
    """A time in seconds; ``over`` is False where it had not ended when watching did: it was longer than that."""

    seconds: float
    over: bool = True


@dataclass(frozen=True, slots=True)
class Change:
    """From then on a process believed that it led, or did not."""

    at: float
    leads: bool


def changes(events: Iterable[dict[str, Any]], since: float = 0.0) -> list[Change]:
    """Read what a process reported from ``since`` on; before that it did not run, and believed nothing."""
    seen = [
        Change(event["at"], event["leads"] if event["event"] == "look" else _TOLD[event["event"]])
        for event in events
        if event["event"] in {"acquired", "lost", "look"} and event["at"] >= since
    ]
    return sorted(seen, key=lambda change: change.at)


def believes(seen: Sequence[Change], at: float) -> bool:
    """Return what it believed at that time."""
    return next((change.leads for change in reversed(seen) if change.at <= at), False)


def first(seen: Sequence[Change], after: float, *, leads: bool) -> float | None:
    """Return when it first began to lead (or ceased to) after that time; None when it did not."""
    before = believes(seen, after)
    for change in seen:
        if change.at > after:
            if change.leads is leads and before is not leads:
                return change.at
            before = change.leads
    return None


def overlap(one: Sequence[Change], other: Sequence[Change], since: float, until: float) -> Length:
    """Return for how long both believed, between these times; not ``over`` when they did at the end."""
    times = sorted({since, until, *(change.at for change in (*one, *other) if since < change.at < until)})
    both = sum(end - begin for begin, end in pairwise(times) if believes(one, begin) and believes(other, begin))
    return Length(both, over=not (believes(one, until) and believes(other, until)))
