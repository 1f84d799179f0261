"""However a term is given up and whatever form its work has, the next leader begins only after the work has stopped.

Holds off a standby that starts while the old leader still drains, because the lock was freed when the work was *told*
to stop (faults like kubernetes/client-go#728 and kubernetes/kubernetes#139504). Judged by the server's clock; the rival
polls every 50 ms, so that it would come in between.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from pgelect import FixedInterval, LeaderLock, LockState
from tests.support.locks import Key, Story, another_leads, leading, make_lock, program
from tests.support.looks import now
from tests.support.processes import Worker
from tests.support.server import lock_holders, query
from tests.support.waiting import eventually, eventually_sync, scaled

if TYPE_CHECKING:
    from datetime import datetime

CLEANUP_S = 0.25
RIVAL: dict[str, Any] = {"acquire": "poll", "retry_strategy": FixedInterval(0.05)}


class Work:
    """Work for a term, in one of its forms; `stopped_at` is when its last act was, by the server's clock."""

    def __init__(self, database: str, key: Key) -> None:
        self.database, self.key = database, key
        self.begun = asyncio.Event()
        self.stopped_at: datetime | None = None
        self.tasks: list[asyncio.Future[Any]] = []

    async def run(self, *_: object) -> None:
        """Until it is cancelled; then it cleans up for a while, and the lock is held all the time."""
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await self.clean_up()

    async def clean_up(self) -> None:
        await asyncio.sleep(CLEANUP_S)
        assert len(lock_holders(self.database, *self.key)) == 1, "the lock was freed while the work went on"
        self.stopped_at = query(self.database, "SELECT clock_timestamp()")[0][0]


Form = Callable[[LeaderLock, Work], None]


def _a_duty(lock: LeaderLock, work: Work) -> None:
    async def lead() -> None:
        while lock.state is LockState.STOPPED:
            await asyncio.sleep(0.01)
        await lock.lead(work.run)

    work.tasks.append(asyncio.ensure_future(lead()))


def _a_loop_over_terms(lock: LeaderLock, work: Work) -> None:
    async def loop() -> None:
        while lock.state is LockState.STOPPED:
            await asyncio.sleep(0.01)
        async for term in lock.terms():
            work.begun.set()
            await term.ended()
            await work.clean_up()

    work.tasks.append(asyncio.ensure_future(loop()))


def _an_on_acquired(lock: LeaderLock, work: Work) -> None:
    lock.on_acquired(work.run)


def _an_on_state_change(lock: LeaderLock, work: Work) -> None:
    """The classic shape: the work is begun and stopped by hand, as the state says."""
    works: list[asyncio.Task[None]] = []

    @lock.on_state_change
    async def changed(_: LockState, after: LockState) -> None:
        if after is LockState.LEADER:
            works.append(asyncio.create_task(work.run()))
            work.tasks.append(works[0])
        elif after is LockState.RELEASING:
            works[0].cancel()
            await asyncio.wait(works)


FORMS: list[Form] = [_a_duty, _a_loop_over_terms, _an_on_acquired, _an_on_state_change]
End = Callable[[LeaderLock, "asyncio.Task[None]", asyncio.Event], Awaitable[object]]


async def _step_down(lock: LeaderLock, _: object, __: object) -> object:
    return await lock.step_down(cooldown_s=3600)


async def _shutdown(lock: LeaderLock, _: object, __: object) -> None:
    await lock.shutdown()


async def _the_event(_: LeaderLock, __: object, event: asyncio.Event) -> None:
    event.set()


async def _a_cancel(_: LeaderLock, owner: "asyncio.Task[None]", __: object) -> None:
    owner.cancel()


ENDS: list[End] = [_step_down, _shutdown, _the_event, _a_cancel]


def _name(value: Callable[..., object]) -> str:
    return value.__name__.strip("_").replace("_", " ")


@pytest.mark.parametrize("end", ENDS, ids=_name)
@pytest.mark.parametrize("form", FORMS, ids=_name)
async def test_the_next_term_begins_after_the_work_of_the_last(database: str, key: Key, form: Form, end: End) -> None:
    event, work = asyncio.Event(), Work(database, key)
    lock = make_lock(database, key, shutdown_event=event)
    form(lock, work)
    owner = asyncio.create_task(lock.run())
    await work.begun.wait()
    async with make_lock(database, key, **RIVAL) as rival:
        await end(lock, owner, event)
        successor = await rival.wait_for_leadership(scaled(10))
        assert work.stopped_at is not None, "the next one led while the work went on"
        assert successor.acquired_at > work.stopped_at
        assert not lock.is_leader
    await lock.shutdown()
    with suppress(asyncio.CancelledError):
        await owner
    for task in work.tasks:
        task.cancel()
    await asyncio.gather(*work.tasks, return_exceptions=True)


@pytest.mark.parametrize("form", FORMS, ids=_name)
async def test_work_that_outlives_its_bound_does_not_keep_the_lock_and_a_warning_says_so(
    database: str, key: Key, form: Form, caplog: pytest.LogCaptureFixture
) -> None:
    work, may_end = Work(database, key), asyncio.Event()

    async def go_on() -> None:
        with suppress(asyncio.CancelledError):
            await may_end.wait()
        await may_end.wait()

    work.clean_up = go_on  # type: ignore[method-assign] # this one does not stop
    lock = make_lock(database, key, drain_timeout_s=0.2)
    form(lock, work)
    owner = asyncio.create_task(lock.run())
    await work.begun.wait()
    story = Story(lock)
    async with make_lock(database, key, **RIVAL) as rival:
        assert await lock.step_down(cooldown_s=3600)
        await rival.wait_for_leadership(scaled(10))
        assert not may_end.is_set()
        assert [r.levelname for r in caplog.records if "did not stop" in r.message] == ["WARNING"]
        may_end.set()
        await eventually(lambda: story.told[-1:] == ["released"])
    await lock.shutdown()
    await owner
    for task in work.tasks:
        task.cancel()
    await asyncio.gather(*work.tasks, return_exceptions=True)


PROGRAM = """
import asyncio, signal, sys, time
from pgelect import LeaderLock
from tests.support.looks import now

async def duty(term):
    print("works")
    try:
        await asyncio.Event().wait()
    finally:
        print("drains")
        {drain}
        print("drained", now())

async def main():
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    async with LeaderLock(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])) as lock:
        lock.on_released(lambda: print("released"))
        lock.on_lost(lambda: print("lost"))
        {body}

try:
    asyncio.run(main())
except asyncio.CancelledError:
    print("cancelled")
"""


BODIES = {
    "leads itself": "await lock.lead(duty)",
    "has a task that leads": "leading = asyncio.create_task(lock.lead(duty)); await asyncio.Event().wait()",
}


async def _rival_leads(database: str, key: Key) -> float:
    async with leading(database, key, **RIVAL):
        return now()


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_on_sigterm_the_next_process_leads_after_the_drain(
    database: str, key: Key, worker: Callable[..., Worker], body: str
) -> None:
    child = program(worker, PROGRAM.format(drain="await asyncio.sleep(0.5)", body=body), database, *key)
    child.wait_line("works", 30)
    child.signal(signal.SIGTERM)
    led_at = asyncio.run(_rival_leads(database, key))
    assert child.wait() == 0
    assert child.lines[-1] == "cancelled"
    drained_at = float(child.wait_line("^drained").split()[1])
    assert drained_at < led_at
    assert "released" in child.lines


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_a_second_sigterm_does_not_wait_for_a_drain_that_does_not_end(
    database: str, key: Key, worker: Callable[..., Worker], body: str
) -> None:
    drain = "await asyncio.shield(asyncio.sleep(60))"
    child = program(worker, PROGRAM.format(drain=drain, body=body), database, *key)
    child.wait_line("works", 30)
    child.signal(signal.SIGTERM)
    child.wait_line("drains")
    assert len(lock_holders(database, *key)) == 1
    child.signal(signal.SIGTERM)
    eventually_sync(lambda: lock_holders(database, *key) == [], 5.0, "the lock is free, long before the drain timeout")
    assert child.wait() == 0
    assert child.lines[-1] == "cancelled"
    assert not any("Task was destroyed" in line for line in child.errors)
    asyncio.run(another_leads(database, key))
