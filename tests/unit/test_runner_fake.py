"""The runner on a fake server: start, lead, wait, hand over; each flow once, without PostgreSQL."""

import asyncio
import gc
from traceback import extract_tb

import pytest
from tenacity import stop_after_attempt, wait_fixed

from pgelect import ConnectionError as GaveUp
from pgelect import KeyCollisionError, LockKey, LockState, NotLeaderError, SessionLostError
from pgelect.testing import FakeClock, FakeServer
from tests.support.fake_locks import KEY, Elector
from tests.support.waiting import eventually

TWICE = (wait_fixed(0.01), stop_after_attempt(2))


async def test_alone_it_leads_at_once_and_the_server_holds_the_lock_for_it() -> None:
    server = FakeServer()
    a = Elector(server, "a", metadata={"zone": 1})
    async with a.lock:
        term = await a.leads()
        assert server.holders(KEY) == server.sessions()
        row = server.row(KEY)
        assert row is not None
        assert (row.token, row.holder, row.metadata, row.terms) == (1, "a", {"zone": 1}, 1)
        assert a.lock.record == row
        assert (term.token, term.key, term.identity, term.is_current) == (1, KEY, "a", True)
        assert a.lock.is_leader_confirmed_within(1.0)
        assert a.states == ["follower", "acquiring", "leader"]
    assert (a.lock.state, a.lock.is_leader, a.lock.token) == (LockState.STOPPED, False, None)
    assert a.terms == [("acquired", 1), ("released", 1)]
    assert server.sessions() == ()
    assert not term.is_current
    await asyncio.wait_for(term.ended(), 1.0)


async def test_a_follower_waits_in_the_queue_and_takes_over_when_the_leader_shuts_down() -> None:
    server = FakeServer()
    a, b = Elector(server, "a"), Elector(server, "b")
    async with a.lock:
        await a.leads()
        async with b.lock:
            await b.waits()
            assert (b.lock.state, b.lock.is_leader) == (LockState.FOLLOWER, False)
            assert b.lock.record == server.row(KEY)
            await a.lock.shutdown()
            assert (await b.leads()).token == 2
    assert a.terms == [("acquired", 1), ("released", 1)]
    assert b.terms == [("acquired", 2), ("released", 2)]


async def test_stepping_down_hands_over_every_time_and_returns() -> None:
    """It was won again at once by whoever had given it up."""
    server = FakeServer()
    a, b = Elector(server, "a"), Elector(server, "b")
    async with a.lock, b.lock:
        await eventually(lambda: a.lock.is_leader or b.lock.is_leader, message="one of them leads")
        leader, other = (a, b) if a.lock.is_leader else (b, a)
        token = (await leader.leads()).token
        for _ in range(10):
            await other.waits()
            assert await asyncio.wait_for(leader.lock.step_down(cooldown_s=0.2), 5.0) is True
            assert leader.lock.is_leader is False
            await leader.is_told("released", token)
            token = (await other.leads(above=token)).token
            leader, other = other, leader
    assert token == 11


async def test_when_nobody_else_waits_it_leads_again_after_the_cooldown_with_a_new_token() -> None:
    server = FakeServer()
    a = Elector(server)
    async with a.lock:
        await a.leads()
        assert await a.lock.step_down(cooldown_s=0.05) is True
        assert (await a.leads(above=1)).token == 2
    assert a.terms == [("acquired", 1), ("released", 1), ("acquired", 2), ("released", 2)]


async def test_stepping_down_twice_at_once_is_one_release_and_both_return_true() -> None:
    server = FakeServer()
    a = Elector(server)
    async with a.lock:
        await a.leads()
        both = await asyncio.gather(a.lock.step_down(cooldown_s=5.0), a.lock.step_down(cooldown_s=5.0))
        assert all(both)
        assert await a.lock.step_down() is False
        await a.is_told("released", 1)
    assert a.terms == [("acquired", 1), ("released", 1)]


async def test_stepping_down_and_shutting_down_at_once_end_in_a_clean_release() -> None:
    server = FakeServer()
    a = Elector(server)
    async with a.lock:
        await a.leads()
        await asyncio.gather(a.lock.step_down(), a.lock.shutdown())
    assert a.terms == [("acquired", 1), ("released", 1)]
    assert server.sessions() == ()


async def test_without_auto_reacquire_one_term_is_all_and_the_lock_stops() -> None:
    server = FakeServer()
    a = Elector(server, auto_reacquire=False)
    async with a.lock:
        await a.leads()
        assert await a.lock.step_down() is True
        await eventually(lambda: a.lock.state is LockState.STOPPED)
        with pytest.raises(NotLeaderError):
            await a.lock.wait_for_leadership(1.0)
    assert server.sessions() == ()


async def test_polling_leads_too_and_sleeps_by_the_retry_strategy() -> None:
    server = FakeServer()
    a, b = Elector(server, "a"), Elector(server, "b", acquire="poll")
    async with a.lock:
        await a.leads()
        async with b.lock:
            await eventually(lambda: b.states.count("acquiring") > 3, message="b has polled a few times")
            assert server.waiters(KEY) == ()
            await a.lock.step_down(cooldown_s=5.0)
            await b.leads(above=1)


# Starting


async def test_starting_twice_raises_and_changes_nothing() -> None:
    server = FakeServer()
    a = Elector(server)
    async with a.lock:
        term = await a.leads()
        with pytest.raises(RuntimeError, match="runs already"):
            await a.lock.start()
        assert a.lock.term is term
        assert len(server.sessions()) == 1


async def test_of_two_starts_at_once_one_raises() -> None:
    server = FakeServer()
    a = Elector(server)
    one, two = await asyncio.gather(a.lock.start(), a.lock.start(), return_exceptions=True)
    assert one is None
    assert isinstance(two, RuntimeError)
    await a.leads()
    await a.lock.shutdown()


async def test_it_can_be_started_again_after_it_stopped_and_tokens_go_on() -> None:
    server = FakeServer()
    a = Elector(server)
    for token in (1, 2, 3):
        async with a.lock:
            assert (await a.leads(above=token - 1)).token == token
    assert [what for what, _ in a.terms] == ["acquired", "released"] * 3


async def test_a_server_that_is_down_at_the_start_is_tried_again_and_reported() -> None:
    server = FakeServer()
    server.stop()
    a = Elector(server)
    async with a.lock:
        assert a.lock.state is LockState.FOLLOWER
        await eventually(lambda: len(a.heard(SessionLostError)) >= 2, message="on_error hears of it")
        assert not a.lock.is_leader
        server.start()
        await a.leads()


async def test_when_the_strategy_gives_up_the_start_raises_why() -> None:
    server = FakeServer()
    server.stop()
    a = Elector(server, retry_strategy=(wait_fixed(0.01), stop_after_attempt(1)))
    with pytest.raises(GaveUp, match="gave up after 1 attempt") as caught:
        await a.lock.start()
    assert isinstance(caught.value.last_error, SessionLostError)
    assert a.lock.state is LockState.STOPPED


async def test_when_the_strategy_gives_up_later_whoever_waits_and_the_block_hear_why() -> None:
    server = FakeServer()
    server.stop()
    a = Elector(server, retry_strategy=TWICE)

    async def use() -> None:
        async with a.lock:
            with pytest.raises(GaveUp) as waited:
                await a.lock.wait_for_leadership(5.0)
            reasons.append(waited.value)

    reasons: list[Exception] = []
    with pytest.raises(GaveUp) as left:
        await use()
    assert reasons == [left.value]


async def test_a_permanent_mistake_raises_from_start_and_leaves_nothing() -> None:
    server = FakeServer()
    first = LockKey.from_name("billing")
    async with Elector(server, "a", key=first).lock as lock:
        await lock.wait_for_leadership(5.0)
    b = Elector(server, "b", key=LockKey(first.key1, first.key2, "mail"))
    with pytest.raises(KeyCollisionError, match="'billing' already uses"):
        await b.lock.start()
    assert (b.lock.state, server.sessions(), server.holders(first)) == (LockState.STOPPED, (), ())


async def test_waiting_for_leadership_ends_at_its_timeout() -> None:
    server = FakeServer()
    a, b = Elector(server, "a"), Elector(server, "b")
    async with a.lock:
        await a.leads()
        async with b.lock:
            with pytest.raises(TimeoutError):
                await b.lock.wait_for_leadership(0.05)
            await a.lock.shutdown()
            assert (await b.lock.wait_for_leadership(5.0)).token == 2


# Trust


async def test_is_leader_ages_by_the_clock_alone_before_anything_has_run() -> None:
    """A blocked event loop, a stopped process: nothing has to run for is_leader to turn False."""
    clock = FakeClock(1000.0)
    server = FakeServer()
    a = Elector(server, clock=clock, lease_s=20.0, health_interval_s=5.0)
    async with a.lock:
        term = await a.leads()
        assert a.lock.is_leader_confirmed_within(0.0)
        clock.advance(18.9)
        assert (a.lock.is_leader, term.is_current, a.lock.token) == (True, True, 1)
        assert not a.lock.is_leader_confirmed_within(18.8)
        clock.advance(0.2)
        assert a.lock.state is LockState.LEADER  # nothing has run
        assert (a.lock.is_leader, term.is_current, a.lock.token, a.lock.term) == (False, False, None, None)
        assert not a.lock.is_leader_confirmed_within(3600.0)
        server.terminate(server.holders(KEY)[0])
        await a.is_told("lost", 1)


async def test_a_stopped_lock_keeps_nothing_of_the_query_that_its_stop_cut_short() -> None:
    """The cancelled query's task kept its error, and with that the frames of the query and the connection in them."""
    server = FakeServer()
    a = Elector(server, "a")
    server.freeze()
    before = cancelled_errors()
    starting = asyncio.create_task(a.lock.start())
    await eventually(lambda: "Performer" in repr(asyncio.all_tasks()), message="it opens a session")
    await asyncio.gather(a.lock.shutdown(), starting)
    del starting
    gc.collect()
    kept = [each for each in cancelled_errors() if not any(each is other for other in before)]
    assert [extract_tb(each.__traceback__) for each in kept] == []
    assert a.lock.state is LockState.STOPPED


def cancelled_errors() -> list[asyncio.CancelledError]:
    """All that are alive in this process."""
    return [each for each in gc.get_objects() if isinstance(each, asyncio.CancelledError)]
