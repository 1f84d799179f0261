"""When each process believed that it leads, as far as its looks prove it; and when nobody did."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.chaos.history import History, Process

_STOPPED_S = 0.25
"""A look that took longer than this was stopped in its midst: nobody can say on which side of the stop it looked."""


@dataclass(frozen=True, slots=True)
class Span:
    """From the first look that saw the token, to the last; in between no look saw anything else.

    It is what is certain: it begins when the first look was over, and ends when the last one began. Looks are a few
    milliseconds apart.
    """

    process: str
    token: int
    first: float
    last: float


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two processes believed that they lead: ``older`` has the smaller token."""

    older: Span
    newer: Span

    @property
    def since(self) -> float:
        """When it began."""
        return max(self.older.first, self.newer.first)

    @property
    def until(self) -> float:
        """When it ended."""
        return min(self.older.last, self.newer.last)


def spans_of(process: Process) -> list[Span]:
    """Join the looks of a process."""
    looks = sorted((look for look in process.looks if look.after - look.before < _STOPPED_S), key=lambda x: x.before)
    found: list[Span] = []
    for token, group in groupby(looks, key=lambda look: look.token):
        if token is not None:
            run = list(group)
            found.append(Span(process.name, token, run[0].after, max(run[0].after, run[-1].before)))
    return found


def all_spans(history: History) -> list[Span]:
    """Give the spans of all processes, by their beginning."""
    return sorted((span for each in history.processes for span in spans_of(each)), key=lambda span: span.first)


def overlaps(spans: list[Span]) -> list[Overlap]:
    """Find every pair of spans of two processes that share some time. ``spans`` are sorted by their beginning."""
    found: list[Overlap] = []
    open_ones: list[Span] = []
    for span in spans:
        open_ones = [other for other in open_ones if other.last > span.first]
        for other in open_ones:
            if other.process != span.process:
                older, newer = sorted((other, span), key=lambda each: each.token)
                both = Overlap(older, newer)
                if both.until > both.since:
                    found.append(both)
        open_ones.append(span)
    return found


def gaps(spans: list[Span], until: float) -> list[tuple[float, float]]:
    """Find the times without a leader, from the first span on. ``spans`` are sorted by their beginning."""
    found: list[tuple[float, float]] = []
    led_until = spans[0].first if spans else until
    for span in spans:
        if span.first >= until:
            break
        if span.first > led_until:
            found.append((led_until, span.first))
        led_until = max(led_until, span.last)
    if led_until < until:
        found.append((led_until, until))
    return found
