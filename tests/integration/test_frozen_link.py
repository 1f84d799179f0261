"""The link to the server falls silent: sockets stay open, nothing arrives, no error is ever reported."""

import asyncio
from typing import Any

import psutil
import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.conninfo import make_conninfo

from pgelect import LockState, ShutdownError
from tests.support.electors import LEASE_S, Elector
from tests.support.looks import now
from tests.support.proxy import BreakableProxy, Direction
from tests.support.server import lock_holders, lock_waiters, query, sessions
from tests.support.server_queue import fresh_waits
from tests.support.waiting import eventually, scaled

Key = tuple[int, int]
DIRECTIONS: list[Direction] = ["both", "up", "down"]


def sockets_to(proxy: BreakableProxy) -> int:
    """How many sockets of this process lead to the proxy; its own ends do not count."""
    return len([one for one in psutil.Process().net_connections("tcp") if one.raddr[1:] == (proxy.port,)])


async def caught_in_the_queue(proxy: BreakableProxy, dsn: str, key: Key) -> int:
    """Freeze while the one session that waits in the queue will wait for a while yet; return its pid."""

    def caught() -> list[int]:
        proxy.freeze()
        pids = fresh_waits(dsn, key)
        if not pids:
            proxy.thaw()
        return pids

    return (await eventually(caught, message="frozen early in a wait"))[0]


@pytest.mark.parametrize("direction", DIRECTIONS)
async def test_a_leader_behind_a_frozen_link_gives_up_before_another_leads(
    proxy: BreakableProxy, database: str, key: Key, direction: Direction
) -> None:
    async with Elector(proxy.dsn(database), key) as a:
        token = (await a.leads()).token
        async with Elector(database, key) as b:
            (b_pid,) = await eventually(lambda: lock_waiters(database, *key), message="it waits in the queue")
            frozen_at = now()
            proxy.freeze(direction)
            successor = await b.leads(above=token)
            await eventually(lambda: a.tokens("lost") == [token])
            assert a.looks.last_true_at < frozen_at + LEASE_S
            assert a.looks.last_true_at < b.looks.spans[0].first
            assert a.when("lost", token) < b.when("acquired", successor.token)
            assert lock_holders(database, *key) == [b_pid]
            await eventually(lambda: sockets_to(proxy) <= 1, message="the socket of the lost session is closed")

            proxy.thaw()
            await eventually(lambda: lock_waiters(database, *key), message="the old leader waits in the queue")
            assert len(a.looks.spans) == 1, "the old leader came back to life"
            assert a.terms == [("acquired", token), ("lost", token)]
            assert b.terms == [("acquired", successor.token)]
            assert len(sessions(database)) == 2
    assert sockets_to(proxy) == 0


async def test_freezing_again_and_again_leaks_no_descriptor(proxy: BreakableProxy, database: str, key: Key) -> None:
    process = psutil.Process()
    async with Elector(proxy.dsn(database), key) as a:
        token = (await a.leads()).token
        before = process.num_fds()
        for _ in range(3):
            proxy.freeze()
            await a.has_lost(token)
            proxy.thaw()
            token = (await a.leads(above=token)).token
        await eventually(
            lambda: sockets_to(proxy) == 1 == proxy.connections, message="the proxy has forgotten the rest"
        )
        await eventually(lambda: process.num_fds() == before, message="as many descriptors as before")
        a.check_pairs()


# While it starts


async def test_a_link_that_is_frozen_at_the_start_is_waited_out(proxy: BreakableProxy, database: str, key: Key) -> None:
    proxy.freeze()
    async with Elector(make_conninfo(proxy.dsn(database), connect_timeout=2), key) as a:  # start() returns
        await eventually(lambda: len(a.errors) == 2, message="it tries again")
        assert [getattr(error, "reason", "") for error in a.errors] == ["connect"] * 2
        assert a.lock.state is LockState.FOLLOWER
        await eventually(lambda: sockets_to(proxy) <= 1, message="the sockets of the failed attempts are closed")
        proxy.thaw()
        term = await a.leads()
        assert a.terms == [("acquired", term.token)]
        await eventually(
            lambda: lock_holders(database, *key) == [one.pid for one in sessions(database)],
            message="no other session is left",
        )


async def test_a_link_that_freezes_just_after_connecting_does_not_hold_up_a_shutdown(
    proxy: BreakableProxy, database: str, key: Key
) -> None:
    async def connect() -> AsyncConnection[Any]:
        conn = await AsyncConnection.connect(proxy.dsn(database), autocommit=True)
        proxy.freeze()
        return conn

    a = Elector("", key, connect_fn=connect)
    starting = asyncio.create_task(a.lock.start())
    await eventually(lambda: proxy.connections == 1 and sockets_to(proxy) == 1)
    await asyncio.sleep(0.1)  # the first statement is on its way
    async with asyncio.timeout(scaled(2.0)):
        await a.lock.shutdown(timeout_s=1.0)
        await starting
    assert a.lock.state is LockState.STOPPED
    assert a.terms == []
    assert sockets_to(proxy) == 0
    proxy.cut()


# While it waits, and while it mints


async def test_a_follower_behind_a_frozen_link_that_is_granted_the_lock_never_leads(
    proxy: BreakableProxy, database: str, key: Key
) -> None:
    """The server hands the lock to a session whose client cannot hear of it, and takes it back by the lease.

    The grant arrives late, when somebody else leads.
    """
    async with Elector(database, key, lease_s=5.0) as a:
        token = (await a.leads()).token
        async with Elector(proxy.dsn(database), key) as b:
            await eventually(lambda: lock_waiters(database, *key), message="it waits in the queue")
            pid = await caught_in_the_queue(proxy, database, key)
            assert await a.lock.step_down(cooldown_s=60)
            assert await eventually(lambda: lock_holders(database, *key)) == [pid]
            async with Elector(database, key, lease_s=5.0) as c:
                successor = await c.leads(above=token)
                proxy.thaw()
                await eventually(lambda: lock_waiters(database, *key), message="it waits in the queue again")
                assert b.terms == []
                assert b.looks.spans == []
                assert c.lock.token == successor.token
                await eventually(lambda: pid not in [one.pid for one in sessions(database)], message="it is ended")


async def test_a_follower_behind_a_frozen_link_does_not_disturb_the_leader(
    proxy: BreakableProxy, database: str, key: Key
) -> None:
    async with Elector(database, key, lease_s=5.0) as a:
        term = await a.leads()
        async with Elector(proxy.dsn(database), key) as b:
            await eventually(lambda: lock_waiters(database, *key))
            pid = await caught_in_the_queue(proxy, database, key)
            await eventually(lambda: pid not in [one.pid for one in sessions(database)], message="the lease ends it")
            proxy.thaw()
            await eventually(lambda: lock_waiters(database, *key), message="it waits in the queue again")
            assert term.is_current
            assert a.terms == [("acquired", term.token)]
            assert b.terms == []


@pytest.mark.parametrize("direction", ["both", "down"])
async def test_a_link_that_freezes_while_the_token_is_minted_gives_no_term(
    proxy: BreakableProxy, database: str, key: Key, direction: Direction
) -> None:
    """The token may have been written, but nobody heard of it: it is used up, and the next one is greater."""
    async with Elector(database, key) as first:
        token = (await first.leads()).token
    async with await psycopg.AsyncConnection.connect(database) as held:
        await held.execute("LOCK TABLE pgelect.token IN SHARE MODE")
        async with Elector(proxy.dsn(database), key) as a:
            (pid,) = await eventually(lambda: lock_holders(database, *key), message="the lock is held")
            assert a.lock.state is LockState.ACQUIRING
            proxy.freeze(direction)
            await held.rollback()
            async with Elector(database, key) as b:
                successor = await b.leads(above=token)
                assert a.terms == []
                proxy.thaw()
                await eventually(lambda: lock_waiters(database, *key), message="it waits in the queue")
                await eventually(lambda: pid not in [one.pid for one in sessions(database)], message="it is ended")
                assert a.terms == []
                assert a.looks.spans == []
                assert query(database, "SELECT token FROM pgelect.token") == [(successor.token,)]


# While it goes away


async def test_a_shutdown_behind_a_frozen_link_ends_with_the_lease(
    proxy: BreakableProxy, database: str, key: Key
) -> None:
    async with Elector(proxy.dsn(database), key) as a:
        token = (await a.leads()).token
        proxy.freeze()
        async with asyncio.timeout(scaled(4.0)):
            await a.lock.shutdown(timeout_s=3.0)
        assert a.lock.state is LockState.STOPPED
        assert a.terms == [("acquired", token), ("lost", token)]
        assert sockets_to(proxy) == 0
        await eventually(lambda: lock_holders(database, *key) == [], message="the server frees the lock by the lease")


async def test_a_shutdown_behind_a_frozen_link_does_not_outlast_its_timeout(
    proxy: BreakableProxy, database: str, key: Key
) -> None:
    async with Elector(proxy.dsn(database), key, lease_s=60.0) as a:
        token = (await a.leads()).token
        proxy.freeze()
        async with asyncio.timeout(scaled(2.0)):
            with pytest.raises(ShutdownError, match="server"):
                await a.lock.shutdown(timeout_s=1.0)
        assert a.lock.state is LockState.STOPPED
        assert not a.is_leader
        assert a.terms == [("acquired", token), ("lost", token)]
        assert sockets_to(proxy) == 0
        proxy.cut()
        await eventually(lambda: lock_holders(database, *key) == [])


async def test_a_step_down_behind_a_frozen_link_returns_and_is_a_loss(
    proxy: BreakableProxy, database: str, key: Key
) -> None:
    async with Elector(proxy.dsn(database), key) as a:
        token = (await a.leads()).token
        proxy.freeze()
        stepping = asyncio.create_task(a.lock.step_down())
        await eventually(lambda: a.lock.state is not LockState.LEADER)
        assert not a.is_leader
        async with asyncio.timeout(scaled(4.0)):
            assert await stepping
        await eventually(lambda: a.terms == [("acquired", token), ("lost", token)])
        proxy.thaw()
        await a.leads(above=token)


@pytest.mark.parametrize("stage", ["connecting", "waiting"])
async def test_a_follower_behind_a_frozen_link_can_be_shut_down(
    proxy: BreakableProxy, database: str, key: Key, stage: str
) -> None:
    async with Elector(database, key, lease_s=60.0) as leader:
        await leader.leads()
        a = Elector(proxy.dsn(database), key)
        if stage == "connecting":
            proxy.freeze()
            starting = asyncio.create_task(a.lock.start())
            await eventually(lambda: sockets_to(proxy) == 1)
        else:
            starting = asyncio.create_task(a.lock.start())
            await eventually(lambda: lock_waiters(database, *key))
            await caught_in_the_queue(proxy, database, key)
        async with asyncio.timeout(scaled(4.0)):
            await a.lock.shutdown(timeout_s=3.0)
            await starting
        assert a.lock.state is LockState.STOPPED
        await eventually(lambda: sockets_to(proxy) == 0, 1.0, "its socket is closed")
        proxy.cut()
