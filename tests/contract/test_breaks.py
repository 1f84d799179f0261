"""Links that break at one end only: what the other end goes on believing, and until when."""

import asyncio
import time

import pytest

from pgelect._engine.model import Grant
from pgelect._engine.session import Session
from pgelect.errors import SessionLostError
from tests.contract.election import WITHIN_S, Election, granted, soon

GIVE_UP_S = 0.2  # for calls that are expected to get no answer
LEASE_S = 0.5
IDLE_S = 3600.0


async def _leading(election: Election) -> tuple[Session, Grant]:
    """A session whose link can be broken, and its term."""
    session = await election.linked("a")
    assert (await session.try_lock(None, WITHIN_S)).granted
    return session, await session.mint(WITHIN_S)


async def test_a_break_that_only_the_client_hears_of_leaves_a_ghost_with_the_lock(election: Election) -> None:
    holder, grant = await _leading(election)
    watch = asyncio.create_task(holder.watch(IDLE_S))
    await election.cut(holder, "client")
    with pytest.raises(SessionLostError):
        await watch
    with pytest.raises(SessionLostError):
        await holder.prove(WITHIN_S)
    await holder.close(WITHIN_S)  # which does not reach the server either
    other = await election.opened("b")
    assert not (await other.try_lock(None, WITHIN_S)).granted
    assert await election.holders() == [grant.backend.pid]
    again = await election.opened("a")
    assert (await again.resume(grant, WITHIN_S)).resumed
    await election.is_gone(grant.backend.pid)


async def test_a_ghost_that_nobody_ends_keeps_the_lock_for_its_lease_and_no_longer(election: Election) -> None:
    holder = await election.linked("a", lease_s=LEASE_S)
    assert (await holder.try_lock(None, WITHIN_S)).granted
    sent = time.monotonic()
    assert (await holder.prove(WITHIN_S)).held
    await election.cut(holder, "client")
    await election.is_free()
    assert time.monotonic() - sent >= LEASE_S
    await election.are_gone()


async def test_a_server_that_notices_that_nobody_is_there_ends_the_ghost(election: Election) -> None:
    """As its keepalives do: they may be sooner than the lease."""
    holder, grant = await _leading(election)
    await election.cut(holder, "client")
    with pytest.raises(SessionLostError):
        await holder.prove(WITHIN_S)
    _, wait = await election.queued("b")
    assert await election.holders() == [grant.backend.pid]
    await election.notice(holder)
    await election.is_gone(grant.backend.pid)
    await wait


async def test_a_mint_whose_answer_a_break_took_away_is_committed_by_the_ghost(election: Election) -> None:
    holder = await election.linked("a")
    answer = await holder.try_lock(None, WITHIN_S)
    assert answer.granted
    async with election.uncommitted_mint(holder) as mint:
        await election.cut(holder, "client")
        with pytest.raises(SessionLostError):
            await mint

    async def minted() -> bool:
        return await election.row() is not None

    await soon(minted, "the ghost has minted")
    assert answer.backend is not None
    assert await election.holders() == [answer.backend.pid]
    again = await election.opened("a")
    assert (await again.try_lock(answer.backend, WITHIN_S)).granted
    ghostly = await election.last_row()
    assert (await again.mint(WITHIN_S)).token > ghostly.token


async def test_a_break_that_only_the_server_hears_of_frees_the_lock_and_tells_the_client_nothing(
    election: Election,
) -> None:
    holder, grant = await _leading(election)
    watch = asyncio.create_task(holder.watch(IDLE_S))
    waiter, wait = await election.queued("b")
    await election.cut(holder, "server")
    if not (await wait).granted:  # its slice had just ended
        await granted(waiter)
    await election.is_gone(grant.backend.pid)
    await asyncio.wait({watch}, timeout=0.05)
    assert not watch.done()
    watch.cancel()
    await asyncio.wait({watch})
    with pytest.raises(SessionLostError):
        await holder.prove(GIVE_UP_S)


async def test_a_waiter_of_whose_break_only_the_server_hears_leaves_the_queue(election: Election) -> None:
    """It is busy, so the server notices when it looks, or when the slice is over."""
    holder = await election.holding("a")
    waiter = await election.linked("b")
    wait = await election.queue(waiter, GIVE_UP_S)
    (pid,) = await election.waiters()
    await election.cut(waiter, "server")
    await election.is_gone(pid)
    assert await election.waiters() == []
    with pytest.raises(SessionLostError):
        await wait
    assert (await holder.prove(WITHIN_S)).held
