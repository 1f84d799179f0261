"""In no state does an elector's session sit in an open transaction or hold a snapshot while it is idle.

Holds off a lock connection that is "idle in transaction" for days, for which vacuum waits, and which the server ends
where idle_in_transaction_session_timeout is set (a fault like skypilot-org/skypilot#10251). The defaults of the
database are as bad as they can be: REPEATABLE READ, where an open transaction pins its first snapshot.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg
import pytest

from pgelect import FixedInterval, LeaderLock, LockState, Term
from tests.support.duties import serving
from tests.support.locks import Key, is_free, leading, make_lock, queueing
from tests.support.proxy import BreakableProxy
from tests.support.server import lock_holders, query, terminate
from tests.support.waiting import eventually

IDLE_IN_TRANSACTION_MS = 500
BAD_DEFAULTS = f"""
ALTER DATABASE {{name}} SET default_transaction_isolation = 'repeatable read';
ALTER DATABASE {{name}} SET idle_in_transaction_session_timeout = '{IDLE_IN_TRANSACTION_MS}ms'
"""
LOOK = """
SELECT state, backend_xmin::text, xact_start IS NOT NULL, pid, state_change::text FROM pg_stat_activity
WHERE application_name LIKE 'pgelect:%' AND datname = current_database() AND state <> 'active'
"""


@pytest.fixture
def bad(database: str) -> str:
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    query(database, BAD_DEFAULTS.format(name=name))
    return database


class Watch:
    """What idle sessions of electors were seen to hold, by a thread that looks all the time.

    Only what two looks agree on: the server reads state and snapshot one after the other, and a statement may begin
    between the two.
    """

    def __init__(self) -> None:
        self.looks = 0
        self.wrong: set[tuple[Any, ...]] = set()

    @contextmanager
    def over(self, database: str) -> Iterator[None]:
        end = threading.Event()

        def run() -> None:
            before: set[tuple[Any, ...]] = set()
            with psycopg.connect(database, autocommit=True) as conn:
                while not end.wait(0.002):
                    rows = conn.execute(LOOK).fetchall()
                    self.looks += bool(rows)
                    wrong = {row for row in rows if row[:3] != ("idle", None, False)}
                    self.wrong |= wrong & before
                    before = wrong

        thread = threading.Thread(target=run, name="watch")
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()


@asynccontextmanager
async def watched(database: str) -> AsyncIterator[Watch]:
    """Look at all idle sessions until the end of the block, which is given time for a hundred looks."""
    watch = Watch()
    with watch.over(database):
        yield watch
        await eventually(lambda: watch.looks >= 100, 20, "a hundred looks at idle sessions")
    assert watch.wrong == set()


async def _connect(dsn: str) -> psycopg.AsyncConnection[Any]:
    """As a user may write it: not in autocommit mode, and every transaction begins with a snapshot that it keeps."""
    return await psycopg.AsyncConnection.connect(dsn, options="-c default_transaction_isolation=serializable")


HOW: dict[str, Callable[[str], dict[str, Any]]] = {
    "by dsn": lambda dsn: {"dsn": dsn},
    "without fencing": lambda dsn: {"dsn": dsn, "fencing": False},
    "by a connection that is not in autocommit mode": lambda dsn: {"dsn": "", "connect_fn": lambda: _connect(dsn)},
}


@pytest.mark.parametrize("how", HOW.values(), ids=HOW.keys())
async def test_a_leader_between_its_proofs(bad: str, key: Key, how: Callable[[str], dict[str, Any]]) -> None:
    async with leading(**how(bad), key=key) as lock, watched(bad):
        (pid,) = lock_holders(bad, *key)
        since = query(bad, "SELECT clock_timestamp()")[0][0]
        older = "SELECT clock_timestamp() - %s > 2 * %s * interval '1 ms'"
        await eventually(lambda: query(bad, older, since, IDLE_IN_TRANSACTION_MS)[0][0])
        assert lock_holders(bad, *key) == [pid]
        assert lock.is_leader


@pytest.mark.parametrize("how", HOW.values(), ids=HOW.keys())
async def test_a_follower_between_its_polls(bad: str, key: Key, how: Callable[[str], dict[str, Any]]) -> None:
    settings: dict[str, Any] = {**how(bad), "acquire": "poll", "retry_strategy": FixedInterval(0.7)}
    async with leading(bad, key), make_lock(key=key, **settings) as follower:
        polls: list[object] = []
        follower.on_acquire_failed(polls.append)
        async with watched(bad):
            await eventually(lambda: len(polls) >= 2)
        assert set(polls) == {None}


async def test_one_that_waits_for_its_takeover_delay(bad: str, key: Key) -> None:
    async with leading(bad, key, identity="first") as first:
        term = first.term
        assert term is not None
        terminate(bad, lock_holders(bad, *key)[0])
        await eventually(lambda: not term.is_current)
    await is_free(bad, key)
    query(bad, "UPDATE pgelect.token SET released_at = NULL")
    async with make_lock(bad, key, takeover_delay_s=3600.0) as lock:
        await eventually(lambda: lock.record is not None and lock.record.released_at is None)
        assert lock.state is LockState.ACQUIRING
        async with watched(bad):
            pass
        assert lock.state is LockState.ACQUIRING


async def test_one_that_drains(bad: str, key: Key) -> None:
    may_end = asyncio.Event()

    async def duty(_: Term) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await may_end.wait()

    async with leading(bad, key) as lock, serving(lock, duty):
        stepping_down = asyncio.create_task(lock.step_down(cooldown_s=3600))
        await eventually(lambda: lock.state is LockState.RELEASING)
        async with watched(bad):
            pass
        may_end.set()
        assert await stepping_down


async def test_one_that_goes_on_with_its_term_after_a_lost_session(bad: str, key: Key, proxy: BreakableProxy) -> None:
    async with leading(proxy.dsn(bad), key, reconnect_grace_s=30.0) as lock:
        token, (pid,) = lock.token, lock_holders(bad, *key)
        proxy.cut()
        await eventually(lambda: lock.is_leader and lock_holders(bad, *key) not in ([], [pid]))
        async with watched(bad):
            pass
        assert lock.token == token


async def _is_told(leader: LeaderLock) -> None:
    await eventually(lambda: not leader.is_leader)


async def test_those_that_change_places_all_the_time(bad: str, key: Key) -> None:
    """Through every state and statement there is; a slice in the queue is active, and so not looked at."""
    async with leading(bad, key) as a, queueing(bad, key) as b:
        watch = Watch()
        with watch.over(bad):
            for _ in range(6):
                (leader,) = await eventually(lambda: [lock for lock in (a, b) if lock.is_leader])
                await leader.step_down(cooldown_s=0.0)
                (leader,) = await eventually(lambda: [lock for lock in (a, b) if lock.is_leader])
                terminate(bad, lock_holders(bad, *key)[0])
                await _is_told(leader)
            await eventually(lambda: watch.looks >= 30, 20, "looks at idle sessions")
        assert watch.wrong == set()
