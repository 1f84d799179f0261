"""A cancel of the task that owns the lock, in every state and twice: it is heard, and the lock is free at once.

Holds off a lock that is held by nobody: the server had granted it when the client was already on its way out.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import psycopg
import pytest

from pgelect import FixedInterval, LeaderLock, LockState, Term
from tests.support.duties import serving, serving_stubbornly
from tests.support.locks import (
    Key,
    Story,
    another_leads,
    is_free,
    leading,
    make_lock,
    no_tasks_but,
)
from tests.support.proxy import BreakableProxy
from tests.support.server import lock_holders, lock_waiters, sessions
from tests.support.waiting import eventually

Owner = Callable[[LeaderLock], Awaitable[None]]


async def _by_run(lock: LeaderLock) -> None:
    await lock.run()


async def _by_block(lock: LeaderLock) -> None:
    async with lock:
        await asyncio.Event().wait()


async def _by_hand(lock: LeaderLock) -> None:
    await lock.start()
    try:
        await asyncio.Event().wait()
    finally:
        await lock.shutdown()


OWNERS = [_by_run, _by_block, _by_hand]


@dataclass
class Place:
    """Where the test takes place."""

    database: str
    key: Key
    proxy: BreakableProxy

    def lock(self, **settings: object) -> LeaderLock:
        return make_lock(self.proxy.dsn(self.database), self.key, identity="me", **settings)


@pytest.fixture
def place(database: str, key: Key, proxy: BreakableProxy) -> Place:
    return Place(database, key, proxy)


@asynccontextmanager
async def _owned(lock: LeaderLock, owner: Owner) -> AsyncIterator[asyncio.Task[None]]:
    async def own() -> None:
        await owner(lock)

    task = asyncio.create_task(own())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})


Scene = Callable[[Place, Owner], AbstractAsyncContextManager[asyncio.Task[None]]]


@asynccontextmanager
async def _before_its_first_step(place: Place, owner: Owner) -> AsyncIterator[asyncio.Task[None]]:
    async with _owned(place.lock(), owner) as task:
        yield task


@asynccontextmanager
async def _connecting_for_the_first_time(place: Place, owner: Owner) -> AsyncIterator[asyncio.Task[None]]:
    place.proxy.freeze()
    lock = place.lock()
    async with _owned(lock, owner) as task:
        await eventually(lambda: place.proxy.connections == 1)
        assert lock.state is LockState.FOLLOWER
        yield task


@asynccontextmanager
async def _connecting_again(place: Place, owner: Owner) -> AsyncIterator[asyncio.Task[None]]:
    lock = place.lock()
    async with _owned(lock, owner) as task:
        await eventually(lambda: lock.is_leader)
        seen = place.proxy.total_connections
        place.proxy.freeze()
        place.proxy.cut()
        await eventually(lambda: place.proxy.total_connections > seen)
        assert lock.state is LockState.FOLLOWER
        yield task


@asynccontextmanager
async def _waiting_in_the_queue(place: Place, owner: Owner) -> AsyncIterator[asyncio.Task[None]]:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(leading(place.database, place.key))
        lock = place.lock()
        task = await stack.enter_async_context(_owned(lock, owner))
        await eventually(lambda: lock_waiters(place.database, *place.key))
        assert lock.state is LockState.FOLLOWER
        yield task
        await eventually(lambda: not lock_waiters(place.database, *place.key), 1.0)


@asynccontextmanager
async def _minting(place: Place, owner: Owner) -> AsyncIterator[asyncio.Task[None]]:
    await another_leads(place.database, place.key)
    lock = place.lock(lease_s=15.0)  # from it comes the time that a mint waits for the row
    async with await psycopg.AsyncConnection.connect(place.database) as conn:
        await conn.execute("SELECT 1 FROM pgelect.token FOR UPDATE")
        async with _owned(lock, owner) as task:
            await eventually(lambda: lock_holders(place.database, *place.key))
            assert lock.state is LockState.ACQUIRING
            yield task
            await is_free(place.database, place.key)  # while the row is still locked


@asynccontextmanager
async def _under_the_takeover_delay(place: Place, owner: Owner) -> AsyncIterator[asyncio.Task[None]]:
    async with leading(place.proxy.dsn(place.database), place.key):
        place.proxy.refuse()
        place.proxy.cut()  # an unclean end
        await is_free(place.database, place.key)
    place.proxy.refuse(False)
    lock = place.lock(takeover_delay_s=3600.0)
    async with _owned(lock, owner) as task:
        await eventually(lambda: lock.record is not None and lock.record.holder == "me")
        assert lock.state is LockState.ACQUIRING
        assert len(lock_holders(place.database, *place.key)) == 1
        yield task


@asynccontextmanager
async def _leading(place: Place, owner: Owner) -> AsyncIterator[asyncio.Task[None]]:
    lock = place.lock()
    async with _owned(lock, owner) as task:
        await eventually(lambda: lock.is_leader)
        yield task


@asynccontextmanager
async def _reconnecting(place: Place, owner: Owner) -> AsyncIterator[asyncio.Task[None]]:
    lock = place.lock(reconnect_grace_s=3600.0)
    async with _owned(lock, owner) as task:
        await eventually(lambda: lock.is_leader)
        place.proxy.refuse()
        place.proxy.cut()
        await eventually(lambda: lock.state is LockState.RECONNECTING)
        yield task


@asynccontextmanager
async def _backing_off(place: Place, owner: Owner) -> AsyncIterator[asyncio.Task[None]]:
    place.proxy.refuse()
    lock = place.lock(retry_strategy=FixedInterval(3600.0))
    story = Story(lock)
    async with _owned(lock, owner) as task:
        await eventually(lambda: story.errors)
        assert lock.state is LockState.FOLLOWER
        yield task


@asynccontextmanager
async def _draining(place: Place, owner: Owner) -> AsyncIterator[asyncio.Task[None]]:
    lock, cleaned = place.lock(), asyncio.Event()

    async def duty(_: Term) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await cleaned.wait()

    async with _owned(lock, owner) as task:
        await eventually(lambda: lock.is_leader)
        async with serving(lock, duty) as leading:
            stepping_down = asyncio.create_task(lock.step_down())
            await eventually(lambda: lock.state is LockState.RELEASING)
            assert len(lock_holders(place.database, *place.key)) == 1
            asyncio.get_running_loop().call_later(0.1, cleaned.set)
            yield task
            await asyncio.wait({leading, stepping_down}, timeout=1)
            assert stepping_down.result() is True
            assert leading.result() is None


SCENES = [
    _before_its_first_step,
    _connecting_for_the_first_time,
    _connecting_again,
    _waiting_in_the_queue,
    _minting,
    _under_the_takeover_delay,
    _leading,
    _reconnecting,
    _backing_off,
    _draining,
]


def _name(value: Callable[..., object]) -> str:
    return value.__name__.strip("_").replace("_", " ")


@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
@pytest.mark.parametrize("owner", OWNERS, ids=_name)
@pytest.mark.parametrize("scene", SCENES, ids=_name)
async def test_a_cancel_in_every_state_frees_the_lock_and_is_heard(
    place: Place, scene: Scene, owner: Owner, times: int
) -> None:
    before = asyncio.all_tasks()
    async with scene(place, owner) as task:
        task.cancel()
        if times == 2:
            await asyncio.sleep(0.005)
            task.cancel()
        await asyncio.wait({task}, timeout=1.0)
        assert task.cancelled(), task
        await eventually(lambda: not sessions(place.database, "pgelect:%:me"), 1.0, "its session is gone")
    await no_tasks_but(before)
    await is_free(place.database, place.key)
    await another_leads(place.database, place.key)


@pytest.mark.parametrize("owner", OWNERS, ids=_name)
async def test_a_cancel_at_every_step_of_a_start_leaves_nothing(database: str, key: Key, owner: Owner) -> None:
    before = asyncio.all_tasks()
    lock = make_lock(database, key)
    story = Story(lock)
    for steps in range(40):
        async with _owned(lock, owner) as task:
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task}, timeout=1.0)
            assert task.cancelled(), f"after {steps} steps: {task}"
            assert lock.state is LockState.STOPPED
        await no_tasks_but(before)
    await is_free(database, key)
    assert story.is_paired()


@pytest.mark.parametrize("seed", range(3))
async def test_cancels_at_random_instants_leave_nothing(database: str, key: Key, seed: int) -> None:
    chance = random.Random(seed)
    before = asyncio.all_tasks()
    lock = make_lock(database, key)
    story = Story(lock)
    for _ in range(30):
        async with _owned(lock, chance.choice(OWNERS)) as task:
            await asyncio.sleep(chance.uniform(0, 0.04))
            for _ in range(chance.choice([1, 1, 2])):
                task.cancel()
                await asyncio.sleep(0)
            await asyncio.wait({task}, timeout=2.0)
            assert task.cancelled()
        await is_free(database, key)
        await no_tasks_but(before)
    assert story.is_paired()
    await another_leads(database, key)


@pytest.mark.parametrize("owner", [_by_run, _by_block], ids=_name)
async def test_a_cancel_is_heard_although_the_duty_does_not_stop(database: str, key: Key, owner: Owner) -> None:
    """Holds off a cancel that a time limit of ours replaces: a task group or a timeout would then see a failure."""
    lock = make_lock(database, key, drain_timeout_s=0.2)
    async with _owned(lock, owner) as task:
        await eventually(lambda: lock.is_leader)
        async with serving_stubbornly(lock):
            task.cancel()
            await asyncio.wait({task}, timeout=2.0)
            await eventually(lambda: lock_holders(database, *key) == [])
            assert task.cancelled(), task


@pytest.mark.parametrize("owner", OWNERS, ids=_name)
@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
async def test_a_cancelled_leader_tells_of_the_end_of_its_term_once(
    database: str, key: Key, owner: Owner, times: int
) -> None:
    lock = make_lock(database, key)
    story = Story(lock)
    async with _owned(lock, owner) as task:
        await story.tells("acquired")
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        await asyncio.wait({task}, timeout=2.0)
        assert task.cancelled()
        assert len(story.told) == 2
        assert story.is_paired()
