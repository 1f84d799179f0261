"""What the fake server does to links beyond the contract: silence, breaks, and how long messages take."""

import asyncio

import pytest

from pgelect.errors import SessionLostError
from pgelect.testing.fake import FakeServer
from tests.support.fake_sessions import KEY, SOON_S, WITHIN_S, leading, lost, opened
from tests.support.waiting import eventually


async def test_a_partitioned_holder_times_out_and_the_server_frees_its_lock_by_the_lease(server: FakeServer) -> None:
    leader, _ = await leading(server, lease_s=0.2)
    follower = await opened(server, "b")
    server.partition(leader.pid or 0)
    await lost(leader, "timeout", SOON_S)
    assert not (await follower.try_lock(None, WITHIN_S)).granted
    while not (await follower.wait_lock(WITHIN_S)).granted:
        pass
    assert server.holders(KEY) == (follower.pid,)


async def test_a_partitioned_watcher_hears_of_the_end_when_the_link_heals(server: FakeServer) -> None:
    leader, _ = await leading(server)
    pid = leader.pid or 0
    server.partition(pid)
    watch = asyncio.create_task(leader.watch(3600.0))
    server.terminate(pid)
    await asyncio.sleep(0.01)
    assert not watch.done()
    server.heal(pid)
    with pytest.raises(SessionLostError):
        await watch


async def test_a_cut_link_leaves_a_ghost_that_a_new_session_ends(server: FakeServer) -> None:
    leader, grant = await leading(server)
    server.cut(grant.backend.pid)
    await lost(leader, "closed")
    assert server.holders(KEY) == (grant.backend.pid,)
    again = await opened(server)
    assert (await again.resume(grant, WITHIN_S)).resumed
    assert server.sessions() == (again.pid,)


async def test_a_session_that_was_cut_off_is_told_when_it_asks_but_not_through_a_silent_link(
    server: FakeServer,
) -> None:
    leader, _ = await leading(server)
    wire = server._cluster.backends[leader.pid or 0].wire
    server.cut_off(leader.pid or 0)
    assert server.holders(KEY) == ()
    wire.down.block()
    proof = asyncio.create_task(leader.prove(WITHIN_S))
    await asyncio.sleep(0.01)
    assert not proof.done()
    wire.unblock()
    with pytest.raises(SessionLostError) as caught:
        await proof
    assert caught.value.reason == "closed"


async def test_a_ghost_that_may_not_be_ended_is_asked_for_again_until_its_lease_is_over() -> None:
    server = FakeServer(may_terminate=False)
    _, grant = await leading(server, lease_s=0.2)
    server.cut(grant.backend.pid)
    again = await opened(server)
    answer = await again.resume(grant, WITHIN_S)
    assert (answer.resumed, answer.final) == (False, False)
    async with asyncio.timeout(WITHIN_S):
        while not (answer := await again.resume(grant, WITHIN_S)).resumed:
            assert not answer.final
            await asyncio.sleep(0.01)
    assert server.holders(KEY) == (again.pid,)
    await again.close(WITHIN_S)


async def test_latency_delays_calls_and_counts_against_their_deadline() -> None:
    server = FakeServer(latency_s=0.02)
    session = await opened(server)
    loop = asyncio.get_running_loop()
    before = loop.time()
    assert not (await session.prove(WITHIN_S)).held
    assert loop.time() - before >= 0.04
    await lost(session, "timeout", 0.03)
    await eventually(lambda: not server.sessions(), message="the server hears that its client has left")


async def test_who_was_cut_off_is_told_when_it_says_goodbye(server: FakeServer) -> None:
    leader, _ = await leading(server)
    server.cut_off(leader.pid or 0)
    closing = asyncio.create_task(leader.close(3600.0))
    await asyncio.wait({closing}, timeout=WITHIN_S)
    assert closing.done()


async def test_a_reset_takes_as_long_as_any_message_though_one_was_dropped_on_its_way() -> None:
    """The time at which the dropped one would have arrived is none for the reset."""
    slow = FakeServer(latency_s=0.05)
    wire, heard = slow.new_wire(), list[str]()
    wire.tell(lambda: heard.append("answer"))
    await asyncio.sleep(0.03)  # on its way
    wire.down.lose()
    loop = asyncio.get_running_loop()
    sent = loop.time()
    wire.reset_client(lambda: heard.append("reset"))
    await eventually(lambda: heard, message="the reset has arrived")
    assert heard == ["reset"]
    assert loop.time() - sent >= 0.05
