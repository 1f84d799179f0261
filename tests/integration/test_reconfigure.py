"""reconfigure(): other settings while the lock runs, in force on the server, too; the term goes on."""

import asyncio
from typing import Any

import pytest

from pgelect import FixedInterval, LockState
from tests.support.electors import Elector
from tests.support.locks import Key, Story, leading, make_lock, queueing, token_row
from tests.support.proxy import BreakableProxy
from tests.support.server import lock_holders, query
from tests.support.waiting import eventually, scaled

SHORT: dict[str, Any] = {"lease_s": 1.0, "health_interval_s": 0.2}
LONG: dict[str, Any] = {"lease_s": 30.0, "health_interval_s": 10.0}


def row_lease(dsn: str, key: Key) -> float:
    return float(query(dsn, "SELECT lease_s FROM pgelect.token WHERE key1 = %s AND key2 = %s", *key)[0][0])


async def test_a_shorter_lease_is_in_force_on_both_sides_and_the_term_goes_on(
    database: str, key: Key, proxy: BreakableProxy
) -> None:
    async with leading(proxy.dsn(database), key, **LONG) as lock:
        story, token = Story(lock), lock.token
        lock.reconfigure(**SHORT)
        await eventually(lambda: row_lease(database, key) == 1.0, message="onlookers know of it")
        assert 0 < lock.trust_left_s <= 0.95
        assert (lock.token, story.told) == (token, [])
        proxy.freeze()
        await eventually(lambda: not lock_holders(database, *key), message="the server has ended the session")
        assert not lock.is_leader
        assert lock.bounds().overlap_session.seconds == 0.95
        proxy.thaw()


async def test_a_longer_lease_outlives_a_silence_that_the_shorter_one_would_not(
    database: str, key: Key, proxy: BreakableProxy
) -> None:
    async with leading(proxy.dsn(database), key, **SHORT) as lock:
        story, token = Story(lock), lock.token
        lock.reconfigure(**LONG)
        await eventually(lambda: lock.trust_left_s > 20, message="the server has been told, and trust has grown")
        proxy.freeze()
        await asyncio.sleep(scaled(2 * SHORT["lease_s"]))
        assert lock_holders(database, *key)
        proxy.thaw()
        await eventually(lambda: lock.is_leader_confirmed_within(20))
        assert (lock.token, lock.state, story.told) == (token, LockState.LEADER, [])


async def test_trust_never_grows_before_the_server_was_told(database: str, key: Key, proxy: BreakableProxy) -> None:
    async with leading(proxy.dsn(database), key, **SHORT) as lock:
        proxy.freeze()
        lock.reconfigure(**LONG)
        await eventually(lambda: not lock.is_leader, message="it goes by the lease that the server knows")
        assert lock.trust_left_s == 0.0
        proxy.thaw()


async def test_a_follower_that_waits_has_the_new_lease_when_it_wins(
    database: str, key: Key, proxy: BreakableProxy
) -> None:
    async with leading(database, key, **LONG) as leader, queueing(proxy.dsn(database), key, **LONG) as follower:
        follower.reconfigure(**SHORT)
        await leader.step_down(cooldown_s=3600)
        await follower.wait_for_leadership(scaled(10))
        terms = "SELECT 1 FROM pgelect.history WHERE key1 = %s AND key2 = %s"
        await eventually(
            lambda: len(query(database, terms, *key)) == 2, message="told after the proof that tells of the lease"
        )
        proxy.freeze()
        await eventually(lambda: not lock_holders(database, *key), message="the server has ended the session")
        proxy.thaw()


async def test_what_is_refused_changes_nothing(database: str, key: Key) -> None:
    async with leading(database, key, **LONG) as lock:
        before = lock.bounds()
        with pytest.raises(ValueError, match="health_interval_s"):
            lock.reconfigure(lease_s=5.0)  # does not hold the interval
        with pytest.raises(TypeError, match="drain_timeout_s must be a number of seconds, not str"):
            lock.reconfigure(drain_timeout_s="5")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="identity cannot be changed while a lock exists"):
            lock.reconfigure(identity="b")  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="not a retry strategy"):
            lock.reconfigure(retry_strategy="often", lease_s=60.0)  # type: ignore[arg-type]
        with pytest.raises(RuntimeError, match="call_soon_threadsafe"):
            await asyncio.to_thread(lock.reconfigure, lease_s=60.0)
        assert lock.bounds() == before
        assert token_row(database, key)[0] == lock.token


async def test_a_lock_that_is_stopped_starts_with_the_new_settings(database: str, key: Key) -> None:
    lock = make_lock(database, key, **SHORT)
    lock.reconfigure(**LONG, auto_reacquire=False, retry_strategy=FixedInterval(0.1))
    async with lock:
        await lock.wait_for_leadership(scaled(10))
        assert lock.trust_left_s > 20
        assert row_lease(database, key) == 30.0
        await lock.step_down()
        assert lock.state is LockState.STOPPED, "after its only term"


async def test_it_leads_on_through_many_changes(database: str, key: Key) -> None:
    async with Elector(database, key, **SHORT) as a:
        await a.leads()
        for n in range(20):
            a.lock.reconfigure(**(LONG if n % 2 else SHORT))
            await asyncio.sleep(0.01 * (n % 3))
        a.lock.reconfigure(**SHORT)
        await eventually(lambda: row_lease(database, key) == 1.0)
        await a.proved(2)
        assert len(a.terms) == 1
        assert a.errors == []
