"""A hot standby grants advisory locks of its own, which mean nothing: nobody leads there."""

import asyncio

import psycopg
import pytest

from pgelect import LockState, NotPrimaryError
from tests.support.electors import Elector
from tests.support.proxy import BreakableProxy
from tests.support.replication import TIMELINE, VERSIONS, Pair, Pairs, Version
from tests.support.server import lock_holders, lock_waiters, sessions
from tests.support.waiting import eventually

Key = tuple[int, int]


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_standby_is_refused_and_no_lock_is_taken_there(pairs: Pairs, version: Version, key: Key) -> None:
    """A fault like makara#399: one led on the primary, and another on its replica."""
    with pairs.lend(version) as pair:
        standby = pair.standby.dsn()
        async with Elector(pair.primary.dsn(), key, lease_s=10.0) as leader:
            term = await leader.leads()
            await asyncio.to_thread(pair.caught_up)  # with the schema
            async with Elector(standby, key) as a:
                error = await a.hears(NotPrimaryError, str(pair.standby.port))
                assert "target_session_attrs" in str(error)
                for _ in range(20):  # each look finds no lock, while it tries again and again
                    assert lock_holders(standby, *key) == lock_waiters(standby, *key) == []
                    await asyncio.sleep(0.02)
                errors = len(a.errors)
                await eventually(lambda: len(a.errors) > errors + 2, message="it keeps trying")
                assert set(a.states) == {LockState.STOPPED, LockState.FOLLOWER}, "it never even tried"
                assert a.looks.spans == []
                assert a.terms == []
                assert term.is_current


async def test_after_its_promotion_it_is_led_under_a_greater_token(pair: Pair, key: Key) -> None:
    async with Elector(pair.primary.dsn(), key) as old:
        token = (await old.leads()).token
    await asyncio.to_thread(pair.caught_up)
    promoted = pair.standby.dsn()
    async with Elector(promoted, key) as a:
        await a.hears(NotPrimaryError)
        await asyncio.to_thread(pair.fail_over)
        term = await a.leads()
        assert a.terms == [("acquired", term.token)]
        assert term.token // TIMELINE == token // TIMELINE + 1
        await eventually(
            lambda: lock_holders(promoted, *key) == [one.pid for one in sessions(promoted)],
            message="no other session is left",
        )


async def test_a_lock_that_a_stranger_took_on_the_standby_is_waited_for_after_the_promotion(
    pair: Pair, key: Key
) -> None:
    """The stranger's session lives through the promotion, and the lock it was granted there is the real one then."""
    async with Elector(pair.primary.dsn(), key, lease_s=10.0) as a:
        await a.leads()
        await asyncio.to_thread(pair.caught_up)
    promoted = pair.standby.dsn()
    async with await psycopg.AsyncConnection.connect(promoted, autocommit=True) as stranger:
        await stranger.execute("SELECT pg_advisory_lock(%s, %s)", key)
        await asyncio.to_thread(pair.fail_over)
        async with Elector(promoted, key, lease_s=10.0) as b:
            await eventually(lambda: lock_waiters(promoted, *key), message="it waits in the queue")
            assert lock_holders(promoted, *key) == [stranger.info.backend_pid]
            assert b.terms == []
            await stranger.execute("SELECT pg_advisory_unlock(%s, %s)", key)
            await b.leads()


async def test_a_leader_whose_address_is_moved_to_the_standby_stops_leading_until_the_promotion(
    pair: Pair, key: Key
) -> None:
    """As a failover does it: connections are dropped and the address leads to a server that is not yet promoted."""
    standby = pair.standby.dsn()
    with BreakableProxy("127.0.0.1", pair.primary.port) as proxy:
        async with Elector(proxy.dsn(standby), key, reconnect_grace_s=60) as a:
            token = (await a.leads()).token
            await asyncio.to_thread(pair.caught_up)
            proxy.upstream = ("127.0.0.1", pair.standby.port)
            proxy.cut()
            await a.hears(NotPrimaryError)
            assert a.lock.state is LockState.RECONNECTING
            assert not a.is_leader
            assert lock_holders(standby, *key) == []
            await asyncio.to_thread(pair.fail_over)
            term = await a.leads(above=token)
            assert a.terms == [("acquired", token), ("lost", token), ("acquired", term.token)]
            assert term.token // TIMELINE == token // TIMELINE + 1
