"""How the cost of waiting, and the time of a takeover, grow with the number of those who wait for one key.

The leader and each follower are processes of their own. First a window in which nothing happens; then the leader is
killed several times, each time whoever leads then, and the fleet is filled up again; then several die at once: the
leader and with it all who wait in the server's queue, or, where that is most of the fleet, the first half of the queue.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.fleet import Fleet
from benchmarks.process import DidNotHappenError
from benchmarks.scenarios import SLICE_S
from benchmarks.telling import progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.stores import PostgresStore
    from benchmarks.usage import Metered, Usage

KEY = 9
_LEADER, _FOLLOWERS = "leader", "followers"
_MANY, _LONGER = 100, 2
"""With as many followers the window is so many times as long: who looks now and then is to have looked."""
_BETWEEN_LOOKS_S = 0.05


@dataclass(frozen=True, slots=True)
class Deaths:
    """Several died at once.

    Attributes:
        died: how many, with the leader.
        waited: how many waited in the server's queue.
        leader_s: time from the leader's death until somebody led.
    """

    died: int
    waited: int
    leader_s: float


@dataclass(frozen=True, slots=True)
class Point:
    """What was measured with so many followers.

    Attributes:
        started_s: until all of them had a session.
        leader: what the leader used.
        all_followers: what all followers together used.
        server_ms_per_s: processor time of the whole server, in milliseconds for each second.
        written_per_s: bytes of WAL.
        waited: how many waited in the server's queue, in one look after the window.
        crash_s: times from a leader's death until somebody else led.
        deaths: of several at once.
    """

    followers: int
    window_s: float
    started_s: float
    leader: Usage
    all_followers: Usage
    server_ms_per_s: float
    written_per_s: float
    waited: int
    crash_s: list[float] = field(default_factory=list)
    deaths: list[Deaths] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Effort:
    """How long each number of followers is watched, how often leaders are killed, and how often several at once."""

    window_s: float
    settle_s: float
    crashes: int
    deaths: int


def by_followers(numbers: Sequence[int], metered: Metered, store: PostgresStore, effort: Effort) -> list[Point]:
    """Measure with each of these numbers of followers."""
    lanes = metered.lane(_LEADER), metered.lane(_FOLLOWERS)
    return [_with(number, metered, store, lanes, effort) for number in numbers]


def _with(number: int, metered: Metered, store: PostgresStore, lanes: tuple[str, str], effort: Effort) -> Point:
    with Fleet(store.observer, KEY) as fleet:
        progress(f"{number} followers start" if number > 1 else "1 follower starts")
        (leader,) = fleet.start(1, lanes[0])
        fleet.leads(0.0)
        begun = time.monotonic()
        followers = fleet.start(number, lanes[1])
        started_s = time.monotonic() - begun
        point = _watched(metered, fleet, followers, started_s, effort)
        progress(f"{effort.crashes} crashes")
        for _ in range(effort.crashes):
            leader = _crash(fleet, leader, lanes[1], point)
        for _ in range(effort.deaths if number > 1 else 0):
            progress("several die at once")
            leader = _several(fleet, leader, lanes[1], point)
    return point


def _watched(metered: Metered, fleet: Fleet, followers: Sequence[str], started_s: float, effort: Effort) -> Point:
    """Measure while nothing happens."""
    time.sleep(effort.settle_s)
    number = len(followers)
    by_lane = {_LEADER: fleet.living.keys() - set(followers), _FOLLOWERS: followers}
    clients = {lane: [fleet.living[name] for name in names] for lane, names in by_lane.items()}
    window = metered.window(effort.window_s * (_LONGER if number >= _MANY else 1), clients)
    if fleet.terms() != 1:
        raise DidNotHappenError("leadership moved while the steady state was counted")
    return Point(
        followers=number,
        window_s=window.window_s,
        started_s=started_s,
        leader=window.lanes[_LEADER],
        all_followers=window.lanes[_FOLLOWERS],
        server_ms_per_s=window.server_ms_per_s,
        written_per_s=window.written_per_s or 0.0,
        waited=len(fleet.waiting()),
    )


def _crash(fleet: Fleet, leader: str, dsn: str, point: Point) -> str:
    """Kill the leader, and return who leads then."""
    fleet.until_one_waits()
    time.sleep(random.uniform(0.0, SLICE_S))  # at any moment of the others' waits
    at = fleet.kill([leader])
    leader, led_at = fleet.leads(at)
    point.crash_s.append(led_at - at)
    fleet.start(1, dsn)
    return leader


def _several(fleet: Fleet, leader: str, dsn: str, point: Point) -> str:
    """Kill who waits, then the leader, and return who leads then."""
    fleet.until_one_waits()
    time.sleep(random.uniform(0.0, SLICE_S))
    first = fleet.waiting()
    time.sleep(_BETWEEN_LOOKS_S)
    waiting = first + [name for name in fleet.waiting() if name not in first]  # one look misses who just queues anew
    victims = waiting[: point.followers // 2]
    at = fleet.kill([*victims, leader])
    leader, led_at = fleet.leads(at)
    point.deaths.append(Deaths(len(victims) + 1, len(waiting), led_at - at))
    fleet.start(len(victims) + 1, dsn)
    return leader
