"""The runner on a fake server: every way to stop it, from every place it can be in."""

import asyncio

import pytest

from pgelect import FixedInterval, LockState, ShutdownError, Term
from pgelect.testing import FakeServer
from tests.support.fake_locks import KEY, Elector
from tests.support.waiting import eventually


async def test_a_shutdown_event_that_is_already_set_stops_the_lock() -> None:
    """It was posted before the runner's task had its first turn, and thrown away there."""
    server = FakeServer()
    event = asyncio.Event()
    event.set()
    a = Elector(server, shutdown_event=event)
    await a.lock.start()
    await eventually(lambda: a.lock.state is LockState.STOPPED, 3.0, "the lock stops by itself")
    await a.lock.shutdown()
    assert server.sessions() == ()


async def test_a_shutdown_event_stops_a_leader_cleanly_and_a_second_run_too() -> None:
    server = FakeServer()
    event = asyncio.Event()
    a = Elector(server, shutdown_event=event)
    for token in (1, 2):
        event.clear()
        async with a.lock:
            await a.leads(above=token - 1)
            event.set()
            await a.is_told("released", token)
            await eventually(lambda: a.lock.state is LockState.STOPPED)


async def test_a_shutdown_at_the_very_moment_of_the_start_is_not_lost() -> None:
    server = FakeServer()
    a = Elector(server)
    await asyncio.wait_for(asyncio.gather(a.lock.start(), a.lock.shutdown(2.0)), 5.0)
    assert (a.lock.state, server.sessions()) == (LockState.STOPPED, ())


async def test_a_shutdown_ends_a_long_back_off_at_once() -> None:
    server = FakeServer()
    server.stop()
    a = Elector(server, retry_strategy=FixedInterval(3600.0))
    await a.lock.start()
    await asyncio.wait_for(a.lock.shutdown(), 5.0)
    assert a.lock.state is LockState.STOPPED


async def test_a_shutdown_in_the_queue_leaves_no_waiter_behind() -> None:
    server = FakeServer(wait_slice_s=30.0)
    a, b = Elector(server, "a"), Elector(server, "b")
    async with a.lock:
        await a.leads()
        await b.lock.start()
        await b.waits()
        await asyncio.wait_for(b.lock.shutdown(), 5.0)
        assert server.waiters(KEY) == ()
        assert len(server.sessions()) == 1


async def test_run_campaigns_until_it_is_cancelled_and_then_leaves_as_cleanly_as_a_shutdown() -> None:
    server = FakeServer()
    a = Elector(server)
    running = asyncio.ensure_future(a.lock.run())
    await a.leads()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert a.terms == [("acquired", 1), ("released", 1)]
    assert (a.lock.state, server.sessions()) == (LockState.STOPPED, ())


async def test_a_start_after_a_stop_of_its_own_is_claimed_at_once_though_an_old_callback_hangs() -> None:
    """While the old callback was being ended, a second start got through, and a shutdown was thrown away."""
    server = FakeServer()
    a = Elector(server, auto_reacquire=False)

    @a.lock.on_released
    async def hang() -> None:
        await asyncio.Event().wait()

    await a.lock.start()
    await a.leads()
    await a.lock.step_down()
    await eventually(lambda: a.lock.state is LockState.STOPPED)
    one, two = await asyncio.gather(a.lock.start(), a.lock.start(), return_exceptions=True)
    assert one is None
    assert isinstance(two, RuntimeError)
    await a.leads(above=1)
    assert len(server.sessions()) == 1
    server.terminate(server.sessions()[0])
    await a.is_told("lost", 2)
    await a.lock.shutdown()


async def _lead_and_lose(a: Elector, clean_up_s: float) -> tuple[asyncio.Task[None], list[str]]:
    """A duty that takes a moment to clean up runs, and the session is lost for good within the grace."""
    story: list[str] = []

    async def duty(_: Term) -> None:
        story.append("begins")
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(clean_up_s)
            story.append("has cleaned up")

    serving = asyncio.create_task(a.lock.lead(duty, repeat=True))
    await eventually(lambda: story, message="the duty runs")
    a.server.stop()
    await eventually(lambda: a.lock.state is LockState.RECONNECTING, message="the loss is noticed")
    return serving, story


async def test_a_shutdown_within_the_grace_waits_for_the_duty_to_clean_up() -> None:
    """Regression: "did not finish within 3 s" at once, as the lock itself had nothing to wait for."""
    a = Elector(FakeServer(), reconnect_grace_s=60.0)
    await a.lock.start()
    await a.leads()
    serving, story = await _lead_and_lose(a, 0.2)
    await a.lock.shutdown(3.0)
    assert story == ["begins", "has cleaned up"]
    assert a.terms == [("acquired", 1), ("lost", 1)]
    await asyncio.wait({serving})


async def test_a_shutdown_within_the_grace_says_so_when_the_duty_takes_too_long() -> None:
    a = Elector(FakeServer(), reconnect_grace_s=60.0)
    await a.lock.start()
    await a.leads()
    serving, story = await _lead_and_lose(a, 1.0)
    began_at = asyncio.get_running_loop().time()
    with pytest.raises(ShutdownError, match="a duty"):
        await a.lock.shutdown(0.2)
    assert asyncio.get_running_loop().time() - began_at >= 0.1
    assert story == ["begins"]
    assert a.lock.state is LockState.STOPPED
    await asyncio.wait({serving})


async def test_a_shutdown_whose_session_is_lost_while_the_duty_drains_waits_for_the_duty() -> None:
    a = Elector(FakeServer())
    await a.lock.start()
    await a.leads()
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def duty(_: Term) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await may_end.wait()

    serving = asyncio.create_task(a.lock.lead(duty))
    await begun.wait()
    stopping = asyncio.create_task(a.lock.shutdown(5.0))
    await eventually(lambda: a.lock.state is LockState.RELEASING, message="the drain has begun")
    a.server.terminate(a.server.holders(KEY)[0])
    await a.is_told("lost", 1)
    assert a.lock.state is LockState.STOPPED
    for _ in range(5):
        await asyncio.sleep(0.01)
        assert not stopping.done()
    may_end.set()
    await stopping
    await asyncio.wait({serving})
