"""A process that leads is forked: the child does not lead, and neither ends nor keeps alive its parent's session."""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import psutil
import pytest

from tests.support.processes import Worker
from tests.support.proxy import BreakableProxy
from tests.support.replicas import ROOT
from tests.support.server import lock_holders, lock_waiters, sessions
from tests.support.waiting import eventually_sync

Key = tuple[int, int]
LEASE_S = 60.0  # so long that no lock here is freed by the lease


class Forker(Worker):
    """The program `forker.py`; children that outlive it are ended with the test."""

    def __init__(self, dsn: str, key: Key, **settings: Any) -> None:
        given = {"dsn": dsn, "key": key, "lease_s": LEASE_S, "health_interval_s": 0.1, **settings}
        super().__init__("-m", "tests.support.forker", json.dumps(given), cwd=str(ROOT))

    def heard(self, event: str, *, after: int = 0) -> dict[str, Any]:
        return self.wait_event(lambda told: told["event"] == event, 20, after=after)

    def ask(self, command: str, answer: str) -> dict[str, Any]:
        after = len(self.events)
        self.tell(command)
        return self.heard(answer, after=after)

    def close(self) -> None:
        for told in [told for told in self.events if told["event"] == "forked" and told["status"] is None]:
            with suppress(ProcessLookupError):
                os.kill(told["pid"], signal.SIGKILL)
        super().close()


@pytest.fixture
def forker(database: str, key: Key) -> Iterator[Forker]:
    """One that leads."""
    with Forker(database, key) as one:
        one.heard("leading")
        yield one


def lives(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def check_still_leads(forker: Forker, database: str, key: Key, token: int, pid: int) -> None:
    """The same term, the same session, and nothing to complain of, for as long as several proofs take."""
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        told = forker.ask("status", "status")
        assert (told["is_leader"], told["state"], told["token"]) == (True, "leader", token)
        assert lock_holders(database, *key) == [pid]
    assert not [line for line in forker.errors if "rror" in line]


@pytest.mark.parametrize("way", ["fork", "process"])
def test_in_a_child_the_lock_is_inert_and_the_childs_end_does_not_disturb_the_parent(
    forker: Forker, database: str, key: Key, way: str
) -> None:
    token = forker.heard("leading")["token"]
    (pid,) = lock_holders(database, *key)
    for _ in range(3):
        after = len(forker.events)
        ended = forker.ask(way, "forked")
        seen = forker.heard("child", after=after)
        assert ended["status"] == 0, forker.errors
        assert (seen["is_leader"], seen["confirmed"], seen["current"]) == (False, False, False)
        assert (seen["term"], seen["token"], seen["only_leader"]) == (False, None, None)
        assert seen["state"] == "stopped"
        assert set(seen["raised"].values()) == {f"ForkedError {forker.pid}"}, seen["raised"]
        check_still_leads(forker, database, key, token, pid)


def test_a_child_that_lives_on_does_not_keep_a_dead_parents_lock(forker: Forker, database: str, key: Key) -> None:
    """Regression: the child's copy of the socket kept the session alive for as long as the child lived."""
    child = forker.ask("hold", "forked")["pid"]
    assert lock_holders(database, *key)
    forker.kill()
    eventually_sync(lambda: lock_holders(database, *key) == [] == sessions(database), message="the lock is free")
    assert lives(child)


def test_a_follower_that_was_forked_waits_on_and_leads(database: str, key: Key) -> None:
    with Forker(database, key) as leader, ExitStack() as later:
        token = leader.heard("leading")["token"]
        follower = later.enter_context(Forker(database, key))
        eventually_sync(lambda: lock_waiters(database, *key), 20, "it waits in the queue")
        child = follower.ask("hold", "forked")["pid"]
        assert follower.ask("fork", "forked")["status"] == 0
        leader.kill()
        assert follower.heard("leading")["token"] > token
        follower.kill()
        eventually_sync(lambda: lock_holders(database, *key) == [], message="the lock is free")
        assert lives(child)


def test_a_child_can_run_a_lock_of_its_own(forker: Forker, database: str, key: Key) -> None:
    token = forker.heard("leading")["token"]
    (pid,) = lock_holders(database, *key)
    forker.ask("elect", "forked")
    eventually_sync(lambda: lock_waiters(database, *key), message="the child waits in the queue")
    check_still_leads(forker, database, key, token, pid)
    forker.kill()
    assert forker.heard("child_leads")["token"] > token
    assert len(lock_holders(database, *key)) == 1


def test_a_fork_while_connecting_does_not_keep_a_dead_parents_lock(
    proxy: BreakableProxy, database: str, key: Key
) -> None:
    """The child has a copy of a socket that became the parent's session only after the fork."""
    proxy.freeze()
    with Forker(proxy.dsn(database), key) as forker:
        eventually_sync(lambda: proxy.connections, 20, "it is connecting")
        child = forker.ask("hold", "forked")["pid"]
        proxy.thaw()
        forker.heard("leading")
        assert len(lock_holders(database, *key)) == 1
        forker.kill()
        eventually_sync(lambda: lock_holders(database, *key) == [], message="the lock is free")
        assert lives(child)
