"""Looking at `is_leader` all the time, from a thread: when it was True, and what a stopped process saw first.

A thread, so that a blocked loop or a stopped process is looked at again the moment it goes on. Times are those of the
library's own clock, which all processes of a machine share.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from pgelect._engine.clock import SystemClock

now = SystemClock().now

EVERY_S = 0.001
GAP_S = 0.25  # no look for so long: the process was stopped


@dataclass(slots=True)
class Span:
    """A time in which every look saw True: from the first of these looks to the last."""

    first: float
    last: float


@dataclass(frozen=True, slots=True)
class Gap:
    """A time without looks, and what the very first look after it saw."""

    last_look_at: float
    next_look_at: float
    then: bool


class Looks:
    """Calls `look` about every millisecond. `spans` is when it was True; `seen` is told of every change and gap."""

    def __init__(self, look: Callable[[], bool], seen: Callable[[bool | Gap, float], None] = lambda *_: None) -> None:
        self.spans: list[Span] = []
        self.gaps: list[Gap] = []
        self._look = look
        self._seen = seen
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="looks", daemon=True)

    def was_true(self, since: float, until: float) -> bool:
        """Whether any look between the two instants saw True."""
        return any(span.first <= until and span.last >= since for span in self.spans)

    @property
    def last_true_at(self) -> float:
        """When the last look that saw True began."""
        return self.spans[-1].last

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        last_at, last = now(), False
        while not self._end.wait(EVERY_S):
            before = now()
            value = self._look()
            after = now()
            if after - before > GAP_S:
                continue  # stopped in the middle of it: nobody can say on which side of the stop it looked
            if after - last_at > GAP_S:
                self.gaps.append(Gap(last_at, after, value))
                self._seen(self.gaps[-1], after)
            if value and last:
                self.spans[-1].last = before
            elif value:
                self.spans.append(Span(before, before))
            if value is not last:
                self._seen(value, before)
            last_at, last = after, value
