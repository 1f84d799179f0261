"""A lock that was never started: it leads nothing, says so, and nothing that is asked of it hangs."""

import asyncio
from typing import Any

import pytest

from pgelect import LeaderLock, LockKey, LockState, NotLeaderError, Term


class NoConnection:
    """In place of a connection that must not be touched."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the connection was asked for {name}")


NOTHING: Any = NoConnection()


@pytest.fixture
def lock() -> LeaderLock:
    return LeaderLock(key1=5001, key2=1, identity="me")


def test_it_is_stopped_and_leads_nothing(lock: LeaderLock) -> None:
    assert lock.state is LockState.STOPPED
    assert lock.is_leader is False
    assert lock.is_leader_confirmed_within(3600.0) is False
    assert (lock.term, lock.token, lock.record) == (None, None, None)
    assert (lock.key, lock.identity) == (LockKey(5001, 1), "me")


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_being_confirmed_within_no_time_is_refused(lock: LeaderLock, seconds: float) -> None:
    with pytest.raises(ValueError, match=r"^seconds="):
        lock.is_leader_confirmed_within(seconds)


async def test_waiting_for_leadership_says_to_start_it(lock: LeaderLock) -> None:
    with pytest.raises(NotLeaderError, match=r"call start\(\)") as caught:
        await lock.wait_for_leadership()
    assert (caught.value.key, caught.value.state) == (lock.key, LockState.STOPPED)


@pytest.mark.parametrize("timeout_s", [-1.0, float("nan")])
async def test_a_timeout_that_is_no_time_is_refused_by_name(lock: LeaderLock, timeout_s: float) -> None:
    with pytest.raises(ValueError, match=r"^timeout_s="):
        await lock.wait_for_leadership(timeout_s)
    with pytest.raises(ValueError, match=r"^timeout_s="):
        await lock.shutdown(timeout_s)


async def test_stepping_down_does_nothing_and_says_so(lock: LeaderLock) -> None:
    assert await lock.step_down() is False
    assert await lock.step_down(drain_timeout_s=0.0, cooldown_s=0.0) is False
    assert lock.state is LockState.STOPPED


@pytest.mark.parametrize("name", ["drain_timeout_s", "cooldown_s"])
async def test_stepping_down_for_no_time_is_refused_by_name(lock: LeaderLock, name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name}=-1"):
        await lock.step_down(**{name: -1})
    with pytest.raises(TypeError, match=rf"^{name} must be a number"):
        await lock.step_down(**{name: "1"})  # type: ignore[arg-type]  # this is what must not work


async def test_shutting_down_does_nothing_any_number_of_times(lock: LeaderLock) -> None:
    await lock.shutdown()
    await lock.shutdown(timeout_s=0.0)
    assert lock.state is LockState.STOPPED


async def test_leading_ends_at_once_without_running_the_duty(lock: LeaderLock) -> None:
    async def duty(term: Term) -> int:
        raise AssertionError(f"the duty ran in {term}")

    assert await lock.lead(duty) is None
    assert await lock.lead(duty, repeat=True) is None


async def test_there_are_no_terms(lock: LeaderLock) -> None:
    assert [term async for term in lock.terms()] == []


async def test_a_function_for_leaders_only_is_not_called(lock: LeaderLock) -> None:
    @lock.leader_only
    def plain() -> int:
        raise AssertionError("called")

    @lock.leader_only
    async def asynchronous() -> int:
        raise AssertionError("called")

    assert plain() is None
    assert await asynchronous() is None


async def test_nothing_can_be_fenced_and_the_connection_is_not_touched(lock: LeaderLock) -> None:
    with pytest.raises(NotLeaderError):
        await lock.check_fence(NOTHING)
    with pytest.raises(NotLeaderError):
        async with lock.fence(NOTHING):
            pytest.fail("the block ran")


async def test_without_fencing_a_fence_is_a_mistake_not_a_lack_of_leadership() -> None:
    lock = LeaderLock(key1=5001, key2=1, fencing=False)
    with pytest.raises(ValueError, match="fencing=False"):
        await lock.check_fence(NOTHING)
    with pytest.raises(ValueError, match="fencing=False"):
        async with lock.fence(NOTHING):
            pytest.fail("the block ran")


def test_callbacks_can_be_registered_without_a_loop_and_come_back_as_they_are(lock: LeaderLock) -> None:
    def heard(*told: object) -> None:
        raise AssertionError(told)

    for register in (
        lock.on_acquired,
        lock.on_released,
        lock.on_lost,
        lock.on_acquire_failed,
        lock.on_state_change,
        lock.on_error,
    ):
        assert register(heard) is heard


def test_a_lock_may_be_made_outside_of_any_loop_and_used_in_one_after_the_other() -> None:
    lock = LeaderLock(key1=5001, key2=1)
    for _ in range(2):
        assert asyncio.run(lock.step_down()) is False
        with pytest.raises(NotLeaderError):
            asyncio.run(lock.wait_for_leadership(1.0))
