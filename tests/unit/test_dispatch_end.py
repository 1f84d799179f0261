"""Waiting for callbacks and ending them: flush, close and kill."""

import asyncio

import pytest

from pgelect._engine.dispatch import Dispatcher
from pgelect._engine.hooks import Hook
from tests.support.dispatching import desk


async def test_a_flush_waits_for_all_that_was_posted_before_it() -> None:
    async with desk() as one:
        hold = asyncio.Event()

        async def wait(number: object) -> None:
            await hold.wait()
            one.heard.append(("waited", number))

        one.dispatcher.add(Hook.ERROR, wait)
        one.dispatcher.post(Hook.ERROR, 1)
        one.dispatcher.post(Hook.ERROR, 2)
        flush = asyncio.ensure_future(one.dispatcher.flush())
        await asyncio.sleep(0.01)
        assert not flush.done()
        hold.set()
        await flush
        assert one.heard == [("waited", 1), ("waited", 2)]


async def test_a_flush_of_an_empty_queue_returns_at_once() -> None:
    async with desk() as one:
        await asyncio.wait_for(one.dispatcher.flush(), 1.0)


async def test_a_flush_that_is_cancelled_leaves_the_queue_in_order() -> None:
    async with desk() as one:
        hold = asyncio.Event()

        async def wait() -> None:
            await hold.wait()

        one.dispatcher.add(Hook.ERROR, wait)
        one.hear(Hook.ERROR)
        one.dispatcher.post(Hook.ERROR, 1)
        flush = asyncio.ensure_future(one.dispatcher.flush())
        await asyncio.sleep(0)
        flush.cancel()
        one.dispatcher.post(Hook.ERROR, 2)
        hold.set()
    assert one.heard == [("on_error", 1), ("on_error", 2)]


async def test_a_close_runs_what_is_left_and_then_ends() -> None:
    async with desk() as one:
        one.hear(Hook.ERROR)
        for number in range(3):
            one.dispatcher.post(Hook.ERROR, number)
        await one.dispatcher.close()
        assert [number for _, number in one.heard] == [0, 1, 2]
        task = one.dispatcher._task
        assert task is not None
        assert task.done()


async def test_closing_twice_and_closing_what_never_started_is_harmless() -> None:
    dispatcher = Dispatcher(lambda life, error: None)
    dispatcher.add(Hook.ERROR, lambda: None)
    dispatcher.post(Hook.ERROR, 1)
    await asyncio.wait_for(dispatcher.flush(), 1.0)  # nothing would ever run
    await dispatcher.close()
    dispatcher.start()
    await dispatcher.close()
    await dispatcher.close()


async def test_a_close_that_is_cancelled_ends_the_callback_that_hangs() -> None:
    async with desk() as one:
        ended = asyncio.Event()

        async def hang() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        one.dispatcher.add(Hook.ERROR, hang)
        one.dispatcher.post(Hook.ERROR, 1)
        close = asyncio.ensure_future(one.dispatcher.close())
        await asyncio.sleep(0.01)
        close.cancel()
        with pytest.raises(asyncio.CancelledError):
            await close
        await asyncio.wait_for(ended.wait(), 1.0)


async def test_a_kill_ends_the_callback_that_runs_and_forgets_the_rest() -> None:
    async with desk() as one:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def hang() -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        one.dispatcher.add(Hook.ERROR, hang)
        one.hear(Hook.STATE_CHANGE)
        one.dispatcher.post(Hook.ERROR, 1)
        one.dispatcher.post(Hook.STATE_CHANGE, 1, 2)
        await begun.wait()
        one.dispatcher.kill()
        await asyncio.wait_for(ended.wait(), 1.0)
        await one.dispatcher.close()
    assert one.heard == []


async def test_a_kill_lets_go_of_whoever_waits_for_a_flush() -> None:
    async with desk() as one:
        begun = asyncio.Event()

        async def hang() -> None:
            begun.set()
            await asyncio.Event().wait()

        one.dispatcher.add(Hook.ERROR, hang)
        one.dispatcher.post(Hook.ERROR, 1)
        flush = asyncio.ensure_future(one.dispatcher.flush())
        await begun.wait()
        one.dispatcher.kill()
        await asyncio.wait_for(flush, 1.0)


async def test_a_kill_before_it_ever_ran_is_harmless() -> None:
    dispatcher = Dispatcher(lambda life, error: None)
    dispatcher.kill()
    dispatcher.start()
    dispatcher.kill()
    await dispatcher.close()


async def test_it_can_be_started_again() -> None:
    async with desk() as one:
        one.hear(Hook.ERROR)
        one.dispatcher.post(Hook.ERROR, 1)
        await one.dispatcher.close()
        one.dispatcher.start()
        one.dispatcher.post(Hook.ERROR, 2)
    assert one.heard == [("on_error", 1), ("on_error", 2)]


async def test_a_flush_waits_for_the_callback_that_runs_though_the_queue_is_empty() -> None:
    async with desk() as one:
        began, hold = asyncio.Event(), asyncio.Event()

        async def wait() -> None:
            began.set()
            await hold.wait()

        one.dispatcher.add(Hook.ERROR, wait)
        one.dispatcher.post(Hook.ERROR, 1)
        await began.wait()
        flush = asyncio.ensure_future(one.dispatcher.flush())
        await asyncio.sleep(0.01)
        assert not flush.done()
        hold.set()
        await flush


async def test_what_a_kill_has_forgotten_does_not_come_back_with_the_next_start() -> None:
    async with desk() as one:
        one.hear(Hook.ERROR)
        one.dispatcher.post(Hook.ERROR, 1)
        one.dispatcher.kill()
        await one.dispatcher.close()
        one.dispatcher.start()
        one.dispatcher.post(Hook.ERROR, 2)
    assert one.heard == [("on_error", 2)]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_one_that_exits_the_program_is_the_last(is_async: bool) -> None:
    # another that exits would end the winding up of the loop half-way: "Task was destroyed but it is pending"
    heard: list[object] = []

    def leave(number: object) -> None:
        heard.append(number)
        raise SystemExit(7)

    async def leave_later(number: object) -> None:
        leave(number)

    async def program() -> None:
        dispatcher = Dispatcher(lambda life, error: None)
        dispatcher.add(Hook.ERROR, leave_later if is_async else leave)
        dispatcher.start()
        dispatcher.post(Hook.ERROR, 1)
        dispatcher.post(Hook.ERROR, 2)
        try:
            await asyncio.Event().wait()
        finally:
            dispatcher.post(Hook.ERROR, 3)
            heard.append("wound up")
            dispatcher.finish()

    with pytest.raises(SystemExit) as exited:
        asyncio.run(program())
    assert exited.value.code == 7
    assert heard == [1, "wound up"]
