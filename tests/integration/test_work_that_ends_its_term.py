"""Work that gives leadership up or stops the lock itself, because it is done: nothing waits for itself.

Holds off a drain that waits for a duty which waits for the drain.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from pgelect import LeaderLock, LockState, Term
from tests.support.locks import Key, Story, is_free, make_lock, no_tasks_but
from tests.support.server import lock_holders
from tests.support.waiting import eventually, scaled

WAITED_S = 20.0  # by whoever waits for itself

Call = Callable[[LeaderLock], Coroutine[Any, Any, object]]


async def _step_down(lock: LeaderLock) -> object:
    return await lock.step_down(cooldown_s=3600)


async def _shutdown(lock: LeaderLock) -> object:
    await lock.shutdown(timeout_s=WAITED_S)
    return None


async def _step_down_in_a_task(lock: LeaderLock) -> object:
    """As asyncio.wait_for() does before Python 3.12, and gather() always."""
    return await asyncio.create_task(_step_down(lock))


async def _shutdown_in_a_task(lock: LeaderLock) -> object:
    return await asyncio.create_task(_shutdown(lock))


CALLS = [_step_down, _shutdown, _step_down_in_a_task, _shutdown_in_a_task]


def _name(value: Callable[..., object]) -> str:
    return value.__name__.strip("_").replace("_", " ")


@pytest.mark.parametrize("call", CALLS, ids=_name)
async def test_a_duty_may_end_its_own_term(database: str, key: Key, call: Call) -> None:
    before = asyncio.all_tasks()
    lock = make_lock(database, key, drain_timeout_s=WAITED_S)
    story = Story(lock)

    async def duty(_: Term) -> None:
        await call(lock)

    serving: asyncio.Task[None] | None = None
    try:
        async with asyncio.timeout(scaled(5)):
            await lock.start()
            serving = asyncio.create_task(lock.lead(duty))
            await story.tells("acquired", "released")
            await is_free(database, key)
            if "shutdown" in call.__name__:
                await serving
                assert lock.state is LockState.STOPPED
    finally:
        if serving is not None:
            serving.cancel()
        await lock.shutdown(timeout_s=1)
    await no_tasks_but(before)
    assert story.told == ["acquired", "released"]


@pytest.mark.parametrize("call", [_step_down, _shutdown], ids=_name)
async def test_the_body_of_a_loop_over_terms_may_end_its_own_term(database: str, key: Key, call: Call) -> None:
    before = asyncio.all_tasks()
    lock = make_lock(database, key, drain_timeout_s=WAITED_S)
    story = Story(lock)
    terms: list[int] = []

    async def work() -> None:
        async for term in lock.terms():
            terms.append(term.token)
            await call(lock)
            assert lock_holders(database, *key) == []

    working: asyncio.Task[None] | None = None
    try:
        async with asyncio.timeout(scaled(5)):
            await lock.start()
            working = asyncio.create_task(work())
            await story.tells("acquired", "released")
            if "shutdown" in call.__name__:
                await working
    finally:
        if working is not None:
            working.cancel()
            await asyncio.wait({working})
        await lock.shutdown(timeout_s=1)
    await no_tasks_but(before)
    assert len(terms) == 1


async def test_a_term_may_be_given_up_after_each_piece_of_work(database: str, key: Key) -> None:
    """A fair share among processes: work once, hand over, queue again."""
    locks = [make_lock(database, key) for _ in range(3)]
    shares = dict.fromkeys(locks, 0)

    async def work(lock: LeaderLock) -> None:
        async for _ in lock.terms():
            shares[lock] += 1
            await lock.step_down(cooldown_s=0.0)

    async with locks[0], locks[1], locks[2], asyncio.TaskGroup() as group:
        workers = [group.create_task(work(lock)) for lock in locks]
        await eventually(lambda: min(shares.values()) >= 3)
        for worker in workers:
            worker.cancel()
    assert lock_holders(database, *key) == []


async def test_a_callback_may_lead(database: str, key: Key) -> None:
    """A duty inside on_acquired: it ends, and is waited for, with the term."""
    lock, held = make_lock(database, key), list[int]()
    begun = asyncio.Event()

    async def duty(_: Term) -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.02)
            held.append(len(lock_holders(database, *key)))

    @lock.on_acquired
    async def lead() -> None:
        await lock.lead(duty)

    async with lock:
        await begun.wait()
        await lock.step_down(cooldown_s=3600)
        assert held == [1]
        assert lock_holders(database, *key) == []
