"""A program that exits from within, wherever that is, frees its lock, tells of the end of its term, keeps its status.

Holds off a lock that stays held because the release was awaited inside of what was being torn down, or was skipped by
sys.exit() (faults like google/trillian#3789 and openconfig/gnmic#944).
"""

import asyncio
import signal
from collections.abc import Callable

import pytest

from tests.support.locks import Key, another_leads, program
from tests.support.processes import Worker
from tests.support.server import lock_holders, terminate
from tests.support.waiting import eventually_sync

PROGRAM = """
import asyncio, os, signal, sys
from pgelect import LeaderLock

def leave(*_):
    {leave}

async def main():
    lock = LeaderLock(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), health_interval_s=0.05)
    lock.on_acquired(lambda: print("acquired"))
    lock.on_released(lambda: print("released"))
    lock.on_lost(lambda: print("lost"))
    {body}

asyncio.run(main())
"""
EXIT = "sys.exit(7)"
PLACES = {
    "the block": "async with lock: await lock.wait_for_leadership(); await asyncio.sleep(0.05); leave()",
    "a duty": """
    async def duty(term):
        await asyncio.sleep(0.05)
        leave()
    async with lock: await lock.lead(duty)""",
    "the body of a loop over terms": """
    async with lock:
        async for term in lock.terms():
            await asyncio.sleep(0.05)
            leave()""",
    "a task beside run()": """
    async def beside():
        await lock.wait_for_leadership()
        await asyncio.sleep(0.05)
        leave()
    async with asyncio.TaskGroup() as group:
        group.create_task(lock.run())
        while lock.state.value == "stopped": await asyncio.sleep(0.01)
        group.create_task(beside())""",
    "a timer of the loop": """
    async with lock:
        await lock.wait_for_leadership()
        asyncio.get_running_loop().call_later(0.05, leave)
        await asyncio.Event().wait()""",
    "an async on_acquired": """
    @lock.on_acquired
    async def start():
        await asyncio.sleep(0.05)
        leave()
    await lock.run()""",
}


def ended_well(child: Worker, database: str, key: Key, status: int) -> None:
    assert child.wait(20) == status, child.errors
    eventually_sync(lambda: lock_holders(database, *key) == [], 1.0, "the lock is free")
    assert child.lines[0] == "acquired"
    assert len(child.lines) == 2, child.lines
    assert child.lines[1] in {"released", "lost"}
    assert not any("Task was destroyed" in line for line in child.errors), child.errors
    asyncio.run(another_leads(database, key))


@pytest.mark.parametrize("body", PLACES.values(), ids=PLACES.keys())
def test_a_program_that_leaves_from_within(database: str, key: Key, worker: Callable[..., Worker], body: str) -> None:
    child = program(worker, PROGRAM.format(leave=EXIT, body=body), database, *key)
    ended_well(child, database, key, 7)


def test_a_program_that_is_interrupted_from_within(database: str, key: Key, worker: Callable[..., Worker]) -> None:
    code = PROGRAM.format(leave="raise KeyboardInterrupt", body=PLACES["a timer of the loop"])
    ended_well(program(worker, code, database, *key), database, key, -signal.SIGINT)


ON_LOST = """
    lock.on_lost(leave)
    await lock.run()"""


def test_an_on_lost_that_leaves(database: str, key: Key, worker: Callable[..., Worker]) -> None:
    """Many programs do: a leader that was lost is to be restarted by its supervisor."""
    child = program(worker, PROGRAM.format(leave=EXIT, body=ON_LOST), database, *key)
    child.wait_line("acquired", 30)
    terminate(database, lock_holders(database, *key)[0])
    ended_well(child, database, key, 7)


STRUCK = """
    signal.signal(signal.SIGTERM, leave)
    left = {lines}

    def strike(frame, event, _):
        nonlocal left
        file = frame.f_code.co_filename
        if not any(package in file for package in ("pgelect", "psycopg")) or file.endswith("dispatch.py"):
            return None
        if event == "line" and (left := left - 1) == 0:
            signal.raise_signal(signal.SIGTERM)
        return strike

    lock.on_acquired(lambda: sys.settrace(strike))
    await lock.run()"""


@pytest.mark.parametrize("lines", [20, 40, 77, 150, 310, 620])
def test_a_signal_handler_that_leaves_at_any_line(
    database: str, key: Key, worker: Callable[..., Worker], lines: int
) -> None:
    """The exception comes out of whatever line of the library or the driver runs then; it came out twice.

    Where it strikes what calls the callbacks, none is called any more. In asyncio there are lines at which it has the
    loop lose what it was about to do: a task that waits for that never ends, whoever cancels it, in any program.
    """
    child = program(worker, PROGRAM.format(leave=EXIT, body=STRUCK.format(lines=lines)), database, *key)
    ended_well(child, database, key, 7)


@pytest.mark.parametrize("how", ["os._exit(7)", "os.kill(os.getpid(), signal.SIGTERM)", "os.abort()"])
def test_a_program_that_ends_without_any_cleanup_frees_the_lock_all_the_same(
    database: str, key: Key, worker: Callable[..., Worker], how: str
) -> None:
    body = PLACES["the block"]
    child = program(worker, PROGRAM.format(leave=how, body=body), database, *key)
    assert child.wait(20) in {7, -signal.SIGTERM, -signal.SIGABRT}
    eventually_sync(lambda: lock_holders(database, *key) == [], 1.0, "the lock is free")
    asyncio.run(another_leads(database, key))
