"""Elections in memory, as users run them in their own tests: the same classes, no database, and time that they move."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import pgelect.lock
from pgelect import LeaderGroup, LeaderLock, LockState, NotLeaderError, Term
from pgelect._engine.clock import SystemClock
from pgelect._postgres.session import PostgresSession
from pgelect.testing import LocalElection, local_election

NOWHERE = "postgresql://nowhere.invalid/app"


class Scheduler:
    """What a user might have: it knows nothing of tests."""

    def __init__(self, dsn: str, identity: str | None = None) -> None:
        self.lock = LeaderLock(dsn, name="scheduler", identity=identity)
        self.events: list[tuple[str, int]] = []

    async def run(self) -> None:
        async with self.lock:
            await self.lock.lead(self._work, repeat=True)

    async def _work(self, term: Term) -> None:
        self.events.append(("begins", term.token))
        try:
            await term.ended()
            await asyncio.sleep(60)
        finally:
            self.events.append(("ends", term.token))


@asynccontextmanager
async def running(scheduler: Scheduler) -> AsyncIterator[None]:
    task = asyncio.create_task(scheduler.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


@pytest.fixture
def election() -> LocalElection:  # type: ignore[misc]
    with local_election() as made:
        yield made


async def test_a_program_leads_without_a_database(election: LocalElection) -> None:
    scheduler = Scheduler(NOWHERE)
    async with running(scheduler):
        await election.settle()
        assert scheduler.events == [("begins", 1)]
        assert scheduler.lock.is_leader
        assert len(election.server.sessions()) == 1
    assert election.server.sessions() == ()


async def test_of_two_one_leads_and_then_the_other(election: LocalElection) -> None:
    one, two = Scheduler(NOWHERE, "one"), Scheduler(NOWHERE, "two")
    async with running(two):
        async with running(one):
            await election.settle()
            assert [each.lock.is_leader for each in (one, two)].count(True) == 1
        await election.settle()
        assert two.lock.is_leader


async def test_time_that_passes_as_it_should_changes_nothing(election: LocalElection) -> None:
    scheduler = Scheduler(NOWHERE)
    async with running(scheduler):
        await election.advance(600)
        assert scheduler.events == [("begins", 1)]
        assert scheduler.lock.is_leader_confirmed_within(5.0)  # it was proved all the time


async def test_a_process_that_was_stopped_for_too_long_does_not_lead_at_the_very_first_look(
    election: LocalElection,
) -> None:
    scheduler = Scheduler(NOWHERE)
    async with running(scheduler):
        await election.settle()
        term = scheduler.lock.term
        assert term is not None
        election.clock.advance(15.0)  # nothing has run since
        assert not term.is_current
        assert not scheduler.lock.is_leader
        await election.suspend(0.0)
        assert ("ends", 1) in scheduler.events
        await election.advance(5.0)
        assert scheduler.events == [("begins", 1), ("ends", 1), ("begins", 2)]


async def test_leadership_can_be_taken_away_and_given_back(election: LocalElection) -> None:
    scheduler = Scheduler(NOWHERE)
    async with running(scheduler):
        await election.settle()
        rival = await election.take_away(scheduler.lock)
        assert rival.token == 2
        assert scheduler.lock.token is None
        assert scheduler.events == [("begins", 1), ("ends", 1)]
        row = election.server.row(scheduler.lock.key)
        assert row is not None
        assert row.holder == "rival"
        with pytest.raises(ValueError, match="nothing to take away"):
            await election.take_away(scheduler.lock)
        await election.give_back(scheduler.lock)
        await election.advance(1.0)
        assert scheduler.lock.is_leader
        assert scheduler.lock.token == 3


async def test_a_lost_session_and_a_server_that_is_away(election: LocalElection) -> None:
    scheduler = Scheduler(NOWHERE)
    async with running(scheduler):
        await election.settle()
        election.end_session(scheduler.lock)
        await election.settle()
        assert scheduler.events[:2] == [("begins", 1), ("ends", 1)]
        election.server.stop()
        await election.advance(10)
        assert scheduler.lock.state is LockState.FOLLOWER
        with pytest.raises(ValueError, match="no session"):
            election.end_session(scheduler.lock)
        election.server.start()
        await election.advance(60)
        assert scheduler.lock.is_leader


async def test_stale_writes_are_refused(election: LocalElection) -> None:
    lock = LeaderLock(NOWHERE, name="ledger")
    async with lock:
        term = await lock.wait_for_leadership()
        transaction = election.server.begin_fenced(lock.key, term.token)
        transaction.rollback()
        await lock.step_down()
        with pytest.raises(NotLeaderError):
            await lock.check_fence(None)  # type: ignore[arg-type]


async def test_groups_share_partitions_in_memory(election: LocalElection) -> None:
    names = ["a", "b", "c", "d"]
    groups = [LeaderGroup(NOWHERE, names=names, identity=f"m{number}") for number in range(2)]
    for group in groups:
        await group.start()
    await election.advance(5)
    assert sorted(len(group.leading) for group in groups) == [2, 2]
    tokens = {name: term.token for group in groups for name, term in group.leading.items()}
    election.end_session(groups[0])
    await election.settle()
    assert groups[0].leading == {}
    await election.advance(10)
    after = {name: term.token for group in groups for name, term in group.leading.items()}
    assert sorted(after) == names
    assert sum(after[name] > tokens[name] for name in names) >= 2
    for group in groups:
        await group.shutdown()


MADE_AT_IMPORT = LeaderLock(NOWHERE, name="made at import")
GROUP_MADE_AT_IMPORT = LeaderGroup(NOWHERE, names=["a"], group="made at import")
TOLD: list[int] = []
MADE_AT_IMPORT.on_acquired(lambda term: TOLD.append(term.token))


@pytest.mark.parametrize("time", ["first", "second"])
async def test_what_a_module_made_when_it_was_imported_elects_in_memory_too(time: str) -> None:
    """Twice, as in two tests of one run: each begins anew."""
    TOLD.clear()
    with local_election() as election:
        async with MADE_AT_IMPORT as lock, GROUP_MADE_AT_IMPORT as group:
            await election.advance(30)
            assert [lock.is_leader, *group.leading] == [True, "a"]
            await election.take_away(lock)
            await election.give_back(lock)
            await election.advance(5)
            assert [lock.is_leader, *group.leading] == [True, "a"]
            election.clock.advance(15)
            assert [lock.is_leader, *group.leading] == [False]
    assert len(TOLD) == 2, time
    assert isinstance(MADE_AT_IMPORT._clock, SystemClock)
    assert isinstance(GROUP_MADE_AT_IMPORT._runner._clock, SystemClock)
    assert not hasattr(LeaderLock.start, "__wrapped__")


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
async def test_time_that_cannot_pass_is_refused(election: LocalElection, seconds: float) -> None:
    with pytest.raises(ValueError, match="seconds="):
        await election.advance(seconds)
    with pytest.raises(ValueError, match="seconds="):
        await election.suspend(seconds)


async def test_what_was_not_taken_away_cannot_be_given_back(election: LocalElection) -> None:
    with pytest.raises(KeyError, match=r"'x' .* was not taken away"):
        await election.give_back(LeaderLock(NOWHERE, name="x"))


async def test_outside_the_block_everything_is_real_again() -> None:
    with local_election() as election:
        inside = LeaderLock(NOWHERE, name="x")
        assert inside._clock is election.clock
    outside = LeaderLock(NOWHERE, name="x")
    assert isinstance(outside._clock, SystemClock)
    assert vars(pgelect.lock)["PostgresSession"] is PostgresSession


TESTS = """
import psycopg

from pgelect import LeaderLock


async def test_in_memory(pgelect_election):
    async with LeaderLock(name="x") as lock:
        await pgelect_election.settle()
        assert lock.is_leader


def test_on_a_server(pgelect_database, pgelect_postgres):
    with psycopg.connect(pgelect_database) as conn:
        conn.execute("CREATE TABLE t ()")
    assert pgelect_postgres.is_running


def test_on_a_database_of_its_own(pgelect_database):
    with psycopg.connect(pgelect_database) as conn:
        conn.execute("CREATE TABLE t ()")
"""


def test_the_fixtures_are_there_for_those_who_ask(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["pgelect.testing.plugin"]\n')
    (tmp_path / "test_x.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(tmp_path)],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "3 passed" in done.stdout, done.stdout + done.stderr
