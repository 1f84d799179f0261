"""Terms one after another, what a term tells of itself, and calls that do nothing while another leads."""

import asyncio
import functools

import pytest

from pgelect import LockState, Term
from tests.support.locks import Key, Story, is_free, leading, make_lock, queueing
from tests.support.server import lock_holders, terminate
from tests.support.waiting import eventually, scaled


async def test_terms_are_yielded_one_after_another_until_the_lock_is_shut_down(database: str, key: Key) -> None:
    lock = make_lock(database, key)
    seen: list[Term] = []

    async def work() -> str:
        async for term in lock.terms():
            assert term.is_current
            assert lock.term is term
            seen.append(term)
            await term.ended()
        return "shut down"

    await lock.start()
    working = asyncio.create_task(work())
    await eventually(lambda: len(seen) == 1)
    await lock.step_down(cooldown_s=0.0)
    await eventually(lambda: len(seen) == 2)
    terminate(database, lock_holders(database, *key)[0])
    await eventually(lambda: len(seen) == 3)
    await lock.shutdown()
    await asyncio.wait({working}, timeout=scaled(5))
    assert working.result() == "shut down"
    tokens = [term.token for term in seen]
    assert tokens == sorted(set(tokens))
    assert not any(term.is_current for term in seen)


async def test_a_release_waits_until_the_body_asks_for_the_next_term(database: str, key: Key) -> None:
    async with leading(database, key) as lock:
        in_body, may_go_on = asyncio.Event(), asyncio.Event()

        async def work() -> None:
            async for term in lock.terms():
                in_body.set()
                await may_go_on.wait()
                assert not term.is_current
                assert len(lock_holders(database, *key)) == 1

        working = asyncio.create_task(work())
        await in_body.wait()
        stepping_down = asyncio.create_task(lock.step_down(cooldown_s=3600))
        await eventually(lambda: lock.state is LockState.RELEASING)
        assert not lock.is_leader
        assert len(lock_holders(database, *key)) == 1
        may_go_on.set()
        assert await stepping_down
        await is_free(database, key)
        working.cancel()
        await asyncio.wait({working})
        assert working.cancelled()


async def test_a_body_that_is_left_early_holds_nothing_up(database: str, key: Key) -> None:
    async with leading(database, key) as lock:
        async for _ in lock.terms():
            break
        async with asyncio.timeout(scaled(3)):
            assert await lock.step_down(cooldown_s=3600)
        await is_free(database, key)


async def test_a_body_that_raises_holds_nothing_up(database: str, key: Key) -> None:
    async with leading(database, key) as lock:

        async def work() -> None:
            async for _ in lock.terms():
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await work()
        assert lock.is_leader
        async with asyncio.timeout(scaled(3)):
            assert await lock.step_down(cooldown_s=3600)
        await is_free(database, key)


async def test_a_body_that_does_not_go_on_is_left_behind_after_the_drain(database: str, key: Key) -> None:
    async with leading(database, key, drain_timeout_s=0.1) as lock:

        async def work() -> None:
            async for _ in lock.terms():
                await asyncio.Event().wait()

        working = asyncio.create_task(work())
        await asyncio.sleep(0)
        assert await lock.step_down(cooldown_s=3600)
        await is_free(database, key)
        working.cancel()
        await asyncio.wait({working})


async def test_ended_returns_when_the_term_is_given_up_or_lost_or_over(database: str, key: Key) -> None:
    async with make_lock(database, key) as lock:
        for end in ("step down", "lose"):
            term = await lock.wait_for_leadership(scaled(10))
            waiting = [asyncio.create_task(term.ended()) for _ in range(2)]
            await asyncio.sleep(0)
            assert not any(task.done() for task in waiting)
            if end == "step down":
                await lock.step_down(cooldown_s=0.0)
            else:
                terminate(database, lock_holders(database, *key)[0])
            await asyncio.wait(waiting, timeout=scaled(5))
            assert all(task.result() is None for task in waiting)
            assert not term.is_current
            await term.ended()


async def test_ended_returns_at_the_begin_of_the_drain(database: str, key: Key) -> None:
    """So that whoever waits for it has the whole drain to stop in."""
    async with leading(database, key) as lock:
        seen: list[int] = []

        async def watch(term: Term) -> None:
            await term.ended()
            seen.append(len(lock_holders(database, *key)))

        lock.on_state_change(lambda _, after: asyncio.sleep(0.1) if after is LockState.RELEASING else None)
        assert lock.term is not None
        watching = asyncio.create_task(watch(lock.term))
        await asyncio.sleep(0)
        assert await lock.step_down(cooldown_s=3600)
        await watching
        assert seen == [1]


async def test_an_old_term_is_not_current_in_a_new_one(database: str, key: Key) -> None:
    async with leading(database, key) as lock:
        old = lock.term
        await lock.step_down(cooldown_s=0.0)
        new = await lock.wait_for_leadership(scaled(10))
        assert old is not None
        assert (old.is_current, new.is_current) == (False, True)
        assert new.token > old.token
        assert new.acquired_at > old.acquired_at


async def test_a_cancelled_wait_for_leadership_harms_nobody(database: str, key: Key) -> None:
    async with leading(database, key) as leader, queueing(database, key) as follower:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await follower.wait_for_leadership(0.01)
        with pytest.raises(ValueError, match="timeout_s"):
            await follower.wait_for_leadership(-1)
        await leader.step_down(cooldown_s=3600)
        assert (await follower.wait_for_leadership(scaled(5))).is_current
        assert await follower.wait_for_leadership(0) is follower.term


async def test_leader_only_calls_while_leading_and_returns_none_otherwise(database: str, key: Key) -> None:
    leader, follower = make_lock(database, key), make_lock(database, key)
    calls: list[str] = []

    def add(a: int, b: int = 1, *, times: int = 1) -> int:
        """Add them."""
        calls.append("add")
        return (a + b) * times

    async def add_later(a: int, b: int = 1) -> int:
        calls.append("add_later")
        await asyncio.sleep(0)
        return a + b

    assert leader.leader_only(add)(1) is None  # not even started
    async with leader:
        await leader.wait_for_leadership(scaled(10))
        async with follower:
            assert leader.leader_only(add)(1, b=2, times=3) == 9
            assert await leader.leader_only(add_later)(1, 2) == 3
            assert calls == ["add", "add_later"]
            assert follower.leader_only(add)(1, 2) is None
            assert await follower.leader_only(add_later)(1, 2) is None
    assert leader.leader_only(add)(1, 2) is None
    assert calls == ["add", "add_later"]
    assert leader.leader_only(add).__name__ == "add"
    assert leader.leader_only(add).__doc__ == "Add them."


async def test_leader_only_takes_any_callable_and_raises_what_it_raises(database: str, key: Key) -> None:
    class Job:
        def __init__(self) -> None:
            self.done = 0

        def run(self, by: int) -> int:
            self.done += by
            return self.done

        async def run_later(self, by: int) -> int:
            await asyncio.sleep(0)
            return self.run(by)

        def __call__(self, by: int) -> int:
            return self.run(by)

    async with leading(database, key) as lock:
        job = Job()
        assert lock.leader_only(job.run)(1) == 1
        assert lock.leader_only(functools.partial(job.run, 1))() == 2
        assert lock.leader_only(job)(1) == 3
        assert await lock.leader_only(job.run_later)(1) == 4
        assert await lock.leader_only(functools.partial(job.run_later, 1))() == 5

        @lock.leader_only
        def fail() -> None:
            raise ZeroDivisionError

        @lock.leader_only
        async def fail_later() -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        with pytest.raises(ZeroDivisionError):
            await fail_later()
        assert lock.is_leader


class AsyncJob:
    """An object whose call is a coroutine."""

    async def __call__(self, by: int) -> int:
        await asyncio.sleep(0)
        return by


async def test_leader_only_of_an_async_object_can_be_awaited_by_a_follower_too(database: str, key: Key) -> None:
    async with leading(database, key) as leader, queueing(database, key) as follower:
        assert await leader.leader_only(AsyncJob())(1) == 1
        assert await follower.leader_only(AsyncJob())(1) is None
        assert await follower.leader_only(functools.partial(AsyncJob(), 1))() is None


async def test_is_leader_confirmed_within_asks_for_a_fresh_proof(database: str, key: Key) -> None:
    lock = make_lock(database, key, lease_s=3600.0, health_interval_s=1800.0)
    assert not lock.is_leader_confirmed_within(3600)
    story = Story(lock)
    async with lock:
        await lock.wait_for_leadership(scaled(10))
        assert lock.is_leader_confirmed_within(60)
        await eventually(lambda: not lock.is_leader_confirmed_within(0.05))
        assert lock.is_leader
        with pytest.raises(ValueError, match="seconds"):
            lock.is_leader_confirmed_within(-1)
    assert not lock.is_leader_confirmed_within(3600)
    assert story.told == ["acquired", "released"]
