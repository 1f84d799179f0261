"""After each outage of the server the work goes on: somebody leads, and its duty does what it is there for.

A fault like oban#1026 and rstudio/platform-lib#280: after a failover of the database the leader was still the leader,
pinged the server, and did nothing; or the task that elects had died, and nobody had noticed.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager

import psycopg
import pytest

from pgelect import LockState, NotLeaderError, SessionLostError, Term
from pgelect.testing import Postgres
from tests.support.databases import fresh_database
from tests.support.duties import serving
from tests.support.electors import Elector, one_leads
from tests.support.ledger import connected, make_ledger, write, written
from tests.support.looks import now
from tests.support.server import lock_holders, lock_waiters, query, sessions
from tests.support.waiting import eventually

Key = tuple[int, int]
LEASE_S = 2.0
GRACE_S = 0.6
OUTAGES_S = (0.0, 0.2, 2 * GRACE_S, 0.1, 0.3)
PAUSE_S = 0.02


@pytest.fixture
def own_database(own_server: Postgres, last_of_all: ExitStack) -> str:
    return make_ledger(last_of_all.enter_context(fresh_database(own_server)))


@asynccontextmanager
async def working(elector: Elector, dsn: str) -> AsyncIterator[None]:
    """While it leads, it writes its token to the ledger again and again, whatever the server does."""

    async def duty(_: Term) -> None:
        while True:
            try:
                async with connected(dsn) as conn:
                    while True:
                        async with elector.lock.fence(conn) as term:
                            await write(conn, term.token)
                        await asyncio.sleep(PAUSE_S)
            except (psycopg.OperationalError, SessionLostError):  # of its own connection: the next one may do better
                await asyncio.sleep(PAUSE_S)

    async with elector, serving(elector.lock, duty, repeat=True) as leading:
        yield
        assert not leading.done(), leading


async def works_again(dsn: str, since: int) -> int:
    """Wait until something new was written; return how much there is now."""

    def more() -> int:
        try:
            count = len(written(dsn))
        except psycopg.OperationalError:
            return 0
        return count if count > since + 3 else 0

    return await eventually(more, 30, "the work goes on")


@pytest.mark.parametrize("grace_s", [None, GRACE_S])
async def test_the_work_goes_on_after_each_of_five_outages(
    own_server: Postgres, own_database: str, key: Key, grace_s: float | None
) -> None:
    """One of them is longer than the grace. Each is an immediate stop; recovery is the server's."""
    electors = [Elector(own_database, key, lease_s=LEASE_S, reconnect_grace_s=grace_s) for _ in range(3)]
    async with AsyncExitStack() as stack:
        for elector in electors:
            await stack.enter_async_context(working(elector, own_database))
        done = 0
        for outage_s in OUTAGES_S:
            done = await works_again(own_database, done)
            await eventually(lambda: len(lock_waiters(own_database, *key)) == 2, message="two wait in the queue")
            leader = await one_leads(*electors)
            token = leader.lock.token or 0
            await asyncio.to_thread(own_server.stop, "immediate")
            down_at = now()
            await eventually(lambda: not any(elector.is_leader for elector in electors), message="nobody leads")
            await asyncio.sleep(outage_s)  # the outage itself
            if grace_s and outage_s > grace_s:
                await leader.has_lost(token)
                assert leader.lock.state is LockState.FOLLOWER
            up_at = now()
            assert not any(elector.looks.was_true(down_at + LEASE_S, up_at) for elector in electors)
            await asyncio.to_thread(own_server.start)
        await works_again(own_database, done)
        await eventually(lambda: len(lock_waiters(own_database, *key)) == 2, 30, "two wait in the queue")
        assert [elector.is_leader for elector in electors].count(True) == 1
        assert len(lock_holders(own_database, *key)) == 1
        for elector in electors:
            elector.check_pairs()
            assert elector.lock.state is not LockState.STOPPED
        tokens = written(own_database)
        assert tokens == sorted(tokens)
        begun = sorted(token for elector in electors for token in elector.tokens("acquired"))
        ended = sorted(token for elector in electors for token in elector.tokens("lost"))
        assert ended == begun[:-1], "each loss is told once"
        terms = query(own_database, "SELECT token FROM pgelect.token")
        assert terms == [(begun[-1],)]
        assert len(sessions(own_database)) == 3
        assert len(begun) >= (2 if grace_s else len(OUTAGES_S) + 1)


async def test_who_waits_for_leadership_waits_through_an_outage_and_is_told_of_a_stop(
    own_server: Postgres, own_database: str, key: Key
) -> None:
    """Nobody is left waiting for something that has died."""
    async with Elector(own_database, key) as a:
        term = await a.leads()
        await asyncio.to_thread(own_server.stop, "immediate")
        await a.has_lost(term.token)
        waiting = asyncio.create_task(a.lock.wait_for_leadership())
        ended = asyncio.create_task(term.ended())
        await a.hears(SessionLostError)
        assert not waiting.done()
        await ended
        await asyncio.to_thread(own_server.start)
        assert (await waiting).token > term.token
        await asyncio.to_thread(own_server.stop, "immediate")
        await eventually(lambda: not a.is_leader)
        waiting = asyncio.create_task(a.lock.wait_for_leadership())
        await asyncio.sleep(0)
        await a.lock.shutdown()
        with pytest.raises(NotLeaderError):
            await waiting
        await asyncio.to_thread(own_server.start)
