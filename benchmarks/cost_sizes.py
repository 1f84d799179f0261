"""How the cost of one process grows with what it leads: locks, each with a session, or partitions of a group."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.process import STARTS_WITHIN_S, Child, DidNotHappenError, python
from benchmarks.scenarios import HEALTH_S, LEASE_S
from benchmarks.telling import progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.usage import Metered, Usage, Window

KEY = 1000
"""The first key of all locks of one process, and less than the first of any group."""
REBALANCE_S = 5.0
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Size:
    """What one process used that led so many.

    Attributes:
        number: of locks or partitions.
        started_s: from its first step until it led all.
        usage: of the process and its sessions.
        server_ms_per_s: processor time of the whole server, in milliseconds for each second.
        written_per_s: bytes of WAL.
        late_s: how late its event loop ran what was due, tick by tick, in seconds; empty where nobody looked.
    """

    number: int
    window_s: float
    started_s: float
    usage: Usage
    server_ms_per_s: float
    written_per_s: float
    late_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait before a window, how long that is, and for how long to watch the event loop."""

    settle_s: float
    window_s: float
    lag_s: float


def by_locks(numbers: Sequence[int], metered: Metered, patience: Patience) -> list[Size]:
    """Measure a process that leads so many locks."""
    found = []
    for number in numbers:
        progress(f"{number} locks in one process" if number > 1 else "1 lock in one process")
        lane = f"locks-{number}"
        flags = [f"--dsn={metered.lane(lane)}", f"--key={KEY}", f"--locks={number}"]
        with Child(lane, python("benchmarks.many_locks", *flags)) as child:
            led = child.wait_for("led", within_s=2 * STARTS_WITHIN_S)
            time.sleep(patience.settle_s)
            window = metered.window(patience.window_s, {lane: [child.pid]})
            child.tell(f"lag {patience.lag_s}")
            late = child.wait_for("lag", within_s=patience.lag_s + STARTS_WITHIN_S)["late_s"]
        found.append(_size(number, led["took_s"], window, lane, tuple(late)))
    return found


def by_partitions(numbers: Sequence[int], metered: Metered, patience: Patience) -> list[Size]:
    """Measure a process that is the only member of a group of so many partitions."""
    found = []
    for number in numbers:
        progress(f"{number} partitions in a group" if number > 1 else "1 partition in a group")
        lane = f"partitions-{number}"
        options = {
            "dsn": metered.lane(lane),
            "name": lane,
            "key": KEY + number,  # what a smaller group left in the tables is none of this one's
            "partitions": number,
            "lease": LEASE_S,
            "health": HEALTH_S,
            "rebalance": REBALANCE_S,
        }
        flags = [f"--{option}={value}" for option, value in options.items()]
        with Child(lane, python("benchmarks.group_member", *flags)) as child:
            child.wait_for("ready", within_s=STARTS_WITHIN_S)
            begun = time.monotonic()
            child.tell("go")
            started_s = _all_led_at(child, number) - begun
            time.sleep(patience.settle_s)
            window = metered.window(patience.window_s, {lane: [child.pid]})
        found.append(_size(number, started_s, window, lane))
    return found


def _all_led_at(child: Child, number: int) -> float:
    """Wait until a member leads so many partitions; return when it led the last one."""
    deadline = time.monotonic() + 2 * STARTS_WITHIN_S
    while time.monotonic() < deadline:
        changes = [change for event in child.events("changed") for change in event["changes"]]
        if sum(1 if led else -1 for _, led, _ in changes) == number:
            return float(max(at for _, _, at in changes))
        time.sleep(_POLL_S)
    raise DidNotHappenError(f"{child.name}: not all {number} partitions were led within {2 * STARTS_WITHIN_S:g} s")


def _size(number: int, started_s: float, window: Window, lane: str, late_s: tuple[float, ...] = ()) -> Size:
    return Size(
        number=number,
        window_s=window.window_s,
        started_s=started_s,
        usage=window.lanes[lane],
        server_ms_per_s=window.server_ms_per_s,
        written_per_s=window.written_per_s or 0.0,
        late_s=late_s,
    )
