"""The parts of pgelect.sync that know nothing of locks: a loop in a thread, a thread for callbacks, turns of work."""

import asyncio
import contextvars
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from pgelect import LockKey
from pgelect._callback_thread import CallbackThread
from pgelect._engine import model
from pgelect._loop_thread import Job, LoopThread
from pgelect._sync_term import Turn, Turns
from tests.support.waiting import eventually_sync

here: contextvars.ContextVar[str] = contextvars.ContextVar("here", default="nowhere")


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    one = LoopThread("pgelect of a test")
    yield one
    one.stop()
    eventually_sync(lambda: "pgelect of a test" not in {each.name for each in threading.enumerate()})


def term() -> model.Term:
    async def ended() -> None: ...

    return model.Term(1, LockKey(1, 2), "me", datetime.now(UTC), {}, lambda: True, ended)


def test_what_a_coroutine_returns_or_raises_comes_back(thread: LoopThread) -> None:
    async def fail() -> None:
        raise LookupError("no")

    async def answer() -> str:
        return here.get()

    here.set("in the caller")
    assert thread.call(answer) == "in the caller"
    with pytest.raises(LookupError, match="no"):
        thread.call(fail)


def test_an_interrupt_of_the_wait_cancels_the_work_and_waits_for_its_end(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    begun = threading.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            told.append("cleaned up")

    job = thread.begin(work)
    assert begun.wait(10)

    def interrupted(_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(job._outcome), "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        job.result()
    assert told == ["cleaned up"]


def test_work_that_is_given_up_before_it_began_ends_too(thread: LoopThread) -> None:
    loop = thread._loop
    job: Job[None] = Job(lambda: asyncio.sleep(3600), loop)
    loop.call_soon_threadsafe(job._cancel)
    loop.call_soon_threadsafe(job.begin)
    with pytest.raises(asyncio.CancelledError):
        job.result()


def test_a_stop_waits_for_what_was_handed_over_and_refuses_more(thread: LoopThread) -> None:
    go_on, begun = threading.Event(), threading.Event()

    async def work() -> str:
        begun.set()
        while not go_on.is_set():
            await asyncio.sleep(0.001)
        return "done"

    job = thread.begin(work)
    assert begun.wait(10)
    stopping = threading.Thread(target=thread.stop)
    stopping.start()
    go_on.set()
    assert job.result() == "done"
    stopping.join(10)
    thread.stop()
    with pytest.raises(RuntimeError, match="stopped"):
        thread.begin(work)


def test_the_loop_hands_over_even_where_a_signal_handler_that_waits_for_it_has_interrupted_another(
    thread: LoopThread,
) -> None:
    async def nothing() -> None: ...

    async def hand_over() -> None:
        thread.begin(nothing)

    with thread._guard:  # as in begin(), and the rest is what the handler does
        assert thread.begin(hand_over).wait(5)


def test_a_turn_that_an_interrupt_has_lost_holds_nothing_up(thread: LoopThread) -> None:
    turns: Turns[None] = Turns()
    job = thread.begin(lambda: turns.hand_over(term()))
    next(iter(turns))  # and no more: as if the interrupt had struck here
    turns.close()
    assert job.result() is None
    assert thread.call(lambda: turns.hand_over(term())) is None, "nor does one that comes later"


def test_a_turn_that_is_cancelled_waits_for_its_thread(thread: LoopThread) -> None:
    turns: Turns[None] = Turns()
    job = thread.begin(lambda: turns.hand_over(term()))
    turn = next(iter(turns))
    thread._loop.call_soon_threadsafe(job._cancel)
    thread.call(lambda: asyncio.sleep(0))
    assert not job._outcome.done()
    turn.run(lambda: None)
    with pytest.raises(asyncio.CancelledError):
        job.result()


def test_giving_up_waits_no_longer_than_it_is_told_for_a_thread_that_goes_on(thread: LoopThread) -> None:
    turns: Turns[None] = Turns()
    asked = threading.Event()

    async def work() -> None:
        turn: Turn[None] = Turn(term())
        turns._queue.put(turn)
        await turn.over(asked.set)

    job = thread.begin(work)
    turn = next(iter(turns))
    job.give_up(0.01)
    assert asked.wait(10), "the thread is asked to end"
    assert not job._outcome.done()
    turn.finish()
    with pytest.raises(asyncio.CancelledError):
        job.result()


def test_work_that_raises_what_no_future_takes_ends_its_turn(thread: LoopThread) -> None:
    turns: Turns[None] = Turns()
    job = thread.begin(lambda: turns.hand_over(term()))
    next(iter(turns)).run(lambda: next(iter(())))
    with pytest.raises(RuntimeError, match="StopIteration"):
        job.result()


async def test_a_callback_that_raises_what_no_future_takes_is_heard() -> None:
    worker = CallbackThread("callbacks of a test")
    try:
        with pytest.raises(RuntimeError, match="StopIteration"):
            await worker.call(next, iter(()))
    finally:
        worker.stop()


async def test_callbacks_run_in_order_in_the_context_of_their_caller() -> None:
    worker = CallbackThread("callbacks of a test")
    heard: list[tuple[int, str, str]] = []
    try:
        for number in range(3):
            here.set(str(number))
            await worker.call(lambda n: heard.append((n, here.get(), threading.current_thread().name)), number)
        with pytest.raises(RuntimeError, match="main thread"):
            await worker.call(exit)
    finally:
        worker.stop()
    assert heard == [(n, str(n), "callbacks of a test") for n in range(3)]


async def test_a_callback_that_is_cancelled_is_waited_for() -> None:
    worker, go_on = CallbackThread("callbacks of a test"), threading.Event()
    try:
        task = asyncio.create_task(worker.call(go_on.wait))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0.01)
        assert not task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
    finally:
        worker.stop()
