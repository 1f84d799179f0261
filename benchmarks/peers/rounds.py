"""All matches of a run: in which order, how many at once, and on which servers."""

from __future__ import annotations

import importlib.util
import random
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.peers import (
    elector_asyncpg_lock,
    elector_floor,
    elector_grelmicro,
    elector_notifelect,
    elector_pgelect,
    elector_redis,
    stores,
)
from benchmarks.peers.match import Arena, Match, Seen, play
from benchmarks.peers.nursery import Nursery
from benchmarks.telling import progress

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from concurrent.futures import Future

    from benchmarks.peers.elector import Scenario, Settings, System
    from pgelect.testing import Postgres

FLOORS = elector_floor.SYSTEMS
SYSTEMS = (
    *elector_pgelect.SYSTEMS,
    *elector_grelmicro.SYSTEMS,
    *elector_asyncpg_lock.SYSTEMS,
    *elector_notifelect.SYSTEMS,
    *elector_redis.SYSTEMS,
)
_LANES = {"fast": 6, "defaults": 20}
"""Matches at once: with their defaults, electors do little but wait."""
_QUICK_LANES = 40
_QUICK_S = 2.5


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run.

    Attributes:
        systems: the electors; the floor is always among them.
        rounds: with the fast settings; with the defaults there are two for each five of these.
        is_quick: only the fast settings, watched for a short time.
    """

    systems: tuple[System, ...]
    scenarios: tuple[Scenario, ...]
    rounds: int
    seed: int
    is_quick: bool

    def matches(self) -> dict[str, list[Match]]:
        """Return what is played with each kind of settings: all systems in each round, in a new order each time."""
        shuffled = random.Random(self.seed)
        numbers = iter(range(1_000_000))
        by_kind: dict[str, list[Match]] = {}
        for kind, rounds in {"fast": self.rounds, "defaults": 0 if self.is_quick else -(-self.rounds * 2 // 5)}.items():
            for number in range(rounds):
                these = [
                    Match(system, settings, scenario, next(numbers), number)
                    for scenario in self.scenarios
                    for system, settings in ways((*FLOORS, *self.systems))
                    if settings.name == kind
                ]
                shuffled.shuffle(these)
                by_kind.setdefault(kind, []).extend(these)
        return by_kind


def ways(systems: Iterable[System]) -> list[tuple[System, Settings]]:
    """Return each system with each of its settings."""
    return [(system, settings) for system in systems for settings in system.settings]


def missing(system: System) -> str:
    """Return what it lacks to be measured here, and how to get it; empty when it lacks nothing."""
    packages = dict.fromkeys(need.partition(".")[0] for need in system.needs)
    if absent := [name for name in packages if importlib.util.find_spec(name) is None]:
        return f"{', '.join(absent)} not installed: pip install 'pgelect[bench]'"
    if system.store == "redis" and shutil.which("redis-server") is None:
        return "redis-server not installed: it is in the system's package of that name"
    return ""


def run(plan: Plan, server: Postgres) -> list[tuple[Match, Seen]]:
    """Play all matches; return what came of each."""
    with ExitStack() as stack:
        systems = (*FLOORS, *plan.systems)
        postgres = stores.PostgresStore(server)
        stack.callback(postgres.close)
        places: dict[str, stores.Store] = {"postgresql": postgres}
        if any(system.store == "redis" for system in systems):
            places["redis"] = stack.enter_context(stores.redis())
        nurseries = {module: Nursery(module) for module in {system.module for system in systems}}
        arena = Arena(
            nurseries, places, _QUICK_S if plan.is_quick else float("inf"), threading.Lock(), threading.Event()
        )
        by_kind = plan.matches()
        lanes = {kind: ThreadPoolExecutor(_QUICK_LANES if plan.is_quick else _LANES[kind]) for kind in by_kind}
        playing = {
            lanes[kind].submit(play, arena, match): match for kind, matches in by_kind.items() for match in matches
        }
        try:
            return [(playing[done], done.result()) for done in _told(list(playing))]
        finally:
            arena.ending.set()
            for nursery in nurseries.values():
                nursery.close()
            for lane in lanes.values():
                lane.shutdown(cancel_futures=True)


def _told(playing: Sequence[Future[Seen]]) -> Iterable[Future[Seen]]:
    """Give each as it ends, and say now and then how far it is."""
    for number, done in enumerate(as_completed(playing), 1):
        if number % 50 == 0 or number == len(playing):
            progress(f"{number} of {len(playing)} matches")
        yield done
