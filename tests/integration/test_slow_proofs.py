"""Proofs that come late, or now and then not at all, are no loss while the lease is trusted."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import psycopg
import pytest

from pgelect import LockState, PgElectError
from tests.support.electors import Elector
from tests.support.proxy import BreakableProxy
from tests.support.server import lock_holders, query
from tests.support.waiting import eventually

Key = tuple[int, int]
LEASE_S = 4.0
INTERVAL_S = 0.1


def nothing_changed(elector: Elector, token: int) -> bool:
    return (
        elector.terms == [("acquired", token)]
        and elector.states[-1] is LockState.LEADER
        and len(elector.looks.spans) == 1
    )


@pytest.mark.parametrize("delays_s", [(0.2, 0.2), (0.0, 0.4), (0.4, 0.0), (0.0, 0.6, 0.0, 0.6)])
async def test_slow_but_answered_proofs_make_no_transition(
    proxy: BreakableProxy, database: str, key: Key, delays_s: tuple[float, ...]
) -> None:
    """Each way is as slow as the number says, then as the next one; a proof is given 0.8 of the lease."""
    async with Elector(proxy.dsn(database), key, lease_s=LEASE_S, health_interval_s=INTERVAL_S) as a:
        token = (await a.leads()).token
        for delay_s in delays_s:
            proxy.delay(delay_s)
            await a.proved(2)
        proxy.delay(0)
        await a.proved(2)
        assert nothing_changed(a, token)
        assert a.errors == []
        assert len(lock_holders(database, *key)) == 1


async def test_a_proof_slower_than_its_timeout_is_a_loss(proxy: BreakableProxy, database: str, key: Key) -> None:
    """The other side of the coin, so that the tests above are known to see a loss."""
    settings = {"lease_s": LEASE_S, "health_interval_s": INTERVAL_S, "health_timeout_s": 0.2}
    async with Elector(proxy.dsn(database), key, **settings) as a:
        token = (await a.leads()).token
        proxy.delay(0.5)
        await eventually(lambda: a.tokens("lost") == [token])
        proxy.delay(0)
        await a.leads(above=token)


@asynccontextmanager
async def proofs_held_up(database: str, pid: int) -> AsyncIterator[Callable[[], None]]:
    """While inside, proofs wait on the server, for a view they read; yields a function that cancels what waits."""
    with psycopg.connect(database) as conn:
        conn.execute("LOCK TABLE pg_catalog.pg_locks IN ACCESS EXCLUSIVE MODE")

        def one_waits() -> bool:
            waiting = "SELECT 1 FROM pg_lock_status() WHERE pid = %s AND locktype = 'relation' AND NOT granted"
            return conn.execute(waiting, (pid,)).fetchone() is not None

        def cancel() -> None:
            conn.execute("SELECT pg_cancel_backend(%s)", (pid,))

        await eventually(one_waits, message="a proof waits")
        yield cancel


async def test_one_cancelled_proof_is_no_loss(database: str, key: Key) -> None:
    async with Elector(database, key, lease_s=LEASE_S, health_interval_s=INTERVAL_S) as a:
        token = (await a.leads()).token
        (pid,) = lock_holders(database, *key)
        async with proofs_held_up(database, pid) as cancel:
            cancel()
            error = await a.hears(PgElectError, "canceling statement")
            assert "57014" in str(error)
        await a.proved(3)
        assert nothing_changed(a, token)
        assert lock_holders(database, *key) == [pid]


async def test_proofs_that_the_server_refuses_for_a_lease_are_a_loss(database: str, key: Key) -> None:
    lease_s = 1.0
    async with Elector(database, key, lease_s=lease_s, health_interval_s=INTERVAL_S) as a:
        token = (await a.leads()).token
        (pid,) = lock_holders(database, *key)
        async with proofs_held_up(database, pid):
            await eventually(lambda: a.tokens("lost") == [token])
        assert not a.is_leader or (a.lock.token or 0) > token
        await a.leads(above=token)


async def test_cancels_at_any_moment_are_no_loss(database: str, key: Key) -> None:
    """An administrator, or a tool, that cancels whatever runs: the idle wait, a proof, or nothing at all."""
    async with (
        Elector(database, key, lease_s=LEASE_S, health_interval_s=0.02) as a,
        Elector(database, key, lease_s=LEASE_S) as b,
    ):
        token = (await a.leads()).token
        everybody = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE 'pgelect:%'"
        for _ in range(100):
            query(database, everybody)
            await asyncio.sleep(0.005)
        await a.proved(3)
        assert nothing_changed(a, token)
        assert b.terms == []
        assert len(lock_holders(database, *key)) == 1
