"""What processes use: their time on the processor, and their memory."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable

_MB = 2**20
_PROCESS_CLOCK = 2
"""The kind of clock that counts what all threads of a process have run, as Linux numbers them."""


def cpu_s(pid: int) -> float:
    """Return for how long a process has run, all its threads together; 0 when it has ended.

    From the clock of that process, where the system has one, as Linux has: it counts nanoseconds. The times that are
    for everybody to see count in hundredths of a second, which is what an idle leader uses in half a minute.
    """
    try:
        return time.clock_gettime((~pid << 3) | _PROCESS_CLOCK)
    except OSError:
        pass
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return times.user + times.system


def tree_cpu_s(root: int) -> float:
    """Return for how long a process and its children have run, with those children that have ended already."""
    process = psutil.Process(root)
    times = process.cpu_times()
    living = sum(cpu_s(child.pid) for child in process.children())
    return cpu_s(root) + living + times.children_user + times.children_system


@dataclass(frozen=True, slots=True)
class Memory:
    """Of one or several processes, in MB.

    Attributes:
        rss: what is resident; what processes share is counted for each of them.
        pss: the same, but each is given its part of what they share. The same as ``rss`` where nobody can tell.
        uss: what would be free if they ended.
    """

    rss: float
    pss: float
    uss: float


def memory(pids: Iterable[int]) -> Memory:
    """Weigh these processes together; those that have ended weigh nothing."""
    rss = pss = uss = 0.0
    for pid in pids:
        try:
            full = psutil.Process(pid).memory_full_info()
        except psutil.NoSuchProcess:
            continue
        rss += full.rss / _MB
        pss += getattr(full, "pss", full.rss) / _MB
        uss += full.uss / _MB
    return Memory(rss, pss, uss)
