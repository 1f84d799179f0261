"""What the fake server can do beyond the contract: break on request, in ways that a real one is hard to bring to."""

import asyncio
from typing import TYPE_CHECKING

import pytest

from pgelect.errors import NotPrimaryError, PgElectError, SessionLostError
from pgelect.testing.clock import FakeClock
from pgelect.testing.fake import FakeServer
from tests.support.fake_sessions import KEY, SOON_S, WITHIN_S, leading, lost, opened
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pgelect._engine.session import Session


async def test_a_fake_session_is_a_session(server: FakeServer) -> None:
    session: Session = server.session(key=KEY)
    await session.open(WITHIN_S)
    assert server.sessions() == (1001,)


async def test_a_stopped_server_refuses_connections_until_it_starts(server: FakeServer) -> None:
    leader, grant = await leading(server)
    server.stop()
    await lost(leader, "closed")
    with pytest.raises(SessionLostError, match="connection refused") as caught:
        await opened(server)
    assert caught.value.reason == "connect"
    server.start()
    again = await opened(server)
    assert (await again.resume(grant, WITHIN_S)).resumed


async def test_a_restart_ends_sessions_waits_and_fenced_transactions_but_keeps_rows(server: FakeServer) -> None:
    _, grant = await leading(server)
    fenced = server.begin_fenced(KEY, grant.token)
    waiter = await opened(server, "b")
    wait = asyncio.create_task(waiter.wait_lock(WITHIN_S))
    while not server.waiters(KEY):
        await asyncio.sleep(0)
    server.restart()
    with pytest.raises(SessionLostError):
        await wait
    with pytest.raises(SessionLostError):
        fenced.commit()
    assert (server.sessions(), server.holders(KEY), server.waiters(KEY)) == ((), (), ())
    assert server.row(KEY) == grant.record


async def test_a_frozen_server_answers_nothing_and_calls_end_in_time(server: FakeServer) -> None:
    leader, _ = await leading(server)
    idle = server.session(key=KEY)
    server.freeze()
    await lost(leader, "timeout", SOON_S)
    with pytest.raises(SessionLostError) as caught:
        await idle.open(SOON_S)
    assert caught.value.reason == "connect"
    assert server.holders(KEY) == (leader.pid,)  # the server has not heard that its client left
    server.thaw()
    assert server.holders(KEY) == ()


async def test_a_call_in_flight_is_answered_after_a_short_freeze(server: FakeServer) -> None:
    leader, _ = await leading(server)
    server.freeze()
    proof = asyncio.create_task(leader.prove(WITHIN_S))
    await asyncio.sleep(0.01)
    assert not proof.done()
    server.thaw()
    assert (await proof).held


async def test_a_lease_that_ran_out_in_a_freeze_is_over_when_the_server_goes_on(server: FakeServer) -> None:
    leader, _ = await leading(server, lease_s=0.05)
    server.freeze()
    proof = asyncio.create_task(leader.prove(WITHIN_S))
    await asyncio.sleep(0.1)
    assert server.holders(KEY) == (leader.pid,)
    server.thaw()
    with pytest.raises(SessionLostError):
        await proof
    assert server.holders(KEY) == ()


async def test_closing_on_a_frozen_server_is_bounded(server: FakeServer) -> None:
    leader, _ = await leading(server)
    server.freeze()
    async with asyncio.timeout(WITHIN_S):
        await leader.close(SOON_S)
    server.thaw()
    assert server.sessions() == ()


async def test_a_crash_forgets_which_session_took_up_a_term(server: FakeServer) -> None:
    """As in PostgreSQL, where naming it does not wait for the disk: nothing may depend on it."""
    leader, grant = await leading(server)
    await leader.close(WITHIN_S)
    again = await opened(server)
    assert (await again.resume(grant, WITHIN_S)).resumed
    row = server.row(KEY)
    assert row is not None
    assert row.backend.pid == again.pid
    server.restart(immediate=True)
    assert server.row(KEY) == grant.record


async def test_a_demoted_server_takes_no_part(server: FakeServer) -> None:
    leader, _ = await leading(server)
    server.demote()
    await lost(leader, "disproved")
    with pytest.raises(NotPrimaryError):
        await opened(server)


async def test_a_demotion_ends_all_writers_and_what_is_under_way_and_lets_idle_sessions_find_out(
    server: FakeServer,
) -> None:
    """Else the fake would commit in recovery, as no real server can."""
    leader, grant = await leading(server)
    fenced = server.begin_fenced(KEY, grant.token)
    writer = server.client(KEY)
    await writer.open()
    await writer.begin()
    await writer.write(1, grant.token)
    follower = await opened(server, "b")
    wait = asyncio.create_task(follower.wait_lock(WITHIN_S))
    await eventually(lambda: server.waiters(KEY), message="the follower waits")
    server.demote()
    assert (server.sessions(), server.clients()) == ((leader.pid,), ())
    with pytest.raises(SessionLostError):
        await wait
    with pytest.raises(SessionLostError):
        await writer.commit()
    with pytest.raises(SessionLostError):
        fenced.commit()
    server.promote()
    assert server.ledger() == []


async def test_a_mint_is_not_committed_once_the_server_is_in_recovery() -> None:
    server = FakeServer(commit_s=lambda: 0.05)
    leader = await opened(server)
    assert (await leader.try_lock(None, WITHIN_S)).granted
    mint = asyncio.create_task(leader.mint(WITHIN_S))
    await eventually(lambda: server._tables.is_being_written(KEY), message="the mint has written its row")
    server.demote()
    with pytest.raises(SessionLostError):
        await mint
    assert server.row(KEY) is None
    assert not server._tables.is_being_written(KEY)
    server.stop()


async def test_after_a_promotion_tokens_leap_and_no_term_goes_on(server: FakeServer) -> None:
    leader, grant = await leading(server)
    await leader.close(WITHIN_S)
    server.demote()
    server.promote()
    assert server.timeline == 2
    again = await opened(server)
    answer = await again.resume(grant, WITHIN_S)
    assert (answer.resumed, answer.final) == (False, True)
    assert (await again.try_lock(None, WITHIN_S)).granted
    assert (await again.mint(WITHIN_S)).token == (1 << 40) + 2


async def test_no_session_goes_on_from_a_demotion_to_a_promotion(server: FakeServer) -> None:
    """Else a leader would go on under a token of the timeline before, as none does on a real server."""
    leader, _ = await leading(server)
    server.demote()
    server.promote()
    assert server.holders(KEY) == ()
    with pytest.raises(SessionLostError):
        await leader.prove(WITHIN_S)


async def test_a_primary_cannot_be_promoted(server: FakeServer) -> None:
    leader, grant = await leading(server)
    server.promote()
    assert server.timeline == grant.timeline
    assert (await leader.prove(WITHIN_S)).held is True


async def test_a_server_that_is_stopped_does_not_start_by_a_promotion(server: FakeServer) -> None:
    server.demote()
    server.stop()
    server.promote()
    with pytest.raises(SessionLostError):
        await opened(server)
    server.start()
    await opened(server)


async def test_with_a_fake_clock_leases_follow_that_clock() -> None:
    clock = FakeClock()
    server = FakeServer(clock=clock)
    leader, first = await leading(server, lease_s=10.0)
    clock.advance(9.9)
    assert (await leader.prove(WITHIN_S)).held
    clock.advance(9.9)
    assert server.holders(KEY) == (leader.pid,)
    clock.advance(0.1)
    assert server.holders(KEY) == ()
    await lost(leader, "closed")
    successor, second = await leading(server, "b")
    assert (second.acquired_at - first.acquired_at).total_seconds() == pytest.approx(19.9)
    await successor.close(WITHIN_S)


async def test_two_calls_at_once_are_a_mistake_of_the_caller(server: FakeServer) -> None:
    session = await opened(server)
    watch = asyncio.create_task(session.watch(3600.0))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="one at a time"):
        await session.prove(WITHIN_S)
    watch.cancel()
    await asyncio.wait({watch})
    assert not (await session.prove(WITHIN_S)).held


async def test_a_cancelled_call_drops_the_link_and_frees_the_lock(server: FakeServer) -> None:
    leader, _ = await leading(server)
    proof = asyncio.create_task(leader.prove(WITHIN_S))
    await asyncio.sleep(0)
    proof.cancel()
    await asyncio.wait({proof})
    assert proof.cancelled()
    assert server.holders(KEY) == ()
    await lost(leader, "closed")


async def test_a_session_is_opened_once_and_mints_only_with_the_lock(server: FakeServer) -> None:
    session = await opened(server)
    with pytest.raises(RuntimeError, match="opened once"):
        await session.open(WITHIN_S)
    with pytest.raises(SessionLostError, match="does not hold the lock"):
        await session.mint(WITHIN_S)


async def test_session_locks_stack(server: FakeServer) -> None:
    session, grant = await leading(server)
    assert (await session.try_lock(None, WITHIN_S)).granted
    assert await session.unlock(grant.token, WITHIN_S)
    assert server.holders(KEY) == (session.pid,)
    assert await session.unlock(grant.token, WITHIN_S)
    assert server.holders(KEY) == ()


async def test_statements_are_counted_and_an_idle_session_runs_none(server: FakeServer) -> None:
    session, _ = await leading(server)
    before = server.statements
    await session.watch(0.02)
    assert server.statements == before
    await session.prove(WITHIN_S)
    assert server.statements == before + 1


@pytest.mark.parametrize("hits_next", [True, False])
async def test_a_cancel_of_an_idle_session_hits_its_next_statement_or_none(server: FakeServer, hits_next: bool) -> None:
    leader, _ = await leading(server)
    assert server.cancel(leader.pid or 0, hits_next=hits_next)
    if hits_next:
        with pytest.raises(PgElectError, match="canceling statement"):
            await leader.prove(WITHIN_S)
    assert (await leader.prove(WITHIN_S)).held is True


async def test_a_fenced_transaction_ends_once(server: FakeServer) -> None:
    _, grant = await leading(server)
    fenced = server.begin_fenced(KEY, grant.token)
    seen = [fenced.is_open]
    fenced.commit()
    fenced.rollback()
    assert [*seen, fenced.is_open] == [True, False]
    with pytest.raises(RuntimeError, match="over"):
        fenced.commit()


async def test_a_fake_server_knows_no_session_of_that_pid(server: FakeServer) -> None:
    assert server.terminate(4) is False
    server.heal(4)
    for broken in (server.partition, server.cut, server.unlock_all):
        with pytest.raises(KeyError):
            broken(4)
