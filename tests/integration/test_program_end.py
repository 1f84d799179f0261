"""However a program ends, Ctrl-C and forgetfulness included, its lock is free afterwards and nobody complains."""

import asyncio
import signal
from collections.abc import Callable

import pytest

from pgelect import LockState
from tests.support.locks import Key, Story, another_leads, is_free, make_lock, program
from tests.support.processes import Worker
from tests.support.server import lock_holders
from tests.support.waiting import eventually, eventually_sync

PROGRAM = """
import asyncio, os, signal, sys
from pgelect import LeaderLock

signal.signal(signal.SIGINT, signal.default_int_handler)  # where the tests run, it may be ignored

async def main():
    lock = LeaderLock(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    for hook in (lock.on_acquired, lock.on_released, lock.on_lost):
        hook(lambda hook=hook: print(hook.__name__))
    {body}

{run}
"""
INTERRUPTED = {
    "context manager": "async with lock: await asyncio.Event().wait()",
    "run": "await lock.run()",
    "run in a task group": "async with asyncio.TaskGroup() as group: group.create_task(lock.run())",
    "lead": "async with lock: await lock.lead(lambda term: asyncio.Event().wait())",
}
FORGETFUL = {
    "returns": ("await lock.start(); await lock.wait_for_leadership()", "asyncio.run(main())"),
    "is interrupted": ("await lock.start(); await asyncio.Event().wait()", "asyncio.run(main())"),
    "drops its loop": (
        "await lock.start(); await lock.wait_for_leadership(); globals().update(kept=lock)",
        "asyncio.new_event_loop().run_until_complete(main()); os._exit(0)",
    ),
}


@pytest.mark.parametrize("body", INTERRUPTED.values(), ids=INTERRUPTED.keys())
def test_ctrl_c_ends_the_term_cleanly(database: str, key: Key, worker: Callable[..., Worker], body: str) -> None:
    child = program(worker, PROGRAM.format(body=body, run="asyncio.run(main())"), database, *key)
    child.wait_line("on_acquired")
    assert len(lock_holders(database, *key)) == 1
    child.signal(signal.SIGINT)
    child.wait()
    assert lock_holders(database, *key) == []
    assert child.lines == ["on_acquired", "on_released"]
    assert child.errors[-1] == "KeyboardInterrupt"
    assert not any("Task was destroyed" in line or "never retrieved" in line for line in child.errors)
    asyncio.run(another_leads(database, key))


@pytest.mark.parametrize(("body", "run"), FORGETFUL.values(), ids=FORGETFUL.keys())
def test_a_program_that_forgets_to_shut_down_frees_the_lock(
    database: str, key: Key, worker: Callable[..., Worker], body: str, run: str
) -> None:
    child = program(worker, PROGRAM.format(body=body, run=run), database, *key)
    if "Event" in body:
        child.wait_line("on_acquired")
        child.signal(signal.SIGINT)
    child.wait()
    eventually_sync(lambda: not lock_holders(database, *key), 1.0)
    assert not any("Task was destroyed" in line or "never retrieved" in line for line in child.errors)
    asyncio.run(another_leads(database, key))


def test_a_loop_that_ends_with_the_lock_running_frees_it_though_the_process_lives(database: str, key: Key) -> None:
    lock = make_lock(database, key)

    async def forget() -> None:
        await lock.start()
        await lock.wait_for_leadership(10)
        assert len(lock_holders(database, *key)) == 1

    asyncio.run(forget())
    assert lock.state is LockState.STOPPED
    assert not lock.is_leader

    async def go_on() -> None:
        await is_free(database, key)
        async with lock:
            await lock.wait_for_leadership(10)

    asyncio.run(go_on())
    assert lock_holders(database, *key) == []


def test_a_loop_that_ends_with_the_lock_running_still_tells_of_the_end_of_the_term(database: str, key: Key) -> None:
    lock = make_lock(database, key)
    story = Story(lock)

    async def forget() -> None:
        await lock.start()
        await eventually(lambda: story.told == ["acquired"])

    asyncio.run(forget())
    assert story.told == ["acquired", "lost"]
