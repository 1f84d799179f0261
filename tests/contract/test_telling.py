"""What leaders tell, and what they are told: a history, requests to step down, another lease. Nothing depends on it."""

import asyncio
from dataclasses import replace

import pytest

from pgelect._engine.model import Grant, LostTerm
from pgelect._engine.session import Session
from pgelect.errors import SessionLostError
from tests.contract.election import WITHIN_S, Election, soon

LEASE_S = 0.5
LONG_S = 30.0
WHY = "the link broke"


async def announced(election: Election, identity: str = "a") -> tuple[Session, Grant]:
    session, grant = await election.leading(identity)
    await session.announce(grant, None, 0.0, WITHIN_S)
    return session, grant


async def closed(election: Election, session: Session) -> None:
    await session.close(WITHIN_S)
    await election.is_free()


async def test_a_term_that_was_released_stands_in_the_history_as_released_once_the_next_begins(
    election: Election,
) -> None:
    first, one = await announced(election, "a")
    assert await election.history() == [(one.token, None, None)]
    assert await first.unlock(one.token, WITHIN_S)
    await closed(election, first)
    _, two = await announced(election, "b")
    assert await election.history() == [(one.token, "released", None), (two.token, None, None)]


async def test_a_term_of_whose_end_nobody_told_is_superseded(election: Election) -> None:
    first, one = await announced(election, "a")
    await closed(election, first)
    _, two = await announced(election, "b")
    assert await election.history() == [(one.token, "superseded", None), (two.token, None, None)]


@pytest.mark.parametrize("when", ["before the next term begins", "after the next term has begun"])
async def test_who_lost_a_term_says_why(election: Election, when: str) -> None:
    first, one = await announced(election, "a")
    await closed(election, first)
    again = await election.opened("a")
    told = LostTerm(one.token, WHY, 0.0)
    if when.startswith("before"):
        await again.announce(None, told, 0.1, WITHIN_S)
        assert await election.history() == [(one.token, "lost", WHY)]
        _, two = await announced(election, "b")
    else:
        _, two = await announced(election, "b")
        await again.announce(None, told, 0.1, WITHIN_S)
    assert await election.history() == [(one.token, "lost", WHY), (two.token, None, None)]


async def test_a_released_term_cannot_be_called_lost(election: Election) -> None:
    first, one = await announced(election, "a")
    assert await first.unlock(one.token, WITHIN_S)
    await closed(election, first)
    second, two = await announced(election, "b")
    await second.announce(two, LostTerm(one.token, WHY, 0.0), 0.1, WITHIN_S)
    assert (await election.history())[0] == (one.token, "released", None)


async def test_a_term_that_was_never_announced_is_written_down_by_the_next(election: Election) -> None:
    first, one = await election.leading("a")
    await closed(election, first)
    _, two = await announced(election, "b")
    assert await election.history() == [(one.token, "superseded", None), (two.token, None, None)]


async def test_a_lost_term_that_was_never_announced_is_told_as_a_whole(election: Election) -> None:
    first, one = await election.leading("a")
    await closed(election, first)
    again = await election.opened("a")
    await again.announce(None, LostTerm(one.token, WHY, 0.0, one), 0.1, WITHIN_S)
    assert await election.history() == [(one.token, "lost", WHY)]


async def test_to_announce_again_changes_nothing(election: Election) -> None:
    session, grant = await announced(election)
    before = await election.history()
    await session.announce(grant, None, 0.0, WITHIN_S)
    assert await election.history() == before


async def test_a_grant_knows_the_row_of_the_term_before(election: Election) -> None:
    first, one = await election.leading("a")
    assert one.prior is None
    assert await first.unlock(one.token, WITHIN_S)
    await closed(election, first)
    second, two = await election.leading("b")
    assert two.prior is not None
    assert (two.prior.token, two.prior.holder, two.prior.terms) == (one.token, "a", 1)
    assert two.prior.released_at is not None
    await closed(election, second)
    _, three = await election.leading("c")
    assert three.prior is not None
    assert (three.prior.token, three.prior.released_at) == (two.token, None)


async def test_a_leader_that_is_asked_to_step_down_is_called_and_finds_the_request(election: Election) -> None:
    session, grant = await announced(election)
    watching = asyncio.create_task(session.watch(LONG_S))
    assert await election.request_step_down() == grant.token
    assert await watching is True
    assert await session.heed(grant.token, WITHIN_S)


async def test_a_request_that_came_while_the_leader_asked_for_a_proof_is_heard_by_the_next_watch(
    election: Election,
) -> None:
    session, grant = await announced(election)
    assert await election.request_step_down(grant.token) == grant.token
    assert (await session.prove(WITHIN_S)).held
    async with asyncio.timeout(WITHIN_S):
        assert await session.watch(LONG_S) is True


@pytest.mark.parametrize("other", [-1, 1])
async def test_a_request_for_another_token_asks_nobody(election: Election, other: int) -> None:
    session, grant = await announced(election)
    assert await election.request_step_down(grant.token + other) is None
    assert await session.watch(0.05) is False
    assert await session.heed(grant.token, WITHIN_S) is None


async def test_a_request_of_an_earlier_term_is_not_for_the_next(election: Election) -> None:
    first, one = await announced(election, "a")
    assert await election.request_step_down() == one.token
    await closed(election, first)
    second, two = await announced(election, "b")
    assert await second.heed(two.token, WITHIN_S) is None


async def test_who_gave_up_cannot_be_asked(election: Election) -> None:
    session, grant = await announced(election)
    assert await session.unlock(grant.token, WITHIN_S)
    assert await election.request_step_down() is None
    assert await election.request_step_down(grant.token) is None


async def test_a_call_without_a_request_says_nothing(election: Election) -> None:
    session, grant = await announced(election)
    await election.call()
    async with asyncio.timeout(WITHIN_S):
        assert await session.watch(LONG_S) is True
    assert await session.heed(grant.token, WITHIN_S) is None
    assert (await session.prove(WITHIN_S)).held


async def test_a_watch_of_no_time_hears_what_came_before(election: Election) -> None:
    """Members of a group look so, between other questions."""
    session, _ = await announced(election)
    assert await session.watch(0.0) is False
    await election.call()

    async def heard() -> bool:
        return await session.watch(0.0)

    await soon(heard, "the call is heard")


async def test_a_session_that_has_announced_nothing_hears_no_call(election: Election) -> None:
    session, _ = await election.leading()
    await election.call()
    assert await session.watch(0.05) is False


async def test_a_proof_counts_who_waits(election: Election) -> None:
    session, _ = await election.leading()
    assert (await session.prove(WITHIN_S)).followers == 0
    await election.queued("b")
    await election.queued("c")
    assert (await session.prove(WITHIN_S)).followers == 2


async def test_a_shorter_lease_is_in_force_from_the_next_proof_on(election: Election) -> None:
    session = await election.holding(lease_s=LONG_S)
    session.adjust(LEASE_S)
    assert (await session.prove(WITHIN_S)).held
    with pytest.raises(SessionLostError):
        async with asyncio.timeout(WITHIN_S):
            await session.watch(LONG_S)
    await election.is_free()


async def test_a_longer_lease_is_in_force_from_the_next_proof_on(election: Election) -> None:
    session = await election.holding(lease_s=LEASE_S)
    session.adjust(LONG_S)
    assert (await session.prove(WITHIN_S)).held
    await session.watch(2 * LEASE_S)
    assert (await session.prove(WITHIN_S)).held


async def test_a_lease_that_nobody_has_told_the_server_of_changes_nothing(election: Election) -> None:
    session = await election.holding(lease_s=LEASE_S)
    session.adjust(LONG_S)
    with pytest.raises(SessionLostError):
        async with asyncio.timeout(WITHIN_S):
            await session.watch(LONG_S)


async def test_a_lease_that_was_changed_while_waiting_holds_for_who_wins(election: Election) -> None:
    holder = await election.holding("a")
    waiter = await election.opened("b", lease_s=LONG_S)
    waiter.adjust(LEASE_S)
    wait = await election.queue(waiter)
    await holder.close(WITHIN_S)
    assert (await wait).granted
    with pytest.raises(SessionLostError):
        async with asyncio.timeout(WITHIN_S):
            await waiter.watch(LONG_S)


async def test_a_lease_that_is_changed_during_a_look_is_not_in_force_before_a_proof(election: Election) -> None:
    """What a leader trusts after a grant is the lease of when the call began."""
    session = await election.opened("a", lease_s=LEASE_S)
    look = asyncio.create_task(session.look(0.1, WITHIN_S))
    await asyncio.sleep(0)  # it has begun
    session.adjust(LONG_S)
    assert (await look).granted
    with pytest.raises(SessionLostError):
        async with asyncio.timeout(WITHIN_S):
            await session.watch(LONG_S)


async def test_what_is_told_of_a_lease_stands_in_the_row(election: Election) -> None:
    session, grant = await election.leading(lease_s=LONG_S)
    session.adjust(LONG_S / 2)
    await session.announce(grant, None, 0.0, WITHIN_S)

    async def is_there() -> bool:
        return (await election.last_row()).lease_s == LONG_S / 2

    await soon(is_there, "the row names the lease")
    assert grant.record is not None
    assert replace(grant.record, lease_s=LONG_S / 2).token == (await election.last_row()).token
