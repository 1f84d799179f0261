"""Simulated time: one heap of things that are due, in one thread. Nothing here waits for anything real.

Rules:

- What is due at one instant happens in the order in which it was asked for.
- Whoever wants chance asks `World.chance`, seeded; nobody reads a real clock, a set, or an address.
- After each thing that happened, the world calls `after_each`: that is where promises are checked.
"""

from __future__ import annotations

import heapq
from math import inf
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Due:
    """Something that is due at an instant."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Let it not happen."""
        self.callback = None


class World:
    """The time of everything that is simulated; it is the time of the fake server, too."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.steps = 0
        self.after_each: Callable[[], None] = lambda: None
        self._now = 0.0
        self._heap: list[tuple[float, int, Due]] = []  # by time, then in the order of asking
        self._asked = 0

    def now(self) -> float:
        """The true time, in seconds."""
        return self._now

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Due:
        """Have something happen later."""
        self._asked += 1
        due = Due(callback)
        heapq.heappush(self._heap, (self._now + max(0.0, delay_s), self._asked, due))
        return due

    def run(self, until: float = inf, stop: Callable[[], bool] = lambda: False) -> bool:
        """Let things happen up to an instant, or until `stop` says so; whether it did."""
        heap = self._heap
        while not stop():
            while heap and heap[0][2].callback is None:
                heapq.heappop(heap)
            if not heap or heap[0][0] > until:
                if until < inf:
                    self._now = max(self._now, until)
                return stop()
            self._now, _, due = heapq.heappop(heap)
            callback, due.callback = due.callback, None
            if callback is not None:
                self.steps += 1
                callback()
                self.after_each()
        return True
