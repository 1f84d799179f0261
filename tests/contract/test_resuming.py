"""A term goes on over a new session only if nobody led in between."""

from dataclasses import replace

import pytest

from pgelect._engine.model import Grant
from pgelect._engine.session import ResumeAnswer, Session
from pgelect.errors import FenceBusyError, SessionLostError
from tests.contract.election import WITHIN_S, Election


async def _led(election: Election) -> tuple[Session, Grant]:
    session = await election.holding("a")
    return session, await session.mint(WITHIN_S)


async def _lost(election: Election) -> Grant:
    """The grant of a term whose session was terminated."""
    _, grant = await _led(election)
    await election.terminate(grant.backend.pid)
    await election.is_free()
    return grant


def _is_final(answer: ResumeAnswer) -> None:
    assert (answer.resumed, answer.final) == (False, True)
    assert answer.why


async def test_a_term_goes_on_with_its_token_when_nobody_led_in_between(election: Election) -> None:
    grant = await _lost(election)
    session = await election.opened("a")
    answer = await session.resume(grant, WITHIN_S)
    assert answer.resumed
    assert answer.backend is not None
    assert answer.backend.pid == await election.holder()
    assert (await session.prove(WITHIN_S)).held
    row = await election.row()
    assert row is not None
    assert (row.token, row.terms, row.released) == (grant.token, 1, False)
    assert row.pid == await election.holder() != grant.backend.pid
    fenced = await election.checked(grant.token)
    await fenced.commit()


async def test_a_resumed_term_is_released_as_any_other(election: Election) -> None:
    grant = await _lost(election)
    session = await election.opened("a")
    assert (await session.resume(grant, WITHIN_S)).resumed
    assert await session.unlock(grant.token, WITHIN_S) is True
    await election.is_free()
    row = await election.row()
    assert row is not None
    assert row.released


async def test_resuming_ends_our_ghost(election: Election) -> None:
    ghost, grant = await _led(election)
    session = await election.opened("a")
    assert (await session.resume(grant, WITHIN_S)).resumed
    await election.is_gone(grant.backend.pid)
    with pytest.raises(SessionLostError):
        await ghost.prove(WITHIN_S)


async def test_a_term_goes_on_again_and_again_each_time_from_the_backend_last_named(election: Election) -> None:
    _, grant = await _led(election)
    for _ in range(3):
        session = await election.opened("a")
        answer = await session.resume(grant, WITHIN_S)
        assert answer.resumed
        assert answer.backend is not None
        grant = replace(grant, backend=answer.backend)
    assert await election.pids() == [grant.backend.pid]
    row = await election.row()
    assert row is not None
    assert (row.token, row.terms, row.pid) == (grant.token, 1, grant.backend.pid)


@pytest.mark.parametrize("released", [True, False])
async def test_a_term_is_over_when_another_led_in_between(election: Election, released: bool) -> None:
    grant = await _lost(election)
    other = await election.holding("b")
    token = (await other.mint(WITHIN_S)).token
    if released:
        await other.unlock(token, WITHIN_S)
    await other.close(WITHIN_S)
    await election.is_free()
    session = await election.opened("a")
    _is_final(await session.resume(grant, WITHIN_S))
    await election.is_free()
    row = await election.row()
    assert row is not None
    assert (row.token, row.holder) == (token, "b")


async def test_a_term_is_over_when_another_holds_the_lock_even_before_it_minted(election: Election) -> None:
    grant = await _lost(election)
    other = await election.holding("b")
    session = await election.opened("a")
    _is_final(await session.resume(grant, WITHIN_S))
    assert (await other.prove(WITHIN_S)).held
    assert (await session.prove(WITHIN_S)).held is False


async def test_a_term_that_another_session_has_begun_to_end_is_over(election: Election) -> None:
    """The other one gave up, but no more writers are let in under this term: nothing could be done in it."""
    await election.weaken()
    grant = await _lost(election)
    writer = await election.checked(grant.token)
    other = await election.holding("b")
    with pytest.raises(FenceBusyError):
        await other.mint(WITHIN_S)
    await other.close(WITHIN_S)
    await election.is_free()
    assert (await election.last_row()).token == grant.token
    session = await election.opened("a")
    _is_final(await session.resume(grant, WITHIN_S))
    await election.is_free()
    await writer.write(1)
    await writer.commit()
    assert await election.ledger() == [(grant.token, 1)]


async def test_a_term_that_was_released_is_over(election: Election) -> None:
    first, grant = await _led(election)
    await first.unlock(grant.token, WITHIN_S)
    session = await election.opened("a")
    _is_final(await session.resume(grant, WITHIN_S))
    await election.is_free()


async def test_a_resumed_term_can_be_lost_and_its_successor_gets_a_greater_token(election: Election) -> None:
    grant = await _lost(election)
    session = await election.opened("a")
    assert (await session.resume(grant, WITHIN_S)).resumed
    await session.close(WITHIN_S)
    await election.is_free()
    other = await election.holding("b")
    successor = await other.mint(WITHIN_S)
    assert successor.token > grant.token
    assert not successor.predecessor_clean
