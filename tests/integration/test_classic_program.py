"""A program written for the classic shape of such a library works once its import is changed."""

import asyncio
import inspect
import signal
from collections.abc import Callable
from typing import Any

import psycopg

from pgelect import ExponentialBackoff, FixedInterval, LeaderLock, LockState
from tests.support.locks import Key, program
from tests.support.processes import Worker
from tests.support.server import lock_holders, lock_waiters, terminate
from tests.support.waiting import eventually, eventually_sync

PROGRAM = """
import asyncio, signal, sys
from pgelect import ExponentialBackoff, LeaderLock

async def main():
    shutdown_event = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, shutdown_event.set)

    lock = LeaderLock(
        dsn=sys.argv[1],
        key1=int(sys.argv[2]),
        key2=int(sys.argv[3]),
        retry_strategy=ExponentialBackoff(base_s=0.1, max_s=1.0, multiplier=2.0),
        health_interval_s=0.2,
        reconnect_grace_s=3.0,
        auto_reacquire=True,
        shutdown_event=shutdown_event,
    )
    loop.add_signal_handler(signal.SIGUSR1, lambda: asyncio.ensure_future(give_up()))

    async def give_up():
        print("stepped down", await lock.step_down(), lock.is_leader)

    @lock.on_acquired
    async def on_acquired():
        print("acquired", lock.is_leader, lock.state.value)

    @lock.on_released
    async def on_released():
        print("released", lock.is_leader)

    @lock.on_lost
    async def on_lost():
        print("lost", lock.is_leader)

    @lock.on_acquire_failed
    async def on_acquire_failed():
        print("acquire failed")

    @lock.on_state_change
    async def on_state_change(from_state, to_state):
        print("state", from_state.value, to_state.value)

    @lock.on_error
    async def on_error(exc):
        print("error", type(exc).__name__)

    async with lock:
        await lock.wait_for_leadership()
        print("working")
        await shutdown_event.wait()
        await lock.shutdown(timeout_s=5.0)
    print("state", lock.state.value, lock.is_leader)

asyncio.run(main())
"""


def test_a_fleet_of_two_hands_over_loses_and_stops(database: str, key: Key, worker: Callable[..., Worker]) -> None:
    first = program(worker, PROGRAM, database, *key)
    first.wait_line("working")
    second = program(worker, PROGRAM, database, *key)
    second.wait_line("acquire failed")
    eventually_sync(lambda: lock_waiters(database, *key))

    first.signal(signal.SIGUSR1)
    first.wait_line("stepped down True False")
    second.wait_line("working")
    assert [line for line in first.lines if line != "working"][:4] == [
        "state stopped follower",
        "state follower acquiring",
        "state acquiring leader",
        "acquired True leader",
    ]
    eventually_sync(lambda: lock_waiters(database, *key))  # the first has come back

    # The second loses its session. It tries to go on, but the first has the lock by then, or the term goes on.
    (held,) = lock_holders(database, *key)
    terminate(database, held)
    second.wait_line("state leader reconnecting")
    eventually_sync(lambda: lock_holders(database, *key) not in ([], [held]))

    for child in (first, second):
        child.signal(signal.SIGTERM)
        assert child.wait() == 0, child.errors
        assert child.lines[-1] == "state stopped False"
        assert not any("Traceback" in line or "never retrieved" in line for line in child.errors)
        told = [line.split()[0] for line in child.lines if line.split()[0] in {"acquired", "released", "lost"}]
        assert told[::2] == ["acquired"] * len(told[::2])
        assert set(told[1::2]) <= {"released", "lost"}
        assert len(told) % 2 == 0
    assert lock_holders(database, *key) == []


def test_the_constructor_takes_the_classic_arguments_by_name_and_position() -> None:
    classic = {
        "dsn": "host=db",
        "key1": 5001,
        "key2": 1,
        "retry_strategy": ExponentialBackoff(base_s=1.0, max_s=30.0, multiplier=2.0),
        "health_interval_s": 5.0,
        "reconnect_grace_s": 10.0,
        "auto_reacquire": True,
        "shutdown_event": None,
        "connect_fn": None,
    }
    arguments: dict[str, Any] = dict(classic)
    lock = LeaderLock(**arguments)
    assert (lock.key.key1, lock.key.key2) == (5001, 1)
    assert lock.state is LockState.STOPPED
    assert not lock.is_leader
    assert LeaderLock("host=db", 5001, 1).key == lock.key
    assert set(classic) <= set(inspect.signature(LeaderLock).parameters)


async def test_in_one_process_with_connect_fn_and_an_event(database: str, key: Key) -> None:
    event, told = asyncio.Event(), list[str]()

    async def connect() -> psycopg.AsyncConnection[Any]:
        return await psycopg.AsyncConnection.connect(database, autocommit=True)

    lock = LeaderLock(
        key1=key[0],
        key2=key[1],
        retry_strategy=FixedInterval(interval_s=0.1),
        health_interval_s=0.2,
        auto_reacquire=False,
        shutdown_event=event,
        connect_fn=connect,
    )

    @lock.on_acquired
    async def acquired() -> None:
        told.append("acquired")

    @lock.on_released
    async def released() -> None:
        told.append("released")

    @lock.on_state_change
    async def changed(from_state: LockState, to_state: LockState) -> None:
        told.append(f"{from_state.value} -> {to_state.value}")

    async with lock:
        await lock.wait_for_leadership(timeout_s=10)
        assert lock.is_leader
        assert len(lock_holders(database, *key)) == 1
        await eventually(lambda: "acquired" in told)
        event.set()
        await eventually(lambda: lock.state is LockState.STOPPED)
        await lock.shutdown(timeout_s=10.0)
    assert told == [
        "stopped -> follower",
        "follower -> acquiring",
        "acquiring -> leader",
        "acquired",
        "leader -> releasing",
        "releasing -> stopped",
        "released",
    ]
    assert lock_holders(database, *key) == []
