"""A process with a lock is forked: the child does not lead, and neither ends nor keeps alive its parent's session."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from tests.support.environment import in_ci
from tests.support.forker import LEFT
from tests.support.forkers import Forker, end, lives
from tests.support.locks import Key, program
from tests.support.processes import Worker
from tests.support.proxy import BreakableProxy
from tests.support.server import lock_holders, lock_waiters, sessions
from tests.support.waiting import eventually_sync

FREED_WITHIN_S = 1.0


@pytest.fixture
def forker(database: str, key: Key) -> Iterator[Forker]:
    """One that leads."""
    with Forker(database, key) as one:
        one.heard("leading")
        yield one


def check_still_leads(forker: Forker, database: str, key: Key, token: int, pid: int) -> None:
    """The same term, the same session, and nothing to complain of, for as long as several proofs take."""
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        told = forker.ask("status", "status")
        assert (told["is_leader"], told["state"], told["token"]) == (True, "leader", token)
        assert lock_holders(database, *key) == [pid]
    assert not [line for line in forker.errors if "rror" in line]


def check_free(database: str, key: Key) -> None:
    eventually_sync(lambda: lock_holders(database, *key) == [], FREED_WITHIN_S, "the lock is free")


# What the child sees, and that its end is nothing to its parent


@pytest.mark.parametrize("way", ["fork", "process", "thread"])
def test_in_a_child_the_lock_is_inert_and_the_childs_end_does_not_disturb_the_parent(
    forker: Forker, database: str, key: Key, way: str
) -> None:
    token = forker.heard("leading")["token"]
    (pid,) = lock_holders(database, *key)
    for _ in range(3):
        forker.looks(way)
        check_still_leads(forker, database, key, token, pid)


def test_a_child_that_is_killed_does_not_disturb_the_parent(forker: Forker, database: str, key: Key) -> None:
    token = forker.heard("leading")["token"]
    (pid,) = lock_holders(database, *key)
    child = forker.looks("hold")
    os.kill(child, signal.SIGKILL)
    eventually_sync(lambda: not lives(child), message="the child is gone")
    check_still_leads(forker, database, key, token, pid)


@pytest.mark.parametrize(("how", "status"), [("exit", LEFT), ("raise", 1), ("return", 0)])
def test_a_child_that_leaves_through_the_loop_of_its_parent_tells_nobody_anything(
    forker: Forker, database: str, key: Key, how: str, status: int
) -> None:
    """Its copy of the loop is run once more, to cancel all tasks: the callbacks of the parent must not hear of it."""
    token = forker.heard("leading")["token"]
    (pid,) = lock_holders(database, *key)
    child = forker.ask(f"leave {how}", "forked")
    assert child["status"] == status, forker.errors
    assert [told for told in forker.events if told["event"] == "told" and told["pid"] == child["pid"]] == []
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        assert forker.ask("status", "status")["token"] == token
        assert lock_holders(database, *key) == [pid]


def test_a_child_that_leaves_through_the_loop_does_not_cancel_its_parents_statements(
    forker: Forker, proxy: BreakableProxy, database: str, key: Key
) -> None:
    """The driver asks the server to cancel what runs on the connection of a cancelled task."""
    with Forker(proxy.dsn(database), key) as follower:
        eventually_sync(lambda: lock_waiters(database, *key), 20, "it waits in the queue")
        seen = proxy.total_connections
        assert follower.ask("leave exit", "forked")["status"] == LEFT
        assert proxy.total_connections == seen, "the child connected to the server"
        forker.kill()
        follower.heard("leading")


def test_a_connection_of_the_users_that_the_child_closes_ends_neither_the_session_nor_another_socket(
    database: str, key: Key
) -> None:
    """The number of the child's closed descriptor may have been given to a socket of its own."""
    with Forker(database, key, connecting=True) as forker:
        token = forker.heard("leading")["token"]
        (pid,) = lock_holders(database, *key)
        assert forker.ask("close", "forked")["status"] == 0, forker.errors
        assert forker.heard("unharmed")
        check_still_leads(forker, database, key, token, pid)


# Whenever it is forked, the child neither disturbs what its parent does nor keeps its lock


@dataclass
class Place:
    database: str
    key: Key
    proxy: BreakableProxy

    def forker(self, *, proxied: bool = False, **settings: Any) -> Forker:
        return Forker(self.proxy.dsn(self.database) if proxied else self.database, self.key, **settings)


@pytest.fixture
def place(database: str, key: Key, proxy: BreakableProxy) -> Place:
    return Place(database, key, proxy)


Scene = Callable[[Place], AbstractContextManager[tuple[Forker, Callable[[], object]]]]


@contextmanager
def while_it_connects(place: Place) -> Iterator[tuple[Forker, Callable[[], object]]]:
    """The child has a copy of a socket that became the parent's session only after the fork."""
    place.proxy.freeze()
    with place.forker(proxied=True) as forker:
        eventually_sync(lambda: place.proxy.connections, 20, "it is connecting")
        yield forker, place.proxy.thaw


@contextmanager
def while_it_waits_in_the_queue(place: Place) -> Iterator[tuple[Forker, Callable[[], object]]]:
    with place.forker() as leader:
        leader.heard("leading")
        with place.forker() as forker:
            eventually_sync(lambda: lock_waiters(place.database, *place.key), 20, "it waits in the queue")
            yield forker, leader.kill


@contextmanager
def while_it_holds_the_lock_without_knowing(place: Place) -> Iterator[tuple[Forker, Callable[[], object]]]:
    """The server's answer is on its way."""
    with place.forker() as leader:
        leader.heard("leading")
        with place.forker(proxied=True) as forker:
            (pid,) = eventually_sync(lambda: lock_waiters(place.database, *place.key), 20, "it waits in the queue")
            place.proxy.freeze("down")
            leader.kill()
            eventually_sync(lambda: lock_holders(place.database, *place.key) == [pid], message="it holds the lock")
            yield forker, place.proxy.thaw


@contextmanager
def while_it_acquires(place: Place) -> Iterator[tuple[Forker, Callable[[], object]]]:
    """It holds the lock, and sits out the delay after an unclean end."""
    with place.forker() as one:
        one.heard("leading")
        one.kill()
    with place.forker(takeover_delay_s=3.0) as forker:
        forker.is_in("acquiring")
        eventually_sync(lambda: lock_holders(place.database, *place.key), message="it holds the lock")
        yield forker, lambda: None


@contextmanager
def while_it_leads(place: Place) -> Iterator[tuple[Forker, Callable[[], object]]]:
    with place.forker() as forker:
        forker.heard("leading")
        yield forker, lambda: None


@contextmanager
def while_it_reconnects(place: Place) -> Iterator[tuple[Forker, Callable[[], object]]]:
    with place.forker(proxied=True, reconnect_grace_s=3600.0) as forker:
        forker.heard("leading")
        seen = place.proxy.total_connections
        place.proxy.freeze()
        place.proxy.cut()
        eventually_sync(lambda: place.proxy.total_connections > seen, 20, "it is connecting again")
        forker.is_in("reconnecting")
        yield forker, place.proxy.thaw


@contextmanager
def while_it_releases(place: Place) -> Iterator[tuple[Forker, Callable[[], object]]]:
    with place.forker(duty=True) as forker:
        forker.heard("leading")
        forker.tell("step_down")
        forker.is_in("releasing")
        yield forker, lambda: forker.tell("end_duty")


@contextmanager
def in_a_callback(place: Place) -> Iterator[tuple[Forker, Callable[[], object]]]:
    with place.forker(fork_in="on_acquired") as forker:
        forker.check_inert(forker.heard("child"))
        yield forker, lambda: None


SCENES = [
    while_it_connects,
    while_it_waits_in_the_queue,
    while_it_holds_the_lock_without_knowing,
    while_it_acquires,
    while_it_leads,
    while_it_reconnects,
    while_it_releases,
    in_a_callback,
]


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__.replace("_", " "))
def test_whenever_it_is_forked_the_parent_goes_on_and_a_child_keeps_no_dead_parents_lock(
    place: Place, scene: Scene
) -> None:
    """Regression: the child's copy of the socket kept the session alive for as long as the child lived."""
    with scene(place) as (forker, go_on):
        state = forker.state()
        forker.looks("fork")
        forker.looks("thread")
        os.kill(forker.looks("hold"), signal.SIGKILL)
        child, grandchild = forker.looks("hold"), forker.looks("twice")
        assert forker.state() == state or state == "acquiring"  # that one does not wait for us
        led = len([told for told in forker.events if told["event"] == "leading"])
        go_on()
        forker.is_in("leader")
        (pid,) = lock_holders(place.database, *place.key)
        tokens = [told["token"] for told in forker.events if told["event"] == "leading"]
        if state in {"leader", "reconnecting"}:
            assert len(tokens) == led, "the same term went on"
        check_still_leads(forker, place.database, place.key, forker.ask("status", "status")["token"], pid)
        assert lives(child)
        assert lives(grandchild)
        forker.kill()
        check_free(place.database, place.key)
        eventually_sync(lambda: sessions(place.database) == [], FREED_WITHIN_S, "its session is gone")
        assert lives(child)
        assert lives(grandchild)


# Children with locks of their own


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_child_can_run_a_lock_of_its_own_in_a_new_loop(database: str, key: Key, loop: str) -> None:
    if loop == "uvloop" and not in_ci():
        pytest.importorskip("uvloop")
    with Forker(database, key, loop) as forker:
        token = forker.heard("leading")["token"]
        (pid,) = lock_holders(database, *key)
        forker.ask("elect", "forked")
        eventually_sync(lambda: lock_waiters(database, *key), message="the child waits in the queue")
        check_still_leads(forker, database, key, token, pid)
        forker.kill()
        assert forker.heard("child_leads")["token"] > token
        assert len(lock_holders(database, *key)) == 1


PREFORK = """
import asyncio, os, sys
from pgelect import ForkedError, LeaderLock

dsn, key = sys.argv[1], (int(sys.argv[2]), int(sys.argv[3]))

def make():
    return LeaderLock(dsn, *key, lease_s=60.0, health_interval_s=0.2)

inherited = make()

async def serve(number):
    try:
        await inherited.start()
    except ForkedError as error:
        assert error.owner_pid == os.getppid()
    async with make() as lock:
        term = await lock.wait_for_leadership()
        os.write(1, f"worker {os.getpid()} leads {term.token}\\n".encode())
        await asyncio.Event().wait()

workers = []
for number in range(3):
    pid = os.fork()
    if pid == 0:
        asyncio.run(serve(number))
    workers.append(pid)
print("workers", *workers, flush=True)
for _ in range(3):
    sys.stdin.readline()
    print("reaped", os.wait()[0], flush=True)

async def lead():
    async with inherited:
        print("master leads", (await inherited.wait_for_leadership()).token, flush=True)

asyncio.run(lead())
"""


def test_of_a_pre_fork_servers_workers_one_leads_and_when_it_is_killed_the_next(
    database: str, key: Key, worker: Callable[..., Worker]
) -> None:
    with ExitStack() as later:
        master = program(worker, PREFORK, database, *key)
        workers = [int(pid) for pid in master.wait_line("^workers").split()[1:]]
        for pid in workers:
            later.callback(end, pid)

        def leaders() -> list[tuple[int, int]]:
            told = [line.split() for line in master.lines if line.startswith("worker ")]
            return [(int(pid), int(token)) for _, pid, _, token in told]

        def led(number: int) -> bool:
            return len(leaders()) >= number

        def wait(number: int) -> bool:
            return len(lock_waiters(database, *key)) == number

        tokens = []
        for number in range(3):
            eventually_sync(partial(led, number + 1), 20, "the next one leads")
            assert len(leaders()) == number + 1, "one at a time"
            leader, token = leaders()[-1]
            assert leader in workers
            eventually_sync(partial(wait, 2 - number), 20, "the others wait")
            assert len(lock_holders(database, *key)) == 1
            tokens.append(token)
            os.kill(leader, signal.SIGKILL)
            master.tell("reap")
            master.wait_line(f"reaped {leader}")
        assert tokens == sorted(set(tokens))
        told = master.wait_line("^master leads")
        assert int(told.split()[2]) > tokens[-1], "the lock that was made before the forks works where it was made"
        assert master.wait() == 0, master.errors


SLOW_FORK = """
import asyncio, os, sys, threading, time
in_fork, may_fork = threading.Event(), threading.Event()

def slow():
    in_fork.set()
    may_fork.wait(30)

os.register_at_fork(before=slow)  # before pgelect's: these hooks run in reverse order

from pgelect import LeaderLock

def fork():
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    os.write(1, f"child {pid}\\n".encode())

async def main():
    lock = LeaderLock(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), lease_s=60.0)
    forking = threading.Thread(target=fork)
    forking.start()
    in_fork.wait()
    sockets = len(os.listdir("/dev/fd"))
    starting = asyncio.create_task(lock.start())
    while len(os.listdir("/dev/fd")) == sockets:
        await asyncio.sleep(0)
    may_fork.set()
    forking.join()
    await starting
    await lock.wait_for_leadership()
    os.write(1, b"leads\\n")
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_a_connection_that_is_begun_while_another_thread_forks_is_not_shared(
    database: str, key: Key, worker: Callable[..., Worker]
) -> None:
    """Between the hooks and the fork itself other hooks run, such as that of logging, which waits for a lock."""
    with ExitStack() as later:
        parent = program(worker, SLOW_FORK, database, *key)
        child = int(parent.wait_line("^child").split()[1])
        later.callback(end, child)
        parent.wait_line("^leads")
        assert len(lock_holders(database, *key)) == 1
        parent.kill()
        check_free(database, key)
        assert lives(child)


AT_ITS_LIMIT = """
import asyncio, os, resource, sys, time
from pgelect import LeaderLock

async def main():
    async with LeaderLock(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), lease_s=60.0) as lock:
        await lock.wait_for_leadership()
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        held = []
        try:
            while True:
                held.append(os.dup(0))
        except OSError:
            pass
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        os.write(1, f"child {child}\\n".encode())
        await asyncio.Event().wait()

asyncio.run(main())
"""


def test_a_child_of_a_process_that_is_at_its_limit_of_descriptors_keeps_no_dead_parents_lock(
    database: str, key: Key, worker: Callable[..., Worker]
) -> None:
    with ExitStack() as later:
        parent = program(worker, AT_ITS_LIMIT, database, *key)
        child = int(parent.wait_line("^child").split()[1])
        later.callback(end, child)
        assert len(lock_holders(database, *key)) == 1
        parent.kill()
        check_free(database, key)
        assert lives(child)
