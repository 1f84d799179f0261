"""The queue of callbacks: order, arguments, errors, and its bound."""

import asyncio
import contextvars
import logging
import re

import pytest

from pgelect._engine import dispatch
from pgelect._engine.dispatch import QUEUE_MAX
from pgelect._engine.hooks import Hook
from tests.support.dispatching import desk
from tests.support.waiting import eventually

ERROR = ValueError("a mistake of the user's")


# Order and arguments


async def test_callbacks_run_in_the_order_in_which_they_were_posted_and_registered() -> None:
    async with desk() as one:
        ran: list[object] = []

        async def slow(error: object) -> None:
            await asyncio.sleep(0.01)
            ran.append(("slow", error))

        one.dispatcher.add(Hook.ERROR, slow)
        one.dispatcher.add(Hook.ERROR, lambda error: ran.append(("quick", error)))
        one.dispatcher.add(Hook.STATE_CHANGE, lambda before, after: ran.append((before, after)))
        one.dispatcher.post(Hook.ERROR, 1)
        one.dispatcher.post(Hook.STATE_CHANGE, "a", "b")
        one.dispatcher.post(Hook.ERROR, 2)
        await one.dispatcher.flush()
    assert ran == [("slow", 1), ("quick", 1), ("a", "b"), ("slow", 2), ("quick", 2)]


async def test_each_callback_gets_as_many_arguments_as_it_requires() -> None:
    async with desk() as one:
        got: list[tuple[object, ...]] = []
        one.dispatcher.add(Hook.STATE_CHANGE, lambda: got.append(()))
        one.dispatcher.add(Hook.STATE_CHANGE, lambda before: got.append((before,)))
        one.dispatcher.add(Hook.STATE_CHANGE, lambda before, after: got.append((before, after)))
        one.dispatcher.add(Hook.STATE_CHANGE, lambda *both: got.append(both))
        one.dispatcher.add(Hook.STATE_CHANGE, lambda before, after="default": got.append((before, after)))
        one.dispatcher.post(Hook.STATE_CHANGE, "a", "b")
    assert got == [(), ("a",), ("a", "b"), ("a", "b"), ("a", "default")]


async def test_posting_never_waits_and_never_runs_anything_itself() -> None:
    async with desk() as one:
        one.hear(Hook.ERROR)
        one.dispatcher.post(Hook.ERROR, ERROR)
        assert one.heard == []
    assert one.heard == [("on_error", ERROR)]


async def test_an_event_without_callbacks_takes_no_place_in_the_queue() -> None:
    async with desk() as one:
        for _ in range(QUEUE_MAX + 1):
            one.dispatcher.post(Hook.ERROR, ERROR)
        assert len(one.dispatcher._queue) == 0


async def test_a_callback_that_registers_another_does_not_have_it_run_in_the_same_round() -> None:
    async with desk() as one:
        one.dispatcher.add(Hook.ERROR, lambda: one.hear(Hook.ERROR))
        one.dispatcher.post(Hook.ERROR, 1)
        await one.dispatcher.flush()
        assert one.heard == []


async def test_a_callback_may_return_any_awaitable() -> None:
    async with desk() as one:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        class Awaitable:
            def __await__(self):  # type: ignore[no-untyped-def]  # a generator, as awaitables have
                yield from done.__await__()

        one.dispatcher.add(Hook.ERROR, Awaitable)
        one.hear(Hook.ERROR)
        one.dispatcher.post(Hook.ERROR, 1)
        await asyncio.sleep(0.01)
        assert one.heard == []
        done.set_result(None)
    assert one.labels() == ["on_error"]


async def test_a_callback_sees_the_context_variables_of_whoever_started_the_lock() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("outer")
    async with desk() as one:
        seen: list[str] = []

        async def look() -> None:
            seen.append(variable.get())

        one.dispatcher.add(Hook.ERROR, look)
        one.dispatcher.post(Hook.ERROR, 1)
    assert seen == ["outer"]


# Errors


async def test_a_callback_that_raises_is_logged_and_told_to_on_error_and_the_next_ones_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with desk() as one:

        def fail() -> None:
            raise ERROR

        one.dispatcher.add(Hook.STATE_CHANGE, fail)
        one.hear(Hook.STATE_CHANGE, Hook.ERROR)
        one.dispatcher.post(Hook.STATE_CHANGE, "a", "b")
    assert one.heard == [("on_state_change", "a", "b"), ("on_error", ERROR)]
    assert [record.getMessage() for record in caplog.records] == ["on_state_change raised ValueError"]
    assert caplog.records[0].exc_info is not None
    assert one.failed == []


async def test_an_async_callback_that_raises_is_told_likewise() -> None:
    async with desk() as one:

        async def fail() -> None:
            await asyncio.sleep(0)
            raise ERROR

        one.dispatcher.add(Hook.LOST, fail)
        one.hear(Hook.LOST, Hook.ERROR)
        life = one.begin_term()
        await one.dispatcher.flush()
        one.end_term(life)
    assert one.heard == [("on_lost", "term"), ("on_error", ERROR)]


async def test_an_on_error_that_raises_is_logged_and_told_to_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """Told to itself, it would never end."""
    async with desk() as one:
        calls: list[object] = []

        def fail(error: object) -> None:
            calls.append(error)
            raise RuntimeError("on_error itself")

        one.dispatcher.add(Hook.ERROR, fail)
        one.dispatcher.post(Hook.ERROR, 1)
    assert calls == [1]
    assert [record.getMessage() for record in caplog.records] == ["on_error raised RuntimeError"]


async def test_a_callback_that_is_cancelled_from_within_does_not_end_the_dispatcher() -> None:
    async with desk() as one:

        async def cancel_itself() -> None:
            raise asyncio.CancelledError

        one.dispatcher.add(Hook.ERROR, cancel_itself)
        one.hear(Hook.ERROR)
        one.dispatcher.post(Hook.ERROR, 1)
        one.dispatcher.post(Hook.ERROR, 2)
    assert one.heard == [("on_error", 1), ("on_error", 2)]


async def test_what_an_exception_group_or_a_base_exception_raises_is_survived() -> None:
    class Base(BaseException):
        pass

    async with desk() as one:
        raised = iter([Base("one"), BaseExceptionGroup("two", [Base("three")])])

        def fail() -> None:
            raise next(raised)

        one.dispatcher.add(Hook.STATE_CHANGE, fail)
        one.hear(Hook.STATE_CHANGE)
        one.dispatcher.post(Hook.STATE_CHANGE, 1, 2)
        one.dispatcher.post(Hook.STATE_CHANGE, 2, 3)
    assert one.heard == [("on_state_change", 1, 2), ("on_state_change", 2, 3)]


# The bound


async def test_beyond_its_bound_the_queue_drops_errors_and_state_changes_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with desk() as one:
        one.hear(Hook.ERROR)
        for number in range(QUEUE_MAX + 50):
            one.dispatcher.post(Hook.ERROR, number)
        await one.dispatcher.flush()
        assert len(one.heard) == QUEUE_MAX
        assert one.heard[-1] == ("on_error", QUEUE_MAX - 1)
    assert sum("callbacks are too slow" in record.getMessage() for record in caplog.records) == 1


async def test_beyond_its_bound_the_queue_still_takes_terms() -> None:
    async with desk() as one:
        one.hear(Hook.ERROR, Hook.ACQUIRED, Hook.LOST)
        for number in range(QUEUE_MAX + 1):
            one.dispatcher.post(Hook.ERROR, number)
        life = one.begin_term()
        one.dispatcher.add(Hook.ACQUIRED, lambda: one.end_term(life))
    assert one.labels()[-2:] == ["on_acquired", "on_lost"]


async def test_once_the_queue_has_been_empty_a_new_overflow_is_warned_of_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "QUEUE_MAX", 2)
    async with desk() as one:
        one.hear(Hook.ERROR)
        for _ in range(2):
            for number in range(5):
                one.dispatcher.post(Hook.ERROR, number)
            await one.dispatcher.flush()
            await eventually(lambda: not one.dispatcher._overflowed)
    assert one.heard == [("on_error", 0), ("on_error", 1)] * 2
    assert sum("callbacks are too slow" in record.getMessage() for record in caplog.records) == 2


async def test_nothing_is_logged_when_all_goes_well(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with desk() as one:
        one.hear(*Hook)
        life = one.begin_term()
        await one.dispatcher.flush()
        one.end_term(life, hook=Hook.RELEASED)
    assert one.labels() == ["on_acquired", "on_released"]
    assert [record for record in caplog.records if re.match("pgelect", record.name)] == []
