"""The way to the server changes while the lock runs: a transaction pooler comes in between, or a pool does not clean.

A fault like goauthentik/authentik#23876: a lock that nobody owned was held by a pooled session until it was recycled.
"""

import itertools
from collections.abc import Callable

import psycopg
import pytest

from pgelect import LockState, PoolerError
from tests.support.electors import Elector
from tests.support.pgbouncer import PgBouncer
from tests.support.replicas import Replicas
from tests.support.server import lock_holders, lock_waiters, query, sessions, terminate
from tests.support.waiting import eventually, eventually_sync

Key = tuple[int, int]
Pooler = Callable[..., PgBouncer]


def any_advisory_lock(database: str) -> bool:
    here = "(SELECT oid FROM pg_database WHERE datname = current_database())"
    return bool(query(database, f"SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND database = {here}"))


@pytest.mark.parametrize("grace_s", [None, 30.0])
@pytest.mark.parametrize("pool_size", [1, 4])
async def test_a_transaction_pool_that_comes_in_between_later_is_never_led_through(
    pgbouncer: Pooler, database: str, key: Key, pool_size: int, grace_s: float | None
) -> None:
    """The first connection was direct, so start() was fine; the refusal is told, and undone when the pool is gone."""
    pooled = pgbouncer("transaction", pool_size).through(database)
    ways = itertools.chain([database], [pooled] * 8, itertools.repeat(database))
    async with Elector(lambda: next(ways), key, lease_s=30.0, reconnect_grace_s=grace_s) as a:
        term = await a.leads()
        terminate(database, lock_holders(database, *key)[0])
        await a.hears(PoolerError, "session mode")
        await eventually(lambda: a.states.count(LockState.LEADER) == 2, message="it leads again")
        assert sum(isinstance(error, PoolerError) for error in a.errors) >= 2
        assert LockState.ACQUIRING not in a.states[a.states.index(LockState.LEADER) : -2]
        if grace_s:
            assert a.terms == [("acquired", term.token)]
        else:
            await a.leads(above=term.token)
            assert a.tokens("lost") == [term.token]
        assert len(lock_holders(database, *key)) == 1
    await eventually(lambda: not any_advisory_lock(database))
    leaked = query(pooled, "SELECT nullif(current_setting('pgelect.nonce', true), ''), current_setting('search_path')")
    assert leaked == [(None, '"$user", public')]


async def test_a_pool_that_begins_to_share_our_session_ends_the_term(
    pgbouncer: Pooler, database: str, key: Key
) -> None:
    """Its mode is changed under a leader's feet: whatever answers the next proof is not what was set up."""
    pooler = pgbouncer("session", 4)
    dsn = pooler.through(database)
    async with Elector(dsn, key, lease_s=30.0, health_interval_s=0.2) as a:
        token = (await a.leads()).token
        (pid,) = lock_holders(database, *key)
        ini = pooler._root / "ini"
        ini.write_text(ini.read_text().replace("pool_mode = session", "pool_mode = transaction"))
        pooler.admin("RELOAD")
        await a.proved(1)  # after which the session is anybody's
        with psycopg.connect(dsn) as other:
            row = other.execute("SELECT pg_backend_pid()").fetchone()
            assert row == (pid,), "another client has the very session that holds the lock"
            await a.has_lost(token)
            await a.hears(PoolerError)
            assert not a.is_leader
            assert a.terms == [("acquired", token), ("lost", token)]
        terminate(database, pid)  # as the operator has to, who shared it
    await eventually(lambda: not any_advisory_lock(database))


@pytest.mark.parametrize("end", ["kill", "shutdown"])
def test_a_session_pool_that_cleans_nothing_does_not_keep_the_lock_beyond_the_lease(
    pgbouncer: Pooler, database: str, key: Key, end: str
) -> None:
    """Killed, it leaves the lock on a session that the pool keeps open; the server ends that by the lease."""
    pooled = pgbouncer("session", 5, settings={"server_reset_query": ""}).through(database)
    with Replicas(database, key, lease_s=1.0) as group:
        leader = group.start("r0", through=pooled)
        token = int(leader.wait_for("acquired")["token"])
        (pid,) = group.holders()
        follower = group.start("r1")
        eventually_sync(lambda: lock_waiters(database, *key), message="the other waits in the queue")
        if end == "kill":
            leader.kill()
        else:
            leader.ask("shutdown")
        assert group.leading(follower, above=token) > token
        eventually_sync(lambda: pid not in [one.pid for one in sessions(database)] or end == "shutdown")
    eventually_sync(lambda: not any_advisory_lock(database), 3.0)
    query(database, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'pgelect:%'")
