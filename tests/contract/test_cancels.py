"""An administrator cancels a statement, as pg_cancel_backend does: what goes on, and what is left."""

import asyncio

import pytest

from pgelect.errors import PgElectError
from tests.contract.election import WITHIN_S, Election


async def test_a_wait_that_is_cancelled_is_a_refusal_and_leaves_no_place_in_the_queue(election: Election) -> None:
    holder = await election.holding("a")
    waiter, wait = await election.queued("b")
    (pid,) = await election.waiters()
    assert await election.cancel(pid)
    assert not (await wait).granted
    assert await election.waiters() == []
    await holder.unlock(0, WITHIN_S)
    await election.is_free()
    assert (await waiter.try_lock(None, WITHIN_S)).granted
    assert await waiter.unlock(0, WITHIN_S)
    await election.is_free()


async def test_a_mint_that_is_cancelled_while_it_waits_for_a_writer_tries_once_more(election: Election) -> None:
    old, successor = await election.deposed()
    writer = await election.checked(old)
    mint = asyncio.create_task(successor.mint(WITHIN_S))
    minting = await election.holder()
    await election.is_blocked(minting)
    await election.cancel(minting)
    await writer.commit()
    assert (await mint).token > old
    assert (await successor.prove(WITHIN_S)).held


async def test_a_release_that_is_cancelled_while_it_waits_for_a_writer_goes_on_without_its_mark(
    election: Election,
) -> None:
    session, grant = await election.leading("a")
    writer = await election.checked(grant.token)
    release = asyncio.create_task(session.unlock(grant.token, WITHIN_S))
    releasing = await election.holder()
    await election.is_blocked(releasing)
    await election.cancel(releasing)
    assert await release is True
    await election.is_free()
    assert not (await election.last_row()).released
    await writer.commit()


async def test_a_cancel_that_reaches_an_idle_session_cancels_nothing(election: Election) -> None:
    """Nor the statement after it, unless that begins in the same instant, as with `FakeServer.cancel` by default."""
    session, grant = await election.leading("a")
    assert await election.cancel(grant.backend.pid)
    assert (await session.prove(WITHIN_S)).held is True
    writer = await election.checked(grant.token)
    assert await election.cancel(writer.pid)
    await writer.write(1)
    await writer.commit()
    assert await election.ledger() == [(grant.token, 1)]


async def test_a_check_that_is_cancelled_spoils_its_transaction_and_holds_off_nothing(election: Election) -> None:
    old, successor = await election.deposed()
    client = await election.client()
    await client.begin()
    await client.write(1)
    async with election.uncommitted_mint(successor) as mint:
        check = asyncio.create_task(client.check(old))
        await election.is_blocked(client.pid)
        await election.cancel(client.pid)
        with pytest.raises(PgElectError):
            await check
    new = (await mint).token
    await client.commit()  # which the server takes for a rollback
    assert await election.ledger() == []
    await client.begin()
    await client.check(new)
