"""Giving leadership up: the next one gets it every time, and nothing of the lock's history is lost.

Holds off a step-down that the same process wins back at once, one that hangs, and tokens or counts that begin anew.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest

from pgelect import LockError, LockState, Term
from pgelect._postgres.link import Link
from tests.support.duties import serving, serving_stubbornly
from tests.support.locks import Key, Story, is_free, leading, make_lock, queueing, state_of, token_row
from tests.support.proxy import BreakableProxy
from tests.support.server import lock_holders, lock_waiters, query, sessions
from tests.support.waiting import eventually, scaled


async def test_it_hands_over_to_the_waiting_follower_every_single_time(database: str, key: Key) -> None:
    """Without any cooldown, so that only the server's queue decides."""
    leader, follower = make_lock(database, key), make_lock(database, key)
    stories = [Story(leader), Story(follower)]
    async with leader:
        token = (await leader.wait_for_leadership(scaled(10))).token
        async with follower:
            for _ in range(30):
                await eventually(lambda: lock_waiters(database, *key), message="the follower waits in the queue")
                assert await leader.step_down(cooldown_s=0.0)
                assert not leader.is_leader
                term = await follower.wait_for_leadership(scaled(5))
                assert not leader.is_leader
                assert term.token > token
                assert len(lock_holders(database, *key)) == 1
                leader, follower, token = follower, leader, term.token
    assert [story.told for story in stories] == [["acquired", "released"] * 16, ["acquired", "released"] * 15]
    assert all(story.is_paired() for story in stories)


async def test_with_the_default_cooldown_it_hands_over_to_several_in_turn(database: str, key: Key) -> None:
    async with (
        leading(database, key, identity="a") as first,
        queueing(database, key, identity="b") as second,
        queueing(database, key, identity="c") as third,
    ):
        holders = []
        for leader in (first, second, third):
            await leader.wait_for_leadership(scaled(5))
            assert leader.record is not None
            holders.append(leader.record.holder)
            assert await leader.step_down()
    assert holders == ["a", "b", "c"]


async def test_as_a_follower_it_returns_false_and_does_nothing(database: str, key: Key) -> None:
    async with leading(database, key) as leader, queueing(database, key, identity="me") as follower:
        held, mine, story = lock_holders(database, *key), sessions(database, "pgelect:%:me"), Story(follower)
        for _ in range(3):
            assert await follower.step_down() is False
        assert lock_holders(database, *key) == held
        assert [session.pid for session in sessions(database, "pgelect:%:me")] == [session.pid for session in mine]
        assert await leader.step_down()
        await follower.wait_for_leadership(scaled(5))  # it has not left the queue, nor is it cooling down
        await story.tells("acquired")


async def test_when_stopped_it_returns_false(database: str, key: Key) -> None:
    lock = make_lock(database, key)
    assert await lock.step_down() is False
    async with lock:
        pass
    assert await lock.step_down() is False


async def test_two_at_the_same_time_are_one(database: str, key: Key) -> None:
    async with leading(database, key) as lock:
        story = Story(lock)
        outcomes = await asyncio.gather(*(lock.step_down() for _ in range(3)))
        assert outcomes == [True, True, True]
        assert await lock.step_down() is False
        await story.tells("released")
        assert token_row(database, key)[1:] == (1, True)


async def test_alone_it_stays_out_for_the_cooldown_and_then_leads_again(database: str, key: Key) -> None:
    async with leading(database, key) as lock:
        story = Story(lock)
        released: list[float] = []
        lock.on_released(lambda: released.append(asyncio.get_running_loop().time()))
        assert await lock.step_down(cooldown_s=0.5)
        assert lock.state is LockState.FOLLOWER
        await is_free(database, key)
        await lock.wait_for_leadership(scaled(10))
        assert asyncio.get_running_loop().time() - released[0] >= 0.45
        await story.tells("released", "acquired")


async def test_alone_with_the_default_cooldown_it_leads_again(database: str, key: Key) -> None:
    async with leading(database, key) as lock:
        assert await lock.step_down()
        assert not lock.is_leader
        assert (await lock.wait_for_leadership(scaled(10))).is_current
        assert len(lock_holders(database, *key)) == 1


async def test_leadership_ends_at_once_and_the_lock_only_after_the_drain(database: str, key: Key) -> None:
    async with leading(database, key) as lock:
        seen: list[tuple[object, ...]] = []
        done = asyncio.Event()

        async def duty(term: Term) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                seen.append((lock.is_leader, term.is_current, lock.term is None, len(lock_holders(database, *key))))
                await done.wait()

        async with serving(lock, duty):
            stepping_down = asyncio.create_task(lock.step_down(cooldown_s=3600))
            await eventually(lambda: seen)
            assert seen == [(False, False, True, 1)]
            assert lock.state is LockState.RELEASING
            assert not stepping_down.done()
            done.set()
            assert await stepping_down
            assert lock_holders(database, *key) == []


async def test_its_drain_timeout_is_its_own(database: str, key: Key) -> None:
    async with leading(database, key, drain_timeout_s=3600) as lock, serving_stubbornly(lock):
        assert await lock.step_down(drain_timeout_s=0.1, cooldown_s=3600)
        assert lock_holders(database, *key) == []


@pytest.mark.parametrize("wrong", [{"drain_timeout_s": -1}, {"cooldown_s": -1}, {"cooldown_s": float("nan")}])
async def test_a_wrong_duration_is_refused_and_the_term_goes_on(
    database: str, key: Key, wrong: dict[str, float]
) -> None:
    async with leading(database, key) as lock:
        with pytest.raises(ValueError, match=next(iter(wrong))):
            await lock.step_down(**wrong)
        assert lock.is_leader


async def test_number_of_terms_and_token_survive_a_clean_release(database: str, key: Key) -> None:
    """Holds off a release that deletes the row: tokens would begin anew, and old ones be current again."""
    lock = make_lock(database, key)
    seen: list[tuple[int, int]] = []
    for _ in range(3):
        async with lock:
            for _ in range(2):
                term = await lock.wait_for_leadership(scaled(10))
                assert token_row(database, key) == (term.token, len(seen) + 1, False)
                assert lock.record is not None
                seen.append((lock.record.terms, term.token))
                await lock.step_down(cooldown_s=0.0)
                assert token_row(database, key) == (term.token, len(seen), True)
    terms, tokens = zip(*seen, strict=True)
    assert terms == (1, 2, 3, 4, 5, 6)
    assert list(tokens) == sorted(set(tokens))
    assert query(database, "SELECT count(*) FROM pgelect.token") == [(1,)]


async def test_step_down_and_shutdown_at_the_same_time_end_well(database: str, key: Key) -> None:
    chance = random.Random(1)
    for round_ in range(50):
        lock = make_lock(database, key)
        story = Story(lock)
        await lock.start()
        await lock.wait_for_leadership(scaled(10))
        ends: list[Callable[[], Awaitable[object]]] = [lock.step_down, lock.shutdown]
        chance.shuffle(ends)

        async def later(end: Callable[[], Awaitable[object]], delay_s: float) -> object:
            await asyncio.sleep(delay_s)
            return await end()

        delays_s = [0.0, 0.0] if round_ % 2 else [0.0, chance.uniform(0, 0.006)]
        async with asyncio.timeout(scaled(5)):
            await asyncio.gather(*(later(end, delay_s) for end, delay_s in zip(ends, delays_s, strict=True)))
        assert lock.state is LockState.STOPPED
        assert lock_holders(database, *key) == []
        assert story.told == ["acquired", "released"]
        await eventually(lambda: sessions(database) == [])


async def test_leadership_that_is_lost_during_the_drain_ends_the_step_down(database: str, key: Key) -> None:
    async with leading(database, key) as lock:
        story, pid = Story(lock), lock_holders(database, *key)[0]

        async def slow(_: Term) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                query(database, "SELECT pg_terminate_backend(%s)", pid)
                await asyncio.sleep(0.2)

        async with serving(lock, slow):
            assert await lock.step_down(cooldown_s=3600)
            await story.tells("lost")
            assert not lock.is_leader


async def test_in_a_grace_it_ends_the_term_as_lost(database: str, key: Key, proxy: BreakableProxy) -> None:
    """There is no session to unlock on."""
    async with leading(proxy.dsn(database), key, reconnect_grace_s=3600.0) as lock:
        story = Story(lock)
        proxy.refuse()
        proxy.cut()
        await eventually(lambda: lock.state is LockState.RECONNECTING)
        assert await lock.step_down(cooldown_s=3600)
        assert state_of(lock) is LockState.FOLLOWER
        await story.tells("lost")
        await is_free(database, key)
        proxy.refuse(False)


async def test_the_lock_is_freed_by_an_unlock_not_by_the_end_of_the_session(
    database: str, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Holds off an unlock that does nothing, which the close right after it would hide."""
    kept: list[Link] = []

    def keep(link: Link) -> None:
        kept.append(link)

    finish = Link._finish
    monkeypatch.setattr(Link, "_finish", keep)  # the session goes on for a while
    async with leading(database, key) as lock:
        assert await lock.step_down(cooldown_s=3600)
        assert lock_holders(database, *key) == []
        await eventually(lambda: len(kept) == 1, message="the session has told of the release")
        assert len(sessions(database)) == 1
        monkeypatch.undo()
        finish(kept[0])


async def test_an_unlock_of_what_was_not_held_is_reported(database: str, key: Key) -> None:
    """Something of the user's unlocked it on our session; the term did not end cleanly, then."""
    made: list[psycopg.AsyncConnection[Any]] = []

    async def connect() -> psycopg.AsyncConnection[Any]:
        made.append(await psycopg.AsyncConnection.connect(database, autocommit=True))
        return made[-1]

    async with leading("", key, connect_fn=connect, lease_s=3600.0, health_interval_s=600.0) as lock:
        story = Story(lock)
        async with serving_stubbornly(lock) as duty:
            stepping_down = asyncio.create_task(lock.step_down(cooldown_s=3600))
            await eventually(lambda: lock.state is LockState.RELEASING)
            unlocking = asyncio.create_task(made[0].execute("SELECT pg_advisory_unlock_all()"))
            await asyncio.sleep(0)  # it stands in line behind our own idle wait
            duty.may_end.set()
            assert await stepping_down
        await unlocking
        await story.tells("lost")
        assert [type(error) for error in story.errors] == [LockError]
        assert token_row(database, key)[2]  # nobody led after it all the same
