"""Callbacks of a term: every begin that is told has exactly one end, and what runs for a term ends with it."""

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any

import pytest

from pgelect._engine.hooks import Hook
from pgelect._engine.term import TermLife
from tests.support.dispatching import Desk, desk
from tests.support.waiting import eventually

ERROR = ValueError("a mistake of the user's")


@pytest.mark.parametrize("end", [Hook.LOST, Hook.RELEASED])
async def test_a_term_that_was_told_to_begin_is_told_to_end_once(end: Hook) -> None:
    async with desk() as one:
        one.hear(Hook.ACQUIRED, Hook.LOST, Hook.RELEASED)
        life = one.begin_term("first")
        await one.dispatcher.flush()
        one.end_term(life, "first", hook=end)
    assert one.heard == [("on_acquired", "first"), (end.label, "first")]


async def test_a_term_that_is_over_before_it_could_be_told_is_passed_over_as_a_whole() -> None:
    async with desk() as one:
        one.hear(Hook.ACQUIRED, Hook.LOST, Hook.STATE_CHANGE)
        life = one.begin_term("short")
        one.dispatcher.post(Hook.STATE_CHANGE, "leader", "follower")
        one.end_term(life, "short")
        later = one.begin_term("long")
        await one.dispatcher.flush()
        one.end_term(later, "long")
    assert one.heard == [
        ("on_state_change", "leader", "follower"),
        ("on_acquired", "long"),
        ("on_lost", "long"),
    ]


async def test_terms_behind_a_slow_callback_are_still_told_in_pairs() -> None:
    async with desk() as one:
        hold = asyncio.Event()

        async def slow() -> None:
            await hold.wait()

        one.dispatcher.add(Hook.ERROR, slow)
        one.hear(Hook.ACQUIRED, Hook.LOST)
        one.dispatcher.post(Hook.ERROR, 1)
        for number in range(3):
            one.end_term(one.begin_term(number), number)
        last = one.begin_term("last")
        hold.set()
        await one.dispatcher.flush()
        one.end_term(last, "last")
    assert one.heard == [("on_acquired", "last"), ("on_lost", "last")]


async def test_without_an_on_acquired_the_end_is_told_all_the_same() -> None:
    async with desk() as one:
        one.hear(Hook.LOST)
        life = one.begin_term()
        await one.dispatcher.flush()
        one.end_term(life)
    assert one.labels() == ["on_lost"]


async def test_an_async_on_acquired_is_cancelled_and_awaited_when_its_term_ends() -> None:
    async with desk() as one:
        began = asyncio.Event()

        async def work(term: object) -> None:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.01)
                one.heard.append(("cleaned up", term))

        one.dispatcher.add(Hook.ACQUIRED, work)
        one.hear(Hook.LOST)
        life = one.begin_term()
        await began.wait()
        one.end_term(life)
    assert one.heard == [("cleaned up", "term"), ("on_lost", "term")]
    assert one.failed == []


async def test_a_drain_waits_for_the_on_acquired_to_have_cleaned_up() -> None:
    async with desk() as one:
        began, hold = asyncio.Event(), asyncio.Event()

        async def work() -> None:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                await hold.wait()

        one.dispatcher.add(Hook.ACQUIRED, work)
        life = one.begin_term()
        await began.wait()
        life.end()
        draining = asyncio.ensure_future(life.drained())
        await asyncio.sleep(0.01)
        assert not draining.done()
        assert life.busy
        hold.set()
        await draining
        assert not life.busy


async def test_further_on_acquired_callbacks_do_not_begin_when_the_term_ends_in_the_first() -> None:
    async with desk() as one:
        began = asyncio.Event()

        async def first() -> None:
            began.set()
            await asyncio.Event().wait()

        one.dispatcher.add(Hook.ACQUIRED, first)
        one.hear(Hook.ACQUIRED, Hook.LOST)
        life = one.begin_term()
        await began.wait()
        one.end_term(life)
    assert one.labels() == ["on_lost"]


async def test_an_on_acquired_that_takes_the_cancel_and_returns_is_no_error() -> None:
    async with desk() as one:
        began = asyncio.Event()

        async def work() -> None:
            began.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return

        one.dispatcher.add(Hook.ACQUIRED, work)
        one.hear(Hook.LOST, Hook.ERROR)
        life = one.begin_term()
        await began.wait()
        one.end_term(life)
    assert one.labels() == ["on_lost"]


async def _failing_term(one: Desk, error: BaseException, *, asynchronous: bool) -> None:
    def fail() -> None:
        raise error

    async def fail_later() -> None:
        await asyncio.sleep(0)
        raise error

    one.dispatcher.add(Hook.ACQUIRED, fail_later if asynchronous else fail)
    one.hear(Hook.ACQUIRED, Hook.LOST, Hook.ERROR)
    life = one.begin_term()
    await eventually(lambda: one.failed, 2.0, "the failure is told to the owner")
    assert one.failed == [(life, error)]
    one.end_term(life)
    await one.dispatcher.flush()


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("error", [ERROR, BaseExceptionGroup("two", [ERROR])], ids=["error", "group"])
async def test_an_on_acquired_that_raises_ends_the_term_and_no_other_on_acquired_begins(
    error: BaseException, *, asynchronous: bool
) -> None:
    async with desk() as one:
        await _failing_term(one, error, asynchronous=asynchronous)
    assert sorted(map(str, one.labels())) == ["on_error", "on_lost"]
    assert ("on_error", error) in one.heard


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
async def test_an_on_acquired_that_is_cancelled_from_within_ends_the_term_too(*, asynchronous: bool) -> None:
    """A cancel that nobody asked for, of a library inside: the work has stopped, so somebody else should lead."""
    async with desk() as one:
        error = asyncio.CancelledError()

        def fail() -> None:
            raise error

        async def fail_later() -> None:
            raise error

        one.dispatcher.add(Hook.ACQUIRED, fail_later if asynchronous else fail)
        one.hear(Hook.LOST)
        life = one.begin_term()
        await eventually(lambda: one.failed, 2.0, "the failure is told to the owner")
        one.end_term(life)
    assert one.labels() == ["on_lost"]


async def test_an_on_lost_that_hangs_does_not_keep_a_later_term_from_beginning_in_its_turn() -> None:
    async with desk() as one:
        hold = asyncio.Event()

        async def slow() -> None:
            await hold.wait()

        one.dispatcher.add(Hook.LOST, slow)
        one.hear(Hook.ACQUIRED)
        life = one.begin_term("first")
        await one.dispatcher.flush()
        one.end_term(life, "first")
        second = one.begin_term("second")
        await asyncio.sleep(0.01)
        assert one.heard == [("on_acquired", "first")]
        hold.set()
        await one.dispatcher.flush()
        one.end_term(second, "second")
    assert one.heard == [("on_acquired", "first"), ("on_acquired", "second")]


async def test_a_kill_during_on_acquired_cancels_it() -> None:
    async with desk() as one:
        began, ended = asyncio.Event(), asyncio.Event()

        async def work() -> None:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        one.dispatcher.add(Hook.ACQUIRED, work)
        one.begin_term()
        await began.wait()
        one.dispatcher.kill()
        await asyncio.wait_for(ended.wait(), 1.0)


def begin_and_end_at_once(one: Desk, begun: list[str]) -> TermLife:
    """Begin a term; it is over when the task of its async on_acquired is made, and has not taken its first step."""

    async def acquired() -> None:
        begun.append("acquired")

    def end_now() -> Coroutine[Any, Any, None]:
        asyncio.get_running_loop().call_soon(life.end)
        return acquired()

    one.dispatcher.add(Hook.ACQUIRED, end_now)
    life = one.begin_term()
    return life


async def test_a_term_whose_async_on_acquired_never_took_its_first_step_has_no_end_to_tell() -> None:
    """What the simulation found once in some 30,000 schedules: on_lost for a term that on_acquired had not told of."""
    async with desk() as one:
        begun: list[str] = []
        one.hear(Hook.LOST)
        life = begin_and_end_at_once(one, begun)
        await eventually(life.over.is_set)
        one.end_term(life)
        await one.dispatcher.flush()
    assert (begun, one.labels(), one.failed) == ([], [], [])


@pytest.mark.parametrize("first", ["plain", "async"])
async def test_it_has_one_when_another_on_acquired_had_begun_before(first: str) -> None:
    async with desk() as one:
        begun: list[str] = []

        def plain() -> None:
            begun.append("first")

        async def asynchronous() -> None:
            begun.append("first")

        one.dispatcher.add(Hook.ACQUIRED, plain if first == "plain" else asynchronous)
        one.hear(Hook.LOST)
        life = begin_and_end_at_once(one, begun)
        await eventually(life.over.is_set)
        one.end_term(life)
        await one.dispatcher.flush()
    assert (begun, one.labels()) == (["first"], ["on_lost"])


async def test_an_async_callback_that_is_cancelled_before_its_first_step_is_no_warning() -> None:
    """Regression: "coroutine was never awaited", which fails the test suite of whoever has warnings as errors."""
    async with desk() as one:
        begun: list[str] = []
        one.hear(Hook.LOST)
        life = begin_and_end_at_once(one, begun)
        await eventually(life.over.is_set)
        await one.dispatcher.flush()
        gc.collect()
        one.end_term(life)
    assert (begun, one.failed) == ([], [])
