"""Minting, releasing, and the fence: tokens grow, and what an older one fenced is over before a newer one begins."""

from datetime import UTC, datetime, timedelta

import pytest

from pgelect.errors import StaleTokenError
from tests.contract.election import METADATA, WITHIN_S, Election


async def test_the_first_term_writes_who_leads(election: Election) -> None:
    session = await election.holding("worker-1", name="billing", lease_s=7.5)
    grant = await session.mint(WITHIN_S)
    pid = await election.holder()
    record = grant.record
    assert record is not None
    assert (record.key1, record.key2, record.name) == (election.key.key1, election.key.key2, "billing")
    assert (record.holder, record.metadata, record.lease_s) == ("worker-1", METADATA, 7.5)
    assert (record.token, record.terms, record.released_at) == (grant.token, 1, None)
    assert record.backend == grant.backend
    assert record.acquired_at == grant.acquired_at
    assert grant.token >= 1
    assert grant.backend.pid == pid
    assert (grant.timeline, grant.predecessor_clean) == (1, True)
    assert abs(grant.acquired_at - datetime.now(UTC)) < timedelta(minutes=1)
    row = await election.row()
    assert row is not None
    assert (row.name, row.token, row.holder, row.metadata) == ("billing", grant.token, "worker-1", METADATA)
    assert (row.terms, row.lease_s, row.released, row.pid) == (1, 7.5, False, pid)


async def test_tokens_grow_and_terms_count_over_release_new_sessions_and_violent_ends(election: Election) -> None:
    tokens: list[int] = []
    session = await election.holding("a")
    for _ in range(2):  # the same session, again
        tokens.append((await session.mint(WITHIN_S)).token)
        assert await session.unlock(tokens[-1], WITHIN_S)
        assert (await session.try_lock(None, WITHIN_S)).granted
    await session.close(WITHIN_S)
    await election.is_free()
    for identity in ("b", "c"):  # new sessions, ended by force
        session = await election.holding(identity)
        tokens.append((await session.mint(WITHIN_S)).token)
        await election.terminate(await election.holder())
        await election.is_free()
    assert tokens == sorted(set(tokens))
    row = await election.row()
    assert row is not None
    assert (row.token, row.terms, row.holder) == (tokens[-1], 4, "c")


async def test_a_released_term_is_marked_and_the_next_one_knows(election: Election) -> None:
    first = await election.holding("a")
    token = (await first.mint(WITHIN_S)).token
    assert await first.unlock(token, WITHIN_S)
    row = await election.row()
    assert row is not None
    assert (row.token, row.released) == (token, True)
    second = await election.holding("b")
    grant = await second.mint(WITHIN_S)
    assert grant.predecessor_clean
    assert grant.record is not None
    assert grant.record.released_at is None


@pytest.mark.parametrize("how", ["close", "terminate"])
async def test_a_term_that_was_not_released_is_known_as_unclean(election: Election, how: str) -> None:
    first = await election.holding("a")
    token = (await first.mint(WITHIN_S)).token
    if how == "close":
        await first.close(WITHIN_S)
    else:
        await election.terminate(await election.holder())
    await election.is_free()
    row = await election.row()
    assert row is not None
    assert (row.token, row.released) == (token, False)
    second = await election.holding("b")
    assert not (await second.mint(WITHIN_S)).predecessor_clean


async def test_an_unlock_with_an_older_token_leaves_the_row_of_the_present_term_alone(election: Election) -> None:
    session = await election.holding("a")
    old = (await session.mint(WITHIN_S)).token
    new = (await session.mint(WITHIN_S)).token
    assert await session.unlock(old, WITHIN_S)
    row = await election.row()
    assert row is not None
    assert (row.token, row.released) == (new, False)


async def test_without_fencing_there_is_no_token_and_no_row(election: Election) -> None:
    session = election.session("a", fencing=False)
    await session.open(WITHIN_S)
    answer = await session.try_lock(None, WITHIN_S)
    assert (answer.granted, answer.record) == (True, None)
    grant = await session.mint(WITHIN_S)
    assert (grant.token, grant.record, grant.timeline) == (0, None, 1)
    assert grant.backend.pid == await election.holder()
    assert (await session.prove(WITHIN_S)).held
    assert await session.unlock(grant.token, WITHIN_S)
    assert await election.holders() == []


# The fence


@pytest.mark.parametrize("off_by", [-1, 1])
async def test_a_token_that_was_never_the_current_one_is_stale(election: Election, off_by: int) -> None:
    session = await election.holding("a")
    token = (await session.mint(WITHIN_S)).token
    with pytest.raises(StaleTokenError):
        await election.checked(token + off_by)


async def test_a_released_token_is_stale_before_anybody_leads_again(election: Election) -> None:
    session = await election.holding("a")
    token = (await session.mint(WITHIN_S)).token
    await session.unlock(token, WITHIN_S)
    with pytest.raises(StaleTokenError):
        await election.checked(token)
