"""Behind PgBouncer: a pool that shares server sessions between clients is refused, one in session mode works."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgelect import LeaderLock, LockState, PoolerError
from tests.support.electors import Elector, one_leads
from tests.support.pgbouncer import PgBouncer
from tests.support.proxy import BreakableProxy
from tests.support.replicas import Replicas
from tests.support.server import lock_holders, lock_waiters, query, sessions
from tests.support.waiting import eventually, eventually_sync

Key = tuple[int, int]
Pooler = Callable[..., PgBouncer]
LEASE_S = 10.0
SETTINGS = ["idle_session_timeout", "search_path", "lock_timeout", "application_name", "statement_timeout"]


def settings_of_pooled_sessions(dsn: str, rounds: int = 4) -> list[tuple[object, ...]]:
    """What clients of the pool get: each setting that the library sets, on as many sessions as come by."""
    shown = ", ".join(f"current_setting('{name}')" for name in SETTINGS)
    return [query(dsn, f"SELECT {shown}, nullif(current_setting('pgelect.nonce', true), '')")[0] for _ in range(rounds)]


def locks_of(database: str) -> list[tuple[object, ...]]:
    here = "(SELECT oid FROM pg_database WHERE datname = current_database())"
    return query(database, f"SELECT * FROM pg_locks WHERE locktype = 'advisory' AND database = {here}")


@pytest.mark.parametrize("pool_size", [1, 2, 20])
@pytest.mark.parametrize("mode", ["transaction", "statement"])
async def test_a_pool_that_shares_sessions_is_refused_and_nothing_is_left_on_the_server(
    pgbouncer: Pooler, database: str, key: Key, mode: str, pool_size: int
) -> None:
    """Regression: both of two electors were granted the lock, as they shared a session; and it stayed locked."""
    pooler = pgbouncer(mode, pool_size)
    dsn = pooler.through(database)
    before = settings_of_pooled_sessions(dsn)
    electors = [Elector(dsn, key) for _ in range(2)]
    for elector in electors:
        with pytest.raises(PoolerError, match="session mode") as refused:
            await elector.lock.start()
        assert refused.value.mode == "transaction"
        assert elector.lock.state is LockState.STOPPED
        assert not elector.is_leader
        assert elector.terms == []
    await eventually(lambda: locks_of(database) == [])
    await eventually(lambda: sessions(database) == [])
    assert settings_of_pooled_sessions(dsn) == before
    assert query(database, "SELECT to_regnamespace('pgelect')") == [(None,)]
    clients = [row for row in pooler.admin("SHOW CLIENTS") if row[2] != "pgbouncer"]
    assert clients == []


async def test_two_that_start_at_once_behind_a_busy_transaction_pool_are_both_refused(
    pgbouncer: Pooler, database: str, key: Key
) -> None:
    """Other clients take sessions in between, so that hardly two statements run on the same one."""
    dsn = pgbouncer("transaction", 4).through(database)
    stop = asyncio.Event()

    async def traffic() -> None:
        while not stop.is_set():
            await asyncio.to_thread(query, dsn, "SELECT pg_sleep(0.01)")

    async with asyncio.TaskGroup() as clients:
        for _ in range(3):
            clients.create_task(traffic())
        electors = [Elector(dsn, (key[0], n)) for n in range(4)]
        starts = await asyncio.gather(*(elector.lock.start() for elector in electors), return_exceptions=True)
        stop.set()
    assert [type(start) for start in starts] == [PoolerError] * 4
    await eventually(lambda: locks_of(database) == [])


@pytest.mark.parametrize("round_robin", ["0", "1"])
async def test_a_wide_pool_of_idle_sessions_is_refused_in_whatever_order_it_hands_them_out(
    pgbouncer: Pooler, database: str, key: Key, round_robin: str
) -> None:
    dsn = pgbouncer("transaction", 6, settings={"server_round_robin": round_robin}).through(database)
    async with asyncio.TaskGroup() as group:
        for _ in range(6):
            group.create_task(asyncio.to_thread(query, dsn, "SELECT pg_sleep(0.1)"))
    for _ in range(5):
        with pytest.raises(PoolerError):
            await Elector(dsn, key).lock.start()
    await eventually(lambda: locks_of(database) == [])


class Balancer(BreakableProxy):
    """Hands each connection to the next of several upstreams, as a service in front of several poolers does."""

    def __init__(self, *ports: int) -> None:
        self._next = itertools.cycle(ports)
        super().__init__("127.0.0.1", ports[0])

    @property
    def upstream(self) -> tuple[str, int]:
        return "127.0.0.1", next(self._next)

    @upstream.setter
    def upstream(self, _: tuple[str, int]) -> None:
        pass


@pytest.mark.parametrize("way", ["dsn callable", "balancer", "host list"])
async def test_several_transaction_pools_behind_one_name_are_refused(
    pgbouncer: Pooler, database: str, key: Key, way: str
) -> None:
    """The second connection, by which the modes are told apart, may meet another pool than the first."""
    poolers = [pgbouncer("transaction", 2) for _ in range(2)]
    with Balancer(*(pooler.port for pooler in poolers)) as balancer:
        each = itertools.cycle([pooler.through(database) for pooler in poolers])
        ports = ",".join(str(pooler.port) for pooler in poolers)
        dsn: object = {
            "dsn callable": lambda: next(each),
            "balancer": balancer.dsn(database),
            "host list": make_conninfo(database, host="127.0.0.1,127.0.0.1", port=ports, load_balance_hosts="random"),
        }[way]
        for _ in range(6 if way == "host list" else 2):
            a = Elector(dsn, key)
            try:
                with pytest.raises(PoolerError):
                    await a.lock.start()
            finally:
                await a.lock.shutdown()
            assert a.terms == []
        await eventually(lambda: locks_of(database) == [])


async def test_allow_pooler_starts_behind_any_pool(pgbouncer: Pooler, database: str, key: Key) -> None:
    """For a pooler that only looks like one; here it is one, with a single session that is handed to nobody else.

    That session lives on in the pool, so that nothing but the unlock frees the lock.
    """
    pooler = pgbouncer("transaction", 1)
    async with Elector(pooler.through(database), key, lease_s=60.0, allow_pooler=True) as a:
        term = await a.leads()
        (pid,) = lock_holders(database, *key)
    assert a.terms == [("acquired", term.token), ("released", term.token)]
    assert query(pooler.through(database), "SELECT pg_backend_pid()") == [(pid,)]
    assert lock_holders(database, *key) == []


async def test_a_session_that_a_pooler_hands_to_another_elector_proves_nothing(
    pgbouncer: Pooler, database: str, key: Key
) -> None:
    """Whoever overrides the check and is wrong: the lock is re-entrant, so the other one is granted it as well.

    The first one must notice that it is no longer its own session that holds the lock.
    """
    dsn = pgbouncer("transaction", 1).through(database)
    async with Elector(dsn, key, lease_s=10.0, health_interval_s=0.2, allow_pooler=True) as a:
        term = await a.leads()
        b = Elector(dsn, key, lease_s=10.0, allow_pooler=True, auto_reacquire=False)
        async with b:
            await b.leads(above=term.token)
            await a.has_lost(term.token)
            assert not term.is_current
            await a.lock.shutdown()


async def test_two_electors_hand_over_through_a_session_pool(pgbouncer: Pooler, database: str, key: Key) -> None:
    pooler = pgbouncer("session", 5)
    dsn = pooler.through(database)
    before = settings_of_pooled_sessions(dsn)
    async with Elector(dsn, key, lease_s=LEASE_S) as a, Elector(dsn, key, lease_s=LEASE_S) as b:
        token = 0
        for _ in range(4):
            leader = await one_leads(a, b, above=token)
            await eventually(lambda: len(lock_waiters(database, *key)) == 1, message="the other waits in the queue")
            token = leader.lock.token or 0
            assert await leader.lock.step_down()
            other = b if leader is a else a
            await other.leads(above=token)
            assert len(lock_holders(database, *key)) == 1
        assert a.errors == b.errors == []
        a.check_pairs()
        b.check_pairs()
    await eventually(lambda: locks_of(database) == [], message="nothing is locked")
    await eventually(lambda: not sessions(database), message="the pool has cleaned its sessions")
    assert settings_of_pooled_sessions(dsn) == before


def test_a_leader_that_is_killed_behind_a_session_pool_is_succeeded(pgbouncer: Pooler, database: str, key: Key) -> None:
    with Replicas(database, key, lease_s=30.0) as group:
        dsn = pgbouncer("session", 10).through(database)
        leader = group.start("r0", through=dsn)
        token = int(leader.wait_for("acquired")["token"])
        follower = group.start("r1", through=dsn)
        (held,) = group.holders()
        (waiting,) = eventually_sync(lambda: lock_waiters(database, *key))
        leader.kill()
        successor = follower.wait_for("acquired")["token"]
        assert successor > token
        assert group.holders() == [waiting] != [held]
        assert follower.ask("write")["error"] is None
        assert group.ledger() == [successor]


async def test_a_leader_whose_session_pool_goes_away_loses_the_term(pgbouncer: Pooler, database: str, key: Key) -> None:
    pooler = pgbouncer("session", 5)
    async with Elector(pooler.through(database), key, lease_s=LEASE_S) as a, Elector(database, key) as b:
        token = (await a.leads()).token
        await eventually(lambda: lock_waiters(database, *key))
        pooler.close()
        await b.leads(above=token)
        await eventually(lambda: a.tokens("lost") == [token])
        assert not a.is_leader


async def test_a_session_pool_that_is_full_with_our_own_session_is_not_taken_for_another_mode(
    pgbouncer: Pooler, database: str, key: Key
) -> None:
    """The second connection that tells the modes apart gets no session, as there is only the one."""
    async with Elector(pgbouncer("session", 1).through(database), key, lease_s=LEASE_S) as a:
        term = await a.leads()
        assert len(lock_holders(database, *key)) == 1
        assert a.lock.term is term


async def test_a_shutdown_ends_the_second_connection_that_tells_the_modes_apart(
    pgbouncer: Pooler, database: str, key: Key
) -> None:
    dsn = pgbouncer("session", 2).through(database)
    second = asyncio.Event()
    made = 0

    async def connect() -> psycopg.AsyncConnection[Any]:
        nonlocal made
        made += 1
        if made == 2:
            second.set()
            await asyncio.Event().wait()
        return await psycopg.AsyncConnection.connect(dsn)

    lock = LeaderLock("", *key, connect_fn=connect)
    starting = asyncio.create_task(lock.start())
    await second.wait()
    await lock.shutdown()
    await starting
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_startup_options_that_a_pooler_refuses_are_told_and_tried_again(
    pgbouncer: Pooler, database: str, key: Key
) -> None:
    dsn = pgbouncer("session", 5).through(database, options="-c geqo=off")
    async with Elector(dsn, key) as a:
        await a.hears(Exception, "unsupported startup parameter")
        assert a.lock.state is LockState.FOLLOWER
        assert a.terms == []
