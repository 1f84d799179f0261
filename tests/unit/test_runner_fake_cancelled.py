"""The tasks of a lock are cancelled at bad moments: it stops, frees the lock, and everybody who waits is told why.

Holds off an elector that died unobserved: run() and lead() returned as after a shutdown, and the program ended well.
"""

import asyncio
from typing import Any

import pytest

from pgelect import LockState, NotLeaderError, PgElectError, Term
from pgelect._engine import dispatch
from pgelect._engine.events import Close, Effect
from pgelect._engine.machine import step
from pgelect.testing import FakeServer
from tests.support.fake_locks import KEY, Elector
from tests.support.waiting import eventually


def runner_task(one: Elector) -> asyncio.Task[None]:
    task = one.lock._runner._task
    assert task is not None
    return task


async def _idle(_: Term) -> None:
    await asyncio.Event().wait()


async def _outcome(task: asyncio.Task[Any]) -> BaseException | None:
    await asyncio.wait({task}, timeout=5.0)
    return task.exception()


@pytest.mark.parametrize("leads", [True, False])
async def test_who_waits_for_a_lock_whose_task_was_cancelled_is_told_so(leads: bool) -> None:
    server = FakeServer()
    other, one = Elector(server, "other"), Elector(server, "one")
    if not leads:
        await other.lock.start()
        await other.leads()
    running = asyncio.create_task(one.lock.run())
    await (one.leads() if leads else one.waits())
    leading = asyncio.create_task(one.lock.lead(_idle, repeat=True))
    waiting = asyncio.create_task(one.lock.wait_for_leadership())
    await asyncio.sleep(0.02)
    runner_task(one).cancel()
    told = [await _outcome(running), await _outcome(leading)]
    if not leads:
        told.append(await _outcome(waiting))
    assert all(isinstance(error, PgElectError) and "ended from outside" in str(error) for error in told)
    assert one.lock.state is LockState.STOPPED
    assert not one.lock.is_leader
    assert one.terms == ([("acquired", 1), ("lost", 1)] if leads else [])
    with pytest.raises(PgElectError, match="ended from outside"):
        await one.lock.wait_for_leadership()
    await other.lock.shutdown()
    assert (server.holders(KEY), server.sessions()) == ((), ())


async def test_the_block_of_a_lock_whose_task_was_cancelled_does_not_end_well() -> None:
    one = Elector(FakeServer())

    async def program() -> None:
        async with one.lock:
            await one.leads()
            runner_task(one).cancel()
            await eventually(lambda: one.lock.state is LockState.STOPPED)

    with pytest.raises(PgElectError, match="ended from outside"):
        await program()


async def test_a_lock_whose_task_was_cancelled_can_be_started_again() -> None:
    one = Elector(FakeServer())
    await one.lock.start()
    await one.leads()
    runner_task(one).cancel()
    await eventually(lambda: one.lock.state is LockState.STOPPED)
    async with one.lock:
        await one.leads(above=1)
    with pytest.raises(NotLeaderError):
        await one.lock.wait_for_leadership()
    assert one.terms == [("acquired", 1), ("lost", 1), ("acquired", 2), ("released", 2)]


async def test_a_shutdown_that_is_cancelled_twice_is_no_strangers_cancel() -> None:
    """It cancels the task, too, but on the user's word."""
    one = Elector(FakeServer())
    await one.lock.start()
    await one.leads()
    guest = asyncio.create_task(one.lock.lead(_stubborn))
    await asyncio.sleep(0.02)
    ending = asyncio.create_task(one.lock.shutdown())
    await asyncio.sleep(0.02)
    for _ in range(2):
        ending.cancel()
        await asyncio.sleep(0.02)
    await asyncio.wait({ending}, timeout=5.0)
    assert ending.cancelled()
    with pytest.raises(NotLeaderError):
        await one.lock.wait_for_leadership()
    guest.cancel()
    await asyncio.wait({guest}, timeout=5.0)


async def _stubborn(_: Term) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0.3)


class Strange(BaseException):
    """What a signal handler may raise in the middle of anything, as pytest-timeout does."""


@pytest.mark.parametrize("error", [Strange("from a signal handler"), ValueError("a bug")])
async def test_whatever_else_ends_the_task_the_link_is_dropped_and_the_state_is_stopped(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = FakeServer()
    one = Elector(server)
    await one.lock.start()
    await one.leads()
    struck: list[BaseException] = []

    def strike(*arguments: Any) -> Any:
        if not struck:
            struck.append(error)
            raise error
        return step(*arguments)

    monkeypatch.setattr("pgelect._engine.runner.step", strike)
    await eventually(lambda: one.lock.state is LockState.STOPPED, message="it has stopped")
    expected = "ended from outside" if isinstance(error, Strange) else "a bug"
    with pytest.raises((PgElectError, ValueError), match=expected):
        await one.lock.wait_for_leadership()
    await eventually(lambda: one.terms == [("acquired", 1), ("lost", 1)], message="the end of the term is told")
    assert (server.holders(KEY), server.sessions()) == ((), ())
    task = one.lock._runner._task
    assert task is not None
    await asyncio.wait({task})
    assert task.exception() is (error if isinstance(error, Strange) else None)


# A second cancel


async def test_a_second_cancel_counts_from_the_one_that_left_the_block() -> None:
    """Regression: the block's own shutdown began its count anew, and a second SIGTERM waited out the drain."""
    server = FakeServer()
    one = Elector(server, drain_timeout_s=30.0)
    guest: list[asyncio.Task[Any]] = []

    async def program() -> None:
        async with one.lock:
            guest.append(asyncio.create_task(one.lock.lead(_very_stubborn)))
            await asyncio.Event().wait()

    main = asyncio.create_task(program())
    await one.leads()
    await asyncio.sleep(0.02)
    main.cancel()
    await eventually(lambda: one.lock.state is LockState.RELEASING, message="the drain has begun")
    assert not main.done()
    main.cancel()
    await asyncio.wait({main}, timeout=2.0)
    assert main.cancelled()
    assert (server.holders(KEY), server.sessions()) == ((), ())
    for _ in range(2):
        guest[0].cancel()
        await asyncio.sleep(0.02)
    await asyncio.wait(guest, timeout=2.0)


async def _very_stubborn(_: Term) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(30.0)


async def test_a_session_whose_orderly_close_is_cancelled_before_it_began_is_dropped() -> None:
    """Regression: nobody had it any more, and the server kept an idle session until the garbage collector came."""
    server = FakeServer()
    one = Elector(server)
    await one.lock.start()
    await one.leads()
    one.lock._runner.post_shutdown(0.0)
    real = one.lock._runner._carry_out
    closed: list[object] = []

    def carry_out_and_kill(effect: Effect) -> None:
        real(effect)
        if isinstance(effect, Close) and effect.orderly:
            closed.append(effect)
            one.lock._runner.kill()

    one.lock._runner._carry_out = carry_out_and_kill  # type: ignore[method-assign]  # a kill at the worst moment
    await eventually(lambda: closed, message="the close begins")
    await eventually(lambda: server.sessions() == (), message="no session is left")


# The task of the callbacks


async def test_callbacks_go_on_after_a_stranger_cancelled_their_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: a second later they fell silent for good, while the lock led on: no term was told of any more."""
    monkeypatch.setattr(dispatch, "LAST_WORDS_S", 0.05)
    one = Elector(FakeServer())
    async with one.lock:
        await one.leads()
        task = one.lock._runner.dispatcher._task
        assert task is not None
        task.cancel()
        await asyncio.sleep(0.15)
        assert not task.done()
        one.server.terminate(one.server.holders(KEY)[0])
        await one.is_told("lost", 1)
        await one.leads(above=1)
    assert one.terms == [("acquired", 1), ("lost", 1), ("acquired", 2), ("released", 2)]


async def test_a_term_whose_on_acquired_a_stranger_cancelled_is_given_up() -> None:
    """Nobody does the work then: somebody else should lead."""
    one = Elector(FakeServer())
    begun = asyncio.Event()

    @one.lock.on_acquired
    async def work(term: Term) -> None:
        if term.token == 1:
            begun.set()
            await asyncio.Event().wait()

    async with one.lock:
        await begun.wait()
        task = one.lock._runner.dispatcher._task
        assert task is not None
        task.cancel()
        await one.is_told("released", 1)
        await one.leads(above=1)
