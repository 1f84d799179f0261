"""A hot standby grants advisory locks of its own, which mean nothing: nobody leads there."""

import asyncio
from contextlib import ExitStack

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgelect import LockState, NotPrimaryError
from pgelect.testing import Postgres
from tests.support.databases import fresh_database
from tests.support.electors import Elector
from tests.support.proxy import BreakableProxy
from tests.support.server import lock_holders, lock_waiters, query, sessions
from tests.support.waiting import eventually, eventually_sync

Key = tuple[int, int]
Pair = tuple[str, str]
TIMELINE = 1 << 40  # a token minted on the second timeline is above this


@pytest.fixture
def databases(standby_pair: tuple[Postgres, Postgres], last_of_all: ExitStack) -> Pair:
    """The same database on the primary and on the standby."""
    primary, standby = standby_pair
    dsn = last_of_all.enter_context(fresh_database(primary))
    on_standby = standby.dsn(str(conninfo_to_dict(dsn)["dbname"]))
    eventually_sync(lambda: caught_up(dsn, standby), message="the standby has the database")
    return dsn, on_standby


def caught_up(dsn: str, standby: Postgres) -> bool:
    """Whether the standby has replayed all that the primary has written."""
    (written,) = query(dsn, "SELECT pg_current_wal_flush_lsn()::text")[0]
    return bool(query(standby.dsn(), "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", written)[0][0])


async def test_a_standby_is_refused_and_no_lock_is_taken_there(
    standby_pair: tuple[Postgres, Postgres], databases: Pair, key: Key
) -> None:
    _, standby = standby_pair
    on_primary, on_standby = databases
    async with Elector(on_primary, key, lease_s=10.0) as leader, Elector(on_standby, key) as a:
        term = await leader.leads()
        await eventually(lambda: caught_up(on_primary, standby), message="the standby has the schema")
        error = await a.hears(NotPrimaryError, str(standby.port))
        assert "target_session_attrs" in str(error)
        for _ in range(20):  # each look finds no lock, while it tries again and again
            assert lock_holders(on_standby, *key) == lock_waiters(on_standby, *key) == []
            await asyncio.sleep(0.02)
        errors = len(a.errors)
        await eventually(lambda: len(a.errors) > errors + 2, message="it keeps trying")
        assert set(a.states) == {LockState.STOPPED, LockState.FOLLOWER}, "it never even tried"
        assert a.looks.spans == []
        assert a.terms == []
        assert term.is_current


async def test_after_its_promotion_it_is_led_under_a_greater_token(
    standby_pair: tuple[Postgres, Postgres], databases: Pair, key: Key
) -> None:
    primary, standby = standby_pair
    on_primary, on_standby = databases
    async with Elector(on_primary, key) as old:
        token = (await old.leads()).token
    await eventually(lambda: caught_up(on_primary, standby), message="the standby has the token")
    async with Elector(on_standby, key) as a:
        await a.hears(NotPrimaryError)
        await asyncio.to_thread(primary.stop)
        await asyncio.to_thread(standby.promote)
        term = await a.leads()
        assert a.terms == [("acquired", term.token)]
        assert term.token > max(token, TIMELINE)
        assert lock_holders(on_standby, *key) == [one.pid for one in sessions(on_standby)]


async def test_a_leader_whose_address_is_moved_to_the_standby_stops_leading_until_the_promotion(
    standby_pair: tuple[Postgres, Postgres], databases: Pair, key: Key
) -> None:
    """As a failover does it: connections are dropped and the address leads to a server that is not yet promoted."""
    primary, standby = standby_pair
    on_primary, on_standby = databases
    with BreakableProxy("127.0.0.1", primary.port) as proxy:
        async with Elector(proxy.dsn(on_primary), key, reconnect_grace_s=60) as a:
            token = (await a.leads()).token
            await eventually(lambda: caught_up(on_primary, standby), message="the standby has the token")
            proxy.upstream = ("127.0.0.1", standby.port)
            proxy.cut()
            await a.hears(NotPrimaryError)
            assert a.lock.state is LockState.RECONNECTING
            assert not a.is_leader
            assert lock_holders(on_standby, *key) == []
            await asyncio.to_thread(primary.stop)
            await asyncio.to_thread(standby.promote)
            term = await a.leads(above=token)
            assert a.terms == [("acquired", token), ("lost", token), ("acquired", term.token)]
            assert term.token > TIMELINE


async def test_with_all_hosts_in_the_dsn_the_primary_is_found(
    standby_pair: tuple[Postgres, Postgres], databases: Pair, key: Key
) -> None:
    primary, standby = standby_pair
    on_primary, on_standby = databases
    both = make_conninfo(on_primary, host="127.0.0.1,127.0.0.1", port=f"{standby.port},{primary.port}")
    async with Elector(both, key) as a:
        token = (await a.leads()).token
        assert a.errors == []
        assert len(lock_holders(on_primary, *key)) == 1
        await eventually(lambda: caught_up(on_primary, standby), message="the standby has the token")
        await asyncio.to_thread(primary.stop)
        await asyncio.to_thread(standby.promote)
        term = await a.leads(above=token)
        assert term.token > TIMELINE
        assert len(lock_holders(on_standby, *key)) == 1
