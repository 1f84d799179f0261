"""A server that restarts or stands still: nobody inherits a lock, what was committed is there, and leases run on."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace

import pytest

from pgelect._engine.session import Session
from pgelect.errors import SessionLostError, StaleTokenError
from tests.contract.election import WITHIN_S, Election, Restart, granted

MODES: tuple[Restart, ...] = ("fast", "immediate")
either_way = pytest.mark.parametrize("mode", MODES)


@either_way
async def test_nobody_inherits_the_lock_of_before(own_election: Election, mode: Restart) -> None:
    election = own_election
    holder = await election.holding("a")
    watch = asyncio.create_task(holder.watch(3600.0))
    waits = [(await election.queued(identity))[1] for identity in "bc"]
    await election.restart(mode)
    assert (await election.holders(), await election.waiters(), await election.pids()) == ([], [], [])
    for call in (watch, *waits):
        with pytest.raises(SessionLostError):
            async with asyncio.timeout(WITHIN_S):
                await call
    assert (await (await election.holding("d")).prove(WITHIN_S)).held


@either_way
async def test_what_was_committed_is_there_and_what_was_not_is_not(own_election: Election, mode: Restart) -> None:
    election = own_election
    _, grant = await election.leading("a")
    await election.write_fenced(grant.token, 1)
    open_one = await election.checked(grant.token)
    await open_one.write(2)
    before = await election.last_row()
    await election.restart(mode)
    with pytest.raises(SessionLostError):
        await open_one.commit()
    assert await election.ledger() == [(grant.token, 1)]
    assert await election.last_row() == before
    await election.write_fenced(grant.token, 3)  # its term is not over before the next one begins
    _, successor = await election.leading("b")
    assert successor.token > grant.token
    assert not successor.predecessor_clean
    with pytest.raises(StaleTokenError):
        await election.checked(grant.token)
    assert await election.ledger() == [(grant.token, 1), (grant.token, 3)]


@either_way
async def test_a_mint_that_was_not_committed_happens_wholly_or_not_at_all(
    own_election: Election, mode: Restart
) -> None:
    """A fast stop ends sessions one by one: what holds up the mint may go first, and then it is committed after all."""
    election = own_election
    old, successor = await election.deposed()
    before = await election.last_row()
    minted = old
    async with election.uncommitted_mint(successor) as mint:
        await election.restart(mode)
        with suppress(SessionLostError):
            minted = (await mint).token
    row = await election.last_row()
    assert row == before if row.token == old else mode == "fast"
    assert row.token >= minted  # what was answered is there
    _, grant = await election.leading("c")
    assert grant.token > row.token


@either_way
async def test_a_release_is_known_after_a_restart_unless_a_crash_came_soon(
    own_election: Election, mode: Restart
) -> None:
    """Its mark is not waited for; without it the term looks unclean, which is the safe side."""
    election = own_election
    session, grant = await election.leading("a")
    assert await session.unlock(grant.token, WITHIN_S)
    await election.restart(mode)
    row = await election.last_row()
    assert row.token == grant.token
    assert row.released or mode == "immediate"
    _, successor = await election.leading("b")
    assert successor.token > grant.token
    assert successor.predecessor_clean is row.released


@either_way
async def test_a_resumed_term_goes_on_after_a_restart_though_a_crash_may_forget_who_resumed_it(
    own_election: Election, mode: Restart
) -> None:
    """The name of the new session is for those who look on, and its commit is not waited for."""
    election = own_election
    session, grant = await election.leading("a")
    await session.close(WITHIN_S)
    await election.is_free()
    again = await election.opened("a")
    assert (await again.resume(grant, WITHIN_S)).resumed
    before = await election.last_row()
    assert before.pid == await election.holder()
    await election.restart(mode)
    row = await election.last_row()
    forgotten = replace(before, pid=grant.backend.pid)
    assert row == before if mode == "fast" else row in (before, forgotten)
    assert (await (await election.opened("a")).resume(grant, WITHIN_S)).resumed


# Standing still

LEASE_S = 0.4


async def test_a_server_that_stands_still_loses_nothing_if_it_goes_on_in_time(own_election: Election) -> None:
    election = own_election
    holder = await election.holding("a")
    async with election.standstill():
        proof = asyncio.create_task(holder.prove(WITHIN_S))
        await asyncio.wait({proof}, timeout=0.05)
        assert not proof.done()
    assert (await proof).held


async def test_who_gave_up_on_a_server_that_stood_still_leaves_no_lock_when_it_goes_on(own_election: Election) -> None:
    election = own_election
    holder = await election.holding("a")
    async with election.standstill():
        with pytest.raises(SessionLostError):
            await holder.prove(0.1)
    await election.is_free()


async def _terminate(election: Election, _: Session, pid: int) -> None:
    await election.terminate(pid)


async def _cut(election: Election, holder: Session, _: int) -> None:
    await election.cut(holder)


async def _cut_off(election: Election, holder: Session, _: int) -> None:
    await election.cut(holder, "server")


async def _unlock_all(election: Election, holder: Session, _: int) -> None:
    await election.unlock_all(holder)


@pytest.mark.parametrize("lose", [_terminate, _cut, _cut_off, _unlock_all])
async def test_a_lock_that_is_lost_on_a_server_that_stands_still_passes_on_when_it_goes_on(
    own_election: Election, lose: Callable[[Election, Session, int], Coroutine[None, None, None]]
) -> None:
    election = own_election
    holder = await election.linked("a")
    assert (await holder.try_lock(None, WITHIN_S)).granted
    pid = await election.holder()
    waiter, wait = await election.queued("b")
    async with election.standstill():
        losing = asyncio.create_task(lose(election, holder, pid))
        await asyncio.wait({wait}, timeout=0.1)
        assert not wait.done()
    await losing
    if not (await wait).granted:  # its slice had just ended
        await granted(waiter)
    assert (await waiter.prove(WITHIN_S)).held


async def test_a_wait_that_is_cancelled_on_a_server_that_stands_still_is_answered_when_it_goes_on(
    own_election: Election,
) -> None:
    election = own_election
    holder = await election.holding("a")
    _, wait = await election.queued("b")
    (pid,) = await election.waiters()
    async with election.standstill():
        await election.cancel(pid)
        await asyncio.wait({wait}, timeout=0.1)
        assert not wait.done()
    assert not (await wait).granted
    assert await election.waiters() == []
    assert (await holder.prove(WITHIN_S)).held


@pytest.mark.parametrize("asks", [False, True])
async def test_a_lease_that_ran_out_while_the_server_stood_still_is_over_when_it_goes_on(
    own_election: Election, asks: bool
) -> None:
    election = own_election
    holder = await election.holding("a", lease_s=LEASE_S)
    async with election.standstill():
        call = asyncio.create_task(holder.prove(WITHIN_S) if asks else holder.watch(3600.0))
        await asyncio.sleep(1.5 * LEASE_S)  # the fault itself goes on
    with pytest.raises(SessionLostError):
        async with asyncio.timeout(WITHIN_S):
            await call
    await election.is_free()
