"""Stopping a lock: in time, at any instant, called by several or by an event; and the lock is free afterwards."""

import asyncio
import contextlib
import random

import pytest

from pgelect import FixedInterval, LockState, NotLeaderError, ShutdownError
from pgelect.testing._places import free_port
from tests.support.duties import serving_stubbornly
from tests.support.locks import (
    Key,
    Story,
    another_leads,
    is_free,
    leading,
    make_lock,
    no_tasks_but,
    queueing,
    state_of,
)
from tests.support.proxy import BreakableProxy
from tests.support.server import lock_holders, lock_waiters, query, sessions
from tests.support.waiting import eventually, scaled


async def test_a_duty_that_does_not_stop_is_not_waited_for_beyond_the_timeout(database: str, key: Key) -> None:
    lock = make_lock(database, key)
    await lock.start()
    async with serving_stubbornly(lock) as duty:
        with pytest.raises(ShutdownError) as late:
            await lock.shutdown(timeout_s=0.3)
        assert late.value.timeout_s == 0.3
        assert "duty" in str(late.value)
        await is_free(database, key)
        assert lock.state is LockState.STOPPED
        assert not lock.is_leader
        await lock.shutdown()  # a second call is harmless
        await lock.shutdown(timeout_s=0)
        assert not duty.may_end.is_set()
    await another_leads(database, key)


async def test_while_a_duty_is_waited_for_the_lock_is_held_and_proved(database: str, key: Key) -> None:
    lock = make_lock(database, key)
    story = Story(lock)
    await lock.start()
    async with serving_stubbornly(lock) as duty:
        stopping = asyncio.create_task(lock.shutdown())
        await eventually(lambda: lock.state is LockState.RELEASING)
        (pid,) = lock_holders(database, *key)
        statement = "SELECT query_start FROM pg_stat_activity WHERE pid = %s"
        before = query(database, statement, pid)[0][0]
        await eventually(lambda: query(database, statement, pid)[0][0] > before, message="another proof")
        assert not stopping.done()
        assert not lock.is_leader
        duty.may_end.set()
        await stopping
        assert lock_holders(database, *key) == []
    assert story.told == ["acquired", "released"]


async def test_a_shutdown_without_time_frees_the_lock(database: str, key: Key) -> None:
    lock = make_lock(database, key)
    await lock.start()
    await lock.wait_for_leadership(scaled(10))
    with contextlib.suppress(ShutdownError):
        await lock.shutdown(timeout_s=0)
    assert lock.state is LockState.STOPPED
    await is_free(database, key)


@pytest.mark.parametrize("wrong", [-1.0, float("inf"), float("nan")])
async def test_a_wrong_timeout_is_refused_and_the_term_goes_on(database: str, key: Key, wrong: float) -> None:
    async with leading(database, key) as lock:
        with pytest.raises(ValueError, match="timeout_s"):
            await lock.shutdown(timeout_s=wrong)
        assert lock.is_leader


async def test_several_at_the_same_time_all_return(database: str, key: Key) -> None:
    lock = make_lock(database, key)
    story = Story(lock)
    await lock.start()
    await lock.wait_for_leadership(scaled(10))
    await asyncio.gather(*(lock.shutdown() for _ in range(5)))
    assert story.told == ["acquired", "released"]
    assert lock_holders(database, *key) == []


@pytest.mark.parametrize("seed", range(2))
async def test_fifty_at_random_instants_all_return_and_leave_nothing(database: str, key: Key, seed: int) -> None:
    """Holds off an end that never comes because one cancel or one wake-up was lost. Half of them have a rival."""
    chance = random.Random(seed)
    before = asyncio.all_tasks()
    lock = make_lock(database, key)
    story = Story(lock)
    for round_ in range(50):
        rival = make_lock(database, key)
        if round_ % 2:
            await rival.start()
        starting = asyncio.create_task(lock.start())
        await asyncio.sleep(chance.choice([0.0, chance.uniform(0, 0.05)]))
        async with asyncio.timeout(scaled(2)):
            await lock.shutdown()
            await starting
        await rival.shutdown()
        assert lock.state is LockState.STOPPED
        await is_free(database, key)
        await no_tasks_but(before)
    assert story.is_paired()
    assert len(story.told) % 2 == 0


async def test_a_cancelled_shutdown_frees_the_lock_first(database: str, key: Key) -> None:
    lock = make_lock(database, key)
    story = Story(lock)
    await lock.start()
    await story.tells("acquired")
    stopping = asyncio.create_task(lock.shutdown())
    await asyncio.sleep(0)
    stopping.cancel()
    await asyncio.wait({stopping})
    assert stopping.cancelled()
    assert lock_holders(database, *key) == []
    assert story.told == ["acquired", "released"]


async def test_a_shutdown_that_is_cancelled_twice_closes_the_socket_at_once(database: str, key: Key) -> None:
    lock = make_lock(database, key)
    await lock.start()
    async with serving_stubbornly(lock):
        stopping = asyncio.create_task(lock.shutdown(timeout_s=3600))
        await eventually(lambda: lock.state is LockState.RELEASING)
        stopping.cancel()
        await asyncio.sleep(0.05)
        assert lock_holders(database, *key)
        stopping.cancel()
        await asyncio.wait({stopping}, timeout=1.0)
        assert stopping.cancelled()
        await is_free(database, key)
        assert lock.state is LockState.STOPPED


async def test_the_event_stops_a_leader(database: str, key: Key) -> None:
    event = asyncio.Event()
    lock = make_lock(database, key, shutdown_event=event)
    story = Story(lock)
    running = asyncio.create_task(lock.run())
    await story.tells("acquired")
    event.set()
    await asyncio.wait({running}, timeout=scaled(5))
    assert running.result() is None
    assert lock_holders(database, *key) == []
    assert lock.state is LockState.STOPPED
    assert story.told == ["acquired", "released"]
    with pytest.raises(NotLeaderError):
        await lock.wait_for_leadership()


async def test_the_event_stops_a_follower_inside_its_block(database: str, key: Key) -> None:
    event = asyncio.Event()
    async with leading(database, key), queueing(database, key, shutdown_event=event) as follower:
        waiting = asyncio.create_task(follower.wait_for_leadership())
        await asyncio.sleep(0)
        event.set()
        with pytest.raises(NotLeaderError):
            await waiting
        await eventually(lambda: follower.state is LockState.STOPPED)
        await eventually(lambda: not lock_waiters(database, *key), 1.0)


async def test_an_event_that_is_set_beforehand_lets_nothing_be_led(database: str, key: Key) -> None:
    event = asyncio.Event()
    event.set()
    lock = make_lock(database, key, shutdown_event=event)
    story = Story(lock)
    async with asyncio.timeout(scaled(5)):
        await lock.run()
    assert story.told == []
    await eventually(lambda: sessions(database) == [])


async def test_an_event_is_not_watched_by_two_after_a_restart(database: str, key: Key) -> None:
    """Holds off a task that is left behind by each start of a lock that had stopped by itself."""
    before = asyncio.all_tasks()
    lock = make_lock(database, key, shutdown_event=asyncio.Event(), auto_reacquire=False)
    for _ in range(3):
        await lock.start()
        await lock.wait_for_leadership(scaled(10))
        await lock.step_down()
        await eventually(lambda: lock.state is LockState.STOPPED)
    await lock.shutdown()
    await no_tasks_but(before)


@pytest.mark.parametrize("how", ["shutdown", "event", "cancel"])
@pytest.mark.parametrize("wait", ["server down", "poll", "cooldown"])
async def test_a_wait_of_an_hour_ends_at_once(database: str, key: Key, wait: str, how: str) -> None:
    event = asyncio.Event()
    before = asyncio.all_tasks()
    settings = {"retry_strategy": FixedInterval(3600.0), "shutdown_event": event}
    async with leading(database, key) as leader:
        if wait == "server down":
            lock = make_lock(f"host=127.0.0.1 port={free_port()}", key, **settings)
        else:
            lock = make_lock(database, key, **settings, acquire="poll")
        story = Story(lock)
        if wait == "cooldown":
            await leader.shutdown()
        running = asyncio.create_task(lock.run())
        if wait == "cooldown":
            await story.tells("acquired")
            await lock.step_down(cooldown_s=3600)
        else:
            await eventually(lambda: story.failures)
        assert state_of(lock) is LockState.FOLLOWER
        if how == "shutdown":
            await lock.shutdown()
        elif how == "event":
            event.set()
        else:
            running.cancel()
        await asyncio.wait({running}, timeout=1.0)
        assert running.done()
        assert running.cancelled() == (how == "cancel")
        assert state_of(lock) is LockState.STOPPED
    await no_tasks_but(before)


async def test_a_start_that_hangs_ends_with_the_shutdown(database: str, key: Key, proxy: BreakableProxy) -> None:
    proxy.freeze()
    lock = make_lock(proxy.dsn(database), key)
    starting = asyncio.create_task(lock.start())
    await eventually(lambda: proxy.connections == 1)
    async with asyncio.timeout(1.0):
        await lock.shutdown()
        await starting
    assert lock.state is LockState.STOPPED


async def test_of_two_the_shorter_timeout_ends_both(database: str, key: Key) -> None:
    lock = make_lock(database, key, drain_timeout_s=3600)
    await lock.start()
    async with serving_stubbornly(lock):
        patient = asyncio.create_task(lock.shutdown(timeout_s=3600))
        await eventually(lambda: lock.state is LockState.RELEASING)
        with pytest.raises(ShutdownError):
            await lock.shutdown(timeout_s=0.2)
        await eventually(lambda: lock_holders(database, *key) == [])
        await asyncio.wait({patient}, timeout=scaled(2))
        assert isinstance(patient.exception(), ShutdownError)


async def test_after_a_shutdown_that_was_too_late_the_lock_can_be_started_again(database: str, key: Key) -> None:
    lock = make_lock(database, key)
    story = Story(lock)
    await lock.start()
    async with serving_stubbornly(lock):
        with pytest.raises(ShutdownError):
            await lock.shutdown(timeout_s=0.1)
        async with lock:  # while the old duty still runs
            # "released", or "lost" where the server took longer than what was left of the timeout
            await eventually(lambda: story.told[2:] == ["acquired"])
            assert len(lock_holders(database, *key)) == 1
        assert lock_holders(database, *key) == []
    assert story.is_paired()
    assert len(story.told) == 4


async def test_a_start_that_is_timed_out_leaves_nothing_and_may_be_repeated(
    database: str, key: Key, proxy: BreakableProxy
) -> None:
    before = asyncio.all_tasks()
    proxy.freeze()
    lock = make_lock(proxy.dsn(database), key)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await lock.start()
    assert lock.state is LockState.STOPPED
    await no_tasks_but(before)
    proxy.cut()
    proxy.thaw()
    async with lock:
        await lock.wait_for_leadership(scaled(10))
