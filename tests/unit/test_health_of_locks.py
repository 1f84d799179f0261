"""What a lock says of its health in each phase of its life, on a fake server; whatever dies in it must be seen."""

import asyncio
import os

import pytest
from tenacity import stop_after_attempt, wait_fixed

from pgelect import KeyCollisionError, LeaderLock, LockKey, LockState, Term
from pgelect._engine.clock import SystemClock
from pgelect._engine.events import Start
from pgelect.testing import FakeClock, FakeServer
from tests.support.fake_locks import KEY, SHORT_LEASE_S, Elector
from tests.support.waiting import eventually

WELL, WAITING, ILL = (True, True), (True, False), (False, False)


def seen(lock: LeaderLock) -> tuple[bool, bool]:
    health = lock.health()
    return health.healthy, health.ready


def reason(lock: LeaderLock) -> str:
    return lock.health().reason


@pytest.fixture
def stopped_clock() -> FakeClock:
    """A clock that a test moves, while the event loop goes by the real one: nothing runs because of it."""
    return FakeClock(1000.0)


# Its life


async def test_from_before_its_start_to_after_its_end(server: FakeServer) -> None:
    a = Elector(server)
    assert (seen(a.lock), reason(a.lock)) == (WAITING, "not started")
    async with a.lock:
        await a.leads()
        assert seen(a.lock) == WELL
        assert reason(a.lock).startswith("leading, proved 0.")
    assert (seen(a.lock), reason(a.lock)) == (WAITING, "stopped")
    async with a.lock:
        await a.leads(above=1)
        assert seen(a.lock) == WELL


async def test_a_follower_in_the_queue_is_ready_and_one_that_polls_is_too(server: FakeServer) -> None:
    a, b, c = Elector(server, "a"), Elector(server, "b"), Elector(server, "c", acquire="poll")
    async with a.lock:
        await a.leads()
        async with b.lock, c.lock:
            await b.waits()
            assert (seen(b.lock), reason(b.lock)) == (WELL, "following")
            assert seen(c.lock) == WELL
            await asyncio.sleep(0.1)
            assert seen(c.lock) == WELL


async def test_while_it_gives_leadership_up_and_stays_out_it_is_not_ready(server: FakeServer) -> None:
    a = Elector(server)
    go_on = asyncio.Event()

    async def duty(_: Term) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await go_on.wait()

    async with a.lock:
        working = asyncio.create_task(a.lock.lead(duty))
        await a.leads()
        stepping_down = asyncio.create_task(a.lock.step_down(cooldown_s=0.5))
        await eventually(lambda: a.lock.state is LockState.RELEASING)
        assert (seen(a.lock), reason(a.lock)) == (WAITING, "giving up leadership")
        go_on.set()
        await stepping_down
        assert seen(a.lock) == WAITING
        assert reason(a.lock).startswith("stays out for 0.")
        await a.leads(above=1)
        assert seen(a.lock) == WELL
        working.cancel()


async def test_while_it_reconnects_it_is_not_ready_and_then_well_again(server: FakeServer) -> None:
    a = Elector(server, reconnect_grace_s=60.0)
    async with a.lock:
        await a.leads()
        server.stop()
        await eventually(lambda: a.lock.state is LockState.RECONNECTING)
        assert seen(a.lock) == WAITING
        assert reason(a.lock).startswith("the session was lost; trying to go on with the term for 0.")
        server.start()
        await eventually(lambda: a.lock.is_leader)
        assert seen(a.lock) == WELL


async def test_a_server_that_is_away_makes_no_follower_ill_and_the_reason_goes_when_it_is_back(
    server: FakeServer,
) -> None:
    """Restarts of every replica, all at once and again and again, while the database restarts."""
    server.stop()
    a = Elector(server)
    async with a.lock:
        await eventually(lambda: len(a.errors) >= 3)
        assert seen(a.lock) == WAITING
        assert reason(a.lock).startswith("no connection to the server for 0.")
        server.start()
        await a.leads()
        assert seen(a.lock) == WELL
        await a.lock.step_down(cooldown_s=0.5)
        assert reason(a.lock).startswith("stays out"), "the old trouble is forgotten"


async def test_a_lock_for_one_term_has_stopped_on_purpose(server: FakeServer) -> None:
    a = Elector(server, auto_reacquire=False)
    async with a.lock:
        await a.leads()
        server.terminate(server.holders(KEY)[0])
        await eventually(lambda: a.lock.state is LockState.STOPPED)
        assert seen(a.lock) == WAITING
        assert reason(a.lock).startswith("stopped after its term: ")


# What is wrong with it


async def test_a_leader_whose_clock_runs_and_whose_loop_does_not_is_ill_before_anything_has_run(
    server: FakeServer, stopped_clock: FakeClock
) -> None:
    a = Elector(server, clock=stopped_clock, lease_s=20.0, health_interval_s=5.0)
    async with a.lock:
        await a.leads()
        stopped_clock.advance(18.9)
        assert seen(a.lock) == WELL
        stopped_clock.advance(0.2)
        assert seen(a.lock) == ILL
        assert reason(a.lock).startswith("leadership ran out 0.1 s ago and the lock has not noticed")
        server.terminate(server.holders(KEY)[0])
        await a.is_told("lost", 1)
        await a.leads(above=1)
        assert seen(a.lock) == WELL


async def test_a_leader_whose_proofs_are_overdue_is_ill_while_it_is_still_trusted(
    server: FakeServer, stopped_clock: FakeClock
) -> None:
    a = Elector(server, clock=stopped_clock, lease_s=100.0, health_interval_s=5.0, health_timeout_s=5.0)
    async with a.lock:
        await a.leads()
        stopped_clock.advance(14.9)
        assert seen(a.lock) == WELL
        stopped_clock.advance(0.2)
        assert a.lock.is_leader
        assert seen(a.lock) == ILL
        assert reason(a.lock).startswith("the last proof of leadership is 15.1 s old")


@pytest.mark.parametrize("leads", [True, False], ids=["leader", "follower"])
async def test_a_lock_whose_task_was_cancelled_by_a_stranger_is_ill(server: FakeServer, leads: bool) -> None:
    other, a = Elector(server, "b"), Elector(server)
    await (a if leads else other).lock.start()
    await (a if leads else other).leads()
    await (other if leads else a).lock.start()
    assert seen(a.lock)[0]
    task = a.lock._runner._task  # no public name leads to it
    assert task is not None
    task.cancel()
    await eventually(lambda: a.lock.state is LockState.STOPPED)
    assert seen(a.lock) == ILL
    assert reason(a.lock).startswith("stopped by itself: the task of the lock was ended from outside (CancelledError)")
    await a.lock.shutdown()
    assert seen(a.lock) == ILL, "nobody has mended it"
    await a.lock.start()
    assert seen(a.lock)[0]
    await a.lock.shutdown()
    await other.lock.shutdown()


async def test_a_lock_that_stopped_by_a_bug_is_ill(server: FakeServer) -> None:
    a = Elector(server)
    await a.lock.start()
    await a.leads()
    a.lock._runner.post(Start())  # which nothing sends to a leader
    await eventually(lambda: a.lock.state is LockState.STOPPED)
    assert (seen(a.lock), reason(a.lock)) == (ILL, "stopped by itself: no rule for Start in state leader")


async def test_a_lock_whose_strategy_gave_up_is_ill(server: FakeServer) -> None:
    server.stop()
    a = Elector(server, retry_strategy=(wait_fixed(0.01), stop_after_attempt(2)))
    await a.lock.start()
    await eventually(lambda: a.lock.state is LockState.STOPPED)
    assert seen(a.lock) == ILL
    assert reason(a.lock).startswith("stopped by itself: gave up after 2 attempt(s)")


async def test_a_lock_with_a_mistake_that_time_does_not_mend_is_ill(server: FakeServer) -> None:
    key = LockKey.from_name("billing")
    async with Elector(server, "a", key=key).lock as lock:
        await lock.wait_for_leadership(5.0)
    b = Elector(server, "b", key=LockKey(key.key1, key.key2, "mail"))
    with pytest.raises(KeyCollisionError):
        await b.lock.start()
    assert seen(b.lock) == ILL
    assert "'billing' already uses" in reason(b.lock)


def test_a_lock_whose_event_loop_ended_without_a_shutdown_is_ill() -> None:
    """Nothing runs any more, and nothing could have told."""
    made: list[Elector] = []

    async def begin() -> None:
        server = FakeServer()
        made.append(Elector(server, lease_s=3600.0, health_interval_s=600.0))
        await made[0].lock.start()
        await made[0].leads()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    loop.close()
    lock = made[0].lock
    assert seen(lock) == ILL
    assert "nothing runs any more" in reason(lock)


async def test_in_a_forked_child_it_is_not_ready_and_says_why(server: FakeServer) -> None:
    a = Elector(server)
    async with a.lock:
        await a.leads()
        lock = a.lock
        lock._owner_pid, owner = os.getppid(), lock._owner_pid  # as a child would see it
        try:
            assert seen(lock) == WAITING
            assert "forked from" in reason(lock)
        finally:
            lock._owner_pid = owner


# Who may ask


async def test_it_can_be_asked_from_any_thread(server: FakeServer) -> None:
    a = Elector(server)
    async with a.lock:
        await a.leads()
        assert await asyncio.to_thread(seen, a.lock) == WELL
    assert await asyncio.to_thread(reason, a.lock) == "stopped"


async def test_a_blocked_loop_is_seen_from_another_thread(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an endpoint in a thread would see it: a follower that backs off, and whose time has long come."""
    server.stop()
    a = Elector(server, retry_strategy=wait_fixed(30.0))
    async with a.lock:
        assert seen(a.lock) == WAITING
        real = SystemClock.now
        monkeypatch.setattr(SystemClock, "now", lambda clock: real(clock) + 32.0)
        assert seen(a.lock) == ILL
        assert reason(a.lock).startswith("follower: nothing has run for ")


async def test_a_lease_that_ran_out_makes_a_follower_that_is_well(server: FakeServer) -> None:
    """Frozen, the server answers no proof: the leader stops leading by itself, and no restart would help it."""
    a = Elector(server, lease_s=SHORT_LEASE_S)
    async with a.lock:
        await a.leads()
        server.freeze()
        await a.is_told("lost", 1)
        assert seen(a.lock) == WAITING
        server.thaw()
        await a.leads(above=1)
        assert seen(a.lock) == WELL
