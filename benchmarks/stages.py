"""Where the milliseconds of a takeover go: a small table of stages, beside the floor of the same rounds. Linux only."""

from __future__ import annotations

import os
import select
import signal
import time
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.scenarios import Succession, handovers

if TYPE_CHECKING:
    from benchmarks.looking import Observer
    from benchmarks.scenarios import Arena

_ENDS_WITHIN_S = 10.0


class _Steps:
    """Times by step, in the order in which the steps were first seen."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._times: dict[str, list[float]] = {}

    def add(self, step: str, seconds: float) -> None:
        self._times.setdefault(step, []).append(seconds)

    def text(self) -> str:
        lines = [f"{self._title:<62}{'min':>8}{'median':>9}{'worst':>9}"]
        for step, times in self._times.items():
            numbers = (min(times), median(times), max(times))
            lines.append(f"  {step:<60}{numbers[0] * 1000:>8.2f}" + "".join(f"{n * 1000:>9.2f}" for n in numbers[1:]))
        return "\n".join(lines)


def stages(arena: Arena, observer: Observer, rounds: int) -> str:
    """Render the stages of crashes and of handovers, in milliseconds."""
    return f"{_crash(arena, observer, rounds)}\n\n{_handover(arena, observer, rounds)}"


def _crash(arena: Arena, observer: Observer, rounds: int) -> str:
    steps = _Steps("where the milliseconds of a crash go")
    with (
        Succession(observer, lambda n: arena.bare(f"stages-floor-{n}", 1)) as bare,
        Succession(observer, lambda n: arena.replica(f"stages-{n}", 2, stages=True)) as library,
    ):
        for _ in range(rounds):
            bare.until_ready()
            library.until_ready()
            arena.any_moment()
            _, _, floor_s = _kill(observer, bare, steps, "floor: ")
            steps.add("floor: bare Python killed -> waiter has it", floor_s)
            arena.any_moment()
            at, got, all_s = _kill(observer, library, steps)
            steps.add("1  killed -> the follower's wait is answered", got["stages"]["waiting answered"] - at)
            _lead(steps, 2, got)
            steps.add("   all of it", all_s)
            bare.go_on()
            library.go_on()
    return steps.text()


def _handover(arena: Arena, observer: Observer, rounds: int) -> str:
    steps = _Steps("where the milliseconds of a handover go")
    for stepped, got in handovers(arena, observer, rounds, stages=True):
        marks, after = stepped["stages"], got["stages"]
        steps.add("1  step_down() -> the duty and the callbacks are drained", marks["Drained"] - stepped["at"])
        steps.add("2  -> the unlock is sent", marks["releasing sent"] - marks["Drained"])
        steps.add("3  -> the other's wait is answered", after["waiting answered"] - marks["releasing sent"])
        steps.add("   meanwhile: the unlock is answered", marks["releasing answered"] - marks["releasing sent"])
        _lead(steps, 4, got)
        steps.add("   all of it", got["at"] - stepped["at"])
    return steps.text()


def _lead(steps: _Steps, number: int, got: dict[str, Any]) -> None:
    """Add what a follower does between the grant of the lock and ``on_acquired``."""
    marks = got["stages"]
    parts = {
        "the runner knows": marks["LockGranted"] - marks["waiting answered"],
        "the mint is sent": marks["minting sent"] - marks["LockGranted"],
        "the mint is answered": marks["minting answered"] - marks["minting sent"],
        "the runner knows of the mint": marks["Minted"] - marks["minting answered"],
        "on_acquired": got["at"] - marks["Minted"],
    }
    for offset, (part, seconds) in enumerate(parts.items()):
        steps.add(f"{number + offset}  -> {part}", seconds)


def _kill(observer: Observer, pair: Succession, steps: _Steps, what: str = "") -> tuple[float, dict[str, Any], float]:
    """Kill the holder; return when, what the waiter reported, and how long that took."""
    backend = observer.until_holding(pair.holder.name)
    ends = [os.pidfd_open(pid) for pid in (pair.holder.pid, backend)]
    at = pair.holder.signal(signal.SIGKILL)
    gone = _ended(ends)
    got = pair.waiter.wait_for("acquired")
    steps.add(f"   {what}meanwhile: the killed process is gone", gone[0] - at)
    steps.add(f"   {what}meanwhile: its server process is gone", gone[1] - at)
    return at, got, got["at"] - at


def _ended(pidfds: list[int]) -> list[float]:
    """When each of these processes ended."""
    poll = select.poll()
    for pidfd in pidfds:
        poll.register(pidfd, select.POLLIN)
    times: dict[int, float] = {}
    deadline = time.monotonic() + _ENDS_WITHIN_S
    while len(times) < len(pidfds) and time.monotonic() < deadline:
        for pidfd, _ in poll.poll(_ENDS_WITHIN_S * 1000):
            times[pidfd] = time.monotonic()
            poll.unregister(pidfd)
    for pidfd in pidfds:
        os.close(pidfd)
    return [times[pidfd] for pidfd in pidfds]
