"""What a writer's transaction sees at each isolation level, why a plain read is no fence, and what a check refuses."""

import pytest

from pgelect.errors import StaleTokenError
from tests.contract.client import LEVELS, SNAPSHOTS, SerializationError
from tests.contract.election import WITHIN_S, Election

every_level = pytest.mark.parametrize("isolation", LEVELS)
with_snapshot = pytest.mark.parametrize("isolation", SNAPSHOTS)


# Why a plain read is no fence


@every_level
async def test_a_plain_read_lets_a_stale_write_commit(election: Election, isolation: str) -> None:
    old, successor = await election.deposed()
    careless = await election.client()
    await careless.begin(isolation)
    assert await careless.peek() == old
    new = (await successor.mint(WITHIN_S)).token  # not held off
    await election.write_fenced(new, 2)
    await careless.write(1)
    await careless.commit()
    assert await election.ledger() == [(new, 2), (old, 1)]


async def test_read_committed_sees_each_term_as_soon_as_it_is_committed(election: Election) -> None:
    old, successor = await election.deposed()
    client = await election.client()
    await client.begin("read committed")
    assert await client.peek() == old
    async with election.uncommitted_mint(successor) as mint:
        assert await client.peek() == old
    new = (await mint).token
    assert await client.peek() == new > old


@with_snapshot
async def test_a_snapshot_goes_on_seeing_the_term_of_its_first_statement(election: Election, isolation: str) -> None:
    old, successor = await election.deposed()
    client = await election.client()
    await client.begin(isolation)
    assert await client.peek() == old
    new = (await successor.mint(WITHIN_S)).token
    assert await client.peek() == old
    await client.commit()
    await client.begin(isolation)
    assert await client.peek() == new


@with_snapshot
async def test_a_snapshot_is_taken_by_the_first_statement_not_by_the_begin(election: Election, isolation: str) -> None:
    old, successor = await election.deposed()
    client = await election.client()
    await client.begin(isolation)
    new = (await successor.mint(WITHIN_S)).token
    assert await client.peek() == new > old
    await client.check(new)
    await client.write(1)
    await client.commit()
    assert await election.ledger() == [(new, 1)]


@with_snapshot
async def test_a_snapshot_may_be_taken_by_a_write(election: Election, isolation: str) -> None:
    old, successor = await election.deposed()
    client = await election.client()
    await client.begin(isolation)
    await client.write(1)
    new = (await successor.mint(WITHIN_S)).token
    assert await client.peek() == old
    with pytest.raises(StaleTokenError):
        await client.check(new)


# What is refused


@every_level
async def test_an_older_token_is_stale_once_a_newer_one_is_minted(election: Election, isolation: str) -> None:
    old, successor = await election.deposed()
    new = (await successor.mint(WITHIN_S)).token
    client = await election.client()
    await client.begin(isolation)
    with pytest.raises(StaleTokenError):
        await client.check(old)
    await client.rollback()
    await client.begin(isolation)
    await client.check(new)


@every_level
async def test_a_check_after_a_peek_is_refused_once_a_newer_token_is_minted(election: Election, isolation: str) -> None:
    old, successor = await election.deposed()
    client = await election.client()
    await client.begin(isolation)
    assert await client.peek() == old
    await client.write(1)
    await successor.mint(WITHIN_S)
    with pytest.raises(StaleTokenError if isolation == "read committed" else SerializationError):
        await client.check(old)
    await client.rollback()
    assert await election.ledger() == []


@with_snapshot
async def test_a_snapshot_from_before_a_mint_does_not_pass_with_the_new_token_either(
    election: Election, isolation: str
) -> None:
    _, successor = await election.deposed()
    client = await election.client()
    await client.begin(isolation)
    await client.peek()
    new = (await successor.mint(WITHIN_S)).token
    with pytest.raises(StaleTokenError):
        await client.check(new)


@every_level
async def test_a_check_after_a_peek_is_refused_once_the_term_is_released(election: Election, isolation: str) -> None:
    session, grant = await election.leading()
    client = await election.client()
    await client.begin(isolation)
    assert await client.peek() == grant.token
    assert await session.unlock(grant.token, WITHIN_S)
    assert (await election.last_row()).released
    with pytest.raises(StaleTokenError if isolation == "read committed" else SerializationError):
        await client.check(grant.token)


@every_level
async def test_a_term_that_went_on_over_a_new_session_does_not_refuse_its_token_for_good(
    election: Election, isolation: str
) -> None:
    lost, grant = await election.leading()
    client = await election.client()
    await client.begin(isolation)
    assert await client.peek() == grant.token
    await lost.close(WITHIN_S)
    successor = await election.opened()
    assert (await successor.resume(grant, WITHIN_S)).resumed
    if isolation == "read committed":
        await client.check(grant.token)
    else:  # the row has changed since the snapshot; whoever tries again gets on
        with pytest.raises(SerializationError):
            await client.check(grant.token)
    await client.rollback()
    await client.begin(isolation)
    await client.check(grant.token)


@every_level
async def test_a_refused_check_spoils_its_transaction(election: Election, isolation: str) -> None:
    old, successor = await election.deposed()
    await successor.mint(WITHIN_S)
    client = await election.client()
    await client.begin(isolation)
    await client.write(1)
    with pytest.raises(StaleTokenError):
        await client.check(old)
    await client.commit()  # which the server takes for a rollback
    assert await election.ledger() == []
