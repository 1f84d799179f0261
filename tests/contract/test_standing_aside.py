"""Standing aside: who does not wait in the queue because enough others do, who counts it, and how it comes back."""

import asyncio
import time

import pytest

from pgelect._engine.session import Session
from pgelect.errors import SessionLostError
from tests.contract.election import WITHIN_S, Election, granted, soon

PAUSE_S = 0.3
LONG_S = 60.0


async def _with_a_full_queue(election: Election, places: int = 1) -> tuple[Session, list[asyncio.Task[None]]]:
    """A holder, and so many others that wait, slice after slice."""
    election.places = places
    holder = await election.holding("a")
    waits = [asyncio.create_task(_keep_waiting(await election.opened("b"))) for _ in range(places)]
    async with asyncio.timeout(WITHIN_S):
        while len(await election.waiters()) < places:
            await asyncio.sleep(0.01)
    return holder, waits


async def _keep_waiting(session: Session) -> None:
    try:
        while not (await session.wait_lock(WITHIN_S)).granted:
            pass
    except SessionLostError:
        pass


async def _aside(session: Session, after_s: float = 0.0) -> int:
    """Have it look until it stands aside (a waiter is out of the queue for an instant); how many others do."""
    while not (answer := await session.look(after_s, WITHIN_S)).is_full:
        assert not answer.granted
    return answer.aside


async def _end(waits: list[asyncio.Task[None]]) -> None:
    for wait in waits:
        wait.cancel()
    await asyncio.wait(waits)


@pytest.mark.parametrize("waiting", [1, 2])
async def test_who_is_refused_while_the_queue_is_full_stands_aside_and_is_counted(
    election: Election, waiting: int
) -> None:
    holder, waits = await _with_a_full_queue(election, waiting)
    first, second = await election.opened("c"), await election.opened("d")
    while not (answer := await first.try_lock(None, WITHIN_S)).is_full:
        assert not answer.granted
    assert answer.aside == 0
    assert await _aside(second) == 1
    assert await _aside(first) == 1  # itself is not among the others, and it is counted once however often it looks
    assert len(await election.aside()) == 2
    assert len(await election.waiters()) <= waiting

    async def all_are_counted() -> bool:  # one may be between two slices
        return (await holder.prove(WITHIN_S)).followers == waiting + 2

    await soon(all_are_counted, "the leader counts those in the queue and those aside")
    await _end(waits)


async def test_while_there_is_a_place_nobody_stands_aside(election: Election) -> None:
    election.places = 1
    await election.holding("a")
    session = await election.opened("b")
    answer = await session.try_lock(None, WITHIN_S)
    assert (answer.granted, answer.is_full) == (False, False)
    answer = await session.look(0.0, WITHIN_S)
    assert (answer.granted, answer.is_full) == (False, False)
    assert await election.aside() == []


async def test_without_places_everybody_waits(election: Election) -> None:
    _, waits = await _with_a_full_queue(election, 2)
    election.places = None
    session = await election.opened("c")
    assert not (await session.try_lock(None, WITHIN_S)).is_full
    assert not (await session.wait_lock(WITHIN_S)).is_full
    assert await election.aside() == []
    await _end(waits)


async def test_who_stands_aside_sees_a_place_that_is_free_and_does_not_stand_aside_any_more(
    election: Election,
) -> None:
    _, waits = await _with_a_full_queue(election)
    session = await election.opened("c")
    await _aside(session)
    await _end(waits)
    while await election.waiters():
        await asyncio.sleep(0.01)
    answer = await session.look(0.0, WITHIN_S)
    assert (answer.granted, answer.is_full) == (False, False)
    assert await election.aside() == []


async def test_who_stands_aside_has_the_lock_when_it_looks_and_nobody_else_is_there(election: Election) -> None:
    holder, waits = await _with_a_full_queue(election)
    session = await election.opened("c")
    await _aside(session)
    await _end(waits)
    await holder.close(WITHIN_S)
    await election.is_free()
    assert (await session.look(0.0, WITHIN_S)).granted
    assert await election.aside() == []
    proof = await session.prove(WITHIN_S)
    assert (proof.held, proof.followers) == (True, 0)


async def test_a_look_overtakes_nobody(election: Election) -> None:
    holder, waits = await _with_a_full_queue(election)
    session = await election.opened("c")
    await _aside(session)
    before = await election.holder()
    await holder.unlock(0, WITHIN_S)
    assert not (await session.look(0.0, WITHIN_S)).granted
    assert await election.holder() != before
    await asyncio.wait(waits)


async def test_of_those_who_wait_the_later_ones_leave_when_there_are_too_many(election: Election) -> None:
    _, waits = await _with_a_full_queue(election)
    session = await election.opened("c")  # of a greater pid
    await asyncio.sleep(PAUSE_S / 2)  # so that the slices of both do not end at one time
    async with asyncio.timeout(WITHIN_S):
        while not (answer := await session.wait_lock(WITHIN_S)).is_full:
            assert not answer.granted
    (first,) = waits
    assert not first.done()
    await _end(waits)


async def test_who_is_first_keeps_its_place_however_many_come(election: Election) -> None:
    election.places = 1
    first = await election.opened("a")
    _, waits = await _with_a_full_queue(election, 2)
    election.places = 1
    for _ in range(2):
        assert not (await first.wait_lock(WITHIN_S)).is_full
    await _end(waits)


async def test_a_session_that_ends_does_not_stand_aside(election: Election) -> None:
    _, waits = await _with_a_full_queue(election)
    left, ended = await election.opened("c"), await election.opened("d")
    await _aside(left)
    (left_pid,) = await election.aside()
    await _aside(ended)
    (ended_pid,) = set(await election.aside()) - {left_pid}
    left.abandon()
    await election.is_gone(left_pid)
    assert await election.terminate(ended_pid)
    await election.is_gone(ended_pid)
    assert await election.aside() == []
    await _end(waits)


async def test_who_stands_aside_hears_at_once_that_its_session_has_ended(election: Election) -> None:
    _, waits = await _with_a_full_queue(election)
    session = await election.opened("c")
    await _aside(session)
    look = asyncio.create_task(session.look(LONG_S, WITHIN_S))
    (pid,) = await election.aside()
    assert await election.terminate(pid)
    async with asyncio.timeout(WITHIN_S):
        with pytest.raises(SessionLostError):
            await look
    await _end(waits)


async def test_a_look_comes_after_its_time_and_not_before(election: Election) -> None:
    election.places = 1
    await election.holding("a")
    session = await election.opened("b")
    began = time.monotonic()
    await session.look(PAUSE_S, WITHIN_S)
    assert time.monotonic() - began >= PAUSE_S


async def test_who_stands_aside_is_not_held_to_a_lease(election: Election) -> None:
    _, waits = await _with_a_full_queue(election)
    session = await election.opened("c", lease_s=PAUSE_S)
    await _aside(session)
    await _aside(session, after_s=3 * PAUSE_S)
    await _end(waits)


async def test_who_stood_aside_waits_in_the_queue_when_the_others_have_gone_and_has_the_lock_in_the_end(
    election: Election,
) -> None:
    holder, waits = await _with_a_full_queue(election)
    session = await election.opened("c")
    await _aside(session)
    await _end(waits)
    while (await session.look(0.0, WITHIN_S)).is_full:
        pass
    wait = await election.queue(session)
    assert await election.aside() == []
    await holder.close(WITHIN_S)
    if not (await wait).granted:  # its slice was over just before
        await granted(session)
    assert (await session.prove(WITHIN_S)).held
