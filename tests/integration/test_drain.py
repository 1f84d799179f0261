"""The lock is freed only after the duty has stopped, within a bound, and stays proved meanwhile.

Holds off a rival that starts while the old leader still works.
"""

import asyncio

import pytest

from pgelect import Term
from tests.support.duties import Duty, serving, serving_stubbornly
from tests.support.locks import SHORT_LEASE, Key, Story, another_leads, is_free, leading, queueing
from tests.support.server import lock_holders, query
from tests.support.waiting import eventually, scaled


async def test_the_lock_is_freed_only_after_the_duty_has_stopped(database: str, key: Key) -> None:
    """By the server's clock: the next term begins after the duty's last act."""
    stopped_at: list[object] = []

    async def duty(_: Term) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for _look in range(10):
                await asyncio.sleep(0.02)
                assert lock_holders(database, *key) == held
            stopped_at.append(query(database, "SELECT clock_timestamp()")[0][0])

    async with leading(database, key) as lock, queueing(database, key) as other:
        held = lock_holders(database, *key)
        async with serving(lock, duty):
            assert await lock.step_down(cooldown_s=3600)
            term = await other.wait_for_leadership(scaled(5))
            assert stopped_at
            assert term.acquired_at > stopped_at[0]  # type: ignore[operator] # a datetime


async def test_a_duty_that_outlives_the_drain_is_left_behind_with_a_warning(
    database: str, key: Key, caplog: pytest.LogCaptureFixture
) -> None:
    async with leading(database, key, drain_timeout_s=0.2) as lock, serving_stubbornly(lock):
        assert await lock.step_down(cooldown_s=3600)
        await is_free(database, key)
        assert [r.levelname for r in caplog.records if "did not stop" in r.message] == ["WARNING"]
        await another_leads(database, key)


async def test_proofs_go_on_during_the_drain(database: str, key: Key) -> None:
    """Holds off a lease that runs out, and a rival that begins, while the old leader is still draining."""
    drained: list[float] = []

    async def duty(term: Term) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            (began,) = query(database, "SELECT clock_timestamp()")[0]
            await eventually(lambda: query(database, "SELECT clock_timestamp() - %s > '2.5 s'", began)[0][0])
            drained.append(term.token)

    async with leading(database, key, **SHORT_LEASE) as lock, queueing(database, key) as other:
        held, story = lock_holders(database, *key), Story(lock)
        async with serving(lock, duty):
            stepping_down = asyncio.create_task(lock.step_down(cooldown_s=3600))
            while not stepping_down.done():
                if not drained:
                    assert lock_holders(database, *key) == held
                await asyncio.sleep(0.05)
            assert drained
            await other.wait_for_leadership(scaled(5))
            assert story.told == ["released"]


async def test_several_duties_are_all_waited_for(database: str, key: Key) -> None:
    ended: list[str] = []

    def named(name: str, delay_s: float) -> Duty:
        async def duty(_: Term) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(delay_s)
                assert len(lock_holders(database, *key)) == 1
                ended.append(name)

        return duty

    async with (
        leading(database, key) as lock,
        serving(lock, named("quick", 0.0)),
        serving(lock, named("slow", 0.1)),
    ):
        assert await lock.step_down(cooldown_s=3600)
        assert ended == ["quick", "slow"]
        assert lock_holders(database, *key) == []


async def test_a_duty_that_raises_while_its_term_ends_is_only_reported(database: str, key: Key) -> None:
    async def duty(_: Term) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ZeroDivisionError("during the clean-up")

    async with leading(database, key) as lock:
        story = Story(lock)
        async with serving(lock, duty) as task:
            assert await lock.step_down(cooldown_s=3600)
            await eventually(lambda: story.errors)
            assert [str(error) for error in story.errors] == ["during the clean-up"]
            assert not task.done()
