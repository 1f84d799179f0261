"""The dedicated session on a real server: what it sets, how it gets and gives up the lock, and how it ends.

Assertions look at pg_locks and pg_stat_activity, not only at our own answers.
"""

import asyncio
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import psutil
import psycopg
import pytest
import pytest_asyncio

from pgelect._engine.model import Backend, LockKey
from pgelect._postgres import minting
from pgelect._postgres.session import PostgresSession, SessionOptions
from pgelect.errors import (
    ConfigurationError,
    ForkedError,
    KeyCollisionError,
    NotPrimaryError,
    PgElectError,
    PoolerError,
    SchemaError,
    SessionLostError,
)
from pgelect.testing import Postgres
from tests.support.pgbouncer import PgBouncer
from tests.support.proxy import BreakableProxy
from tests.support.server import eventually, lock_holders, lock_waiters, query, sessions, terminate
from tests.support.waiting import scaled

WITHIN_S = 5.0
Make = Callable[..., PostgresSession]


@pytest_asyncio.fixture
async def make() -> AsyncIterator[Make]:
    """A factory of sessions that are closed after the test."""
    made: list[PostgresSession] = []

    def factory(dsn: Any, key: LockKey, identity: str = "a", **options: Any) -> PostgresSession:
        options.setdefault("lease_s", 10.0)
        session = PostgresSession(SessionOptions(key=key, identity=identity, dsn=dsn, **options))
        made.append(session)
        return session

    yield factory
    for session in made:
        await session.close(1.0)


@pytest.fixture
def lock() -> LockKey:
    return LockKey.from_name(f"job-{secrets.token_hex(4)}")


def holders(dsn: str, key: LockKey) -> list[int]:
    return lock_holders(dsn, key.key1, key.key2)


def pid_of(session: PostgresSession) -> int:
    assert session._opened is not None
    return session._opened.facts.backend.pid


async def opened(session: PostgresSession) -> PostgresSession:
    await session.open(WITHIN_S)
    return session


async def leading(session: PostgresSession) -> PostgresSession:
    await session.open(WITHIN_S)
    assert (await session.try_lock(None, WITHIN_S)).granted
    return session


# The lock


async def test_one_of_two_sessions_is_granted_the_lock_and_the_server_agrees(
    any_database: str, lock: LockKey, make: Make
) -> None:
    a = await leading(make(any_database, lock))
    b = await opened(make(any_database, lock, "b"))
    grant = await a.mint(WITHIN_S)
    refused = await b.try_lock(None, WITHIN_S)

    assert not refused.granted
    assert refused.record == grant.record
    assert holders(any_database, lock) == [pid_of(a)] == [grant.backend.pid]
    assert (await a.prove(WITHIN_S)).held
    assert not (await b.prove(WITHIN_S)).held


@pytest.mark.parametrize("pair", [(-(2**31), -1), (-1, -(2**31)), (0, 0), (2**31 - 1, -5)])
async def test_keys_of_any_sign_lock_and_prove(database: str, pair: tuple[int, int], make: Make) -> None:
    key = LockKey(*pair)
    a = await leading(make(database, key))
    grant = await a.mint(WITHIN_S)

    assert holders(database, key) == [pid_of(a)]
    assert (await a.prove(WITHIN_S)).held
    assert grant.record is not None
    assert (grant.record.key1, grant.record.key2, grant.record.name) == (*pair, None)
    assert await a.unlock(grant.token, WITHIN_S)
    assert holders(database, key) == []


async def test_tokens_grow_from_term_to_term_and_a_release_keeps_the_row(
    any_database: str, lock: LockKey, make: Make
) -> None:
    tokens, cleans = [], []
    for n in range(4):
        a = await leading(make(any_database, lock))
        grant = await a.mint(WITHIN_S)
        tokens.append(grant.token)
        cleans.append(grant.predecessor_clean)
        if n == 1:
            a.abandon()
        else:
            assert await a.unlock(grant.token, WITHIN_S)
        await eventually(lambda: not holders(any_database, lock))

    assert tokens == sorted(set(tokens))
    assert cleans == [True, True, False, True]
    assert query(any_database, "SELECT terms, released_at IS NOT NULL FROM pgelect.token") == [(4, True)]


async def test_without_fencing_no_schema_is_made_and_there_is_no_token(
    database: str, lock: LockKey, make: Make
) -> None:
    a = await leading(make(database, lock, fencing=False))
    grant = await a.mint(WITHIN_S)

    assert (grant.token, grant.record, grant.timeline) == (0, None, 1)
    assert await a.unlock(0, WITHIN_S)
    assert holders(database, lock) == []
    assert query(database, "SELECT 1 FROM pg_namespace WHERE nspname = 'pgelect'") == []


async def test_an_unlock_that_finds_no_lock_says_so(database: str, lock: LockKey, make: Make) -> None:
    a = await opened(make(database, lock))
    assert await a.unlock(1, WITHIN_S) is False


async def test_a_lock_freed_behind_our_back_disproves_leadership(database: str, lock: LockKey, make: Make) -> None:
    a = await leading(make(database, lock))
    assert a._link is not None
    await a._link.conn.execute("DISCARD ALL")
    assert (await a.prove(WITHIN_S)).held is False


async def test_a_changed_nonce_disproves_leadership(database: str, lock: LockKey, make: Make) -> None:
    a = await leading(make(database, lock))
    assert a._link is not None
    await a._link.conn.execute("SELECT set_config('pgelect.nonce', 'of another client', false)")
    assert (await a.prove(WITHIN_S)).held is False


async def test_two_names_on_one_pair_of_keys_collide_and_nothing_is_held(
    database: str, key: tuple[int, int], make: Make
) -> None:
    a = await leading(make(database, LockKey(*key, "one")))
    await a.mint(WITHIN_S)
    await a.close(1.0)
    b = await opened(make(database, LockKey(*key, "two")))
    await eventually(lambda: not lock_holders(database, *key))

    with pytest.raises(KeyCollisionError, match="'one'"):
        await b.try_lock(None, WITHIN_S)
    assert lock_holders(database, *key) == []
    with pytest.raises(KeyCollisionError):
        await b.wait_lock(WITHIN_S)
    assert lock_holders(database, *key) == []
    with pytest.raises(KeyCollisionError):
        await b.mint(WITHIN_S)
    nameless = await leading(make(database, LockKey(*key)))
    assert (await nameless.mint(WITHIN_S)).record.name == "one"  # type: ignore[union-attr]  # fencing is on


# Waiting in the queue


async def test_a_waiter_leads_as_soon_as_the_holder_is_killed(any_database: str, lock: LockKey, make: Make) -> None:
    a = await leading(make(any_database, lock))
    b = await opened(make(any_database, lock, "b"))
    waiting = asyncio.create_task(b.wait_lock(WITHIN_S))
    await eventually(lambda: lock_waiters(any_database, lock.key1, lock.key2) == [pid_of(b)])
    killed = time.monotonic()
    terminate(any_database, pid_of(a))

    assert (await waiting).granted
    assert time.monotonic() - killed < scaled(0.3)
    assert set(holders(any_database, lock)) == {pid_of(b)}
    assert (await b.prove(WITHIN_S)).held
    assert await b.unlock(0, WITHIN_S)
    assert holders(any_database, lock) == []


@pytest.mark.parametrize("deadlock_timeout_ms", [1000, 200])
async def test_waiting_is_silent_in_the_log_and_stays_below_deadlock_timeout(
    own_server: Postgres, lock: LockKey, make: Make, deadlock_timeout_ms: int
) -> None:
    own_server.configure(log_lock_waits="on", deadlock_timeout=f"{deadlock_timeout_ms}ms", log_min_messages="info")
    own_server.restart()
    dsn = own_server.dsn()
    a = await leading(make(dsn, lock))
    b = await opened(make(dsn, lock, "b"))
    before = len(own_server.log_text())

    began = time.monotonic()
    for _ in range(2):
        assert not (await b.wait_lock(WITHIN_S)).granted
    assert 2 * 0.81 * deadlock_timeout_ms / 1000 <= time.monotonic() - began < 2 * 0.9 * deadlock_timeout_ms / 1000 + 1
    await a.close(1.0)
    assert (await b.wait_lock(WITHIN_S)).granted
    assert own_server.log_text()[before:] == ""


async def test_waiters_do_not_stall_create_index_concurrently(database: str, lock: LockKey, make: Make) -> None:
    await leading(make(database, lock, "leader"))
    query(database, "CREATE TABLE big (n int)")
    waiters = [await opened(make(database, lock, str(n))) for n in range(8)]

    async def keep_waiting(session: PostgresSession) -> None:
        while True:
            await session.wait_lock(WITHIN_S)

    tasks = [asyncio.create_task(keep_waiting(s)) for s in waiters]
    await eventually(lambda: len(lock_waiters(database, lock.key1, lock.key2)) == 8)
    began = time.monotonic()
    await asyncio.to_thread(query, database, "CREATE INDEX CONCURRENTLY ON big (n)")
    took_s = time.monotonic() - began
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert took_s < scaled(2.5)


@pytest.mark.skipif(not psycopg.capabilities.has_cancel_safe(), reason="this libpq cannot cancel without blocking")
async def test_closing_cancels_a_wait_on_the_server(any_database: str, lock: LockKey, make: Make) -> None:
    await leading(make(any_database, lock))
    b = await opened(make(any_database, lock, "b"))
    waiting = asyncio.create_task(b.wait_lock(WITHIN_S))
    await eventually(lambda: lock_waiters(any_database, lock.key1, lock.key2))
    await b.close(WITHIN_S)
    assert not (await waiting).granted  # the server answered; a link that was merely dropped raises
    await eventually(lambda: len(sessions(any_database)) == 1)


@pytest.mark.skipif(not psycopg.capabilities.has_cancel_safe(), reason="this libpq cannot cancel without blocking")
async def test_a_close_that_is_given_up_leaves_no_socket_of_its_cancel_request(
    server: Postgres, database: str, lock: LockKey, make: Make
) -> None:
    """What the soak found: tasks that are kept keep their errors, and those kept the request and its connection."""
    await leading(make(database, lock))
    with BreakableProxy("127.0.0.1", server.port) as proxy:
        b = await opened(make(proxy.dsn(database), lock, "b"))
        waiting = asyncio.create_task(b.wait_lock(WITHIN_S))
        await eventually(lambda: lock_waiters(database, lock.key1, lock.key2))
        proxy.freeze()
        closing = asyncio.create_task(b.close(WITHIN_S))
        await eventually(lambda: proxy.total_connections == 2, message="the request is on its way")
        closing.cancel()
        await asyncio.wait({closing, waiting})
        assert closing.cancelled()
        await eventually(lambda: sockets_to(proxy) == 0, 1.0, "no socket is left")


def sockets_to(proxy: BreakableProxy) -> int:
    """How many sockets of this process lead there; the proxy's own ends do not count."""
    return len([one for one in psutil.Process().net_connections("tcp") if one.raddr[1:] == (proxy.port,)])


async def test_a_cancelled_wait_leaves_nothing_held_and_no_session(database: str, lock: LockKey, make: Make) -> None:
    a = await leading(make(database, lock))
    b = await opened(make(database, lock, "b"))
    waiting = asyncio.create_task(b.wait_lock(WITHIN_S))
    await eventually(lambda: lock_waiters(database, lock.key1, lock.key2))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await a.close(1.0)

    await eventually(lambda: not holders(database, lock) and not sessions(database), 1.0)
    with pytest.raises(SessionLostError):
        await b.try_lock(None, WITHIN_S)


@pytest.mark.parametrize("moment", range(8))
async def test_a_try_cancelled_at_any_moment_leaves_nothing_held(
    database: str, lock: LockKey, make: Make, moment: int
) -> None:
    a = await opened(make(database, lock))
    trying = asyncio.create_task(a.try_lock(None, WITHIN_S))
    for _ in range(moment):
        await asyncio.sleep(0)
    trying.cancel()
    trying.cancel()
    await asyncio.wait({trying})
    if trying.cancelled():
        await eventually(lambda: not holders(database, lock), 1.0)


# Settings and guards


HOSTILE = {
    "statement_timeout": "1ms",
    "lock_timeout": "1ms",
    "idle_session_timeout": "150ms",
    "idle_in_transaction_session_timeout": "1ms",
    "tcp_keepalives_idle": "7200",
    "tcp_user_timeout": "0",
    "client_connection_check_interval": "0",
    "synchronous_commit": "off",
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "default_transaction_deferrable": "on",
    "search_path": "evil, pg_catalog",
    '"DateStyle"': "SQL, DMY",
    '"TimeZone"': "Asia/Kathmandu",
    "client_encoding": "LATIN1",
    "extra_float_digits": "-15",
    "standard_conforming_strings": "off",
}
EVIL = """
CREATE SCHEMA evil;
CREATE FUNCTION evil.no(int, int) RETURNS boolean LANGUAGE sql AS 'SELECT false';
CREATE OPERATOR evil.= (LEFTARG = int, RIGHTARG = int, FUNCTION = evil.no);
CREATE FUNCTION evil.pg_backend_pid() RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION evil.pg_try_advisory_lock(int, int) RETURNS boolean LANGUAGE sql AS 'SELECT true';
"""


async def test_nothing_a_role_has_set_is_relied_on(
    any_server: Postgres, any_database: str, lock: LockKey, make: Make
) -> None:
    role = f"hostile_{secrets.token_hex(4)}"
    query(any_database, EVIL)
    query(any_database, f"CREATE ROLE {role} LOGIN SUPERUSER")
    settings = HOSTILE | ({"transaction_timeout": "100ms"} if any_server.version >= 17 else {})
    for name, value in settings.items():
        listed = value if name == "search_path" else f"'{value}'"
        query(any_database, f"ALTER ROLE {role} SET {name} = {listed}")
    try:
        a = await leading(make(f"{any_database} user={role}", lock, "ü" * 60, metadata={"ä": "\\'"}))
        grant = await a.mint(WITHIN_S)
        await asyncio.sleep(0.3)  # longer than the hostile idle timeout
        assert (await a.prove(WITHIN_S)).held
        assert grant.record is not None
        assert grant.record.metadata == {"ä": "\\'"}
        assert grant.record.backend == grant.backend
        assert abs(grant.acquired_at.timestamp() - time.time()) < 60
        (mine,) = query(
            any_database,
            "SELECT backend_start, application_name FROM pg_stat_activity WHERE pid = %s",
            grant.backend.pid,
        )
        assert mine[0] == grant.backend.started_at
        assert mine[1].startswith(f"pgelect:{lock.name}:")
        assert await a.unlock(grant.token, WITHIN_S)
        b = await leading(make(f"{any_database} user={role}", lock))
        assert (await b.mint(WITHIN_S)).record.lease_s == 10.0  # type: ignore[union-attr]  # fencing is on
        for session in (a, b):
            await session.close(1.0)
    finally:
        await eventually(lambda: not sessions(any_database))
        query(any_database, f"DROP OWNED BY {role}")
        query(any_database, f"DROP ROLE {role}")


async def test_the_lease_is_enforced_by_the_server_only_while_it_matters(
    database: str, lock: LockKey, make: Make
) -> None:
    a = await leading(make(database, lock, lease_s=0.5))
    b = await opened(make(database, lock, "b", lease_s=0.5))
    assert not (await b.try_lock(None, WITHIN_S)).granted

    await eventually(lambda: not holders(database, lock), 2.0)  # silent for a lease: the server took it
    with pytest.raises(SessionLostError):
        await a.prove(WITHIN_S)
    assert (await b.try_lock(None, WITHIN_S)).granted  # a refused one may sleep longer than the lease


async def test_one_round_trip_each(
    database: str, lock: LockKey, make: Make, proxy: BreakableProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(minting, "_SOON_S", WITHIN_S)  # a slow mint looks who is in its way, on a second connection
    session = make(database, lock)
    await (await opened(session)).close(1.0)  # the schema is there now
    proxy.delay(0.1, "up")
    a = make(proxy.dsn(database), lock)
    times = []
    for call in (
        lambda: a.open(WITHIN_S),
        lambda: a.try_lock(None, WITHIN_S),
        lambda: a.mint(WITHIN_S),
        lambda: a.prove(WITHIN_S),
        lambda: a.unlock(1, WITHIN_S),
    ):
        began = time.monotonic()
        await call()
        times.append(time.monotonic() - began)
    opening, *others = times
    assert all(0.1 <= took < 0.19 for took in others), times
    assert opening < 0.45, times  # libpq's own handshake, and one more


async def test_a_standby_is_refused_and_nothing_is_locked_there(
    standby_pair: tuple[Postgres, Postgres], lock: LockKey, make: Make
) -> None:
    primary, standby = standby_pair
    a = await leading(make(primary.dsn(), lock))
    await a.mint(WITHIN_S)
    with pytest.raises(NotPrimaryError):
        await make(standby.dsn(), lock, "b").open(WITHIN_S)
    assert holders(standby.dsn(), lock) == []
    both = f"host=127.0.0.1,127.0.0.1 port={standby.port},{primary.port} dbname=postgres user=postgres"
    c = await opened(make(both, lock, "c"))
    assert not (await c.try_lock(None, WITHIN_S)).granted


@pytest.mark.parametrize("pool_size", [1, 5])
async def test_transaction_pooling_is_refused_and_no_setting_leaks(
    database: str, lock: LockKey, make: Make, pgbouncer: Callable[..., PgBouncer], pool_size: int
) -> None:
    pooled = pgbouncer("transaction", pool_size).through(database)
    a = make(pooled, lock)
    with pytest.raises(PoolerError) as refused:
        await a.open(WITHIN_S)
    assert refused.value.mode == "transaction"
    assert holders(database, lock) == []
    leaked = query(pooled, "SELECT current_setting('pgelect.nonce', true), current_setting('idle_session_timeout')")
    assert leaked in ([(None, "0")], [("", "0")])


@pytest.mark.parametrize("pool_size", [1, 5])
async def test_session_pooling_works(
    database: str, lock: LockKey, make: Make, pgbouncer: Callable[..., PgBouncer], pool_size: int
) -> None:
    a = await leading(make(pgbouncer("session", pool_size).through(database), lock))
    grant = await a.mint(WITHIN_S)
    assert holders(database, lock) == [grant.backend.pid]
    assert (await a.prove(WITHIN_S)).held
    await a.close(1.0)
    await eventually(lambda: not holders(database, lock))


async def test_allow_pooler_overrides_the_guard(
    database: str, lock: LockKey, make: Make, pgbouncer: Callable[..., PgBouncer]
) -> None:
    a = await leading(make(pgbouncer("transaction", 1).through(database), lock, allow_pooler=True))
    assert holders(database, lock) == [pid_of(a)]
    assert await a.unlock(0, WITHIN_S)


# The schema and rights


async def test_twenty_first_boots_at_once_all_come_up(any_database: str, lock: LockKey, make: Make) -> None:
    all_ = [make(any_database, lock, str(n)) for n in range(20)]
    await asyncio.gather(*(s.open(15.0) for s in all_))
    answers = await asyncio.gather(*(s.try_lock(None, WITHIN_S) for s in all_))
    assert sum(answer.granted for answer in answers) == 1
    leader = next(s for s, answer in zip(all_, answers, strict=True) if answer.granted)
    await leader.mint(WITHIN_S)
    assert query(any_database, "SELECT count(*) FROM pgelect.token") == [(1,)]


async def test_a_role_without_rights_hears_the_exact_sql_and_holds_nothing(
    any_database: str, lock: LockKey, make: Make
) -> None:
    role = f"weak_{secrets.token_hex(4)}"
    query(any_database, f'CREATE ROLE "{role} X" LOGIN')
    dsn = f"{any_database} user='{role} X'"
    try:
        with pytest.raises(SchemaError) as refused:
            await make(dsn, lock).open(WITHIN_S)
        assert holders(any_database, lock) == []
        assert "CREATE TABLE" in refused.value.sql

        with psycopg.connect(any_database) as admin:  # what it says is all that is needed
            admin.execute(refused.value.sql.encode())
        a = await leading(make(dsn, lock))
        grant = await a.mint(WITHIN_S)
        assert await a.unlock(grant.token, WITHIN_S)
        await a.close(1.0)

        query(any_database, f'REVOKE UPDATE ON pgelect.token FROM "{role} X"')
        with pytest.raises(SchemaError) as refused:
            await make(dsn, lock).open(WITHIN_S)
        assert "GRANT SELECT, INSERT, UPDATE" in refused.value.sql
        assert "CREATE" not in refused.value.sql
    finally:
        await eventually(lambda: not sessions(any_database))
        query(any_database, f'DROP OWNED BY "{role} X"')
        query(any_database, f'DROP ROLE "{role} X"')


# Ends


async def test_a_killed_backend_is_heard_of_at_once_while_idle(any_database: str, lock: LockKey, make: Make) -> None:
    a = await leading(make(any_database, lock))
    watching = asyncio.create_task(a.watch(30.0))
    await asyncio.sleep(0.05)
    began = time.monotonic()
    terminate(any_database, pid_of(a))
    with pytest.raises(SessionLostError) as lost:
        await watching
    assert lost.value.reason == "closed"
    assert time.monotonic() - began < scaled(0.3)


async def test_an_idle_watch_may_be_cancelled_and_the_session_stays_usable(
    database: str, lock: LockKey, make: Make
) -> None:
    a = await leading(make(database, lock))
    for turns in range(30):
        watching = asyncio.create_task(a.watch(30.0))
        for _ in range(turns):
            await asyncio.sleep(0)
        watching.cancel()
        await asyncio.wait({watching})
        assert (await a.prove(WITHIN_S)).held
    await a.watch(0.05)
    assert (await a.prove(WITHIN_S)).held


@pytest.mark.parametrize("call", ["try_lock", "wait_lock", "mint", "prove", "unlock"])
async def test_every_call_is_bounded_on_a_frozen_link(
    database: str, lock: LockKey, make: Make, proxy: BreakableProxy, call: str
) -> None:
    a = await opened(make(proxy.dsn(database), lock))
    if call != "try_lock":
        assert (await a.try_lock(None, WITHIN_S)).granted
    proxy.freeze()
    calls: dict[str, Callable[[], Any]] = {
        "try_lock": lambda: a.try_lock(None, 0.3),
        "wait_lock": lambda: a.wait_lock(0.3),
        "mint": lambda: a.mint(0.3),
        "prove": lambda: a.prove(0.3),
        "unlock": lambda: a.unlock(1, 0.3),
    }
    began = time.monotonic()
    with pytest.raises(SessionLostError) as lost:
        await calls[call]()
    assert lost.value.reason == "timeout"
    assert time.monotonic() - began < scaled(0.6) + (0.9 if call == "wait_lock" else 0)
    proxy.cut()


async def test_opening_is_bounded_on_a_frozen_link(
    database: str, lock: LockKey, make: Make, proxy: BreakableProxy
) -> None:
    proxy.freeze()
    a = make(proxy.dsn(database), lock)
    began = time.monotonic()
    with pytest.raises(SessionLostError):
        await a.open(0.5)
    assert time.monotonic() - began < scaled(1.0)
    proxy.cut()


async def test_close_and_abandon_are_bounded_on_a_frozen_link(
    database: str, lock: LockKey, make: Make, proxy: BreakableProxy
) -> None:
    await leading(make(database, lock))
    b, c = [await opened(make(proxy.dsn(database), lock, name)) for name in "bc"]
    waits = [asyncio.create_task(s.wait_lock(WITHIN_S)) for s in (b, c)]
    await eventually(lambda: len(lock_waiters(database, lock.key1, lock.key2)) == 2)
    proxy.freeze()
    began = time.monotonic()
    c.abandon()
    assert time.monotonic() - began < 0.05
    await b.close(0.3)
    assert time.monotonic() - began < scaled(0.6)
    for ended in await asyncio.gather(*waits, return_exceptions=True):
        assert isinstance(ended, SessionLostError)
        assert ended.reason == "closed"
    proxy.cut()


async def test_abandoning_leaves_no_reader_behind_for_a_reused_descriptor(
    database: str, lock: LockKey, make: Make
) -> None:
    await leading(make(database, lock))
    b = await opened(make(database, lock, "b"))
    waiting = asyncio.create_task(b.wait_lock(WITHIN_S))
    await eventually(lambda: lock_waiters(database, lock.key1, lock.key2))
    b.abandon()
    pairs = [socket.socketpair() for _ in range(8)]  # whoever takes the descriptor's number first
    heard: set[int] = set()
    loop = asyncio.get_running_loop()
    for ours, _ in pairs:
        ours.setblocking(False)
        loop.add_reader(ours, heard.add, ours.fileno())
    with pytest.raises(SessionLostError):
        await waiting
    for _, theirs in pairs:
        theirs.send(b"x")
    try:
        await eventually(lambda: heard == {ours.fileno() for ours, _ in pairs}, 1.0)
    finally:
        for ours, theirs in pairs:
            loop.remove_reader(ours)
            ours.close()
            theirs.close()


async def test_abandoning_while_connecting_ends_the_attempt(
    database: str, lock: LockKey, make: Make, proxy: BreakableProxy
) -> None:
    proxy.freeze()
    a = make(proxy.dsn(database), lock)
    opening = asyncio.create_task(a.open(WITHIN_S))
    await asyncio.sleep(0.1)
    a.abandon()
    with pytest.raises(SessionLostError):
        await opening
    proxy.cut()


async def test_a_statement_cancelled_by_an_administrator_leaves_the_session_usable(
    database: str, lock: LockKey, make: Make
) -> None:
    a = await leading(make(database, lock))
    blocker = psycopg.connect(database)
    blocker.execute("LOCK TABLE pgelect.token IN ACCESS EXCLUSIVE MODE")
    minting = asyncio.create_task(a.mint(WITHIN_S))
    await eventually(lambda: [s for s in sessions(database) if s.wait_event == "relation"])
    query(database, "SELECT pg_cancel_backend(%s)", pid_of(a))
    with pytest.raises(PgElectError) as failed:
        await minting
    assert not isinstance(failed.value, SessionLostError)
    blocker.close()
    assert (await a.prove(WITHIN_S)).held


async def test_a_forked_child_neither_ends_nor_keeps_alive_its_parents_session(
    database: str, lock: LockKey, make: Make
) -> None:
    a = await leading(make(database, lock))
    assert a._link is not None
    told_read, told_write = os.pipe()
    child = os.fork()
    if child == 0:
        verdict = b"?"
        try:
            os.fstat(a._link._fd)
        except OSError:
            verdict = b"closed"
        try:
            coroutine = a.prove(1.0)
            coroutine.send(None)
        except ForkedError:
            verdict += b" refused"
        a.abandon()
        os.write(told_write, verdict)
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(told_read, 100) == b"closed refused"
    os.close(told_read)
    os.close(told_write)
    assert (await a.prove(WITHIN_S)).held


# Ghosts and resuming


async def test_our_own_ghost_is_ended_and_nobody_else(
    any_database: str, lock: LockKey, make: Make, proxy: BreakableProxy
) -> None:
    ghost = await leading(make(any_database, lock))
    grant = await ghost.mint(WITHIN_S)
    b = await opened(make(any_database, lock))
    younger = Backend(grant.backend.pid, grant.acquired_at)  # the same pid, another start

    assert not (await b.try_lock(younger, WITHIN_S)).granted
    assert holders(any_database, lock) == [grant.backend.pid]
    assert (await b.try_lock(grant.backend, WITHIN_S)).granted
    assert holders(any_database, lock) == [pid_of(b)]


async def test_a_term_goes_on_after_its_session_was_lost(any_database: str, lock: LockKey, make: Make) -> None:
    a = await leading(make(any_database, lock))
    grant = await a.mint(WITHIN_S)
    b = await opened(make(any_database, lock))

    assert (await b.resume(grant, WITHIN_S)).resumed
    assert holders(any_database, lock) == [pid_of(b)]
    assert query(any_database, "SELECT token, backend_pid FROM pgelect.token") == [(grant.token, pid_of(b))]
    assert (await b.prove(WITHIN_S)).held


async def test_a_term_does_not_go_on_once_another_has_the_lock_or_had_it(
    database: str, lock: LockKey, make: Make
) -> None:
    a = await leading(make(database, lock))
    grant = await a.mint(WITHIN_S)
    await a.close(1.0)
    await eventually(lambda: not holders(database, lock))
    other = await leading(make(database, lock, "other"))
    b = await opened(make(database, lock))

    held = await b.resume(grant, WITHIN_S)
    assert (held.resumed, held.final) == (False, True)
    assert holders(database, lock) == [pid_of(other)]
    theirs = await other.mint(WITHIN_S)
    await other.unlock(theirs.token, WITHIN_S)
    had = await b.resume(grant, WITHIN_S)
    assert (had.resumed, had.final) == (False, True)
    assert "token" in had.why
    assert holders(database, lock) == []


async def test_a_released_term_does_not_go_on(database: str, lock: LockKey, make: Make) -> None:
    a = await leading(make(database, lock))
    grant = await a.mint(WITHIN_S)
    await a.unlock(grant.token, WITHIN_S)
    b = await opened(make(database, lock))
    answer = await b.resume(grant, WITHIN_S)
    assert (answer.resumed, answer.final) == (False, True)
    assert holders(database, lock) == []


async def test_a_promotion_ends_the_term_and_raises_the_token(
    standby_pair: tuple[Postgres, Postgres], lock: LockKey, make: Make
) -> None:
    primary, standby = standby_pair
    a = await leading(make(primary.dsn(), lock))
    grant = await a.mint(WITHIN_S)
    await eventually(lambda: query(standby.dsn(), "SELECT 1 FROM pg_tables WHERE tablename = 'token'"))
    standby.promote()
    b = await opened(make(standby.dsn(), lock))
    answer = await b.resume(grant, WITHIN_S)
    assert (answer.resumed, answer.final) == (False, True)
    assert (await b.try_lock(None, WITHIN_S)).granted
    promoted = await b.mint(WITHIN_S)
    assert promoted.timeline == 2
    assert promoted.token > 1 << 40


# Where the connection comes from


async def test_the_dsn_is_asked_for_anew_each_time(database: str, lock: LockKey, make: Make) -> None:
    asked: list[int] = []

    async def rotating() -> str:
        asked.append(1)
        return database

    for _ in range(2):
        await opened(make(rotating, lock))
    assert len(asked) == 2
    with pytest.raises(SessionLostError, match="dsn callable failed: OSError"):
        await make(lambda: (_ for _ in ()).throw(OSError("vault is sealed")), lock).open(WITHIN_S)


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://bob:s3cr@et@127.0.0.1:1/db",
        "postgresql://bob:s3cr/et@127.0.0.1:1/db",
        "postgresql://bob:s3cr?et@127.0.0.1:1/db",
        "postgresql://bob:s3cret@127.0.0.1:1/db",
        "host=127.0.0.1 port=1 password=s3cret",
        "host=s3cret.invalid password=s3cret",
        "password=s3cr et",
    ],
)
async def test_no_error_shows_a_password(lock: LockKey, make: Make, dsn: str) -> None:
    session = make(dsn, lock)
    with pytest.raises((SessionLostError, ConfigurationError)) as failed:
        await session.open(WITHIN_S)
    shown = f"{failed.value!r} {failed.value} {session!r} {session._options!r}"
    assert not any(part in shown for part in ("s3cr", "et@", "cret"))
    assert failed.value.__cause__ is None


async def test_a_connection_of_the_users_making_is_taken_and_set_up(database: str, lock: LockKey, make: Make) -> None:
    async def mine() -> psycopg.AsyncConnection[Any]:
        conn = await psycopg.AsyncConnection.connect(database, row_factory=psycopg.rows.dict_row)  # not autocommit
        conn.cursor_factory = psycopg.AsyncRawCursor
        return conn

    a = await leading(make("", lock, connect_fn=mine))
    await a.mint(WITHIN_S)
    assert [(s.state, s.backend_xmin) for s in sessions(database)] == [("idle", None)]
    assert (await a.prove(WITHIN_S)).held


async def test_a_connection_inside_a_transaction_is_closed_and_refused(
    database: str, lock: LockKey, make: Make
) -> None:
    made: list[psycopg.AsyncConnection[Any]] = []

    async def busy() -> psycopg.AsyncConnection[Any]:
        made.append(await psycopg.AsyncConnection.connect(database))
        await made[0].execute("SELECT 1")
        return made[0]

    with pytest.raises(ConfigurationError, match="idle"):
        await make("", lock, connect_fn=busy).open(WITHIN_S)
    assert made[0].closed
    with pytest.raises(SessionLostError, match="RuntimeError"):
        await make("", lock, connect_fn=lambda: (_ for _ in ()).throw(RuntimeError("no"))).open(WITHIN_S)


async def test_a_hundred_proofs_prepare_nothing_and_hold_no_snapshot(database: str, lock: LockKey, make: Make) -> None:
    a = await leading(make(database, lock))
    for _ in range(100):
        assert (await a.prove(WITHIN_S)).held
    assert a._link is not None
    cursor = await a._link.conn.execute("SELECT count(*) FROM pg_prepared_statements")
    assert await cursor.fetchone() == (0,)
    assert len(holders(database, lock)) == 1
    (mine,) = sessions(database)
    assert (mine.state, mine.backend_xmin) == ("idle", None)
