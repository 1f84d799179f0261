"""The clock that trust is measured by: seconds that only go forward, and on a suspended machine too.

A laptop or virtual machine that sleeps must find its lease over when it wakes: the server's timers went on meanwhile.
"""

from __future__ import annotations

import sys
import time
from typing import Protocol


class Clock(Protocol):
    """A source of monotonic time."""

    def now(self) -> float:
        """Return seconds since an arbitrary point. Never goes back; unrelated to wall-clock time."""


def _suspend_aware_clock() -> int | None:
    # Linux: time.monotonic() reads CLOCK_MONOTONIC, stopped in suspend; CLOCK_BOOTTIME goes on (clock_gettime(2)).
    # macOS: time.monotonic() reads mach_absolute_time, which stands still; CLOCK_MONOTONIC goes on (clock_gettime(3)).
    name = "CLOCK_MONOTONIC" if sys.platform == "darwin" else "CLOCK_BOOTTIME"
    clock: int | None = getattr(time, name, None)
    if clock is None:
        return None
    try:
        time.clock_gettime(clock)
    except OSError:  # a kernel or sandbox without it
        return None
    return clock


_CLOCK = _suspend_aware_clock()


class SystemClock:
    """The system's monotonic clock, counting suspended time where the system can (Linux, macOS)."""

    __slots__ = ()

    def now(self) -> float:
        """Return seconds since an arbitrary point, such as the boot of the machine."""
        return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)
