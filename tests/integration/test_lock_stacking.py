"""The lock is taken once and freed by one unlock, however it was got and however long it was held.

Session locks count up. A fault like wolverine#2691: each heartbeat took the lock again, one unlock gave back one of
many, and a step-down that had succeeded left a lock which nobody could take. pg_locks shows one row however often it
was taken, so the session is kept open here after the unlock.
"""

import asyncio
from collections.abc import Callable

import pytest

from pgelect import LockState
from pgelect._postgres.link import Link
from pgelect.testing import Postgres
from tests.support.electors import Elector
from tests.support.pgbouncer import PgBouncer
from tests.support.proxy import BreakableProxy
from tests.support.server import lock_holders, lock_waiters, query, sessions, terminate
from tests.support.waiting import eventually

Key = tuple[int, int]
PROOFS = 100
SETTINGS = {"lease_s": 60.0, "health_interval_s": 0.01}
WAYS = ["tried", "polled", "queued", "resumed", "resumed from a ghost"]


@pytest.fixture
def server_log(server: Postgres) -> Callable[[], str]:
    """What the server has logged since the test began."""
    logged = len(server.log_text())
    return lambda: server.log_text()[logged:]


async def got(way: str, a: Elector, database: str, key: Key, proxy: BreakableProxy) -> int:
    """Have it lead, having got the lock that way; return the pid of its session."""
    if way in ("polled", "queued"):
        async with Elector(database, key, **SETTINGS) as first:
            await first.leads()
            async with asyncio.TaskGroup() as group:
                group.create_task(a.lock.start())
                if way == "queued":
                    await eventually(lambda: lock_waiters(database, *key), message="it waits in the queue")
                else:
                    await eventually(lambda: len(sessions(database)) == 2)
    else:
        await a.lock.start()
    term = await a.leads()
    for _ in range(3 if way.startswith("resumed") else 0):
        await loses_and_resumes(way, a, database, key, proxy)
        assert a.lock.term is term
    (pid,) = lock_holders(database, *key)
    return pid


async def loses_and_resumes(way: str, a: Elector, database: str, key: Key, proxy: BreakableProxy) -> None:
    (before,) = lock_holders(database, *key)
    led = a.states.count(LockState.LEADER)
    if way == "resumed":
        terminate(database, before)
    else:
        proxy.freeze()  # the server does not hear of it
        await eventually(lambda: a.lock.state is LockState.RECONNECTING)
        proxy.thaw()
    await eventually(lambda: a.states.count(LockState.LEADER) == led + 1, message="it leads again")
    await eventually(lambda: before not in lock_holders(database, *key))


@pytest.mark.parametrize("way", WAYS)
async def test_after_a_hundred_proofs_one_unlock_frees_the_lock_although_its_session_lives_on(
    server_log: Callable[[], str], database: str, key: Key, proxy: BreakableProxy, way: str
) -> None:
    settings = {
        **SETTINGS,
        "acquire": "poll" if way == "polled" else "queue",
        "health_timeout_s": 0.3 if way == "resumed from a ghost" else None,
        "reconnect_grace_s": 30.0,
    }
    a = Elector(proxy.dsn(database), key, **settings)
    kept: list[Link] = []
    finish = Link._finish

    def keep(link: Link) -> None:
        kept.append(link)

    try:
        with a.looks:
            pid = await got(way, a, database, key, proxy)
            await a.proved(PROOFS)
            async with Elector(database, key, **SETTINGS) as b:
                await eventually(lambda: lock_waiters(database, *key), message="another waits in the queue")
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(Link, "_finish", keep)
                    assert await a.lock.step_down(cooldown_s=3600)
                    await b.leads()
                    await eventually(lambda: len(kept) == 1, message="the session has told of the release")
                    assert pid not in lock_holders(database, *key)
                    assert pid in [one.pid for one in sessions(database)], "its session lives on"
                for link in kept:
                    finish(link)
    finally:
        await a.lock.shutdown()
    assert "you don't own a lock" not in server_log(), server_log()


async def test_what_a_pool_keeps_open_is_free_after_a_hundred_proofs_and_a_step_down(
    pgbouncer: Callable[..., PgBouncer], database: str, key: Key
) -> None:
    """A pool's session lives on after every close, and would keep whatever was not unlocked."""
    pooled = pgbouncer("session", 5, settings={"server_reset_query": ""}).through(database)
    async with Elector(pooled, key, **SETTINGS) as a:
        await a.leads()
        (pid,) = lock_holders(database, *key)
        await a.proved(PROOFS)
        assert await a.lock.step_down(cooldown_s=3600)
        assert lock_holders(database, *key) == []
        assert query(database, "SELECT 1 FROM pg_stat_activity WHERE pid = %s", pid) == [(1,)]
    query(database, "SELECT pg_terminate_backend(%s)", pid)
