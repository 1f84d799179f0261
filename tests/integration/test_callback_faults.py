"""Callbacks that raise, hang or block: the lock is proved, lost, freed and led by others all the same.

Holds off a leader whose work died while its lock lives on, and an election that waits for user code.
"""

import asyncio
import time
from collections.abc import Callable
from itertools import pairwise

import pytest

from pgelect import FixedInterval, LockState, RetryContext, ShutdownError, Term
from tests.support.duties import Stubborn
from tests.support.locks import (
    SHORT_LEASE,
    Key,
    Story,
    another_leads,
    is_free,
    leading,
    make_lock,
    program,
    queueing,
)
from tests.support.processes import Worker
from tests.support.server import lock_holders, lock_waiters, query, terminate
from tests.support.waiting import eventually, eventually_sync, scaled

EVERY_BUT_ACQUIRED = ["on_released", "on_lost", "on_state_change"]


class UnusualError(BaseException):
    """An exception that is no Exception."""


ERRORS = [ValueError, UnusualError]


def _lost_leases(database: str, term: Term, lease_s: float) -> Callable[[], bool]:
    """True once the term is several leases old, by the server's clock."""
    return lambda: bool(
        query(database, "SELECT clock_timestamp() - %s > %s * '1 s'::interval", term.acquired_at, 2.5 * lease_s)[0][0]
    )


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("hook", EVERY_BUT_ACQUIRED)
async def test_one_that_raises_is_heard_of_and_changes_nothing_else(
    database: str, key: Key, hook: str, is_async: bool, kind: type[BaseException]
) -> None:
    lock, begun, error = make_lock(database, key), [], kind("on purpose")

    def raise_it() -> None:
        begun.append(1)
        raise error

    async def raise_it_later() -> None:
        raise_it()

    getattr(lock, hook)(raise_it_later if is_async else raise_it)
    story = Story(lock)  # registered afterwards: those that come after one that raises run too
    async with lock:
        await story.tells("acquired")
        if hook == "on_lost":
            terminate(database, lock_holders(database, *key)[0])
        else:
            await lock.step_down(cooldown_s=0.0)
        how = "lost" if hook == "on_lost" else "released"
        await story.tells("acquired", how, "acquired")
        assert error in story.errors
        assert lock.is_leader
        assert len(lock_holders(database, *key)) == 1
    assert begun
    assert story.told == ["acquired", how, "acquired", "released"]
    assert lock_holders(database, *key) == []


@pytest.mark.parametrize("kind", ERRORS)
async def test_an_on_error_that_raises_is_only_logged(
    database: str, key: Key, kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    lock, error = make_lock(database, key), kind("on purpose")

    @lock.on_released
    def first() -> None:
        raise RuntimeError("the first")

    @lock.on_error
    def second(_: BaseException) -> None:
        raise error

    story = Story(lock)
    async with lock:
        await lock.wait_for_leadership(scaled(10))
        await lock.step_down(cooldown_s=0.0)
        await story.tells("acquired", "released", "acquired")
        assert [str(heard) for heard in story.errors] == ["the first"]
        assert lock.is_leader
    assert "on_error raised" in caplog.text


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
async def test_an_on_acquired_that_raises_gives_leadership_to_another(
    database: str, key: Key, is_async: bool, kind: type[BaseException]
) -> None:
    lock, error = make_lock(database, key), kind("on purpose")

    async def raise_later(_: Term) -> None:
        await asyncio.sleep(0)
        raise error

    def raise_now(_: Term) -> None:
        raise error

    story = Story(lock)
    lock.on_acquired(raise_later if is_async else raise_now)
    lock.on_acquired(lambda: pytest.fail("a callback after the one that failed ran"))
    async with make_lock(database, key) as other:
        await other.wait_for_leadership(scaled(10))
        await lock.start()
        await eventually(lambda: lock_waiters(database, *key))
        await other.step_down()
        await story.tells("acquired", "released")
        assert error in story.errors
        assert not lock.is_leader
        term = await other.wait_for_leadership(scaled(10))
        assert term.token > story.tokens[0]
        await lock.shutdown()
        assert story.is_paired()


async def test_after_an_on_acquired_that_raised_the_next_attempt_backs_off(database: str, key: Key) -> None:
    """Holds off a hot loop of terms in which nobody works."""
    asked: list[RetryContext] = []

    class Strategy:
        def next_delay_s(self, ctx: RetryContext) -> float:
            asked.append(ctx)
            return 0.2

    lock, times = make_lock(database, key, retry_strategy=Strategy()), []
    story = Story(lock)

    @lock.on_acquired
    def fail() -> None:
        times.append(time.monotonic())
        raise ValueError(f"number {len(times)}")

    async with lock:
        await story.tells(*["acquired", "released"] * 3)
        assert lock_holders(database, *key) == []
        assert [ctx.attempt for ctx in asked] == [1, 2, 3]
        assert [str(ctx.error) for ctx in asked] == ["number 1", "number 2", "number 3"]
        assert all(later - earlier > 0.18 for earlier, later in pairwise(times))
    assert story.is_paired()


async def test_an_on_acquired_that_succeeds_at_last_keeps_its_term(database: str, key: Key) -> None:
    lock, calls = make_lock(database, key, retry_strategy=FixedInterval(0.05)), []

    @lock.on_acquired
    async def warm_up() -> None:
        calls.append(1)
        if len(calls) < 3:
            raise ConnectionError("not yet")

    async with lock:
        await eventually(lambda: len(calls) == 3)
        assert lock.is_leader
        (pid,) = lock_holders(database, *key)
        await lock.step_down(cooldown_s=0.0)
        await eventually(lambda: len(calls) == 4 and lock.is_leader)
        assert lock_holders(database, *key) != [pid]


async def test_a_long_on_acquired_does_not_stop_the_proofs(database: str, key: Key) -> None:
    """Holds off a term that ends because its own start takes longer than the lease."""
    lock, ended = make_lock(database, key, **SHORT_LEASE), []

    @lock.on_acquired
    async def take_for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(lock.is_leader)

    story = Story(lock)
    async with lock:
        term = await lock.wait_for_leadership(scaled(10))
        held = lock_holders(database, *key)
        await eventually(_lost_leases(database, term, 1.0))
        assert lock_holders(database, *key) == held
        assert lock.is_leader_confirmed_within(0.9)
        assert term.is_current
        assert not ended
        assert await lock.step_down(cooldown_s=3600)
        assert ended == [False]  # cancelled, and awaited, by the end of its term
        assert lock_holders(database, *key) == []
    assert story.errors == []


async def test_a_lost_term_cancels_its_on_acquired(database: str, key: Key) -> None:
    lock, cancelled = make_lock(database, key), []

    @lock.on_acquired
    async def take_for_ever(term: Term) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(term.token)
            raise

    ends: list[str] = []
    lock.on_lost(lambda term: ends.append(f"lost {term.token}"))
    async with lock:
        term = await lock.wait_for_leadership(scaled(10))
        terminate(database, lock_holders(database, *key)[0])
        await eventually(lambda: cancelled and ends)
        assert cancelled == [term.token]
        assert ends == [f"lost {term.token}"]


async def test_an_on_acquired_that_ignores_its_cancel_delays_the_release_by_the_drain_at_most(
    database: str, key: Key
) -> None:
    lock, stubborn = make_lock(database, key, drain_timeout_s=0.2), Stubborn()
    lock.on_acquired(stubborn)
    async with lock:
        await stubborn.begun.wait()
        async with asyncio.timeout(scaled(3)):
            assert await lock.step_down(cooldown_s=3600)
        assert lock_holders(database, *key) == []
        await another_leads(database, key)
        stubborn.may_end.set()


async def test_an_on_lost_that_never_returns_does_not_stop_the_election(database: str, key: Key) -> None:
    lock, lost = make_lock(database, key), []

    @lock.on_lost
    async def never_return() -> None:
        lost.append(1)
        await asyncio.Event().wait()

    await lock.start()
    first = await lock.wait_for_leadership(scaled(10))
    terminate(database, lock_holders(database, *key)[0])
    await eventually(lambda: lost)
    second = await lock.wait_for_leadership(scaled(10))
    assert second.token > first.token
    with pytest.raises(ShutdownError, match="callback") as late:
        await lock.shutdown(timeout_s=0.3)
    assert late.value.timeout_s == 0.3
    assert lock.state is LockState.STOPPED
    await is_free(database, key)


async def test_an_on_released_that_never_returns_keeps_nothing(database: str, key: Key) -> None:
    async with leading(database, key) as lock, queueing(database, key) as other:

        @lock.on_released
        async def never_return() -> None:
            await asyncio.Event().wait()

        async with asyncio.timeout(scaled(5)):
            assert await lock.step_down(cooldown_s=3600)
            await other.wait_for_leadership()
        with pytest.raises(ShutdownError, match="callback"):
            await lock.shutdown(timeout_s=0.2)
        assert len(lock_holders(database, *key)) == 1
        assert other.is_leader


EXIT = """
import asyncio, sys
from pgelect import LeaderLock

async def main():
    lock = LeaderLock(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))

    @lock.{hook}
    {maybe_async}def leave():
        print("leaving")
        raise SystemExit(7)

    async with lock:
        await lock.wait_for_leadership()
        await asyncio.sleep(0.05)
        await lock.step_down()
        await asyncio.sleep(3600)

asyncio.run(main())
"""


@pytest.mark.parametrize("maybe_async", ["", "async "], ids=["sync", "async"])
@pytest.mark.parametrize("hook", ["on_acquired", "on_released", "on_state_change"])
def test_one_that_exits_ends_the_program_and_frees_the_lock(
    database: str, key: Key, worker: Callable[..., Worker], hook: str, maybe_async: str
) -> None:
    child = program(worker, EXIT.format(hook=hook, maybe_async=maybe_async), database, *key)
    assert child.wait() == 7
    eventually_sync(lambda: not lock_holders(database, *key), 1.0)
    assert "leaving" in child.lines
    assert not any("Task was destroyed" in line for line in child.errors)
    asyncio.run(another_leads(database, key))
