"""A clock that stands still until a test moves it."""

from __future__ import annotations

import math


class FakeClock:
    """A clock for tests, in place of the system's.

    Args:
        start: the first reading, in seconds. Default 0.0.
    """

    __slots__ = ("_now",)

    def __init__(self, start: float = 0.0) -> None:
        self._now = float(start)

    def now(self) -> float:
        """Return the present reading, in seconds."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock forward.

        Args:
            seconds: by how much; 0 or more.

        Raises:
            ValueError: ``seconds`` is negative, NaN or infinite: a monotonic clock never goes back.
        """
        if not math.isfinite(seconds) or seconds < 0:
            raise ValueError(f"seconds={seconds!r} must be finite and not negative: this clock never goes back")
        self._now += seconds

    def __repr__(self) -> str:
        return f"FakeClock({self._now!r})"
