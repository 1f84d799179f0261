"""An election is a good neighbour on its server: it holds up no maintenance, and fills no log."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager

import pytest

from pgelect._engine.crowd import PLACES
from pgelect.testing import Postgres
from tests.support.databases import fresh_database
from tests.support.electors import Elector, one_leads
from tests.support.server import lock_holders, lock_waiters, query, sessions
from tests.support.waiting import eventually

Key = tuple[int, int]
LEASE_S = 10.0
FOLLOWERS = 20
OLDEST_SNAPSHOT = """
SELECT max(extract(epoch FROM clock_timestamp() - query_start))::float FROM pg_stat_activity
WHERE application_name LIKE 'pgelect:%' AND backend_xmin IS NOT NULL
"""


@pytest.fixture
def own_database(own_server: Postgres, last_of_all: ExitStack) -> str:
    return last_of_all.enter_context(fresh_database(own_server))


@asynccontextmanager
async def led(dsn: str, key: Key, followers: int = FOLLOWERS, interval_s: float = 0.05) -> AsyncIterator[list[Elector]]:
    """One leads, so many wait, and nothing changes meanwhile."""
    electors = [Elector(dsn, key, lease_s=LEASE_S, health_interval_s=interval_s) for _ in range(followers + 1)]
    async with AsyncExitStack() as stack:
        for elector in electors:
            await stack.enter_async_context(elector)
        leader = await one_leads(*electors)
        waiting = min(followers, PLACES)
        await eventually(lambda: len(lock_waiters(dsn, *key)) == waiting, message="all wait, in the queue or aside")
        yield electors
        assert leader.is_leader
        assert sum(len(elector.terms) for elector in electors) == 1
        assert [elector.errors for elector in electors] == [[]] * len(electors)


async def slices(dsn: str, number: int, followers: int = PLACES) -> None:
    """Wait until so many followers have begun a new wait so many times."""
    begun: dict[int, set[str]] = {}

    def enough() -> bool:
        waiting = "SELECT pid, waitstart::text FROM pg_locks WHERE locktype = 'advisory' AND waitstart IS NOT NULL"
        for pid, since in query(dsn, waiting):
            begun.setdefault(pid, set()).add(since)
        return sum(len(waits) > number for waits in begun.values()) >= followers  # one may have stood aside since

    await eventually(enough, 30, f"{number} waits of each follower")


@pytest.mark.parametrize("deadlock_timeout", ["1s", "200ms"])
async def test_maintenance_finishes_while_followers_wait_and_nothing_is_logged(
    own_server: Postgres, own_database: str, key: Key, deadlock_timeout: str
) -> None:
    """Regression: a blocked wait for a lock holds a snapshot, for which CREATE INDEX CONCURRENTLY waits without end."""
    own_server.configure(log_lock_waits="on", deadlock_timeout=deadlock_timeout, log_min_messages="info")
    own_server.reload()
    query(own_database, "CREATE TABLE busy AS SELECT g AS x FROM generate_series(1, 1000) g")
    patient = own_database + " options='-c statement_timeout=20s'"

    async def maintained() -> str:
        """Maintain the table; return what was logged meanwhile."""
        logged = len(own_server.log_text())
        for statement in (
            "CREATE INDEX CONCURRENTLY busy_x ON busy (x)",
            "VACUUM busy",
            "REINDEX INDEX CONCURRENTLY busy_x",
            "DROP INDEX CONCURRENTLY busy_x",
        ):
            await asyncio.to_thread(query, patient, statement)
        await slices(own_database, 3)
        said = own_server.log_text()[logged:]
        assert not re.search("canceling statement|ERROR|FATAL|WARNING|deadlock", said), said
        return said

    async with led(own_database, key):
        said = [await maintained()]
        while "still waiting" in said[-1]:  # once or twice, if the whole machine stood still for a moment
            assert len(said) < 5, "\n".join(["something always waits for longer than deadlock_timeout:", *said])
            said.append(await maintained())


async def test_a_leader_is_idle_and_pins_no_snapshot(database: str, key: Key) -> None:
    async with led(database, key, followers=2, interval_s=0.5):
        (pid,) = lock_holders(database, *key)
        for _ in range(100):
            seen = next(one for one in sessions(database) if one.pid == pid)
            if seen.state != "active":  # as it is for a fraction of a millisecond, in a proof
                assert (seen.state, seen.backend_xmin) == ("idle", None)
            await asyncio.sleep(0.01)
        others = [one for one in sessions(database) if one.pid != pid]
        assert {one.state for one in others} <= {"active", "idle"}


async def test_a_follower_holds_a_snapshot_for_no_longer_than_a_wait(database: str, key: Key) -> None:
    async with led(database, key, followers=5):
        for _ in range(150):
            age_s = query(database, OLDEST_SNAPSHOT)[0][0]
            assert age_s is None or age_s < 0.9 + 1.0  # a wait, and a second for a busy machine
            await asyncio.sleep(0.01)


async def test_no_transaction_stays_open_under_the_strictest_timeout(
    own_server: Postgres, own_database: str, key: Key
) -> None:
    own_server.configure(idle_in_transaction_session_timeout="50ms")
    own_server.reload()
    async with led(own_database, key, followers=2):
        await slices(own_database, 2, followers=2)
    assert "idle-in-transaction" not in own_server.log_text()


async def test_nothing_is_prepared_on_the_server(own_server: Postgres, own_database: str, key: Key) -> None:
    """Regression: after a few runs the driver prepares a statement, which a pooler then cannot find."""
    own_server.configure(log_statement="all", log_min_error_statement="panic")
    own_server.reload()
    async with led(own_database, key, followers=1, interval_s=0.02) as electors:
        await next(elector for elector in electors if elector.is_leader).proved(100)
    ours = [line for line in own_server.log_text().splitlines() if "] pgelect:" in line]
    assert len([line for line in ours if "pgelect.nonce" in line]) >= 100, "the proofs were not logged"
    assert not [line for line in ours if re.search(r"LOG:  (execute|parse|bind)|PREPARE", line)]


@pytest.mark.parametrize("waiting", [True, False])
async def test_a_shutdown_leaves_no_line_in_the_servers_log(
    own_server: Postgres, own_database: str, key: Key, waiting: bool
) -> None:
    logged = len(own_server.log_text())
    async with led(own_database, key, followers=3) as electors:
        if waiting:
            followers = [elector for elector in electors if not elector.is_leader]
            await asyncio.gather(*(elector.lock.shutdown() for elector in followers))
            assert lock_waiters(own_database, *key) == []
    assert not re.search("ERROR|FATAL|WARNING|LOG:", own_server.log_text()[logged:]), own_server.log_text()[logged:]
