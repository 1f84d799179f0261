"""Callbacks when time is short: the last words of a term, the end of the program, and callbacks that end their lock."""

import asyncio

import pytest

from pgelect._engine import dispatch
from pgelect._engine.dispatch import Dispatcher
from pgelect._engine.hooks import Hook
from pgelect._engine.term import TermLife
from tests.support.dispatching import desk

# In a hurry: the link is dropped already, and only the end of the term is still to be told


async def test_in_a_hurry_the_end_of_the_term_is_told_and_nothing_else() -> None:
    async with desk() as one:
        began = asyncio.Event()

        async def hang() -> None:
            began.set()
            await asyncio.Event().wait()

        one.hear(Hook.ACQUIRED, Hook.LOST, Hook.ERROR)
        one.dispatcher.add(Hook.STATE_CHANGE, hang)
        life = one.begin_term()
        one.dispatcher.post(Hook.STATE_CHANGE, "follower", "leader")
        await began.wait()
        one.dispatcher.post(Hook.ERROR, 1)
        flush = asyncio.ensure_future(one.dispatcher.flush())
        await asyncio.sleep(0)
        one.end_term(life)
        one.dispatcher.hurry()
        await asyncio.wait_for(asyncio.gather(flush, one.dispatcher.close()), 2.0)
    assert one.heard == [("on_acquired", "term"), ("on_lost", "term")]


async def test_in_a_hurry_a_callback_that_hangs_on_is_not_waited_for_longer_than_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatch, "LAST_WORDS_S", 0.05)
    async with desk() as one:
        ended = asyncio.Event()

        async def hang() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        one.dispatcher.add(Hook.LOST, hang)
        life = one.begin_term()
        await one.dispatcher.flush()
        one.end_term(life)
        one.dispatcher.hurry()
        one.dispatcher.hurry()
        await asyncio.wait_for(one.dispatcher.close(), 2.0)
        await asyncio.wait_for(ended.wait(), 2.0)


async def test_a_hurry_before_and_after_it_ran_is_harmless() -> None:
    dispatcher = Dispatcher(lambda life, error: None)
    dispatcher.hurry()
    dispatcher.start()
    await dispatcher.close()
    dispatcher.hurry()
    await dispatcher.close()


# The end of the program: asyncio.run() cancels every task


async def test_the_end_of_the_program_leaves_a_moment_for_what_is_still_to_be_told() -> None:
    """asyncio.run() cancels every task at its end, this one too, when the end of a term may still be in the queue."""
    async with desk() as one:
        one.hear(Hook.ERROR)
        await asyncio.sleep(0)
        assert one.dispatcher._task is not None
        one.dispatcher._task.cancel()
        await asyncio.sleep(0)
        one.dispatcher.post(Hook.ERROR, 1)
        one.dispatcher.finish()
        await one.dispatcher._task
    assert one.heard == [("on_error", 1)]


async def test_a_cancel_of_the_dispatcher_ends_the_callback_that_runs_and_the_rest_is_still_told() -> None:
    async with desk() as one:
        began, ended = asyncio.Event(), asyncio.Event()

        async def work() -> None:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        one.dispatcher.add(Hook.ACQUIRED, work)
        one.hear(Hook.LOST)
        life = one.begin_term()
        await began.wait()
        one.end_term(life)
        task = one.dispatcher._task
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        one.dispatcher.finish()
        await asyncio.wait_for(asyncio.wait({task}), 2.0)
        assert ended.is_set()
    assert one.labels() == ["on_lost"]


async def test_after_a_cancel_of_the_dispatcher_a_callback_that_hangs_has_only_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatch, "LAST_WORDS_S", 0.05)
    async with desk() as one:

        async def hang() -> None:
            await asyncio.Event().wait()

        one.dispatcher.add(Hook.ERROR, hang)
        await asyncio.sleep(0)
        task = one.dispatcher._task
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
        one.dispatcher.post(Hook.ERROR, 1)
        one.dispatcher.finish()
        await asyncio.wait_for(asyncio.wait({task}), 2.0)
        assert task.cancelled()


@pytest.mark.parametrize("end", [SystemExit(3), KeyboardInterrupt()], ids=["exit", "interrupt"])
def test_an_on_acquired_that_ends_the_program_gives_the_term_up_first(end: BaseException) -> None:
    failed: list[BaseException] = []

    async def program() -> None:
        dispatcher = Dispatcher(lambda life, error: failed.append(error))
        dispatcher.start()

        def leave() -> None:
            raise end

        dispatcher.add(Hook.ACQUIRED, leave)
        dispatcher.post(Hook.ACQUIRED, "term", life=TermLife())
        await asyncio.sleep(10)

    with pytest.raises(type(end)):
        asyncio.run(program())
    assert failed == [end]


# Who is inside


async def test_a_callback_knows_that_it_runs_inside() -> None:
    async with desk() as one:
        inside: list[bool] = []

        async def look() -> None:
            inside.append(one.dispatcher.inside())

        one.dispatcher.add(Hook.ERROR, look)
        one.dispatcher.add(Hook.ERROR, lambda: inside.append(one.dispatcher.inside()))
        one.dispatcher.post(Hook.ERROR, 1)
        assert one.dispatcher.inside() is False
    assert inside == [True, True]


async def test_a_task_that_a_callback_made_is_inside_as_long_as_the_callback_runs() -> None:
    async with desk() as one:
        seen: list[bool] = []
        hold = asyncio.Event()
        made: list[asyncio.Task[None]] = []

        async def look() -> None:
            seen.append(one.dispatcher.inside())
            await hold.wait()
            seen.append(one.dispatcher.inside())

        async def callback() -> None:
            made.append(asyncio.ensure_future(look()))
            await asyncio.sleep(0.01)

        one.dispatcher.add(Hook.ERROR, callback)
        one.dispatcher.post(Hook.ERROR, 1)
        await one.dispatcher.flush()
        assert seen == [True]
        hold.set()
        await made[0]
        assert seen == [True, False]


async def test_a_task_of_the_program_is_not_inside_while_a_callback_runs() -> None:
    async with desk() as one:
        began, hold = asyncio.Event(), asyncio.Event()

        async def callback() -> None:
            began.set()
            await hold.wait()

        one.dispatcher.add(Hook.ERROR, callback)
        one.dispatcher.post(Hook.ERROR, 1)
        await began.wait()
        assert one.dispatcher.inside() is False
        hold.set()
