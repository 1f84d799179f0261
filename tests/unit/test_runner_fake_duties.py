"""Duties on a fake server: lead(), terms(), leader_only."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
import pytest_asyncio

from pgelect import LockState, NotLeaderError, ShutdownError, StaleTokenError, Term
from pgelect.testing import FakeServer
from tests.support.fake_locks import KEY, Elector
from tests.support.waiting import eventually


class Stubborn:
    """A duty that takes every cancel and goes on, until it is let go."""

    def __init__(self) -> None:
        self.began, self.hold = asyncio.Event(), asyncio.Event()

    async def duty(self, term: Term) -> None:
        self.began.set()
        while not self.hold.is_set():
            with suppress(asyncio.CancelledError):
                await self.hold.wait()


@pytest_asyncio.fixture
async def stubborn() -> AsyncIterator[Stubborn]:
    one = Stubborn()
    yield one
    one.hold.set()  # also after a failure, or the test would never end


async def test_a_duty_runs_while_leading_and_its_result_comes_back() -> None:
    server = FakeServer()
    a = Elector(server)

    async def duty(term: Term) -> str:
        assert term.is_current
        return f"done under {term.token}"

    async with a.lock:
        assert await a.lock.lead(duty) == "done under 1"
        assert a.lock.is_leader  # the duty is over, the term is not


async def test_a_duty_is_cancelled_and_awaited_when_its_term_is_lost_and_runs_anew_in_the_next() -> None:
    server = FakeServer()
    a = Elector(server)
    story: list[tuple[str, int]] = []

    async def duty(term: Term) -> str:
        story.append(("begins", term.token))
        if term.token == 2:
            return "done"
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.02)
            story.append(("has cleaned up", term.token))
        raise AssertionError

    async with a.lock:
        leading = asyncio.ensure_future(a.lock.lead(duty))
        await eventually(lambda: story, message="the duty begins")
        server.terminate(server.holders(KEY)[0])
        assert await leading == "done"
    assert story == [("begins", 1), ("has cleaned up", 1), ("begins", 2)]


async def test_the_lock_is_freed_only_after_the_duty_has_stopped() -> None:
    server = FakeServer()
    a = Elector(server)
    began, hold = asyncio.Event(), asyncio.Event()

    async def duty(term: Term) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            await hold.wait()

    async with a.lock:
        leading = asyncio.ensure_future(a.lock.lead(duty))
        await began.wait()
        holder = server.holders(KEY)
        down = asyncio.ensure_future(a.lock.step_down(cooldown_s=60.0))
        await eventually(lambda: a.lock.state is LockState.RELEASING)
        assert not a.lock.is_leader
        before = server.statements
        await eventually(lambda: server.statements > before + 1, message="proofs go on during the drain")
        assert server.holders(KEY) == holder
        hold.set()
        assert await down is True
        assert server.holders(KEY) == ()
        leading.cancel()


async def test_a_duty_that_does_not_stop_in_time_does_not_keep_the_lock(
    stubborn: Stubborn, caplog: pytest.LogCaptureFixture
) -> None:
    server = FakeServer()
    a = Elector(server)
    async with a.lock:
        leading = asyncio.ensure_future(a.lock.lead(stubborn.duty))
        await stubborn.began.wait()
        assert await a.lock.step_down(drain_timeout_s=0.1, cooldown_s=60.0) is True
        assert server.holders(KEY) == ()
        assert any(
            "the duty did not stop in the time for its drain" in record.getMessage() for record in caplog.records
        )
        stubborn.hold.set()
        leading.cancel()


async def test_a_shutdown_with_a_duty_that_does_not_stop_says_what_it_waited_for(stubborn: Stubborn) -> None:
    server = FakeServer()
    a = Elector(server)
    await a.lock.start()
    leading = asyncio.ensure_future(a.lock.lead(stubborn.duty))
    await stubborn.began.wait()
    with pytest.raises(ShutdownError, match="a duty or an on_acquired callback that has not stopped"):
        await a.lock.shutdown(0.2)
    assert server.sessions() == ()
    assert a.lock.state is LockState.STOPPED
    stubborn.hold.set()
    leading.cancel()
    await asyncio.wait({leading})


async def test_a_duty_that_raises_ends_the_term_and_the_error_comes_out() -> None:
    server = FakeServer()
    a = Elector(server)

    async def duty(term: Term) -> None:
        raise ValueError("a mistake")

    async with a.lock:
        with pytest.raises(ValueError, match="a mistake"):
            await a.lock.lead(duty)
        await a.is_told("released", 1)


@pytest.mark.parametrize("error", [StaleTokenError(KEY, 1), NotLeaderError(KEY, LockState.FOLLOWER)])
async def test_a_duty_that_is_told_that_its_term_is_over_is_no_mistake_and_runs_anew(error: Exception) -> None:
    server = FakeServer()
    a = Elector(server)

    async def duty(term: Term) -> int:
        if term.token == 1:
            raise error
        return term.token

    async with a.lock:
        assert await asyncio.wait_for(a.lock.lead(duty), 10.0) == 2
        assert error in a.errors


async def test_a_duty_that_fails_in_its_clean_up_after_its_term_does_not_end_the_next_term() -> None:
    server = FakeServer()
    a = Elector(server)
    cleaning, fail = asyncio.Event(), asyncio.Event()

    async def duty(term: Term) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            if term.token == 1:
                cleaning.set()
                await fail.wait()
                raise ValueError("the clean-up failed")

    async with a.lock:
        leading = asyncio.ensure_future(a.lock.lead(duty, repeat=True))
        await a.leads()
        server.terminate(server.holders(KEY)[0])
        await cleaning.wait()
        term = await a.leads(above=1)
        fail.set()
        await eventually(lambda: a.heard(ValueError), message="on_error hears of it")
        before = server.statements
        await eventually(lambda: server.statements > before + 2, message="proofs go on")
        assert term.is_current
        assert a.terms == [("acquired", 1), ("lost", 1), ("acquired", 2)]
        leading.cancel()


async def test_a_duty_that_takes_the_cancel_and_returns_runs_anew_in_the_next_term() -> None:
    """It returned because its term was over, not because it was done: else nobody would work in the next one."""
    server = FakeServer()
    a = Elector(server)
    ran: list[int] = []

    async def duty(term: Term) -> str:
        ran.append(term.token)
        if term.token == 1:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return "stopped"
        return "done"

    async with a.lock:
        leading = asyncio.ensure_future(a.lock.lead(duty))
        await a.leads()
        await eventually(lambda: ran == [1])
        server.terminate(server.holders(KEY)[0])
        assert await asyncio.wait_for(leading, 10.0) == "done"
    assert ran == [1, 2]


async def test_a_duty_that_never_awaits_does_not_starve_the_loop_under_repeat() -> None:
    server = FakeServer()
    a = Elector(server)
    runs = 0

    async def duty(term: Term) -> int:
        nonlocal runs
        runs += 1
        return runs

    async with a.lock:
        leading = asyncio.ensure_future(a.lock.lead(duty, repeat=True))
        await eventually(lambda: runs > 50, message="the duty runs again and again")
        before = server.statements
        await eventually(lambda: server.statements > before + 1, message="proofs go on")
        await a.lock.shutdown()
        assert await asyncio.wait_for(leading, 5.0) is None


async def test_a_cancel_of_lead_reaches_the_duty_and_is_not_swallowed() -> None:
    server = FakeServer()
    a = Elector(server)
    story: list[str] = []
    began = asyncio.Event()

    async def duty(term: Term) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            story.append("cancelled")
            await asyncio.sleep(0.02)
            story.append("cleaned up")
            raise

    async with a.lock:
        leading = asyncio.ensure_future(a.lock.lead(duty))
        await began.wait()
        leading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leading
    assert story == ["cancelled", "cleaned up"]


async def test_terms_come_one_after_the_other_and_end_with_the_lock() -> None:
    server = FakeServer()
    a = Elector(server)
    seen: list[int] = []

    async def watch() -> None:
        async for term in a.lock.terms():
            seen.append(term.token)
            await term.ended()

    async with a.lock:
        watching = asyncio.ensure_future(watch())
        for token in (1, 2, 3):
            await eventually(lambda: token in seen, message="the term is seen")  # noqa: B023
            server.terminate(server.holders(KEY)[0])
            await a.is_told("lost", token)
        await a.leads(above=3)
        await a.lock.shutdown()
        await asyncio.wait_for(watching, 5.0)
    assert seen == [1, 2, 3, 4]


async def test_a_function_for_leaders_only_runs_while_leading() -> None:
    server = FakeServer()
    a = Elector(server)

    @a.lock.leader_only
    def add(one: int, two: int) -> int:
        """Add."""
        return one + two

    @a.lock.leader_only
    async def add_later(one: int, two: int) -> int:
        return one + two

    assert (add.__name__, add.__doc__) == ("add", "Add.")
    async with a.lock:
        await a.leads()
        assert add(1, two=2) == 3
        assert await add_later(1, two=2) == 3
    assert add(1, 2) is None
    assert await add_later(1, 2) is None
