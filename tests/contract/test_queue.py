"""The queue for the lock: who is next, who loses its place, and how often a lock is held."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from pgelect._engine.session import LockAnswer, Session
from pgelect.errors import KeyCollisionError, SessionLostError
from tests.contract.election import WITHIN_S, Election, granted

Wait = asyncio.Task[LockAnswer]
ROUNDS = 5  # on a busy machine a slice may be over before its part of the story is told: then the story is told again


async def _until_told(story: Callable[[], Awaitable[bool]]) -> None:
    """Tell a story until no slice ended too early for it."""
    for _ in range(ROUNDS):
        if await story():
            return
    pytest.fail(f"{ROUNDS} times a slice was over too early")


async def _queue_of(election: Election, sessions: list[Session]) -> tuple[list[Wait], list[int]]:
    """The waits of these sessions in this order, and their pids as the server has them in its queue."""
    waits, pids = [], list[int]()
    for session in sessions:
        waits.append(await election.queue(session))
        pids += [pid for pid in await election.waiters() if pid not in pids]
    return waits, pids


async def _intact(election: Election, pids: list[int]) -> bool:
    return await election.waiters() == pids


async def _clear(waits: list[Wait], sessions: list[Session]) -> None:
    """Bring an attempt to its end, so that it can be made again."""
    await asyncio.wait(waits)
    for session in sessions:
        if (await session.prove(WITHIN_S)).held:
            await session.unlock(0, WITHIN_S)


async def test_three_waiters_are_served_in_the_order_of_their_coming(election: Election) -> None:
    holder = await election.opened("a")
    sessions = [await election.opened(identity) for identity in "bcd"]

    async def served() -> bool:
        await granted(holder)
        waits, pids = await _queue_of(election, sessions)
        intact = await _intact(election, pids)
        await holder.unlock(0, WITHIN_S)
        for session, wait, pid in zip(sessions, waits, pids, strict=False):
            if not intact or not (await wait).granted:
                await _clear(waits, sessions)
                return False
            assert await election.holders() == [pid]
            await session.unlock(0, WITHIN_S)
        return True

    await _until_told(served)
    await election.is_free()


async def test_waiters_that_were_ended_or_closed_are_passed_over(election: Election) -> None:
    await election.holding("a")
    holder = election.made[0]
    _, ended = await election.queued("b")
    closing, closed = await election.queued("c")
    ended_pid, closed_pid = await election.waiters()
    last = await election.opened("d")
    wait = asyncio.create_task(granted(last))
    assert await election.terminate(ended_pid)
    closed.cancel()
    await asyncio.wait({closed})
    await closing.close(WITHIN_S)
    await election.is_gone(closed_pid)
    with pytest.raises(SessionLostError):
        await ended
    await holder.unlock(0, WITHIN_S)
    await wait
    assert (await last.prove(WITHIN_S)).held


async def test_who_leaves_the_queue_at_the_end_of_its_slice_comes_back_behind_the_others(election: Election) -> None:
    holder = await election.opened("a")
    sessions = [await election.opened(identity) for identity in "bc"]
    early, late = sessions

    async def overtaken() -> bool:
        await granted(holder)
        first = await election.queue(early)
        (early_pid,) = await election.waiters()
        await asyncio.sleep(0.3)  # so that the second slice goes on when the first is over
        second = await election.queue(late)
        assert not (await first).granted
        (late_pid,) = await election.waiters() or [0]
        again = await election.queue(early)
        intact = await _intact(election, [late_pid, early_pid])
        await holder.unlock(0, WITHIN_S)
        if not intact or not (await second).granted:
            await _clear([second, again], sessions)
            return False
        assert await election.holders() == [late_pid]
        await late.unlock(0, WITHIN_S)
        await _clear([again], sessions)
        return True

    await _until_told(overtaken)


async def test_a_waiter_whose_client_vanished_leaves_the_queue_before_its_slice_is_over(election: Election) -> None:
    """A dead follower must not be given the lock, as it would hold it for its whole lease."""
    await election.holding("a")
    watcher = await election.opened("b")

    async def left_early() -> bool:
        clock = await election.queue(watcher)  # its slice began earlier
        vanishing = await election.opened("c")
        wait = await election.queue(vanishing)
        (pid,) = set(await election.waiters()) - {(await election.waiters() or [0])[0]} or {0}
        vanishing.abandon()
        with pytest.raises(SessionLostError):
            await wait
        if pid:
            await election.is_gone(pid)
        in_time = bool(pid) and not clock.done()
        await clock
        return in_time

    await _until_told(left_early)


async def test_a_wait_that_another_name_makes_void_holds_nothing(election: Election) -> None:
    billing = await election.holding("a", name="billing")
    await billing.mint(WITHIN_S)
    mail = await election.opened("b", name="mail")
    with pytest.raises(KeyCollisionError):
        await mail.wait_lock(WITHIN_S)
    assert await billing.unlock(0, WITHIN_S)
    other = await election.opened("c", name="mail")
    with pytest.raises(KeyCollisionError):
        await other.wait_lock(WITHIN_S)
    await election.is_free()


# Locks stack


async def test_a_lock_that_was_taken_twice_is_free_after_two_unlocks(election: Election) -> None:
    session = await election.holding("a")
    await election.lock_again(session)
    pid = await election.holder()
    assert await session.unlock(0, WITHIN_S) is True
    assert await election.holders() == [pid]
    assert (await session.prove(WITHIN_S)).held is True
    assert await session.unlock(0, WITHIN_S) is True
    assert (await session.prove(WITHIN_S)).held is False
    assert await session.unlock(0, WITHIN_S) is False
    await election.is_free()


async def test_a_lock_that_was_taken_twice_is_freed_at_once_by_unlock_all(election: Election) -> None:
    session = await election.holding("a")
    await election.lock_again(session)
    waiter, wait = await election.queued("b")
    await election.unlock_all(session)
    if not (await wait).granted:  # its slice had just ended
        await granted(waiter)
    assert (await session.prove(WITHIN_S)).held is False
    assert (await waiter.prove(WITHIN_S)).held is True


async def test_a_lock_that_was_taken_twice_is_freed_by_the_end_of_its_session(election: Election) -> None:
    session = await election.holding("a")
    await election.lock_again(session)
    await session.close(WITHIN_S)
    await election.is_free()
