"""Links that break or fall silent: who hears of it, when the lock is free, and what arrives late."""

import asyncio
import time
from dataclasses import replace

import pytest

from pgelect.errors import SessionLostError
from tests.contract.election import WITHIN_S, Election, granted, soon

GIVE_UP_S = 0.2  # for calls that are expected to get no answer
LEASE_S = 0.5
IDLE_S = 3600.0


async def test_both_ends_hear_of_a_cut_and_the_lock_is_free_at_once(election: Election) -> None:
    holder = await election.linked("a")
    assert (await holder.try_lock(None, WITHIN_S)).granted
    watch = asyncio.create_task(holder.watch(IDLE_S))
    waiter, wait = await election.queued("b")
    await election.cut(holder)
    with pytest.raises(SessionLostError):
        await watch
    if not (await wait).granted:  # its slice had just ended
        await granted(waiter)
    with pytest.raises(SessionLostError):
        await holder.prove(WITHIN_S)


async def test_a_waiter_whose_link_is_cut_leaves_the_queue(election: Election) -> None:
    await election.holding("a")
    waiter = await election.linked("b")
    wait = await election.queue(waiter)
    (pid,) = await election.waiters()
    await election.cut(waiter)
    with pytest.raises(SessionLostError):
        await wait
    await election.is_gone(pid)
    assert await election.waiters() == []


async def test_a_silence_that_ends_in_time_loses_nothing(election: Election) -> None:
    holder = await election.linked("a")
    assert (await holder.try_lock(None, WITHIN_S)).granted
    await election.silence(holder)
    proof = asyncio.create_task(holder.prove(WITHIN_S))
    await asyncio.wait({proof}, timeout=0.05)
    assert not proof.done()
    await election.heal(holder)
    assert (await proof).held
    assert await holder.unlock(0, WITHIN_S) is True


async def test_a_holder_that_fell_silent_keeps_the_lock_for_its_lease_and_no_longer(election: Election) -> None:
    holder = await election.linked("a", lease_s=LEASE_S)
    assert (await holder.try_lock(None, WITHIN_S)).granted
    sent = time.monotonic()
    assert (await holder.prove(WITHIN_S)).held
    await election.silence(holder)
    with pytest.raises(SessionLostError):
        await holder.prove(GIVE_UP_S)
    with pytest.raises(SessionLostError):
        await holder.prove(WITHIN_S)
    await election.is_free()  # though the silence goes on
    assert time.monotonic() - sent >= LEASE_S
    await election.are_gone()


async def test_where_only_answers_are_lost_giving_up_frees_the_lock_at_once(election: Election) -> None:
    holder = await election.linked("a")
    assert (await holder.try_lock(None, WITHIN_S)).granted
    await election.silence(holder, "down")
    with pytest.raises(SessionLostError):
        await holder.prove(GIVE_UP_S)
    await election.is_free()


async def test_who_fell_silent_hears_of_its_end_when_the_silence_ends(election: Election) -> None:
    holder = await election.linked("a")
    assert (await holder.try_lock(None, WITHIN_S)).granted
    watch = asyncio.create_task(holder.watch(IDLE_S))
    await election.silence(holder)
    await election.terminate(await election.holder())
    await election.is_free()
    await asyncio.wait({watch}, timeout=0.05)
    assert not watch.done()
    await election.heal(holder)
    with pytest.raises(SessionLostError):
        async with asyncio.timeout(WITHIN_S):
            await watch


async def test_who_asks_a_session_that_has_ended_hears_nothing_of_it_while_the_answers_are_lost(
    election: Election,
) -> None:
    """The window of `bounds().overlap_session`: ended early on the server, and at the client no news of it."""
    holder = await election.linked("a")
    assert (await holder.try_lock(None, WITHIN_S)).granted
    await election.silence(holder, "down")
    await election.terminate(await election.holder())
    await election.is_free()
    with pytest.raises(SessionLostError) as lost:
        await holder.prove(GIVE_UP_S)
    assert lost.value.reason == "timeout"


async def test_a_waiter_that_fell_silent_may_be_granted_the_lock_and_is_held_to_its_lease(election: Election) -> None:
    holder = await election.opened("a")
    for _ in range(5):  # on a busy machine the slice may be over too early
        await granted(holder)
        waiter = await election.linked("b", lease_s=LEASE_S)
        assert not (await waiter.try_lock(None, WITHIN_S)).granted  # as a follower does first
        wait = await election.queue(waiter, GIVE_UP_S)
        (pid,) = await election.waiters() or (0,)
        await election.silence(waiter)
        await holder.unlock(0, WITHIN_S)
        got_it = await election.holders() == [pid]
        with pytest.raises(SessionLostError):
            await wait
        await election.is_free()  # though nobody has told the server anything
        if got_it:
            return
    pytest.fail("five times the slice was over too early")


@pytest.mark.parametrize("how", ["try", "resume"])
async def test_a_ghost_behind_a_silent_link_is_ended_by_its_own_next_session(election: Election, how: str) -> None:
    lost = await election.linked("a")
    assert (await lost.try_lock(None, WITHIN_S)).granted
    grant = await lost.mint(WITHIN_S)
    await election.silence(lost)
    lost.abandon()
    assert await election.holders() == [grant.backend.pid]
    session = await election.opened("a")
    if how == "try":
        assert (await session.try_lock(grant.backend, WITHIN_S)).granted
    else:
        assert (await session.resume(grant, WITHIN_S)).resumed
        assert (await election.last_row()).token == grant.token
    assert (await session.prove(WITHIN_S)).held
    await election.is_gone(grant.backend.pid)


async def test_a_try_that_arrives_when_its_client_is_gone_leaves_no_lock(election: Election) -> None:
    late = await election.linked("a")
    await election.silence(late, "up")
    with pytest.raises(SessionLostError):
        await late.try_lock(None, GIVE_UP_S)
    (pid,) = await election.pids()
    await election.heal(late)
    await election.is_gone(pid)
    await election.is_free()


async def test_a_release_that_arrives_late_is_a_release_if_the_session_still_lives(election: Election) -> None:
    holder = await election.linked("a")
    assert (await holder.try_lock(None, WITHIN_S)).granted
    grant = await holder.mint(WITHIN_S)
    before = await election.last_row()
    await election.silence(holder, "up")
    with pytest.raises(SessionLostError):
        await holder.unlock(grant.token, GIVE_UP_S)
    assert await election.last_row() == before
    assert await election.holders() == [grant.backend.pid]
    await election.heal(holder)
    await election.is_free()
    assert await election.last_row() in (before, replace(before, released=True))
    _, successor = await election.leading("b")
    assert successor.token > grant.token


async def test_a_release_whose_answer_is_lost_has_happened(election: Election) -> None:
    holder = await election.linked("a")
    assert (await holder.try_lock(None, WITHIN_S)).granted
    grant = await holder.mint(WITHIN_S)
    await election.silence(holder, "down")
    with pytest.raises(SessionLostError):
        await holder.unlock(grant.token, GIVE_UP_S)

    async def released() -> bool:
        return (await election.last_row()).released

    await soon(released, "the release has arrived")
    await election.is_free()
