"""The targets of the project, applied to what was measured."""

from __future__ import annotations

from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.measure import Counts, Target, Timing

if TYPE_CHECKING:
    from benchmarks.scenarios import Crashes, Stopped
    from benchmarks.steady import Steady

CRASH_FLOORS, CRASH_WORST_MS = 3, 60
STEP_DOWN_MEDIAN_MS = 6
TERMINATED_MEDIAN_MS = 15
STOPPED_BEYOND_LEASE_S = 1
LEADER_EXTRA_PER_S = 0.1
FOLLOWER_PER_S = 1.3


def crash(seen: Crashes) -> list[Timing | Counts]:
    """Judge a crash by the floor of the same run."""
    floor = median(seen.floor)
    limit_ms = CRASH_FLOORS * floor * 1000
    timing = Timing("crash: leader killed -> on_acquired", tuple(seen.library), floor_s=floor)
    targets = (
        Target(f"median <= {CRASH_FLOORS} x floor = {limit_ms:.2f}", timing.median_ms <= limit_ms),
        Target(f"worst < {CRASH_WORST_MS}", timing.worst_ms < CRASH_WORST_MS),
    )
    return [
        Timing("floor: bare Python killed -> waiter has it", tuple(seen.floor), floor_s=floor),
        Timing("the same with a psql killed", tuple(seen.psql), floor_s=floor),
        Timing(timing.name, timing.times_s, targets, floor),
    ]


def step_down(times_s: list[float], floor_s: float | None) -> Timing:
    """Judge a handover."""
    name = "step_down() -> next on_acquired"
    return _median_below(name, times_s, STEP_DOWN_MEDIAN_MS, floor_s)


def terminated(times_s: list[float], floor_s: float | None) -> Timing:
    """Judge how soon a leader hears that its backend was terminated."""
    name = "backend terminated -> on_lost"
    return _median_below(name, times_s, TERMINATED_MEDIAN_MS, floor_s)


def stopped(seen: list[Stopped], lease_s: float) -> Timing:
    """Judge a leader that was stopped: the takeover, and what it believed when it went on."""
    limit_ms = (lease_s + STOPPED_BEYOND_LEASE_S) * 1000
    times_s = tuple(each.takeover_s for each in seen)
    modest = sum(not each.leader_at_first_look for each in seen)
    targets = (
        Target(f"worst <= lease + 1 s = {limit_ms:.0f}", max(times_s) * 1000 <= limit_ms),
        Target("is_leader False on SIGCONT", modest == len(seen), f"{modest}/{len(seen)}"),
    )
    return Timing(f"SIGSTOP -> next on_acquired (lease {lease_s:g} s)", times_s, targets)


def steady(seen: Steady) -> Counts:
    """Judge what leading and following cost while nothing happens."""
    leader, follower = seen.leader / seen.window_s, seen.follower / seen.window_s
    limit = 1 / seen.health_interval_s + LEADER_EXTRA_PER_S
    return Counts(
        f"steady state over {seen.window_s:.0f} s (health interval {seen.health_interval_s:g} s)",
        (
            Target(f"<= {limit:.2f}/s", leader <= limit, f"leader: {seen.leader} round trips, {leader:.2f}/s"),
            Target(
                f"<= {FOLLOWER_PER_S:g}/s",
                follower <= FOLLOWER_PER_S,
                f"follower: {seen.follower} round trips, {follower:.2f}/s",
            ),
            Target("none", seen.wal_bytes == 0, f"WAL: {seen.wal_bytes} bytes"),
            Target(
                "one each, none anew",
                seen.sessions == 2 and seen.connects == 0,
                f"connections: {seen.sessions} of two processes, {seen.connects} new",
            ),
        ),
        asdict(seen),
    )


def _median_below(name: str, times_s: list[float], limit_ms: float, floor_s: float | None) -> Timing:
    timing = Timing(name, tuple(times_s))
    return Timing(name, timing.times_s, (Target(f"median < {limit_ms:g}", timing.median_ms < limit_ms),), floor_s)
