"""A host that died without a word: its session is ended by the server and by the network, not after hours."""

import os
import socket

import psycopg
import pytest

from pgelect import FixedInterval
from pgelect._engine.model import LockKey
from pgelect._postgres.session import PostgresSession, SessionOptions
from tests.support.electors import LEASE_S, Elector
from tests.support.proxy import BreakableProxy
from tests.support.server import lock_holders, lock_waiters, query, sessions
from tests.support.waiting import eventually

Key = tuple[int, int]
IGNORES_THE_DEAD = {
    "tcp_keepalives_idle": "7200",
    "tcp_keepalives_interval": "75",
    "tcp_keepalives_count": "9",
    "tcp_user_timeout": "0",
    "idle_session_timeout": "0",
    "client_connection_check_interval": "0",
}
"""What systems come with; a leader whose cable was pulled keeps its lock for two hours then (liquibase#872)."""


@pytest.fixture
def careless_database(database: str) -> str:
    """A database that sets all of these for whoever connects."""
    ((name,),) = query(database, "SELECT current_database()")
    for setting, value in IGNORES_THE_DEAD.items():
        query(database, f"ALTER DATABASE {name} SET {setting} = '{value}'")
    return database


@pytest.mark.parametrize("own_connection", [False, True])
@pytest.mark.parametrize("lease_s", [0.5, 10.0, 600.0])
async def test_both_ends_notice_a_dead_peer_within_about_a_lease(
    careless_database: str, key: Key, lease_s: float, own_connection: bool
) -> None:
    """As the sockets themselves say; the server asks its own for what pg_settings shows of these."""

    async def connect() -> psycopg.AsyncConnection[object]:
        return await psycopg.AsyncConnection.connect(careless_database)

    session = PostgresSession(
        SessionOptions(
            key=LockKey(*key),
            identity="a",
            dsn=careless_database,
            lease_s=lease_s,
            connect_fn=connect if own_connection else None,
        )
    )
    try:
        await session.open(5.0)
        assert (await session.try_lock(None, 5.0)).granted
        assert session._link is not None
        conn = session._link.conn
        statement = "SELECT name, setting::int FROM pg_settings WHERE name = ANY(%s)"
        server = dict(await (await conn.execute(statement, (list(IGNORES_THE_DEAD),))).fetchall())
        patience_s = server["tcp_keepalives_idle"] + server["tcp_keepalives_count"] * server["tcp_keepalives_interval"]
        whole_seconds = 1 + server["tcp_keepalives_count"]  # TCP knows no others, which matters for short leases
        # Not before: a server without tcp_user_timeout would free the lock of a leader that still trusts itself.
        assert lease_s <= patience_s <= lease_s + whole_seconds
        assert 0 < server["tcp_user_timeout"] <= lease_s * 1000
        assert server["idle_session_timeout"] == lease_s * 1000
        assert 0 < server["client_connection_check_interval"] <= 1000
        if not own_connection:  # else that end is the user's affair
            with socket.socket(fileno=os.dup(conn.fileno())) as sock:
                assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                idle_s = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
                every_s = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)
                probes = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT)
                assert lease_s <= idle_s + probes * every_s <= lease_s + whole_seconds
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == lease_s * 1000
    finally:
        await session.close(1.0)


@pytest.mark.parametrize("grace_s", [None, 30.0])
@pytest.mark.parametrize("acquire", ["queue", "poll"])
async def test_the_server_hands_on_the_lock_of_a_dead_host_after_the_dead_has_stopped_to_believe(
    proxy: BreakableProxy, careless_database: str, key: Key, acquire: str, grace_s: float | None
) -> None:
    """However the follower waits, and whatever the old leader still hopes for; to the server it is merely silent.

    Here the old leader lives on behind the silence, so both instants can be compared.
    """
    rival = {"acquire": acquire, "retry_strategy": FixedInterval(0.1)}
    async with Elector(proxy.dsn(careless_database), key, reconnect_grace_s=grace_s) as a:
        token = (await a.leads()).token
        async with Elector(careless_database, key, **rival) as b:
            await eventually(lambda: lock_waiters(careless_database, *key) or acquire == "poll")
            await eventually(lambda: len(_ours(careless_database)) == 2)
            dead = lock_holders(careless_database, *key)
            proxy.freeze()
            successor = await b.leads(above=token)
            assert a.looks.last_true_at < b.looks.spans[0].first
            assert dead[0] not in _ours(careless_database)
            if grace_s is None:
                await a.has_lost(token)
                assert a.when("lost", token) < b.when("acquired", successor.token)
            else:
                assert a.terms == [("acquired", token)]  # the end of the term is not told yet
            proxy.cut()
            proxy.thaw()
            await a.has_lost(token)
            assert a.terms == [("acquired", token), ("lost", token)]
            assert len(a.looks.spans) == 1
            assert b.lock.token == successor.token


def _ours(dsn: str) -> list[int]:
    return [one.pid for one in sessions(dsn)]


async def test_a_follower_on_a_dead_host_leaves_the_queue(
    proxy: BreakableProxy, careless_database: str, key: Key
) -> None:
    """It would be given the lock, and keep it for as long as a lease, whenever its turn came."""
    async with Elector(careless_database, key, lease_s=10.0) as a:
        await a.leads()
        b = Elector(proxy.dsn(careless_database), key, lease_s=LEASE_S)
        async with b:
            await eventually(lambda: lock_waiters(careless_database, *key), message="it waits in the queue")
            proxy.freeze()
            await eventually(lambda: len(_ours(careless_database)) == 1, message="the server has ended its session")
            assert lock_waiters(careless_database, *key) == []
            assert a.is_leader
            proxy.cut()
            proxy.thaw()
            await eventually(lambda: lock_waiters(careless_database, *key), message="it waits in the queue again")
