"""A process that is told to end, and whose link to the server is dead, ends all the same, and in its time.

A fault like procrastinate#1513: the shutdown awaited a task that awaited the server, and the process stayed for ever.
"""

import asyncio
import json
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.support.demos import ROOT
from tests.support.locks import Key, another_leads
from tests.support.processes import Worker
from tests.support.proxy import BreakableProxy
from tests.support.server import lock_holders, lock_waiters
from tests.support.waiting import eventually_sync

TIMEOUT_S = 1.0
SLACK_S = 5.0  # for the interpreter to go away, on a busy machine; the lease is an hour
LATE = 3  # the exit status of the program when a shutdown was not in time

PROGRAM = """
import asyncio, json, signal, sys
from pgelect import FixedInterval, LeaderLock, ShutdownError

async def duty(term):
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0.2)

async def by_shutdown(lock, stop, timeout_s):
    starting = asyncio.create_task(lock.start())
    await stop.wait()
    await lock.shutdown(timeout_s)
    await starting

async def by_event_in_a_block(lock, stop, timeout_s):
    async with lock:
        await lock.lead(duty, repeat=True)

async def by_cancel_of_run(lock, stop, timeout_s):
    running = asyncio.create_task(lock.run())
    await stop.wait()
    running.cancel()
    await asyncio.wait({running}, timeout=timeout_s)
    running.cancel()
    await asyncio.wait({running})
    assert running.cancelled()

async def main():
    how, timeout_s, settings = sys.argv[1], float(sys.argv[2]), json.loads(sys.argv[3])
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    event = {"shutdown_event": stop} if how == "by_event_in_a_block" else {}
    lock = LeaderLock(**settings, **event, retry_strategy=FixedInterval(0.1))
    lock.on_state_change(lambda before, after: print(after.value))
    print("begins")
    try:
        await globals()[how](lock, stop, timeout_s)
    except ShutdownError:
        return 3
    return 0

status = asyncio.run(main())
print("ends")
sys.exit(status)
"""


def begun(
    worker: Callable[..., Worker],
    dsn: str,
    key: Key,
    how: str = "by_shutdown",
    *,
    timeout_s: float = TIMEOUT_S,
    **settings: Any,
) -> Worker:
    """Start the program in the development mode of Python, which complains of whatever is left behind."""
    given = {"dsn": dsn, "key1": key[0], "key2": key[1], "lease_s": 3600.0, "health_interval_s": 0.2, **settings}
    child = worker(
        "-X", "dev", "-c", PROGRAM, how, str(timeout_s), json.dumps(given), env={"PYTHONPATH": str(ROOT)}
    )  # fmt: skip
    child.wait_line("begins", 20)
    return child


def ends_in_time(child: Worker, *statuses: int, timeout_s: float = TIMEOUT_S) -> None:
    """Send SIGTERM; it ends within its timeout, with one of these exit statuses, and Python complains of nothing."""
    child.signal(signal.SIGTERM)
    status = child.wait(timeout_s + SLACK_S)
    assert status in statuses, child.errors
    assert child.lines[-1] == "ends", child.lines
    nothing_is_left_behind(child)


def nothing_is_left_behind(child: Worker) -> None:
    told = "\n".join(child.errors)
    for complaint in ("Task was destroyed", "never retrieved", "Traceback", "ResourceWarning", "never awaited"):
        assert complaint not in told, told


def is_freed(proxy: BreakableProxy, database: str, key: Key) -> None:
    """Once the network has forgotten the dead process, its lock is free."""
    proxy.cut()
    eventually_sync(lambda: not lock_holders(database, *key) and not lock_waiters(database, *key), 2.0)


# Each place in which the link may die


def leads(child: Worker, proxy: BreakableProxy, _: ExitStack, __: tuple[str, Key]) -> None:
    child.wait_line("leader", 20)
    proxy.freeze()


def minds_its_proof(child: Worker, proxy: BreakableProxy, stack: ExitStack, place: tuple[str, Key]) -> None:
    """The question is on its way, and no answer comes."""
    leads(child, proxy, stack, place)
    time.sleep(0.3)  # the fault itself, longer than the interval of proofs


def waits_in_the_queue(child: Worker, proxy: BreakableProxy, stack: ExitStack, place: tuple[str, Key]) -> None:
    database, key = place
    eventually_sync(lambda: lock_waiters(database, *key), 20)
    proxy.freeze()


def mints(child: Worker, proxy: BreakableProxy, stack: ExitStack, place: tuple[str, Key]) -> None:
    """The table is locked, so that the mint hangs with the lock held."""
    database, key = place
    eventually_sync(lambda: lock_holders(database, *key), 20)
    child.wait_line("acquiring")
    proxy.freeze()


def connects(child: Worker, proxy: BreakableProxy, _: ExitStack, __: tuple[str, Key]) -> None:
    eventually_sync(lambda: proxy.connections == 1, 20)


def connects_again(child: Worker, proxy: BreakableProxy, _: ExitStack, __: tuple[str, Key]) -> None:
    child.wait_line("leader", 20)
    proxy.freeze()
    proxy.cut()
    child.wait_line("follower|reconnecting", after=child.lines.index("leader"))
    eventually_sync(lambda: proxy.connections == 1)


PLACES = [leads, minds_its_proof, waits_in_the_queue, mints, connects, connects_again]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_sigterm_behind_a_frozen_link_ends_the_process_within_its_timeout(
    worker: Callable[..., Worker],
    database: str,
    key: Key,
    proxy: BreakableProxy,
    place: Callable[[Worker, BreakableProxy, ExitStack, tuple[str, Key]], None],
) -> None:
    """The lease is far longer, so nothing but the timeout can end it; the status says if it was too short."""
    with ExitStack() as stack:
        if place is waits_in_the_queue:
            held = stack.enter_context(psycopg.connect(database, autocommit=True))
            held.execute("SELECT pg_advisory_lock(%s, %s)", key)
        if place is mints:
            asyncio.run(another_leads(database, key))
            held = stack.enter_context(psycopg.connect(database))
            held.execute("LOCK TABLE pgelect.token IN SHARE MODE")
        if place is connects:
            proxy.freeze()
        child = begun(worker, proxy.dsn(database), key, reconnect_grace_s=30.0 if place is connects_again else None)
        place(child, proxy, stack, (database, key))
        ends_in_time(child, *((LATE,) if place in (leads, minds_its_proof) else (0, LATE)))
    is_freed(proxy, database, key)


@pytest.mark.parametrize("how", ["by_shutdown", "by_cancel_of_run", "by_event_in_a_block"])
def test_sigterm_behind_a_frozen_link_ends_a_leader_with_its_lease(
    worker: Callable[..., Worker], database: str, key: Key, proxy: BreakableProxy, how: str
) -> None:
    """A lease that is shorter than the timeout ends first: nothing was late, and the server frees the lock."""
    child = begun(worker, proxy.dsn(database), key, how, timeout_s=5.0, lease_s=1.0)
    child.wait_line("leader", 20)
    proxy.freeze()
    ends_in_time(child, 0, timeout_s=5.0)
    eventually_sync(lambda: not lock_holders(database, *key), 2.0, "the server ends the session by the lease")


def test_sigterm_while_the_server_is_gone_ends_the_process_at_once(
    worker: Callable[..., Worker], database: str, key: Key, proxy: BreakableProxy
) -> None:
    """It has noticed the trouble, and tries again and again; in a grace of which the end is far."""
    child = begun(worker, proxy.dsn(database), key, reconnect_grace_s=3600.0)
    child.wait_line("leader", 20)
    proxy.refuse()
    proxy.cut()
    child.wait_line("reconnecting")
    ends_in_time(child, 0)
    is_freed(proxy, database, key)


def test_sigterm_ends_the_demos_replica_behind_a_frozen_link(
    worker: Callable[..., Worker], database: str, proxy: BreakableProxy
) -> None:
    """The one long-running command there is; it documents no other status than 0 for SIGTERM."""
    given = conninfo_to_dict(proxy.dsn(database))
    env = {name: str(given[option]) for name, option in
           (("PGHOST", "host"), ("PGPORT", "port"), ("PGUSER", "user"), ("PGDATABASE", "dbname"))}  # fmt: skip
    child = worker("-m", "pgelect.cli.demo_worker", env=env, cwd=str(ROOT))
    child.wait_event(lambda event: event["what"] == "wrote", 20)
    proxy.freeze()
    child.signal(signal.SIGTERM)
    assert child.wait(10.0) == 0
    nothing_is_left_behind(child)
    proxy.cut()
