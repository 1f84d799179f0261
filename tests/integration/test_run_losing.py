"""What ends a pgelect run, or its term, without its consent: no command of it goes on, and another takes over."""

import signal
from collections.abc import Callable

import pytest

from pgelect import LockKey
from tests.support.processes import Worker
from tests.support.proxy import BreakableProxy
from tests.support.runs import DEAF, PATIENT, Run, all_gone, is_gone, keeper_of, leads, runs
from tests.support.server import lock_holders, sessions, terminate
from tests.support.waiting import eventually_sync

JOB = LockKey.from_name("job")


@pytest.fixture
def run(worker: Callable[..., Worker], database: str) -> Run:
    return runs(worker, database)


def holders(database: str) -> list[int]:
    return lock_holders(database, JOB.key1, JOB.key2)


def test_a_run_that_is_killed_takes_its_command_with_it_and_another_takes_over(run: Run) -> None:
    """A fault that supervisors share: killed hard, they leave their children at work, and those know nothing of it."""
    one = run("job", "--lease", "1000", "--drain", "1000", shell=DEAF)
    family = leads(one)
    keeper = keeper_of(one)
    other = run("job", shell=PATIENT)
    eventually_sync(lambda: any("follower" in line for line in other.errors), 20, "the other one waits")
    one.kill()
    eventually_sync(lambda: all_gone(family), message="the command and its child are gone")
    eventually_sync(lambda: is_gone(keeper.pid), message="so is its keeper")
    assert leads(other)["token"] > family["token"]


def test_a_keeper_that_is_killed_takes_the_command_with_it_and_the_run_ends(run: Run, database: str) -> None:
    one = run("job", shell=DEAF)
    family = leads(one)
    keeper_of(one).kill()
    assert one.wait() == 128 + signal.SIGKILL
    assert all_gone(family)
    assert holders(database) == []


def test_the_command_of_a_run_that_is_stopped_ends_with_the_lease(run: Run) -> None:
    """Nothing of the run itself acts any more: the keeper has the deadline, too."""
    one = run("job", "--drain", "1000", shell=DEAF)
    family = leads(one)
    one.stop()
    eventually_sync(lambda: all_gone(family), message="the command is gone with the lease")
    one.cont()
    again = leads(one, above=family["token"])
    one.signal(signal.SIGTERM)
    eventually_sync(lambda: any("releasing" in line for line in one.errors), message="it drains")
    one.signal(signal.SIGINT)
    assert one.wait() == 128 + signal.SIGTERM
    assert all_gone(again)


def test_a_lost_session_ends_the_command_and_the_next_term_starts_it_anew(run: Run, database: str) -> None:
    one = run("job", "--drain", "1000", shell=DEAF)
    family = leads(one)
    assert terminate(database, holders(database)[0])
    again = leads(one, above=family["token"])
    assert all_gone(family), "no two of them at a time"
    assert not is_gone(again["pid"])
    eventually_sync(lambda: any("lost: token" in line for line in one.errors), message="it is told")


def test_a_session_lost_while_draining_takes_the_long_grace_back(run: Run, database: str) -> None:
    one = run("job", "--drain", "1000", shell=DEAF)
    family = leads(one)
    one.signal(signal.SIGTERM)
    eventually_sync(lambda: any("releasing" in line for line in one.errors), message="it drains")
    assert terminate(database, holders(database)[0])
    assert one.wait() == 128 + signal.SIGTERM
    assert all_gone(family)


def test_during_a_reconnect_grace_the_command_goes_on(run: Run, database: str) -> None:
    one = run("job", "--reconnect-grace", "30", shell=PATIENT)
    family = leads(one)
    (before,) = holders(database)
    assert terminate(database, before)
    eventually_sync(lambda: holders(database) not in ([], [before]), message="the same term on a new session")
    assert not is_gone(family["pid"])
    assert len(one.events) == 1, "it was not started again"
    one.signal(signal.SIGTERM)
    one.wait()


def test_once_is_one_term_however_it_ends(run: Run, database: str) -> None:
    one = run("job", "--once", shell=PATIENT)
    family = leads(one)
    assert terminate(database, holders(database)[0])
    assert one.wait() == 128 + signal.SIGTERM
    assert all_gone(family)
    eventually_sync(lambda: not sessions(database), message="no session is left")


def test_behind_a_frozen_link_the_command_ends_with_the_lease(run: Run, database: str, proxy: BreakableProxy) -> None:
    one = run("job", "--drain", "1000", dsn=proxy.dsn(database), shell=DEAF)
    family = leads(one)
    proxy.freeze()
    eventually_sync(lambda: all_gone(family), message="the command is gone with the lease")
    one.signal(signal.SIGTERM)
    assert one.wait(20) == 128 + signal.SIGTERM
