"""A lock that is used from several event loops, one after another or at once: what is refused, and what is answered.

A loop that is closed with the lock running is in tests/integration/test_closed_loops.py.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator

import pytest

from pgelect import LockState, NotLeaderError, Term
from pgelect._engine.term import TermLife
from pgelect.testing import FakeServer
from tests.support.fake_locks import Elector
from tests.support.waiting import eventually


@pytest.fixture
def left() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that a test leaves, and closes, with the lock running in it."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def in_a_thread(call: Callable[[], Awaitable[object]]) -> threading.Thread:
    async def run() -> None:
        await call()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    return thread


async def elsewhere(call: Callable[[], Awaitable[object]]) -> BaseException | None:
    """What it raises in the event loop of another thread."""
    raised: list[BaseException] = []

    async def heard() -> None:
        try:
            await asyncio.wait_for(call(), 5.0)
        except Exception as error:  # noqa: BLE001 -- whatever it is, it is the answer
            raised.append(error)

    thread = in_a_thread(heard)
    await eventually(lambda: not thread.is_alive(), message="the other loop has ended")
    return raised[0] if raised else None


# -- the end of a term -------------------------------------------------------------------------------------------------


async def test_waiting_for_a_terms_end_elsewhere_is_refused_and_changes_nothing() -> None:
    """Regression: the first to wait, of whatever loop, took the event for its own, and nobody else could wait."""
    life = TermLife()
    error = await elsewhere(life.ended)
    assert isinstance(error, RuntimeError)
    assert "another event loop" in str(error)
    waiting = asyncio.create_task(life.ended())
    await asyncio.sleep(0)
    assert not waiting.done()
    life.end()
    await asyncio.wait_for(waiting, 1.0)


async def test_that_a_term_is_over_can_be_heard_in_any_loop() -> None:
    life = TermLife()
    life.end()
    await life.ended()
    assert await elsewhere(life.ended) is None


def test_a_term_whose_loop_is_closed_counts_as_over(left: asyncio.AbstractEventLoop) -> None:
    async def make() -> TermLife:
        return TermLife()

    life = left.run_until_complete(make())
    left.close()
    asyncio.run(life.ended())


# -- a lock that is stopped --------------------------------------------------------------------------------------------


async def _shut_down(one: Elector) -> None:
    await one.lock.shutdown()


async def _step_down(one: Elector) -> None:
    assert await one.lock.step_down() is False


async def _wait(one: Elector) -> None:
    with pytest.raises(NotLeaderError):
        await one.lock.wait_for_leadership()


async def _lead(one: Elector) -> None:
    async def duty(_: Term) -> str:
        pytest.fail("a duty ran without leadership")

    assert await one.lock.lead(duty) is None


async def _terms(one: Elector) -> None:
    assert [term async for term in one.lock.terms()] == []


@pytest.mark.parametrize("use", [_shut_down, _step_down, _wait, _lead, _terms])
def test_a_stopped_lock_answers_in_any_loop(use: Callable[[Elector], Awaitable[None]]) -> None:
    """Regression: "this lock runs in another event loop", of a lock that did not run, and a loop that was closed."""

    async def once() -> Elector:
        one = Elector(FakeServer())
        async with one.lock:
            await one.leads()
        return one

    one = asyncio.run(once())

    async def again() -> None:
        await use(one)

    asyncio.run(again())
    assert one.lock.state is LockState.STOPPED


def test_terms_of_a_running_lock_are_refused_where_there_is_no_loop() -> None:
    async def main() -> None:
        one = Elector(FakeServer())
        async with one.lock:
            await one.leads()
            with pytest.raises(RuntimeError, match="another event loop"):
                await asyncio.to_thread(one.lock.terms)

    asyncio.run(main())


async def test_a_shutdown_elsewhere_does_not_wait_for_what_a_stopped_lock_left_in_its_own_loop() -> None:
    one = Elector(FakeServer(), auto_reacquire=False)
    hanging = asyncio.Event()

    @one.lock.on_released
    async def hang() -> None:
        await hanging.wait()

    await one.lock.start()
    await one.leads()
    await one.lock.step_down()
    await eventually(lambda: one.lock.state is LockState.STOPPED)
    assert await elsewhere(one.lock.shutdown) is None
    hanging.set()
    await one.lock.shutdown()
