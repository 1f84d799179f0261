"""Callbacks that give leadership up or stop the lock themselves: nothing waits for itself.

Holds off a deadlock between a release that waits for callbacks and a callback that waits for the release.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from pgelect import LeaderLock, LockState
from tests.support.locks import Key, Story, is_free, make_lock, no_tasks_but
from tests.support.server import lock_holders, terminate
from tests.support.waiting import eventually, scaled

Call = Callable[[LeaderLock], Coroutine[Any, Any, object]]


async def _step_down(lock: LeaderLock) -> object:
    return await lock.step_down(cooldown_s=3600)


async def _shutdown(lock: LeaderLock) -> object:
    await lock.shutdown(timeout_s=3600)
    return None


async def _step_down_in_a_task(lock: LeaderLock) -> object:
    """As asyncio.wait_for() does before Python 3.12, and gather() always."""
    return await asyncio.create_task(_step_down(lock))


async def _shutdown_in_a_task(lock: LeaderLock) -> object:
    return await asyncio.create_task(_shutdown(lock))


CALLS = [_step_down, _shutdown, _step_down_in_a_task, _shutdown_in_a_task]
HOOKS = ["on_acquired", "on_state_change", "on_released", "on_lost"]


def _name(value: Callable[..., object]) -> str:
    return value.__name__.strip("_").replace("_", " ")


@pytest.mark.parametrize("call", CALLS, ids=_name)
@pytest.mark.parametrize("hook", HOOKS)
async def test_an_async_callback_may_end_what_it_is_told_of(database: str, key: Key, hook: str, call: Call) -> None:
    before = asyncio.all_tasks()
    lock, ended = make_lock(database, key, drain_timeout_s=3600), []
    story = Story(lock)

    async def callback(*_: object) -> None:
        if hook != "on_state_change" or lock.state is LockState.LEADER:
            try:
                await call(lock)
            finally:
                ended.append(1)

    getattr(lock, hook)(callback)
    async with asyncio.timeout(scaled(5)):
        await lock.start()
        if hook in {"on_released", "on_lost"}:
            await story.tells("acquired")
        if hook == "on_released":
            await lock.step_down(cooldown_s=3600)
        elif hook == "on_lost":
            terminate(database, lock_holders(database, *key)[0])
        await eventually(lambda: ended)
        if "step_down" in call.__name__ and hook != "on_lost":
            await eventually(lambda: lock.state is LockState.FOLLOWER)
        if "shutdown" in call.__name__:
            await eventually(lambda: lock.state is LockState.STOPPED)
        if hook != "on_lost" or "shutdown" in call.__name__:
            await is_free(database, key)
        await lock.shutdown()
    await eventually(lambda: lock_holders(database, *key) == [])
    assert story.is_paired()
    assert len(story.told) % 2 == 0
    await no_tasks_but(before)


@pytest.mark.parametrize("method", ["step_down", "shutdown"])
@pytest.mark.parametrize("hook", HOOKS)
async def test_a_plain_callback_may_start_a_task_that_ends_it(database: str, key: Key, hook: str, method: str) -> None:
    lock = make_lock(database, key)
    story, tasks = Story(lock), list[asyncio.Future[object]]()

    @getattr(lock, hook)  # type: ignore[untyped-decorator] # named by the parameter
    def callback() -> None:
        if not tasks:
            ending: Awaitable[object] = getattr(lock, method)()
            tasks.append(asyncio.ensure_future(ending))

    async with asyncio.timeout(scaled(5)):
        await lock.start()
        if hook in {"on_released", "on_lost"}:
            await story.tells("acquired")
        if hook == "on_released":
            await lock.step_down(cooldown_s=3600)
        elif hook == "on_lost":
            terminate(database, lock_holders(database, *key)[0])
        await eventually(lambda: tasks and tasks[0].done())
        tasks[0].result()
        await lock.shutdown()
    await eventually(lambda: lock_holders(database, *key) == [])
    assert story.is_paired()


async def test_an_on_error_and_an_on_acquire_failed_may_stop_the_lock(key: Key) -> None:
    for hook in ("on_error", "on_acquire_failed"):
        lock, ended = make_lock("host=127.0.0.1 port=1", key), asyncio.Event()

        async def stop(lock: LeaderLock = lock, ended: asyncio.Event = ended) -> None:
            await lock.shutdown()
            ended.set()

        getattr(lock, hook)(stop)
        async with asyncio.timeout(scaled(5)):
            await lock.start()
            await ended.wait()
        assert lock.state is LockState.STOPPED
