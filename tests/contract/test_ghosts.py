"""A session's own ghost: the one that its client has lost, and that still holds the lock on the server."""

import asyncio
from dataclasses import replace

import pytest

from pgelect._engine.model import Backend
from pgelect.errors import SessionLostError
from tests.contract.election import WITHIN_S, Election


def _earlier(backend: Backend) -> Backend:
    """A session of long ago that had the same pid."""
    return Backend(backend.pid, backend.started_at.replace(year=2001))


@pytest.mark.parametrize("how", ["try", "wait"])
async def test_who_asks_for_the_lock_is_told_its_own_backend_before_it_has_a_term(election: Election, how: str) -> None:
    """By it a session that is lost during the mint can be ended as our own."""
    session, refused = await election.opened("a"), await election.opened("b")
    answer = await (session.try_lock(None, WITHIN_S) if how == "try" else session.wait_lock(WITHIN_S))
    assert answer.granted
    assert answer.backend is not None
    assert answer.backend.pid == await election.holder()
    assert answer.backend == (await session.mint(WITHIN_S)).backend
    no = await refused.try_lock(None, WITHIN_S)
    assert no.backend is not None
    assert no.backend.pid in set(await election.pids()) - {answer.backend.pid}


async def test_a_ghost_that_is_minting_is_ended_and_its_term_never_begins(election: Election) -> None:
    lost, before = await election.leading("a")
    await lost.unlock(before.token, WITHIN_S)
    answer = await lost.try_lock(None, WITHIN_S)
    row = await election.last_row()
    async with election.uncommitted_mint(lost) as mint:
        session = await election.opened("a")
        assert (await session.try_lock(answer.backend, WITHIN_S)).granted
        with pytest.raises(SessionLostError):
            await mint
    assert await election.last_row() == row
    assert (await session.mint(WITHIN_S)).token > before.token


async def test_resuming_ends_nobody_whose_pid_merely_looks_like_the_ghost(election: Election) -> None:
    other, grant = await election.leading("a")
    session = await election.opened("b")
    answer = await session.resume(replace(grant, backend=_earlier(grant.backend)), WITHIN_S)
    assert (answer.resumed, answer.final) == (False, True)
    assert (await other.prove(WITHIN_S)).held


async def test_a_ghost_that_is_not_the_holder_is_left_alone(election: Election) -> None:
    ghost, grant = await election.leading("a")
    assert await ghost.unlock(0, WITHIN_S)
    other = await election.holding("b")
    session = await election.opened("a")
    assert not (await session.try_lock(grant.backend, WITHIN_S)).granted
    assert not (await session.resume(grant, WITHIN_S)).resumed
    assert grant.backend.pid in await election.pids()
    assert (await other.prove(WITHIN_S)).held


async def test_a_ghost_gives_the_lock_to_who_waits_for_it_not_to_who_ended_it(election: Election) -> None:
    """So the answer to a session that comes back may be no: another leads by now."""
    _, grant = await election.leading("a")
    waiter, wait = await election.queued("b")
    session = await election.opened("a")
    answer = await session.try_lock(grant.backend, WITHIN_S)
    waited = (await wait).granted
    assert (answer.granted, waited) in ((False, True), (True, False))  # False: its slice had just ended
    await election.is_gone(grant.backend.pid)
    assert (await waiter.prove(WITHIN_S)).held is waited
    assert (await session.prove(WITHIN_S)).held is answer.granted


async def test_a_ghost_that_may_not_be_ended_leaves_the_term_in_doubt_until_it_is_gone(election: Election) -> None:
    ghost, grant = await election.leading("a")
    await election.weaken()
    session = await election.opened("a")
    assert not (await session.try_lock(grant.backend, WITHIN_S)).granted
    answer = await session.resume(grant, WITHIN_S)
    assert (answer.resumed, answer.final) == (False, False)
    assert (await ghost.prove(WITHIN_S)).held
    resume = asyncio.create_task(session.resume(grant, WITHIN_S))
    await ghost.close(WITHIN_S)
    assert (await resume).resumed
    assert (await election.last_row()).token == grant.token


async def test_a_term_that_goes_on_while_its_writer_is_at_work_does_not_wait_for_it(election: Election) -> None:
    """The row then goes on naming the lost session; the term and its token are the same."""
    lost, grant = await election.leading("a")
    writer = await election.checked(grant.token)
    await writer.write(1)
    await lost.close(WITHIN_S)
    session = await election.opened("a")
    assert (await session.resume(grant, WITHIN_S)).resumed
    row = await election.last_row()
    assert (row.token, row.pid) == (grant.token, grant.backend.pid)
    await writer.commit()
    await election.write_fenced(grant.token, 2)
    assert await election.ledger() == [(grant.token, 1), (grant.token, 2)]
