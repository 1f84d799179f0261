"""lead() runs a duty while this process leads, and only then; its results, errors and cancels come out."""

import asyncio
import contextlib
from collections.abc import Sequence

import pytest

from pgelect import LockState, NotLeaderError, StaleTokenError, Term
from tests.support.duties import serving
from tests.support.locks import SHORT_LEASE, Key, Story, leading, make_lock, queueing
from tests.support.server import lock_holders, query, terminate
from tests.support.waiting import eventually, scaled


async def _reaches(items: Sequence[object], length: int) -> None:
    await eventually(lambda: len(items) >= length)


async def _for_ever(_: Term) -> object:
    return await asyncio.Event().wait()


async def test_what_the_duty_returns_is_returned(database: str, key: Key) -> None:
    async def duty(term: Term) -> tuple[str, int]:
        assert term.is_current
        assert lock.is_leader
        assert len(lock_holders(database, *key)) == 1
        return "done", term.token

    async with make_lock(database, key) as lock:
        result = await lock.lead(duty)
        assert result == ("done", lock.token)
        assert lock.is_leader  # the term goes on


async def test_it_waits_for_leadership(database: str, key: Key) -> None:
    begun: list[int] = []

    async def duty(term: Term) -> None:
        begun.append(term.token)

    async with (
        leading(database, key) as leader,
        queueing(database, key) as follower,
        serving(follower, duty) as task,
    ):
        await asyncio.wait({task}, timeout=0.1)
        assert not task.done()
        assert begun == []
        await leader.step_down()
        await asyncio.wait({task}, timeout=scaled(5))
        assert begun == [follower.token]


async def test_when_the_lock_is_shut_down_it_returns_none(database: str, key: Key) -> None:
    lock = make_lock(database, key)
    await lock.start()
    async with serving(lock, _for_ever) as task:
        await eventually(lambda: lock.is_leader)
        await lock.shutdown()
        await asyncio.wait({task}, timeout=scaled(5))
        assert task.result() is None


async def test_a_duty_of_a_lost_term_is_cancelled_and_begins_anew_in_the_next(database: str, key: Key) -> None:
    terms: list[int] = []
    ended: list[tuple[int, bool]] = []

    async def duty(term: Term) -> str:
        terms.append(term.token)
        if len(terms) == 3:
            return "third time lucky"
        try:
            await asyncio.Event().wait()
        finally:
            ended.append((term.token, term.is_current))
        return "never"

    async with make_lock(database, key) as lock, serving(lock, duty) as task:
        for rounds in (1, 2):
            await _reaches(terms, rounds)
            terminate(database, lock_holders(database, *key)[0])
            await _reaches(ended, rounds)
        await asyncio.wait({task}, timeout=scaled(5))
        assert task.result() == "third time lucky"
    assert terms == sorted(set(terms))
    assert ended == [(token, False) for token in terms[:2]]


async def test_with_repeat_it_runs_again_after_it_returned_and_in_every_term(database: str, key: Key) -> None:
    runs: list[int] = []

    async def duty(term: Term) -> None:
        runs.append(term.token)
        await asyncio.sleep(0.001)

    lock = make_lock(database, key)
    await lock.start()
    async with serving(lock, duty, repeat=True) as task:
        await eventually(lambda: len(runs) > 5)
        await lock.step_down(cooldown_s=0.0)
        await eventually(lambda: len(set(runs)) == 2)
        await lock.shutdown()
        await asyncio.wait({task}, timeout=scaled(5))
        assert task.result() is None


async def test_without_repeat_it_runs_once(database: str, key: Key) -> None:
    runs: list[int] = []

    async def duty(term: Term) -> int:
        runs.append(term.token)
        return len(runs)

    async with make_lock(database, key) as lock:
        assert await lock.lead(duty, repeat=False) == 1
        assert await lock.lead(duty) == 2
        assert runs == [lock.token] * 2


async def test_a_duty_that_never_awaits_does_not_starve_the_loop(database: str, key: Key) -> None:
    """Under repeat: proofs, callbacks and other tasks still have their turn, beyond the lease."""
    runs = 0

    async def duty(_: Term) -> None:
        nonlocal runs
        runs += 1

    lock = make_lock(database, key, **SHORT_LEASE)
    story = Story(lock)
    async with lock, serving(lock, duty, repeat=True):
        term = await lock.wait_for_leadership(scaled(10))
        await eventually(lambda: query(database, "SELECT clock_timestamp() - %s > '2 s'", term.acquired_at)[0][0])
        assert lock.is_leader
        assert lock.term is term
        assert runs > 100
    assert story.told == ["acquired", "released"]


async def test_a_cancel_of_lead_reaches_the_duty_and_the_lock_is_kept(database: str, key: Key) -> None:
    cleaned: list[bool] = []

    async def duty(_: Term) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            cleaned.append(lock.is_leader)

    async with leading(database, key) as lock, serving(lock, duty) as task:
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        assert cleaned == [True]
        assert lock.is_leader


async def test_a_cancel_that_arrives_while_the_duty_cleans_up_is_not_swallowed(database: str, key: Key) -> None:
    """Holds off a lead() that goes on to the next term although it was cancelled."""
    cleaning = asyncio.Event()

    async def duty(_: Term) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaning.set()
            with contextlib.suppress(asyncio.CancelledError):  # a clean-up that will not be hurried
                await asyncio.sleep(0.1)

    for repeat in (False, True):
        cleaning.clear()
        async with leading(database, key) as lock:
            task = asyncio.create_task(lock.lead(duty, repeat=repeat))
            stepping_down = asyncio.create_task(lock.step_down(cooldown_s=0.0))
            await cleaning.wait()
            task.cancel()
            await asyncio.wait({task}, timeout=scaled(5))
            assert task.cancelled()
            assert await stepping_down


async def test_a_cancel_that_arrives_while_the_duty_cleans_up_does_not_cut_it_short(database: str, key: Key) -> None:
    cleaning, cleaned = asyncio.Event(), list[int]()

    async def duty(_: Term) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaning.set()
            await asyncio.sleep(0.1)
            cleaned.append(len(lock_holders(database, *key)))

    async with leading(database, key) as lock, serving(lock, duty) as task:
        stepping_down = asyncio.create_task(lock.step_down(cooldown_s=3600))
        await cleaning.wait()
        task.cancel()
        await asyncio.wait({task}, timeout=scaled(5))
        assert task.cancelled()
        assert cleaned == [1]
        assert await stepping_down


async def test_a_cancel_just_as_the_duty_ends_is_not_swallowed(database: str, key: Key) -> None:
    async with leading(database, key) as lock:
        for steps in range(8):
            may_end = asyncio.Event()

            async def duty(_: Term, may_end: asyncio.Event = may_end) -> str:
                await may_end.wait()
                return "done"

            async with serving(lock, duty, repeat=True) as task:
                may_end.set()
                for _ in range(steps):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait({task}, timeout=scaled(5))
                assert task.cancelled()
        assert lock.is_leader


@pytest.mark.parametrize("repeat", [False, True])
async def test_an_error_of_the_duty_comes_out_and_the_lock_is_given_up_first(
    database: str, key: Key, repeat: bool
) -> None:
    async def duty(_: Term) -> None:
        raise ZeroDivisionError("on purpose")

    async with leading(database, key) as lock, queueing(database, key) as other:
        with pytest.raises(ZeroDivisionError, match="on purpose"):
            await lock.lead(duty, repeat=repeat)
        assert not lock.is_leader
        assert (await other.wait_for_leadership(scaled(5))).is_current
        assert lock.state is not LockState.STOPPED


@pytest.mark.parametrize("kind", [StaleTokenError, NotLeaderError])
async def test_a_write_that_was_fenced_off_ends_the_term_and_not_the_program(
    database: str, key: Key, kind: type[Exception]
) -> None:
    """A duty that is told by the fence that its term is over is no failure of the program."""
    terms: list[int] = []

    async def duty(term: Term) -> str:
        terms.append(term.token)
        if len(terms) == 1:
            raise (
                StaleTokenError(term.key, term.token)
                if kind is StaleTokenError
                else NotLeaderError(term.key, LockState.FOLLOWER)
            )
        return "in the second term"

    lock = make_lock(database, key)
    story = Story(lock)
    async with lock:
        async with asyncio.timeout(scaled(10)):
            assert await lock.lead(duty) == "in the second term"
        assert [type(error) for error in story.errors] == [kind]
    assert len(set(terms)) == 2


async def test_lead_on_a_lock_that_is_not_running_returns_none(database: str, key: Key) -> None:
    assert await make_lock(database, key).lead(_for_ever) is None
