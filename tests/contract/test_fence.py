"""Writers and the term that they write in: what a check lets pass, what it holds off, and what it waits for."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from pgelect.errors import FenceBusyError, SessionLostError, StaleTokenError
from tests.contract.client import LEVELS, Client, SerializationError
from tests.contract.election import WITHIN_S, Election

every_level = pytest.mark.parametrize("isolation", LEVELS)

REFUSED = (StaleTokenError, SerializationError)


End = Callable[[Election, Client], Awaitable[None]]


async def _commit(election: Election, client: Client) -> None:
    await client.commit()


async def _rollback(election: Election, client: Client) -> None:
    await client.rollback()


async def _close(election: Election, client: Client) -> None:
    await client.close()


async def _terminate(election: Election, client: Client) -> None:
    assert await election.terminate(client.pid)


ways_to_end = pytest.mark.parametrize(("end", "kept"), [(_commit, 1), (_rollback, 0), (_close, 0), (_terminate, 0)])


# What passes


@every_level
async def test_a_write_under_the_current_token_commits(election: Election, isolation: str) -> None:
    _, grant = await election.leading()
    client = await election.checked(grant.token, isolation)
    await client.write(7)
    assert await election.ledger() == []
    await client.commit()
    assert await election.ledger() == [(grant.token, 7)]


async def test_a_client_may_write_in_one_transaction_after_another(election: Election) -> None:
    _, grant = await election.leading()
    client = await election.client()
    for value, isolation in enumerate(LEVELS):
        await client.begin(isolation)
        await client.check(grant.token)
        await client.check(grant.token)  # again in the same transaction
        await client.write(value)
        await client.commit()
    assert await election.ledger() == [(grant.token, value) for value in range(len(LEVELS))]


async def test_the_ledger_is_in_the_order_of_commits(election: Election) -> None:
    _, grant = await election.leading()
    first, second = await election.checked(grant.token), await election.checked(grant.token)
    await first.write(1)
    await second.write(2)
    await second.commit()
    await first.commit()
    assert await election.ledger() == [(grant.token, 2), (grant.token, 1)]


async def test_what_was_rolled_back_was_never_written(election: Election) -> None:
    _, grant = await election.leading()
    client = await election.checked(grant.token)
    await client.write(1)
    await client.rollback()
    assert await election.ledger() == []
    await client.begin()
    await client.check(grant.token)
    await client.write(2)
    await client.commit()
    assert await election.ledger() == [(grant.token, 2)]


@every_level
async def test_two_checks_of_one_token_do_not_wait_for_each_other(election: Election, isolation: str) -> None:
    _, grant = await election.leading()
    clients = [await election.checked(grant.token, isolation) for _ in range(2)]
    for value, client in enumerate(clients):
        await client.write(value)
    for client in reversed(clients):
        await client.commit()
    assert await election.ledger() == [(grant.token, 1), (grant.token, 0)]


async def test_there_is_nothing_to_peek_at_before_the_first_term(election: Election) -> None:
    await election.opened()
    client = await election.client()
    await client.begin()
    assert await client.peek() is None
    with pytest.raises(StaleTokenError):
        await client.check(1)


# What waits for whom


async def test_a_transaction_in_which_something_was_refused_holds_off_nothing_any_more(election: Election) -> None:
    old, successor = await election.deposed()
    client = await election.checked(old)
    with pytest.raises(StaleTokenError):
        await client.check(old + 1)
    assert (await successor.mint(WITHIN_S)).token > old
    await client.rollback()


@every_level
@ways_to_end
async def test_a_check_holds_off_a_mint_until_its_transaction_ends(
    election: Election, isolation: str, end: End, kept: int
) -> None:
    old, successor = await election.deposed()
    client = await election.checked(old, isolation)
    await client.write(1)
    mint = asyncio.create_task(successor.mint(WITHIN_S))
    await election.is_blocked(await election.holder())
    assert (await election.last_row()).token == old
    await end(election, client)
    new = (await mint).token
    await election.write_fenced(new, 2)
    assert await election.ledger() == [(old, 1)] * kept + [(new, 2)]


async def test_a_transaction_that_was_not_checked_holds_off_nothing(election: Election) -> None:
    old, successor = await election.deposed()
    client = await election.client()
    await client.begin("serializable")
    assert await client.peek() == old
    await client.write(1)
    assert (await successor.mint(WITHIN_S)).token > old
    await client.rollback()


async def test_a_check_that_arrives_in_the_first_wait_of_a_mint_for_another_passes_and_is_waited_for_too(
    election: Election,
) -> None:
    old, successor = await election.deposed()
    first = await election.checked(old)
    mint = asyncio.create_task(successor.mint(WITHIN_S))
    minting = await election.holder()
    await election.is_blocked(minting)
    second = await election.checked(old)
    await second.write(2)
    await first.commit()
    await election.is_blocked(minting)
    assert not mint.done()
    await second.commit()
    assert (await mint).token > old
    assert await election.ledger() == [(old, 2)]


@every_level
async def test_a_check_that_arrives_while_a_mint_is_uncommitted_waits_and_is_refused(
    election: Election, isolation: str
) -> None:
    old, successor = await election.deposed()
    client = await election.client()
    await client.begin(isolation)
    await client.peek()
    async with election.uncommitted_mint(successor) as mint:
        check = asyncio.create_task(client.check(old))
        await election.is_blocked(client.pid)
    assert (await mint).token > old
    with pytest.raises(REFUSED):
        await check


@every_level
async def test_a_check_that_waited_for_a_mint_which_came_to_nothing_passes(election: Election, isolation: str) -> None:
    old, successor = await election.deposed()
    client = await election.client()
    await client.begin(isolation)
    async with election.uncommitted_mint(successor) as mint:
        check = asyncio.create_task(client.check(old))
        await election.is_blocked(client.pid)
        await election.terminate(await election.holder())
        with pytest.raises(SessionLostError):
            await mint
        await check
    await client.write(1)
    await client.commit()
    assert await election.ledger() == [(old, 1)]


async def test_a_check_does_not_wait_for_the_very_first_mint_of_a_lock(election: Election) -> None:
    session = await election.holding("a")
    client = await election.client()
    async with election.uncommitted_mint(session) as mint:
        await client.begin()
        assert await client.peek() is None
        with pytest.raises(StaleTokenError):
            await client.check(1)
        assert not mint.done()
    await client.rollback()
    await election.write_fenced((await mint).token, 1)


async def test_a_client_that_is_ended_while_its_check_waits_is_told(election: Election) -> None:
    old, successor = await election.deposed()
    client = await election.client()
    await client.begin()
    async with election.uncommitted_mint(successor) as mint:
        check = asyncio.create_task(client.check(old))
        await election.is_blocked(client.pid)
        await election.terminate(client.pid)
        with pytest.raises(SessionLostError):
            await check
    assert (await mint).token > old


# A mint that is held off for long


async def test_a_mint_ends_writers_that_hold_it_off_and_nothing_of_theirs_is_kept(election: Election) -> None:
    old, successor = await election.deposed()
    writers = [await election.checked(old, isolation) for isolation in LEVELS]
    for value, writer in enumerate(writers):
        await writer.write(value)
    bystander = await election.client()
    await bystander.begin()
    assert await bystander.peek() == old
    new = (await successor.mint(WITHIN_S)).token
    for writer in writers:
        with pytest.raises(SessionLostError):
            await writer.commit()
    await election.write_fenced(new, 9)
    assert await election.ledger() == [(new, 9)]
    assert await bystander.peek() == new  # it was in nobody's way


async def test_a_mint_that_may_not_end_a_writer_begins_no_term_and_the_write_is_kept(election: Election) -> None:
    await election.weaken()
    old, successor = await election.deposed()
    writer = await election.checked(old)
    await writer.write(1)
    with pytest.raises(FenceBusyError) as caught:
        await successor.mint(WITHIN_S)
    assert caught.value.blockers == (writer.pid,)
    assert (await election.last_row()).token == old
    assert (await successor.prove(WITHIN_S)).held  # the lock is still ours to release
    with pytest.raises(StaleTokenError):  # the old term lets nobody in any more
        await election.checked(old)
    await writer.commit()
    new = (await successor.mint(WITHIN_S)).token
    await election.write_fenced(new, 3)
    assert await election.ledger() == [(old, 1), (new, 3)]
