"""The event loop of the leader stands still beyond the lease, in user code: it has stopped leading when it wakes.

Holds off two leaders: nothing has to run in the blocked process for its leadership to end.
"""

import asyncio
import time

import pytest

from pgelect import LockState, Term
from tests.support.locks import SHORT_LEASE, Key, Story, ThreadedLock, make_lock, state_of
from tests.support.server import lock_holders, lock_waiters
from tests.support.waiting import eventually, scaled

LEASE_S: float = SHORT_LEASE["lease_s"]
BLOCKED_S = 2 * LEASE_S


async def test_another_leads_meanwhile_and_the_first_look_says_so(database: str, key: Key) -> None:
    lock = make_lock(database, key, **SHORT_LEASE)
    story = Story(lock)
    async with lock:
        term = await lock.wait_for_leadership(scaled(10))
        await story.tells("acquired")
        (mine,) = lock_holders(database, *key)
        with ThreadedLock(database, key, **SHORT_LEASE) as other:
            await eventually(lambda: lock_waiters(database, *key))
            time.sleep(BLOCKED_S)
            # Without giving the loop a chance:
            looks = (lock.is_leader, term.is_current, lock.term, lock.token, lock.is_leader_confirmed_within(3600))
            assert looks == (False, False, None, None, False)
            assert other.leads.wait(scaled(5))
            assert other.token is not None
            assert other.token > term.token
            assert lock_holders(database, *key) != [mine]
            await story.tells("acquired", "lost")
            await eventually(lambda: lock.state is LockState.FOLLOWER)
            assert not lock.is_leader
            await eventually(lambda: lock_waiters(database, *key), message="it waits in the queue again")
            assert len(lock_holders(database, *key)) == 1
        again = await lock.wait_for_leadership(scaled(10))
        assert again.token > (other.token or 0)
    assert story.told == ["acquired", "lost", "acquired", "released"]
    assert story.is_paired()


async def test_alone_it_loses_the_term_and_begins_a_new_one(database: str, key: Key) -> None:
    lock = make_lock(database, key, **SHORT_LEASE)
    story = Story(lock)
    async with lock:
        term = await lock.wait_for_leadership(scaled(10))
        await story.tells("acquired")
        time.sleep(BLOCKED_S)
        assert not lock.is_leader
        again = await lock.wait_for_leadership(scaled(10))
        assert again.token > term.token
        assert len(lock_holders(database, *key)) == 1
        await story.tells("acquired", "lost", "acquired")


async def test_a_block_within_the_lease_changes_nothing(database: str, key: Key) -> None:
    lock = make_lock(database, key, lease_s=5.0, health_interval_s=0.2)
    story = Story(lock)
    async with lock:
        term = await lock.wait_for_leadership(scaled(10))
        time.sleep(1.0)
        assert lock.is_leader
        await eventually(lambda: lock.is_leader_confirmed_within(0.2))
        assert lock.term is term
    assert story.told == ["acquired", "released"]


async def test_with_a_grace_the_same_term_goes_on_if_nobody_led_meanwhile(database: str, key: Key) -> None:
    lock = make_lock(database, key, **SHORT_LEASE, reconnect_grace_s=30.0)
    story = Story(lock)
    async with lock:
        term = await lock.wait_for_leadership(scaled(10))
        await story.tells("acquired")
        time.sleep(BLOCKED_S)
        assert not lock.is_leader
        await eventually(lambda: lock.is_leader)
        assert lock.term is term
        assert term.is_current
        assert story.told == ["acquired"]
        assert (LockState.LEADER, LockState.RECONNECTING) in story.states
        assert len(lock_holders(database, *key)) == 1


async def test_with_a_grace_the_term_is_over_if_another_led_meanwhile(database: str, key: Key) -> None:
    lock = make_lock(database, key, **SHORT_LEASE, reconnect_grace_s=30.0)
    story = Story(lock)
    async with lock:
        term = await lock.wait_for_leadership(scaled(10))
        await story.tells("acquired")
        with ThreadedLock(database, key, **SHORT_LEASE) as other:
            await eventually(lambda: lock_waiters(database, *key))
            time.sleep(BLOCKED_S)
            assert not lock.is_leader
            assert other.leads.wait(scaled(5))
            await story.tells("acquired", "lost")
            assert not term.is_current
            assert len(lock_holders(database, *key)) == 1


@pytest.mark.parametrize("hook", ["on_acquired", "on_state_change"])
async def test_a_callback_that_blocks_the_loop_loses_the_term(database: str, key: Key, hook: str) -> None:
    lock = make_lock(database, key, **SHORT_LEASE)
    story, blocked = Story(lock), list[bool]()

    def block(*_: object) -> None:
        if not blocked and state_of(lock) is LockState.LEADER:
            time.sleep(BLOCKED_S)
            blocked.append(lock.is_leader)

    getattr(lock, hook)(block)
    async with lock:
        await eventually(lambda: blocked)
        assert blocked == [False]
        await eventually(lambda: lock.is_leader)
        assert len(lock_holders(database, *key)) == 1
    # Of a term that was over before its on_acquired could begin nothing is told.
    untold = hook == "on_state_change" and story.told == ["acquired", "released"]
    assert untold or story.told == ["acquired", "lost", "acquired", "released"]
    assert story.is_paired()


async def test_a_duty_that_blocks_the_loop_is_cancelled_when_it_wakes(database: str, key: Key) -> None:
    lock = make_lock(database, key, **SHORT_LEASE)
    ended: list[tuple[int, bool]] = []

    async def duty(term: Term) -> str:
        if ended:
            return "second"
        try:
            time.sleep(BLOCKED_S)
            await asyncio.Event().wait()
        finally:
            ended.append((term.token, term.is_current))
        return "first"

    async with lock:
        async with asyncio.timeout(scaled(15)):
            assert await lock.lead(duty) == "second"
        assert ended[0][1] is False
        assert lock.token is not None
        assert lock.token > ended[0][0]
