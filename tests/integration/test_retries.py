"""Trying again, giving up, and polling: by the strategies of the library, of tenacity and of the user."""

import asyncio
import random
from contextlib import AsyncExitStack

import pytest
import tenacity

import pgelect
from pgelect import (
    DecorrelatedJitter,
    ExponentialBackoff,
    FixedInterval,
    LeaderLock,
    LockState,
    RetryContext,
    SessionLostError,
    Term,
)
from pgelect.testing._places import free_port
from tests.support.duties import serving
from tests.support.locks import SHORT_LEASE, Key, Story, is_free, leading, make_lock, no_tasks_but
from tests.support.proxy import BreakableProxy
from tests.support.server import lock_holders, lock_waiters, query, sessions
from tests.support.waiting import eventually, scaled


class GiveUpAfter:
    """A strategy of a user's own: `attempts` quick attempts, then no more."""

    def __init__(self, attempts: int) -> None:
        self.attempts = attempts
        self.asked: list[RetryContext] = []

    def next_delay_s(self, ctx: RetryContext) -> float | None:
        self.asked.append(ctx)
        return 0.02 if ctx.attempt < self.attempts else None


def _nowhere() -> str:
    return f"host=127.0.0.1 port={free_port()}"


async def test_when_the_strategy_gives_up_everybody_who_waits_is_told_why(key: Key) -> None:
    before = asyncio.all_tasks()
    strategy = GiveUpAfter(3)
    lock = LeaderLock(_nowhere(), *key, retry_strategy=strategy)
    story = Story(lock)
    told: list[BaseException | None] = []

    async def program() -> None:
        async with lock:
            waiting = [asyncio.create_task(lock.wait_for_leadership()), asyncio.create_task(lock.lead(_never))]
            await asyncio.wait(waiting, timeout=scaled(10))
            told.extend(task.exception() for task in waiting)

    with pytest.raises(pgelect.ConnectionError) as gave_up:
        await program()
    assert gave_up.value.attempts == 3
    assert isinstance(gave_up.value.last_error, SessionLostError)
    assert "3 attempt" in str(gave_up.value)
    assert told == [gave_up.value, gave_up.value]
    assert lock.state is LockState.STOPPED
    assert [ctx.attempt for ctx in strategy.asked] == [1, 2, 3]
    assert [ctx.previous_delay_s for ctx in strategy.asked] == [None, 0.02, 0.02]
    assert all(isinstance(ctx.error, SessionLostError) for ctx in strategy.asked)
    assert strategy.asked[0].elapsed_s == 0.0
    assert strategy.asked[2].elapsed_s >= 0.04
    assert len(story.errors) == len(story.failures) == 3
    await no_tasks_but(before)


async def _never(_: object) -> None:
    pytest.fail("the duty ran without leadership")


async def test_giving_up_at_once_comes_out_of_start_and_run(key: Key) -> None:
    lock = LeaderLock(_nowhere(), *key, retry_strategy=GiveUpAfter(1))
    for begin in (lock.start, lock.run):
        with pytest.raises(pgelect.ConnectionError) as gave_up:
            await begin()
        assert gave_up.value.attempts == 1
        assert lock.state is LockState.STOPPED
        with pytest.raises(pgelect.ConnectionError):
            await lock.wait_for_leadership()


async def test_giving_up_later_comes_out_of_run(database: str, key: Key, proxy: BreakableProxy) -> None:
    lock = make_lock(proxy.dsn(database), key, retry_strategy=GiveUpAfter(2))
    running = asyncio.create_task(lock.run())
    await eventually(lambda: lock.is_leader)
    proxy.refuse()
    proxy.cut()
    await asyncio.wait({running}, timeout=scaled(10))
    assert isinstance(running.exception(), pgelect.ConnectionError)
    assert lock.state is LockState.STOPPED
    await is_free(database, key)


async def test_the_blocks_own_error_is_not_replaced_by_giving_up(key: Key) -> None:
    async def program() -> None:
        async with LeaderLock(_nowhere(), *key, retry_strategy=GiveUpAfter(2)) as lock:
            await eventually(lambda: lock.state is LockState.STOPPED)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await program()


async def test_a_lock_that_gave_up_can_be_started_again(database: str, key: Key, proxy: BreakableProxy) -> None:
    proxy.refuse()
    lock = make_lock(proxy.dsn(database), key, retry_strategy=GiveUpAfter(1))
    with pytest.raises(pgelect.ConnectionError):
        await lock.start()
    proxy.refuse(False)
    async with lock:
        assert (await lock.wait_for_leadership(scaled(10))).is_current
        assert len(lock_holders(database, *key)) == 1


async def _asked_again(strategy: GiveUpAfter, seen: int) -> None:
    await eventually(lambda: len(strategy.asked) > seen)


async def test_a_success_begins_the_count_anew(database: str, key: Key, proxy: BreakableProxy) -> None:
    strategy = GiveUpAfter(3)
    async with make_lock(proxy.dsn(database), key, retry_strategy=strategy) as lock:
        for _ in range(3):
            await lock.wait_for_leadership(scaled(10))
            proxy.refuse()
            proxy.cut()
            seen = len(strategy.asked)
            await _asked_again(strategy, seen)
            proxy.refuse(False)
        await lock.wait_for_leadership(scaled(10))
    assert {ctx.attempt for ctx in strategy.asked} <= {1, 2}


TENACITY = {
    "wait": tenacity.wait_fixed(0.02),
    "sum of waits": tenacity.wait_fixed(0.01) + tenacity.wait_random(0, 0.02),
    "function": lambda state: 0.01 * state.attempt_number,
    "wait and stop": (tenacity.wait_fixed(0.02), tenacity.stop_after_attempt(1000)),
    "AsyncRetrying": tenacity.AsyncRetrying(wait=tenacity.wait_fixed(0.02)),
    "ExponentialBackoff": ExponentialBackoff(0.01, 0.05),
    "DecorrelatedJitter": DecorrelatedJitter(0.01, 0.05),
    "FixedInterval": FixedInterval(0.02),
}


@pytest.mark.parametrize("strategy", TENACITY.values(), ids=TENACITY.keys())
async def test_a_server_that_comes_back_is_found_with_any_strategy(
    database: str, key: Key, proxy: BreakableProxy, strategy: object
) -> None:
    proxy.refuse()
    lock = make_lock(proxy.dsn(database), key, retry_strategy=strategy)
    story = Story(lock)
    async with lock:
        await eventually(lambda: len(story.failures) >= 3)
        assert lock.state is LockState.FOLLOWER
        assert all(isinstance(error, SessionLostError) for error in story.failures)
        proxy.refuse(False)
        assert (await lock.wait_for_leadership(scaled(10))).is_current
        assert len(lock_holders(database, *key)) == 1


async def test_tenacitys_stop_is_heeded(key: Key) -> None:
    strategy = (tenacity.wait_fixed(0.01), tenacity.stop_after_attempt(4))
    lock = LeaderLock(_nowhere(), *key, retry_strategy=strategy)
    with pytest.raises(pgelect.ConnectionError) as gave_up:
        await lock.run()
    assert gave_up.value.attempts == 4


async def test_a_strategy_that_fails_ends_no_election(
    database: str, key: Key, proxy: BreakableProxy, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgelect._engine.backoff.FALLBACK_DELAY_S", 0.05)

    def broken(_: object) -> float:
        raise ZeroDivisionError

    proxy.refuse()
    lock = make_lock(proxy.dsn(database), key, retry_strategy=broken)
    story = Story(lock)
    async with lock:
        await eventually(lambda: len(story.failures) >= 2)
        proxy.refuse(False)
        await lock.wait_for_leadership(scaled(10))
    assert "retry strategy failed" in caplog.text


async def _polls_once_more(story: Story) -> None:
    before = len(story.failures)
    await eventually(lambda: len(story.failures) > before, message="the follower has just polled")


async def test_a_polling_follower_takes_over_from_a_leader_that_steps_down(database: str, key: Key) -> None:
    """Who steps down stays out for two polls; each time the other has just polled, so that its next one is in time."""
    settings = {"acquire": "poll", "retry_strategy": FixedInterval(0.4)}
    async with leading(database, key, **settings) as first, make_lock(database, key, **settings) as second:
        leader, follower = first, second
        stories = {lock: Story(lock) for lock in (first, second)}
        for _ in range(12):
            await _polls_once_more(stories[follower])
            assert lock_waiters(database, *key) == []  # nobody stands in the server's queue
            assert await leader.step_down()
            term = await follower.wait_for_leadership(scaled(10))
            assert not leader.is_leader
            assert term.is_current
            assert len(lock_holders(database, *key)) == 1
            leader, follower = follower, leader
        assert {failure for story in stories.values() for failure in story.failures} == {None}


async def test_one_process_polls_and_the_other_queues(database: str, key: Key) -> None:
    """The mode is a private matter of each process."""
    async with leading(database, key, acquire="poll") as leader, make_lock(database, key) as follower:
        await eventually(lambda: lock_waiters(database, *key))
        await leader.step_down()
        await follower.wait_for_leadership(scaled(5))
        await follower.step_down()
        await leader.wait_for_leadership(scaled(10))


async def test_a_polling_follower_sleeps_longer_than_the_lease_and_keeps_its_session(database: str, key: Key) -> None:
    """Holds off a follower whose session the server ends between two polls, for it is not held to any lease."""
    settings = {**SHORT_LEASE, "acquire": "poll", "retry_strategy": FixedInterval(2.5)}
    follower = make_lock(database, key, **settings, identity="me")
    story = Story(follower)
    async with leading(database, key) as leader:
        await follower.start()
        await eventually(lambda: story.failures)
        (mine,) = sessions(database, "pgelect:%:me")
        await eventually(lambda: len(story.failures) == 2, timeout_s=10)
        assert story.failures == [None, None]
        assert [session.pid for session in sessions(database, "pgelect:%:me")] == [mine.pid]
        await leader.shutdown()
        term = await follower.wait_for_leadership(scaled(10))
        assert lock_holders(database, *key) == [mine.pid]
        await eventually(lambda: query(database, "SELECT clock_timestamp() - %s > '1.5 s'", term.acquired_at)[0][0])
        assert term.is_current  # and as a leader it is
    await follower.shutdown()
    assert story.errors == []


async def test_a_poll_that_gives_up_says_that_another_leads(database: str, key: Key) -> None:
    strategy = GiveUpAfter(3)
    async with leading(database, key):
        lock = make_lock(database, key, acquire="poll", retry_strategy=strategy)
        with pytest.raises(pgelect.ConnectionError, match="held by another") as gave_up:
            await lock.run()
        assert gave_up.value.attempts == 3
        assert gave_up.value.last_error is None
        assert [ctx.error for ctx in strategy.asked] == [None] * 3
        assert len(lock_holders(database, *key)) == 1


async def test_among_many_pollers_one_works_at_a_time(database: str, key: Key) -> None:
    chance = random.Random(1)
    working: list[int] = []
    worked: list[int] = []

    async def duty(term: Term) -> None:
        working.append(term.token)
        try:
            assert working == [term.token]
            await asyncio.sleep(chance.uniform(0, 0.01))
            worked.append(term.token)
        finally:
            working.pop()

    locks = [make_lock(database, key, acquire="poll", retry_strategy=ExponentialBackoff(0.02, 0.1)) for _ in range(5)]
    stories = [Story(lock) for lock in locks]
    async with AsyncExitStack() as stack:
        for lock in locks:
            await stack.enter_async_context(lock)
            await stack.enter_async_context(serving(lock, duty, repeat=True))
        for _ in range(6):
            (leader,) = await eventually(lambda: [lock for lock in locks if lock.token in worked])
            await leader.step_down()
    assert len(set(worked)) >= 6
    assert worked == sorted(worked)
    assert all(story.is_paired() and story.errors == [] for story in stories)
