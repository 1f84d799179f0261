"""Opening, trying, waiting in the queue, unlocking: who holds the lock and who is next."""

import asyncio

import pytest

from pgelect._engine.model import Backend
from pgelect._engine.session import Session
from pgelect.errors import KeyCollisionError, SessionLostError
from tests.contract.election import WITHIN_S, Break, Election, granted, soon


async def _unlock(election: Election, session: Session) -> None:
    assert await session.unlock(0, WITHIN_S)


async def _close(election: Election, session: Session) -> None:
    await session.close(WITHIN_S)


async def _abandon(election: Election, session: Session) -> None:
    session.abandon()


async def _terminate(election: Election, session: Session) -> None:
    assert await election.terminate(await election.holder())


ways_to_let_go = pytest.mark.parametrize("let_go", [_unlock, _close, _abandon, _terminate])


async def test_opening_takes_nothing(election: Election) -> None:
    await election.opened()
    assert await election.holders() == []
    assert len(await election.pids()) == 1


async def test_a_session_that_is_not_open_says_so(election: Election) -> None:
    session = election.session()
    with pytest.raises(SessionLostError):
        await session.prove(WITHIN_S)


async def test_the_first_to_try_gets_the_lock_and_the_next_is_refused(election: Election) -> None:
    await election.holding("a")
    holder = await election.holder()
    second = await election.opened("b")
    answer = await second.try_lock(None, WITHIN_S)
    assert (answer.granted, answer.record) == (False, None)
    assert await election.holders() == [holder]


async def test_who_is_refused_is_told_of_the_term(election: Election) -> None:
    first, second = await election.holding("a"), await election.opened("b")
    grant = await first.mint(WITHIN_S)
    tried = await second.try_lock(None, WITHIN_S)
    waited = await second.wait_lock(WITHIN_S)
    assert (tried.granted, tried.record) == (False, grant.record)
    assert (waited.granted, waited.record) == (False, grant.record)


@ways_to_let_go
async def test_a_waiter_is_granted_when_the_holder_lets_go(election: Election, let_go: Break) -> None:
    holder = await election.holding("a")
    waiter, wait = await election.queued("b")
    (pid,) = await election.waiters()
    await let_go(election, holder)
    if not (await wait).granted:  # its slice had just ended
        await granted(waiter)
    assert await election.holders() == [pid]


@ways_to_let_go
async def test_the_lock_can_be_tried_for_after_the_holder_let_go(election: Election, let_go: Break) -> None:
    await let_go(election, await election.holding("a"))
    await election.is_free()
    await election.holding("b")


async def test_a_try_does_not_overtake_the_queue(election: Election) -> None:
    holder, late = await election.holding("a"), await election.opened("c")
    _, wait = await election.queued("b")
    released, answer = await asyncio.gather(holder.unlock(0, WITHIN_S), late.try_lock(None, WITHIN_S))
    assert released
    assert not answer.granted
    assert (await wait).granted


async def test_a_slice_ends_by_itself_and_leaves_no_place_in_the_queue(election: Election) -> None:
    await election.holding("a")
    waiter = await election.opened("b")
    assert not (await waiter.wait_lock(WITHIN_S)).granted
    assert await election.waiters() == []
    assert not (await waiter.try_lock(None, WITHIN_S)).granted


async def test_a_wait_for_a_free_lock_is_granted_at_once(election: Election) -> None:
    session = await election.opened("a")
    assert (await session.wait_lock(WITHIN_S)).granted
    assert (await session.prove(WITHIN_S)).held


async def test_the_lock_is_held_once_however_it_was_got(election: Election) -> None:
    waiter = await election.opened("a")
    assert (await waiter.wait_lock(WITHIN_S)).granted
    assert await waiter.unlock(0, WITHIN_S)
    await election.is_free()
    assert (await waiter.try_lock(None, WITHIN_S)).granted
    assert await waiter.unlock(0, WITHIN_S)
    await election.is_free()


async def test_unlock_is_true_once_and_false_when_nothing_is_held(election: Election) -> None:
    session = await election.holding("a")
    assert await session.unlock(0, WITHIN_S) is True
    assert await session.unlock(0, WITHIN_S) is False


async def test_who_was_refused_cannot_unlock_the_lock_of_another(election: Election) -> None:
    await election.holding("a")
    holder = await election.holder()
    second = await election.opened("b")
    assert not (await second.try_lock(None, WITHIN_S)).granted
    assert await second.unlock(0, WITHIN_S) is False
    assert await election.holders() == [holder]


async def test_closing_during_a_wait_leaves_neither_a_waiter_nor_a_lock(election: Election) -> None:
    holder = await election.holding("a")
    waiter, wait = await election.queued("b")
    wait.cancel()
    with pytest.raises(asyncio.CancelledError):
        await wait
    await waiter.close(WITHIN_S)

    async def nobody_waits() -> bool:
        return not await election.waiters()

    await soon(nobody_waits, "nobody waits for the lock")
    await holder.close(WITHIN_S)
    await election.is_free()


async def test_abandoning_during_a_wait_ends_the_wait_and_leaves_neither_a_waiter_nor_a_lock(
    election: Election,
) -> None:
    holder = await election.holding("a")
    waiter, wait = await election.queued("b")
    waiter.abandon()
    with pytest.raises(SessionLostError):
        await wait
    await holder.close(WITHIN_S)
    await election.is_free()


async def test_a_waiter_whose_session_is_terminated_is_told(election: Election) -> None:
    await election.holding("a")
    _, wait = await election.queued("b")
    (pid,) = await election.waiters()
    await election.terminate(pid)
    with pytest.raises(SessionLostError):
        await wait
    assert await election.waiters() == []


async def test_closing_is_harmless_at_any_time_and_more_than_once(election: Election) -> None:
    never_opened = election.session()
    await never_opened.close(WITHIN_S)
    session = await election.holding("a")
    session.abandon()
    for _ in range(2):
        await session.close(WITHIN_S)
        session.abandon()
    await election.is_free()


async def test_another_name_on_the_same_keys_is_refused_and_holds_nothing(election: Election) -> None:
    billing = await election.holding("a", name="billing")
    grant = await billing.mint(WITHIN_S)
    await billing.unlock(grant.token, WITHIN_S)
    mail = await election.opened("b", name="mail")
    with pytest.raises(KeyCollisionError) as caught:
        await mail.try_lock(None, WITHIN_S)
    assert (caught.value.name, caught.value.other_name) == ("mail", "billing")
    assert await election.holders() == []


async def test_keys_given_as_numbers_go_with_any_name_and_do_not_erase_it(election: Election) -> None:
    named = await election.holding("a", name="billing")
    await named.unlock((await named.mint(WITHIN_S)).token, WITHIN_S)
    numbered = await election.holding("b")
    grant = await numbered.mint(WITHIN_S)
    assert grant.record is not None
    assert grant.record.name == "billing"


async def test_a_try_ends_its_own_ghost(election: Election) -> None:
    lost = await election.holding("a")
    grant = await lost.mint(WITHIN_S)
    successor = await election.opened("a")
    assert (await successor.try_lock(grant.backend, WITHIN_S)).granted
    await election.is_gone(grant.backend.pid)
    with pytest.raises(SessionLostError):
        await lost.prove(WITHIN_S)


async def test_a_try_ends_nobody_whose_pid_merely_looks_like_the_ghost(election: Election) -> None:
    other = await election.holding("a")
    grant = await other.mint(WITHIN_S)
    earlier = Backend(grant.backend.pid, grant.backend.started_at.replace(year=2001))
    second = await election.opened("b")
    assert not (await second.try_lock(earlier, WITHIN_S)).granted
    assert (await other.prove(WITHIN_S)).held


async def test_a_try_does_not_end_its_ghost_when_that_holds_nothing(election: Election) -> None:
    idle = await election.holding("a")
    ghost = (await idle.mint(WITHIN_S)).backend
    await idle.unlock(0, WITHIN_S)
    second = await election.opened("b")
    assert (await second.try_lock(ghost, WITHIN_S)).granted
    assert (await idle.prove(WITHIN_S)).held is False
