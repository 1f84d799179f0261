"""Losing leadership: what a proof says, what a watch hears, what a lease ends, and what a cancel leaves behind."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from pgelect._engine.model import Grant
from pgelect._engine.session import Session
from pgelect.errors import SessionLostError
from tests.contract.election import WITHIN_S, Election, granted, soon


async def test_a_holder_proves_it_and_who_does_not_hold_cannot(election: Election) -> None:
    holder, other = await election.holding("a"), await election.opened("b")
    assert (await holder.prove(WITHIN_S)).held is True
    assert (await other.prove(WITHIN_S)).held is False
    assert await holder.unlock(0, WITHIN_S)
    assert (await holder.prove(WITHIN_S)).held is False


async def test_a_proof_notices_that_the_lock_was_freed_behind_our_back(election: Election) -> None:
    holder = await election.holding("a")
    assert (await holder.prove(WITHIN_S)).held is True
    await election.unlock_all(holder)
    assert (await holder.prove(WITHIN_S)).held is False
    other = await election.opened("b")
    assert (await other.try_lock(None, WITHIN_S)).granted
    assert (await holder.prove(WITHIN_S)).held is False
    assert await holder.unlock(0, WITHIN_S) is False


async def test_a_proof_on_a_terminated_session_is_a_loss(election: Election) -> None:
    holder = await election.holding("a")
    await election.terminate(await election.holder())
    with pytest.raises(SessionLostError):
        await holder.prove(WITHIN_S)
    with pytest.raises(SessionLostError):
        await holder.prove(WITHIN_S)


async def test_a_watch_ends_by_itself_when_nothing_happens(election: Election) -> None:
    holder = await election.holding("a")
    await holder.watch(0.05)
    assert (await holder.prove(WITHIN_S)).held


async def test_a_watch_hears_of_the_end_of_the_session(election: Election) -> None:
    holder = await election.holding("a")
    pid = await election.holder()
    watch = asyncio.create_task(holder.watch(3600.0))
    await election.terminate(pid)
    with pytest.raises(SessionLostError):
        async with asyncio.timeout(WITHIN_S):
            await watch


async def test_a_watch_can_be_cancelled_again_and_again_and_the_session_goes_on(election: Election) -> None:
    holder = await election.holding("a")
    for turns in range(12):
        watch = asyncio.create_task(holder.watch(3600.0))
        await _turns(turns)
        watch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watch
        assert (await holder.prove(WITHIN_S)).held is True
    assert await holder.unlock(0, WITHIN_S) is True


async def test_abandoning_ends_a_watch(election: Election) -> None:
    holder = await election.holding("a")
    watch = asyncio.create_task(holder.watch(3600.0))
    await _turns(5)
    holder.abandon()
    with pytest.raises(SessionLostError):
        async with asyncio.timeout(WITHIN_S):
            await watch
    await election.is_free()


# The lease


async def test_a_holder_that_is_not_heard_from_loses_its_lock_after_its_lease(election: Election) -> None:
    silent = await election.holding("a", lease_s=0.5)
    waiter = await election.opened("b")
    await granted(waiter)
    with pytest.raises(SessionLostError):
        await silent.prove(WITHIN_S)


async def test_a_holder_that_got_the_lock_by_waiting_is_held_to_its_lease_too(election: Election) -> None:
    silent = await election.opened("a", lease_s=0.5)
    assert (await silent.wait_lock(WITHIN_S)).granted
    await election.is_free()
    with pytest.raises(SessionLostError):
        await silent.prove(WITHIN_S)


async def test_a_watching_holder_hears_that_its_lease_is_over(election: Election) -> None:
    holder = await election.holding("a", lease_s=0.5)
    with pytest.raises(SessionLostError):
        async with asyncio.timeout(WITHIN_S):
            await holder.watch(3600.0)


async def test_proofs_keep_the_lease(election: Election) -> None:
    holder = await election.holding("a", lease_s=0.5)
    loop = asyncio.get_running_loop()
    end = loop.time() + 1.0
    while loop.time() < end:
        await holder.watch(0.1)
        assert (await holder.prove(WITHIN_S)).held


# Cancels


async def _turns(count: int) -> None:
    """Let the loop go round, so that a cancel strikes at another point each time."""
    for _ in range(count):
        await asyncio.sleep(0)


Call = Callable[[Session, Grant | None], Awaitable[object]]


def _grant(grant: Grant | None) -> Grant:
    assert grant is not None
    return grant


CALLS: dict[str, tuple[bool, Call]] = {  # whether the lock is held before, and the call
    "open": (False, lambda session, _: session.open(WITHIN_S)),
    "try_lock": (False, lambda session, _: session.try_lock(None, WITHIN_S)),
    "wait_lock": (False, lambda session, _: session.wait_lock(WITHIN_S)),
    "resume": (False, lambda session, grant: session.resume(_grant(grant), WITHIN_S)),
    "mint": (True, lambda session, _: session.mint(WITHIN_S)),
    "prove": (True, lambda session, _: session.prove(WITHIN_S)),
    "watch": (True, lambda session, _: session.watch(3600.0)),
    "unlock": (True, lambda session, _: session.unlock(0, WITHIN_S)),
}


@pytest.mark.parametrize("name", list(CALLS))
async def test_a_cancelled_call_leaves_nothing_held_after_close(election: Election, name: str) -> None:
    hold, call = CALLS[name]
    last: Grant | None = None
    for turns in (0, 1, 2, 3, 5, 8, 13, 21, 200):
        if name == "resume":
            lost = await election.holding("a")
            last = await lost.mint(WITHIN_S)
            await lost.close(WITHIN_S)
            await election.is_free()
        session = election.session("a")
        if name != "open":
            await session.open(WITHIN_S)
        if hold:
            assert (await session.try_lock(None, WITHIN_S)).granted
        task = asyncio.ensure_future(call(session, last))
        await _turns(turns)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled() or task.exception() is None
        await session.close(WITHIN_S)
        await election.is_free()

    async def no_session_left() -> bool:
        return not await election.pids()

    await soon(no_session_left, "no session is left")


async def test_a_cancel_while_the_lock_passes_on_leaves_nothing_held_after_close(election: Election) -> None:
    for turns in (0, 1, 2, 4, 8, 16):
        holder = await election.holding("a")
        waiter, wait = await election.queued("b")
        unlock = asyncio.create_task(holder.unlock(0, WITHIN_S))
        await _turns(turns)
        wait.cancel()
        await asyncio.wait({wait, unlock})
        await waiter.close(WITHIN_S)
        await holder.close(WITHIN_S)
        await election.is_free()
