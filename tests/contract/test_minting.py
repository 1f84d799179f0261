"""A mint that something strikes: it happens wholly or not at all, and the next token is greater in any case."""

import asyncio
from dataclasses import replace

import pytest

from pgelect._engine.model import LockKey
from pgelect.errors import SessionLostError, StaleTokenError
from tests.contract.election import WITHIN_S, Election, Row, granted, soon

GIVE_UP_S = 0.3  # for calls that are expected to get no answer


async def _next_is_greater(election: Election, *tokens: int) -> None:
    """Whoever leads next has a token greater than these and than what the row says, and only that one passes."""
    await election.is_free()
    last = await election.last_row()
    _, grant = await election.leading("next")
    assert grant.token > max(last.token, *tokens)
    assert (grant.record, (await election.last_row()).terms) == (grant.record, last.terms + 1)
    for token in {last.token, *tokens}:
        with pytest.raises(StaleTokenError):
            await election.checked(token)
    await election.write_fenced(grant.token, 1)


def _is_wholly(row: Row, before: Row, holder: str, pid: int) -> bool:
    """Whether the row is that of the term after ``before``, in all its parts."""
    assert row.token > before.token
    expected = replace(before, token=row.token, holder=holder, terms=before.terms + 1, released=False, pid=pid)
    return row == expected


async def test_minting_twice_on_one_session_begins_a_second_term(election: Election) -> None:
    session, first = await election.leading()
    second = await session.mint(WITHIN_S)
    assert second.token > first.token
    assert not second.predecessor_clean
    row = await election.last_row()
    assert (row.token, row.terms, row.pid) == (second.token, 2, first.backend.pid)
    with pytest.raises(StaleTokenError):
        await election.checked(first.token)
    await session.close(WITHIN_S)
    await _next_is_greater(election, first.token, second.token)


async def test_nobody_sees_a_term_before_its_mint_is_committed(election: Election) -> None:
    old, successor = await election.deposed()
    follower = await election.opened("c")
    async with election.uncommitted_mint(successor) as mint:
        answer = await follower.try_lock(None, WITHIN_S)
        assert answer.record is not None
        assert (answer.granted, answer.record.token) == (False, old)
        assert (await election.last_row()).token == old
    grant = await mint
    assert (await follower.try_lock(None, WITHIN_S)).record == grant.record


@pytest.mark.parametrize("way", ["terminate", "cut"])
async def test_a_mint_whose_session_ends_while_it_waits_for_a_writer_writes_nothing(
    election: Election, way: str
) -> None:
    first, grant = await election.leading("a")
    await first.close(WITHIN_S)
    await election.is_free()
    before = await election.last_row()
    session = await election.linked("b")
    assert (await session.try_lock(None, WITHIN_S)).granted
    writer = await election.checked(grant.token)
    mint = asyncio.create_task(session.mint(WITHIN_S))
    minting = await election.holder()
    await election.is_blocked(minting)
    if way == "terminate":
        await election.terminate(minting)
    else:
        await election.cut(session)
    with pytest.raises(SessionLostError):
        await mint
    await election.is_gone(minting)  # the server notices, though the writer goes on
    assert await election.last_row() == before
    await writer.write(5)
    await writer.commit()
    assert await election.ledger() == [(grant.token, 5)]
    await _next_is_greater(election, grant.token)


async def test_a_mint_whose_session_is_ended_before_it_commits_writes_nothing(election: Election) -> None:
    old, successor = await election.deposed()
    before = await election.last_row()
    async with election.uncommitted_mint(successor) as mint:
        await election.terminate(await election.holder())
        with pytest.raises(SessionLostError):
            await mint
        await election.is_free()
    assert await election.last_row() == before
    await _next_is_greater(election, old)


async def test_the_lock_is_not_free_before_a_mint_that_nobody_waits_for_any_more_is_over(election: Election) -> None:
    session = await election.linked("b")
    assert (await session.try_lock(None, WITHIN_S)).granted
    old = (await session.mint(WITHIN_S)).token
    pid, before = await election.holder(), await election.last_row()
    async with election.uncommitted_mint(session) as mint:
        await election.silence(session)
        session.abandon()
        with pytest.raises(SessionLostError):
            await mint
        assert await election.holders() == [pid]
        assert (await election.last_row()).token == old

    async def minted() -> bool:
        return (await election.last_row()).token > old

    await soon(minted, "the mint is committed")
    assert await election.holders() == [pid]  # a ghost: nobody has told the server
    assert _is_wholly(await election.last_row(), before, "b", pid)
    await election.terminate(pid)
    await _next_is_greater(election, old)


async def test_a_mint_whose_answer_is_lost_has_happened(election: Election) -> None:
    session = await election.linked("b")
    assert (await session.try_lock(None, WITHIN_S)).granted
    first = await session.mint(WITHIN_S)
    before = await election.last_row()
    await election.silence(session, "down")
    with pytest.raises(SessionLostError):
        await session.mint(GIVE_UP_S)
    row = await election.last_row()
    assert _is_wholly(row, before, "b", first.backend.pid)
    await _next_is_greater(election, first.token, row.token)


async def test_a_mint_that_arrives_after_its_client_gave_up_happens_wholly_or_not_at_all(election: Election) -> None:
    session = await election.linked("b")
    assert (await session.try_lock(None, WITHIN_S)).granted
    first = await session.mint(WITHIN_S)
    before = await election.last_row()
    await election.silence(session, "up")
    with pytest.raises(SessionLostError):
        await session.mint(GIVE_UP_S)
    assert await election.last_row() == before
    assert await election.holders() == [first.backend.pid]
    await election.heal(session)
    await election.is_free()
    row = await election.last_row()
    assert row == before or _is_wholly(row, before, "b", first.backend.pid)
    await _next_is_greater(election, first.token, row.token)


async def test_a_mint_whose_link_is_cut_at_any_moment_happens_wholly_or_not_at_all(election: Election) -> None:
    first, grant = await election.leading()
    await first.close(WITHIN_S)
    tokens = [grant.token]
    for turns in (0, 5, 10, 15, 20, 40, 60, 100, 200):  # from before it is sent until after it is answered
        session = await election.linked(f"turn {turns}")
        await granted(session)
        pid, before = await election.holder(), await election.last_row()
        mint = asyncio.create_task(session.mint(WITHIN_S))
        for _ in range(turns):
            await asyncio.sleep(0)
        await election.cut(session)
        await asyncio.wait({mint})
        told = 0 if isinstance(mint.exception(), SessionLostError) else mint.result().token
        await session.close(WITHIN_S)
        await election.is_gone(pid)
        row = await election.last_row()
        if row != before:
            assert row.token > max(tokens)
            assert _is_wholly(row, before, f"turn {turns}", pid)
            tokens.append(row.token)
        assert told in (0, tokens[-1])  # what the client was told is there
    await _next_is_greater(election, *tokens)


async def test_who_is_granted_after_a_release_is_told_of_it(election: Election) -> None:
    """The mark is committed before the lock is free: an orderly end never looks like a violent one."""
    holder, grant = await election.leading("a")
    waiter, wait = await election.queued("b")
    assert await holder.unlock(grant.token, WITHIN_S)
    answer = await wait
    if not answer.granted:  # its slice had just ended
        answer = await granted(waiter)
    assert answer.record is not None
    assert answer.record.token == grant.token
    assert answer.record.released_at is not None
    assert (await waiter.mint(WITHIN_S)).predecessor_clean


async def test_a_release_that_a_writer_holds_off_goes_on_without_its_mark(election: Election) -> None:
    holder, grant = await election.leading("a")
    writer = await election.checked(grant.token)
    await writer.write(1)
    assert await holder.unlock(grant.token, WITHIN_S)
    assert not (await election.last_row()).released
    await writer.commit()
    successor, next_grant = await election.leading("b")
    assert not next_grant.predecessor_clean
    assert (await successor.prove(WITHIN_S)).held
    assert await election.ledger() == [(grant.token, 1)]


async def test_a_release_is_marked_even_when_the_lock_had_been_lost_behind_our_back(election: Election) -> None:
    holder, grant = await election.leading("a")
    await election.unlock_all(holder)
    assert await holder.unlock(grant.token, WITHIN_S) is False
    assert (await election.last_row()).released
    with pytest.raises(StaleTokenError):
        await election.checked(grant.token)


async def test_a_mint_by_a_session_that_lost_the_lock_behind_its_back_is_refused(election: Election) -> None:
    """Otherwise its token would make that of the true leader stale."""
    robbed, before = await election.leading("a")
    await election.unlock_all(robbed)
    holder, grant = await election.leading("b")
    with pytest.raises(SessionLostError) as caught:
        await robbed.mint(WITHIN_S)
    assert caught.value.reason == "disproved"
    row = await election.last_row()
    assert (row.token, row.holder, row.terms) == (grant.token, "b", 2)
    assert (await holder.prove(WITHIN_S)).held
    await election.write_fenced(grant.token, 1)
    assert grant.token > before.token


async def test_a_writer_of_one_lock_is_in_nobodys_way_at_another_and_its_token_means_nothing_there(
    election: Election,
) -> None:
    holder, grant = await election.leading("a")
    await election.checked(grant.token)
    other = LockKey(election.key.key1, (election.key.key2 + 1) % 1000)
    session = election.new_session(other, "b", 15.0, fencing=True)
    election.made.append(session)
    await session.open(WITHIN_S)
    assert (await session.try_lock(None, WITHIN_S)).granted
    tokens = [(await session.mint(WITHIN_S)).token for _ in range(2)]
    assert len({grant.token, *tokens}) == 3
    for token in tokens:
        with pytest.raises(StaleTokenError):
            await election.checked(token)
    assert (await holder.prove(WITHIN_S)).held
    assert (await election.last_row()).token == grant.token
