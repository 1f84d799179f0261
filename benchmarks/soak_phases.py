"""What the soak does again and again: each phase is a context in which one cycle after the other can be run.

Between two cycles a phase is always in the same state, so that the memory of both moments can be compared. All of them
draw their moments from one seeded source of chance; what the network and the server make of them differs from run to
run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.process import DidNotHappenError
from pgelect import FixedInterval, LeaderLock, LockState, ShutdownError

if TYPE_CHECKING:
    from random import Random

    from benchmarks.looking import Observer
    from tests.support.proxy import BreakableProxy

HAPPENS_WITHIN_S = 30.0
STOPS_WITHIN_S = 2.0
"""A stop has to be done by then, whenever it is asked for."""
FROZEN_AT_ONCE = 10
"""Links that are frozen and given up in one cycle."""
_LIVELY: Mapping[str, Any] = {"lease_s": 1.0, "health_interval_s": 0.1}
_CALM: Mapping[str, Any] = {"lease_s": 60.0, "health_interval_s": 20.0}
"""While so many are weighed: else some would always be in the middle of a proof."""

_STEP_S = 0.001
_TERMINATE = """
SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity WHERE application_name LIKE 'pgelect:%'
"""

Cycle = Callable[[int], Awaitable[None]]


@dataclass(slots=True)
class Tally:
    """What is counted during a phase, beside the cycles.

    Attributes:
        begun, ended: terms that callbacks were told of.
        cancels, swallowed: tasks that were cancelled while they ran, and those of them that did not end cancelled.
        starts_cancelled: those of them that were on their way to lead, and did not yet.
        stops, late: stops, and those of them that took longer than STOPS_WITHIN_S.
        worst_stop_s: the longest of them.
        sessions_lost: sessions that were ended or links that were cut under a lock that led.
    """

    begun: int = 0
    ended: int = 0
    cancels: int = 0
    starts_cancelled: int = 0
    swallowed: int = 0
    stops: int = 0
    late: int = 0
    worst_stop_s: float = 0.0
    sessions_lost: int = 0


@dataclass(slots=True)
class Ground:
    """Where it takes place."""

    dsn: str
    proxy: BreakableProxy
    observer: Observer
    chance: Random
    tally: Tally = field(default_factory=Tally)

    def lock(self, *, key: int = 1, proxied: bool = False, **settings: Any) -> LeaderLock:
        """Make a lock, and have its terms counted."""
        quick = {"lease_s": 5.0, "health_interval_s": 0.2, "retry_strategy": FixedInterval(0.01)}
        dsn = self.proxy.dsn(self.dsn) if proxied else self.dsn
        lock = LeaderLock(dsn, 77, key, **{**quick, **settings})
        tally = self.tally

        def begun() -> None:
            tally.begun += 1

        def ended() -> None:
            tally.ended += 1

        lock.on_acquired(begun)
        lock.on_lost(ended)
        lock.on_released(ended)
        return lock

    async def pause(self, most_s: float) -> None:
        """Let a random time pass; every fourth time only one turn of the event loop."""
        await asyncio.sleep(self.chance.choice((0.0, 1.0, 1.0, 1.0)) * self.chance.uniform(0.0, most_s))

    async def cancelled(self, task: asyncio.Task[Any], times: int = 1) -> None:
        """Cancel a task, once or more often; see whether it heeds, and in time."""
        begun = time.monotonic()
        if not task.cancel():
            return
        self.tally.cancels += 1
        for _ in range(times - 1):
            await self.pause(0.003)
            task.cancel()
        await asyncio.wait({task}, timeout=HAPPENS_WITHIN_S)
        self._stopped(begun)
        self.tally.swallowed += not task.cancelled()

    async def shut_down(self, lock: LeaderLock) -> None:
        """Stop a lock; see whether that is done in time."""
        begun = time.monotonic()
        with suppress(ShutdownError):
            await lock.shutdown(HAPPENS_WITHIN_S)
        self._stopped(begun)

    def _stopped(self, begun: float) -> None:
        took_s = time.monotonic() - begun
        self.tally.stops += 1
        self.tally.late += took_s > STOPS_WITHIN_S
        self.tally.worst_stop_s = max(self.tally.worst_stop_s, took_s)


@asynccontextmanager
async def start_stop(ground: Ground) -> AsyncIterator[Cycle]:
    """Start, lead, stop: one lock again and again, and new ones."""
    old = ground.lock()

    async def cycle(number: int) -> None:
        lock = old if number % 2 else ground.lock()
        async with lock:
            await lock.wait_for_leadership(HAPPENS_WITHIN_S)

    yield cycle


@asynccontextmanager
async def lost_sessions(ground: Ground) -> AsyncIterator[Cycle]:
    """Take the session from a lock that leads, by turns one without and one with a grace; some of their successors too.

    A terminated backend says goodbye; a cut link does not, and the server may still keep its session.
    """
    locks = [
        ground.lock(key=key, proxied=True, health_interval_s=0.02, reconnect_grace_s=grace_s)
        for key, grace_s in ((1, None), (2, 3600.0))
    ]
    left = [0, 0]

    def watch(index: int) -> None:
        def changed(before: LockState, _: LockState) -> None:
            left[index] += before is LockState.LEADER

        locks[index].on_state_change(changed)

    def strike() -> float:
        if ground.chance.random() < 0.5:
            ground.observer.ask(_TERMINATE)
        else:
            ground.proxy.cut()
        return time.monotonic()

    async def cycle(number: int) -> None:
        index = number % 2
        seen = left[index]
        struck_at = strike()
        await _until(lambda: left[index] > seen, "the loss of a session was not noticed")
        ground.tally.sessions_lost += 1
        if ground.chance.random() < 0.3:  # the next session lives for a moment only
            await ground.pause(0.02)
            struck_at = strike()
        await _lead_since(struck_at, *locks)

    for index, lock in enumerate(locks):
        watch(index)
        await lock.start()
    await _lead_since(time.monotonic(), *locks)
    try:
        yield cycle
    finally:
        for lock in locks:
            await lock.shutdown()


@asynccontextmanager
async def frozen_links(ground: Ground) -> AsyncIterator[Cycle]:
    """Freeze the network under several leaders: each gives up the link on which nothing answers, by turns for good."""
    locks = [ground.lock(key=10 + n, proxied=True, **_LIVELY) for n in range(FROZEN_AT_ONCE)]

    async def lead() -> None:
        for lock in locks:
            if lock.state is LockState.STOPPED:
                await lock.start()
        await _lead_since(time.monotonic(), *locks)
        for lock in locks:
            lock.reconfigure(**_CALM)
        await _until(lambda: all(lock.trust_left_s > _CALM["lease_s"] / 2 for lock in locks), "they did not all calm")

    async def cycle(number: int) -> None:
        for lock in locks:
            lock.reconfigure(**_LIVELY)
        ground.proxy.freeze()
        given_up = (LockState.FOLLOWER, LockState.STOPPED)
        await _until(lambda: all(lock.state in given_up for lock in locks), "a frozen link was not given up")
        ground.tally.sessions_lost += len(locks)
        if number % 2:
            for lock in locks:
                await ground.shut_down(lock)
        ground.proxy.thaw()
        await lead()

    try:
        await lead()
        yield cycle
    finally:
        ground.proxy.thaw()
        for lock in locks:
            await lock.shutdown()


@asynccontextmanager
async def cancelled_starts(ground: Ground) -> AsyncIterator[Cycle]:
    """Cancel a start, or a shutdown, at a random moment: once, twice, thrice."""
    old = ground.lock()
    most_s = 1.2 * await _start_s(ground)  # so that most are cancelled on their way

    async def cycle(number: int) -> None:
        lock = old if number % 2 else ground.lock()
        times = ground.chance.choice((1, 1, 2, 3))
        if number % 4 == 3:
            await lock.start()
            await ground.pause(most_s)
            stopping = asyncio.create_task(lock.shutdown())
            await ground.pause(0.01)
            await ground.cancelled(stopping, times)
        else:
            owner = asyncio.create_task(ground.chance.choice((_by_start, _by_run, _by_block))(lock))
            await ground.pause(most_s)
            ground.tally.starts_cancelled += lock.term is None
            await ground.cancelled(owner, times)

    yield cycle


@asynccontextmanager
async def stops(ground: Ground) -> AsyncIterator[Cycle]:
    """Stop at a random instant of connecting, waiting, acquiring or proving; every fourth time somebody else leads."""
    lock, rival = ground.lock(health_interval_s=0.005), ground.lock()
    most_s = 2.0 * await _start_s(ground)

    async def cycle(number: int) -> None:
        if number % 4 == 3:
            await rival.start()
            await rival.wait_for_leadership(HAPPENS_WITHIN_S)
        if number % 2:
            starting = asyncio.create_task(lock.start())
            await ground.pause(most_s)
            await ground.shut_down(lock)
            await starting
        else:
            running = asyncio.create_task(lock.run())
            await ground.pause(most_s)
            await ground.cancelled(running)
        await rival.shutdown()

    yield cycle


PHASES: dict[str, Callable[[Ground], AbstractAsyncContextManager[Cycle]]] = {
    "start-stop": start_stop,
    "lost": lost_sessions,
    "frozen": frozen_links,
    "cancelled": cancelled_starts,
    "stops": stops,
}


async def _by_start(lock: LeaderLock) -> None:
    await lock.start()
    try:
        await asyncio.Event().wait()
    finally:
        await lock.shutdown()


async def _by_run(lock: LeaderLock) -> None:
    await lock.run()


async def _by_block(lock: LeaderLock) -> None:
    async with lock:
        await asyncio.Event().wait()


async def _start_s(ground: Ground) -> float:
    """How long it takes on this machine from nothing to leadership."""
    begun = time.monotonic()
    async with ground.lock() as lock:
        await lock.wait_for_leadership(HAPPENS_WITHIN_S)
        return time.monotonic() - begun


async def _lead_since(at: float, *locks: LeaderLock) -> None:
    """Wait until all of them lead, by a proof sent after that moment: what went before it is over for them."""
    await _until(
        lambda: all(lock.is_leader_confirmed_within(time.monotonic() - at) for lock in locks), "they did not all lead"
    )


async def _until(condition: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + HAPPENS_WITHIN_S
    while not condition():
        if time.monotonic() > deadline:
            raise DidNotHappenError(f"{otherwise} within {HAPPENS_WITHIN_S:g} s")
        await asyncio.sleep(_STEP_S)
