"""The main flows under asyncio's own event loop and under uvloop."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import psycopg
import pytest

from pgelect import LockState, ShutdownError, Term
from tests.support.duties import serving, serving_stubbornly
from tests.support.locks import (
    SHORT_LEASE,
    Key,
    Story,
    another_leads,
    is_free,
    leading,
    make_lock,
    no_tasks_but,
    queueing,
)
from tests.support.loops import loop_factories
from tests.support.proxy import BreakableProxy
from tests.support.server import lock_holders, lock_waiters, query, sessions, terminate
from tests.support.waiting import eventually, scaled

LoopFactory = Callable[[], asyncio.AbstractEventLoop]
Scenario = Callable[[str, Key, BreakableProxy], Coroutine[Any, Any, None]]


async def _lead_and_stop(database: str, key: Key, _: BreakableProxy) -> None:
    lock = make_lock(database, key)
    story = Story(lock)
    async with lock:
        await lock.wait_for_leadership(scaled(10))
        assert len(lock_holders(database, *key)) == 1
    assert lock_holders(database, *key) == []
    assert story.told == ["acquired", "released"]


async def _hand_over(database: str, key: Key, _: BreakableProxy) -> None:
    async with leading(database, key) as first, queueing(database, key) as second:
        leader, follower = first, second
        for _round in range(5):
            assert await leader.step_down(cooldown_s=0.0)
            await follower.wait_for_leadership(scaled(5))
            assert not leader.is_leader
            await eventually(lambda: lock_waiters(database, *key))
            leader, follower = follower, leader


async def _hear_of_a_killed_backend(database: str, key: Key, _: BreakableProxy) -> None:
    lock = make_lock(database, key, lease_s=3600.0, health_interval_s=600.0)
    story = Story(lock)
    async with lock:
        await story.tells("acquired")
        terminate(database, lock_holders(database, *key)[0])
        await story.tells("acquired", "lost", "acquired")  # long before the next proof


async def _cancel(database: str, key: Key, proxy: BreakableProxy) -> None:
    lock = make_lock(proxy.dsn(database), key)
    for is_frozen in (False, True):
        if is_frozen:
            proxy.freeze()
        task = asyncio.create_task(lock.run())
        await eventually(lambda: lock.is_leader or (proxy.connections and lock.state is LockState.FOLLOWER))
        if not is_frozen:
            await lock.wait_for_leadership(scaled(10))
        task.cancel()
        await asyncio.wait({task}, timeout=1.0)
        assert task.cancelled()
        await is_free(database, key)
        proxy.cut()


async def _lose_a_frozen_link(database: str, key: Key, proxy: BreakableProxy) -> None:
    lock = make_lock(proxy.dsn(database), key, **SHORT_LEASE)
    story = Story(lock)
    async with lock:
        await story.tells("acquired")
        proxy.freeze()
        await story.tells("acquired", "lost")
        assert not lock.is_leader
        await is_free(database, key, within_s=3.0)
        await another_leads(database, key)
        proxy.cut()
        proxy.thaw()
        await lock.wait_for_leadership(scaled(10))


async def _go_on_after_a_grace(database: str, key: Key, proxy: BreakableProxy) -> None:
    lock = make_lock(proxy.dsn(database), key, reconnect_grace_s=30.0)
    story = Story(lock)
    async with lock:
        term = await lock.wait_for_leadership(scaled(10))
        await story.tells("acquired")
        proxy.cut()
        await eventually(lambda: (LockState.RECONNECTING, LockState.LEADER) in story.states)
        assert lock.term is term
        assert story.told == ["acquired"]


async def _drain_and_fail_to(database: str, key: Key, _: BreakableProxy) -> None:
    ended: list[int] = []

    async def duty(_: Term) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            ended.append(len(lock_holders(database, *key)))

    lock = make_lock(database, key)
    await lock.start()
    await lock.wait_for_leadership(scaled(10))
    async with serving(lock, duty):
        await lock.step_down(cooldown_s=0.0)
        assert ended == [1]
    await lock.wait_for_leadership(scaled(10))
    async with serving_stubbornly(lock):
        with pytest.raises(ShutdownError):
            await lock.shutdown(timeout_s=0.2)
        await is_free(database, key)


async def _block_the_loop(database: str, key: Key, _: BreakableProxy) -> None:
    lock = make_lock(database, key, **SHORT_LEASE)
    story = Story(lock)
    async with lock:
        await story.tells("acquired")
        time.sleep(1.5)
        assert not lock.is_leader
        await story.tells("acquired", "lost", "acquired")


async def _fence(database: str, key: Key, _: BreakableProxy) -> None:
    query(database, "CREATE TABLE ledger (token bigint)")
    async with leading(database, key) as lock, await psycopg.AsyncConnection.connect(database) as conn:
        async with lock.fence(conn) as term:
            await conn.execute("INSERT INTO ledger VALUES (%s)", (term.token,))
        await conn.rollback()
        assert query(database, "SELECT token FROM ledger") == [(term.token,)]


SCENARIOS = [
    _lead_and_stop,
    _hand_over,
    _hear_of_a_killed_backend,
    _cancel,
    _lose_a_frozen_link,
    _go_on_after_a_grace,
    _drain_and_fail_to,
    _block_the_loop,
    _fence,
]


@pytest.mark.parametrize("loop_factory", loop_factories())
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__.strip("_"))
def test_the_main_flows_run_under_every_loop(
    database: str, key: Key, proxy: BreakableProxy, scenario: Scenario, loop_factory: LoopFactory
) -> None:
    async def run() -> None:
        before = asyncio.all_tasks()
        await scenario(database, key, proxy)
        await no_tasks_but(before)
        await eventually(lambda: not sessions(database), message="no session is left")

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(run())
