"""The server's lease: whom it ends, when, and whom it leaves alone."""

import asyncio
import time

import pytest

from pgelect.errors import SessionLostError
from tests.contract.election import WITHIN_S, Election, granted

LEASE_S = 0.4  # shorter than a slice
MINT_LEASE_S = 0.3
IDLE_S = 10.0  # long


async def test_a_lock_is_never_freed_earlier_than_a_lease_after_the_last_proof_was_sent(election: Election) -> None:
    holder = await election.holding("a", lease_s=LEASE_S)
    waiter = await election.opened("b")
    sent = time.monotonic()
    assert (await holder.prove(WITHIN_S)).held
    await granted(waiter)
    assert time.monotonic() - sent >= LEASE_S


async def test_a_session_that_waits_in_the_queue_for_longer_than_its_lease_is_not_ended(election: Election) -> None:
    await election.holding("a")
    waiter = await election.opened("b", lease_s=LEASE_S / 2)
    assert not (await waiter.wait_lock(WITHIN_S)).granted
    assert (await waiter.prove(WITHIN_S)).held is False
    assert len(await election.pids()) == 2


async def test_a_mint_that_waits_for_longer_than_its_lease_is_not_ended(election: Election) -> None:
    first, grant = await election.leading("a")
    await first.close(WITHIN_S)
    await election.is_free()
    session = await election.holding("b", lease_s=MINT_LEASE_S)
    writer = await election.checked(grant.token)
    mint = asyncio.create_task(session.mint(WITHIN_S))
    await election.is_blocked(await election.holder())
    await asyncio.wait({mint}, timeout=1.5 * MINT_LEASE_S)
    if mint.done():  # a busy machine: the writer was ended
        await mint
        return
    await writer.commit()
    assert (await mint).token > grant.token


async def test_a_writer_is_not_held_to_any_lease(election: Election) -> None:
    session, grant = await election.leading("a", lease_s=LEASE_S)
    writer = await election.checked(grant.token)
    await writer.write(1)
    with pytest.raises(SessionLostError):
        async with asyncio.timeout(WITHIN_S):
            await session.watch(IDLE_S)
    await election.is_free()
    await writer.commit()  # nobody has begun a term since
    assert await election.ledger() == [(grant.token, 1)]


async def test_a_writer_of_a_term_whose_lease_ran_out_may_begin_until_the_next_one_is_minted(
    election: Election,
) -> None:
    """Only the mint makes a token stale: neither the lease nor the lock does."""
    session, grant = await election.leading("a", lease_s=LEASE_S)
    await election.is_free()
    await election.write_fenced(grant.token, 1)
    await election.holding("b")
    await election.write_fenced(grant.token, 2)
    assert await election.ledger() == [(grant.token, 1), (grant.token, 2)]
    with pytest.raises(SessionLostError):
        await session.prove(WITHIN_S)


async def test_who_was_refused_by_a_try_is_not_held_to_the_lease_and_who_then_wins_is(election: Election) -> None:
    holder = await election.holding("a")
    session = await election.opened("b", lease_s=LEASE_S)
    assert not (await session.try_lock(None, WITHIN_S)).granted
    await session.watch(1.5 * LEASE_S)
    await holder.close(WITHIN_S)
    await election.is_free()
    assert (await session.try_lock(None, WITHIN_S)).granted
    with pytest.raises(SessionLostError):
        async with asyncio.timeout(WITHIN_S):
            await session.watch(IDLE_S)


@pytest.mark.parametrize("after", ["open", "wait", "unlock"])
async def test_a_session_stays_held_to_its_lease_until_a_try_was_refused(election: Election, after: str) -> None:
    other = await election.opened("a")
    session = await election.opened("b", lease_s=LEASE_S)
    if after == "wait":
        await granted(other)
        assert not (await session.wait_lock(WITHIN_S)).granted
    elif after == "unlock":
        await granted(session)
        assert await session.unlock(0, WITHIN_S)
    with pytest.raises(SessionLostError):
        async with asyncio.timeout(WITHIN_S):
            await session.watch(IDLE_S)
