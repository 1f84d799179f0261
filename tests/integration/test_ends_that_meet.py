"""Several ends of one term at the same time, while its on_acquired runs: it is told to begin once and to end once.

Holds off callbacks that come twice, in the wrong order or without their pair, when a loss, a step-down and a shutdown
meet (faults like ray-project/ray#63773, fabric8io/kubernetes-client#7350 and #5463).
"""

import asyncio
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from pgelect import LeaderLock, LockState, Term
from tests.support.locks import SHORT_LEASE, Key, is_free, leading, make_lock, no_tasks_but
from tests.support.proxy import BreakableProxy
from tests.support.server import lock_holders, query, terminate
from tests.support.waiting import eventually, scaled


class Heard:
    """What a lock told of its terms, and whether its on_acquired ran at the time: one word each, with the token."""

    def __init__(self, lock: LeaderLock, *, hold_s: float = 0.0) -> None:
        self.told: list[tuple[str, int]] = []
        self.acquiring = 0
        self.overlapped = False  # an end was told while on_acquired still ran
        self._hold_s = hold_s
        lock.on_acquired(self._acquired)
        lock.on_lost(lambda term: self._ended("lost", term))
        lock.on_released(lambda term: self._ended("released", term))

    async def _acquired(self, term: Term) -> None:
        self.told.append(("acquired", term.token))
        self.acquiring += 1
        try:
            await asyncio.sleep(self._hold_s)
        finally:
            self.acquiring -= 1

    def _ended(self, how: str, term: Term) -> None:
        self.overlapped = self.overlapped or self.acquiring > 0
        self.told.append((how, term.token))

    def check(self) -> None:
        """(acquired lost-or-released)*, each pair with one token, and tokens grow."""
        assert not self.overlapped
        words = " ".join(what for what, _ in self.told)
        assert re.fullmatch(r"(acquired (lost|released) ?)*", words), self.told
        tokens = [token for _, token in self.told]
        assert tokens[::2] == tokens[1::2] == sorted(set(tokens)), self.told


End = Callable[[LeaderLock, int, str, BreakableProxy], Awaitable[object]]


async def _step_down(lock: LeaderLock, _: int, __: str, ___: BreakableProxy) -> object:
    return await lock.step_down(cooldown_s=0.0)


async def _shutdown(lock: LeaderLock, _: int, __: str, ___: BreakableProxy) -> None:
    await lock.shutdown()


async def _terminate(_: LeaderLock, pid: int, database: str, __: BreakableProxy) -> object:
    return await asyncio.to_thread(terminate, database, pid)


async def _cut(_: LeaderLock, __: int, ___: str, proxy: BreakableProxy) -> object:
    return await asyncio.to_thread(proxy.cut)


@pytest.mark.parametrize("seed", range(4))
async def test_a_hundred_times_in_all_begins_and_ends_are_paired(
    database: str, key: Key, proxy: BreakableProxy, seed: int
) -> None:
    """Twenty-five for each seed; step-down and shutdown are always among them, a killed or cut session often is."""
    chance = random.Random(seed)
    before, terms = asyncio.all_tasks(), 0
    for _ in range(25):
        lock = make_lock(proxy.dsn(database), key)
        if chance.random() < 0.5:
            lock.on_state_change(lambda: asyncio.sleep(0.01))  # on_acquired comes late, or too late
        heard = Heard(lock, hold_s=chance.choice([0.0, 3600.0]))
        await lock.start()
        await lock.wait_for_leadership(scaled(10))
        (pid,) = lock_holders(database, *key)
        ends: list[End] = [_step_down, _shutdown, *chance.sample([_terminate, _cut, _step_down], chance.randrange(3))]
        chance.shuffle(ends)
        spread_s = chance.choice([0.0, 0.002, 0.006])

        async def later(end: End, lock: LeaderLock = lock, pid: int = pid, spread_s: float = spread_s) -> None:
            await asyncio.sleep(chance.uniform(0, spread_s))
            await end(lock, pid, database, proxy)

        async with asyncio.timeout(scaled(10)):
            await asyncio.gather(*(later(end) for end in ends))
        assert lock.state is LockState.STOPPED
        heard.check()
        terms += len(heard.told) // 2
        await is_free(database, key)
    assert terms >= 8  # some are over before they could be told
    await no_tasks_but(before)


@pytest.mark.parametrize("seed", range(2))
async def test_a_fleet_that_is_pulled_at_from_all_sides_keeps_its_pairs(
    database: str, key: Key, proxy: BreakableProxy, seed: int
) -> None:
    """Three electors, whose on_acquired take a while; whoever leads is stepped down, killed and cut off at random."""
    chance = random.Random(seed)
    locks = [make_lock(proxy.dsn(database), key) for _ in range(3)]
    heard = [Heard(lock, hold_s=0.02) for lock in locks]
    for lock in locks:
        await lock.start()
    for _ in range(15):
        leader, *_ = await eventually(lambda: [lock for lock in locks if lock.is_leader], message="one leads")
        pids = lock_holders(database, *key)
        ends: list[End] = chance.sample([_step_down, _step_down, _terminate, _cut], 2)
        await asyncio.gather(*(end(leader, pids[0] if pids else 0, database, proxy) for end in ends))
    await asyncio.gather(*(lock.shutdown() for lock in locks))
    for it in heard:
        it.check()
    tokens = [token for it in heard for what, token in it.told if what == "acquired"]
    assert len(tokens) == len(set(tokens)) >= 8
    await is_free(database, key)


@asynccontextmanager
async def _with_a_slow_start(dsn: str, key: Key) -> AsyncIterator[tuple[LeaderLock, Heard]]:
    """It leads, and its on_acquired takes many leases."""
    lock = make_lock(dsn, key, **SHORT_LEASE)
    heard = Heard(lock, hold_s=3600.0)
    async with lock:
        await eventually(lambda: heard.acquiring == 1, message="on_acquired runs")
        yield lock, heard
    heard.check()


async def test_a_deadline_that_passes_during_on_acquired_ends_the_term_once(
    database: str, key: Key, proxy: BreakableProxy
) -> None:
    """The link falls silent; proofs, which go on during on_acquired, notice by the lease."""
    async with _with_a_slow_start(proxy.dsn(database), key) as (lock, heard):
        ((_, token),) = heard.told
        proxy.freeze()
        await eventually(lambda: not lock.is_leader, message="trust runs out")
        await eventually(
            lambda: heard.told[1:2] == [("lost", token)], message="the end is told, and on_acquired is over"
        )
        proxy.cut()
        proxy.thaw()
        await eventually(lambda: len(heard.told) >= 3, message="a new term begins")


async def test_a_killed_session_during_on_acquired_ends_the_term_once(database: str, key: Key) -> None:
    async with _with_a_slow_start(database, key) as (_, heard):
        for n in range(5):
            await eventually(lambda: len(heard.told) == 2 * n + 1 and heard.acquiring == 1)  # noqa: B023
            terminate(database, lock_holders(database, *key)[0])
            await eventually(lambda: len(heard.told) >= 2 * n + 2)  # noqa: B023
        assert [what for what, _ in heard.told[:10]] == ["acquired", "lost"] * 5


async def test_on_acquired_comes_after_lock_and_token_and_never_without(database: str, key: Key) -> None:
    """What the server says at the moment it runs; between lock and token it does not run."""
    async with leading(database, key) as first:
        token = first.token
    seen: list[tuple[object, ...]] = []
    lock = make_lock(database, key)
    held = "SELECT token, released_at IS NULL, backend_pid FROM pgelect.token"

    @lock.on_acquired
    def look(term: Term) -> None:
        seen.append((term.token, lock_holders(database, *key), query(database, held)))

    async with lock:
        await eventually(lambda: seen)
        (pid,) = lock_holders(database, *key)
        assert seen == [(lock.token, [pid], [(lock.token, True, pid)])]
        assert (lock.token or 0) > (token or 0)
