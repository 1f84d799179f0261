"""A hostile role takes the advisory lock: nobody leads meanwhile, and that is all. What prevents even that."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

import pgelect
from pgelect import LockState, PgElectError, SchemaError, schema_sql
from pgelect.testing import Postgres
from tests.support.electors import Elector, one_leads
from tests.support.locks import token_row
from tests.support.roles import LOCK_FUNCTIONS, OWN_DATABASE, Role, Roles, as_administrator
from tests.support.server import lock_holders, lock_waiters, query, sessions, terminate
from tests.support.waiting import eventually

Key = tuple[int, int]
LOCKING = """
SELECT p.oid::regprocedure::text FROM pg_proc AS p
WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.proname ~ 'advisory' AND p.proname !~ 'unlock' ORDER BY 1
"""


@asynccontextmanager
async def leader_of(role: Role, key: Key) -> AsyncIterator[Elector]:
    async with Elector(role.dsn, key) as leader:
        await leader.leads()
        yield leader


# What it gains


@pytest.mark.parametrize(
    "take",
    [
        "SELECT pg_advisory_lock({}, {})",
        "SELECT pg_advisory_lock_shared({}, {})",
        "BEGIN; SELECT pg_advisory_xact_lock({}, {})",
    ],
)
async def test_a_neighbour_that_takes_the_lock_keeps_everybody_from_leading_until_its_session_ends(
    any_roles: Roles, key: Key, take: str
) -> None:
    elector, _ = any_roles.electors_and_writers()
    neighbour = any_roles.neighbour()
    hostile = any_roles.connect(neighbour, application_name="nothing special")
    hostile.execute(take.format(*key).encode())
    async with Elector(elector.dsn, key) as a:
        await eventually(lambda: lock_waiters(any_roles.database, *key), message="the elector waits")
        assert (a.is_leader, a.terms) == (False, [])
        assert query(any_roles.database, "SELECT count(*) FROM pgelect.token") == [(0,)]
        (pid,) = lock_holders(any_roles.database, *key)  # this is how it is found out
        assert query(any_roles.database, "SELECT usename FROM pg_stat_activity WHERE pid = %s", pid) == [
            (neighbour.name,)
        ]
        terminate(any_roles.database, pid)
        await a.leads()


async def test_a_lock_in_a_prepared_transaction_is_held_by_no_session_and_nobody_leads_until_it_is_rolled_back(
    own_server: Postgres, key: Key
) -> None:
    """No right is needed but to connect. There is no pid to end, and the electors are told of no error: they wait."""
    own_server.configure(max_prepared_transactions="2")
    own_server.restart()
    with Roles(own_server.dsn()) as roles:
        elector, _ = roles.electors_and_writers()
        hostile = roles.connect(roles.neighbour())
        owner = hostile.info.user
        for statement in (b"BEGIN", locking(key), b"PREPARE TRANSACTION 'mine'"):
            hostile.execute(statement)
        hostile.close()
        async with Elector(elector.dsn, key) as a:
            await eventually(lambda: lock_waiters(roles.database, *key), message="the elector waits")
            assert lock_holders(roles.database, *key) == [None]
            assert query(roles.database, "SELECT gid, owner FROM pg_prepared_xacts") == [("mine", owner)]
            assert (a.is_leader, a.terms, a.errors) == (False, [], [])
            query(roles.database, "ROLLBACK PREPARED 'mine'")
            await a.leads()
        roles.run(LOCK_FUNCTIONS, app_elector=elector.name)  # what prevents it
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            roles.connect(roles.neighbour()).execute(locking(key))


def locking(key: Key) -> bytes:
    return f"SELECT pg_advisory_xact_lock({key[0]}, {key[1]})".encode()


async def test_a_neighbour_that_gets_the_lock_after_the_leader_brings_no_second_leader_and_no_token(
    roles: Roles, key: Key
) -> None:
    elector, _ = roles.electors_and_writers()
    async with leader_of(elector, key) as a:
        before = token_row(roles.database, key)
        hostile = roles.connect(roles.neighbour())
        (own,) = lock_holders(roles.database, *key)
        hostile.execute("SET statement_timeout = '10s'")
        with psycopg.connect(roles.database, autocommit=True) as administrator:
            hostile.pgconn.send_query(f"SELECT pg_advisory_lock({key[0]}, {key[1]})".encode())
            await eventually(lambda: hostile.info.backend_pid in lock_waiters(roles.database, *key))
            administrator.execute("SELECT pg_terminate_backend(%s)", (own,))
        await a.has_lost(before[0])
        await eventually(lambda: lock_holders(roles.database, *key) == [hostile.info.backend_pid])
        await eventually(lambda: lock_waiters(roles.database, *key), message="the elector waits again")
        assert not a.is_leader
        assert token_row(roles.database, key) == before
        terminate(roles.database, hostile.info.backend_pid)
        await a.leads(above=before[0])
        a.check_pairs()


async def test_a_neighbour_cannot_free_the_leaders_lock(any_roles: Roles, key: Key) -> None:
    elector, _ = any_roles.electors_and_writers()
    hostile = any_roles.connect(any_roles.neighbour())
    async with leader_of(elector, key) as a:
        held = lock_holders(any_roles.database, *key)
        for free in ("pg_advisory_unlock({}, {})", "pg_advisory_unlock_shared({}, {})", "pg_advisory_unlock_all()"):
            hostile.execute(f"SELECT {free.format(*key)}".encode())
        hostile.execute("DISCARD ALL")
        await a.proved(2)
        assert lock_holders(any_roles.database, *key) == held
        assert (a.terms, a.errors) == ([("acquired", a.lock.token)], [])


async def test_a_session_that_only_calls_itself_an_elector_is_neither_believed_nor_ended(
    roles: Roles, key: Key
) -> None:
    """Electors are known by pid and start, not by name: our own lost session may be ended, and no other one.

    The elector is a superuser here, so that it is its own decision whom it ends.
    """
    async with Elector(roles.database, key, reconnect_grace_s=5.0) as a:
        term = await a.leads()
        (own,) = sessions(roles.database)
        hostile = roles.connect(roles.neighbour(), application_name=own.application_name)
        terminate(roles.database, own.pid)
        await a.proved(2)
        assert a.terms == [("acquired", term.token)], "the same term goes on"
        (own,) = (one for one in sessions(roles.database) if one.pid != hostile.info.backend_pid)
        hostile.pgconn.send_query(f"SELECT pg_advisory_lock({key[0]}, {key[1]})".encode())
        await eventually(lambda: lock_waiters(roles.database, *key) == [hostile.info.backend_pid])
        terminate(roles.database, own.pid)
        await a.has_lost(term.token)
        await eventually(lambda: len(lock_waiters(roles.database, *key)) == 1, message="the elector waits again")
        assert lock_holders(roles.database, *key) == [hostile.info.backend_pid]
        hostile.close()
        await a.leads(above=term.token)


async def test_a_neighbour_that_holds_the_lock_of_the_first_boot_delays_it_and_an_administrator_passes_by(
    any_roles: Roles, key: Key
) -> None:
    """Creation is serialised under an advisory lock, too. Who installs by SQL waits for nobody."""
    hostile = any_roles.connect(any_roles.neighbour())
    hostile.execute("SELECT pg_advisory_lock(1885824364, 1701016625)")
    bounded: dict[str, Any] = {"options": "-c lock_timeout=200ms", "autocommit": True}
    async with await psycopg.AsyncConnection.connect(any_roles.database, **bounded) as conn:
        with pytest.raises(PgElectError, match="creating the schema pgelect"):
            await pgelect.install(conn)
    as_administrator(any_roles.database, schema_sql())
    async with await psycopg.AsyncConnection.connect(any_roles.database, **bounded) as conn:
        await pgelect.install(conn)
    async with Elector(any_roles.database, key) as a:
        await a.leads()
        assert a.errors == []


# What prevents it


async def test_in_a_database_of_its_own_nobody_else_can_come_near_the_lock(any_roles: Roles, key: Key) -> None:
    """Advisory locks belong to a database; the same key in another one is another lock."""
    elector, writer = any_roles.electors_and_writers()
    any_roles.run(OWN_DATABASE, app_elector=elector.name, app_writer=writer.name)
    neighbour = any_roles.neighbour()
    with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
        any_roles.connect(neighbour)
    hostile = any_roles.connect(neighbour, dbname="postgres")
    assert hostile.execute("SELECT pg_try_advisory_lock(%s::int, %s::int)", key).fetchone() == (True,)
    async with leader_of(elector, key) as a:
        await a.proved(1)
        assert hostile.info.backend_pid not in lock_holders(any_roles.database, *key)
        assert any_roles.connect(writer).execute("SELECT 1").fetchone() == (1,)


async def test_where_only_electors_may_lock_a_neighbour_cannot_and_they_lead_as_ever(
    any_roles: Roles, key: Key
) -> None:
    elector, _ = any_roles.electors_and_writers()
    any_roles.run(LOCK_FUNCTIONS, app_elector=elector.name)
    hostile = any_roles.connect(any_roles.neighbour())
    functions = [name for (name,) in query(any_roles.database, LOCKING)]
    assert len(functions) == 16
    for function in functions:
        call = function.replace("integer", "1").replace("bigint", "1")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied for function"):
            hostile.execute(f"SELECT {call}".encode())
    async with leader_of(elector, key) as a, Elector(elector.dsn, key) as b:
        first = a.lock.token or 0
        await eventually(lambda: lock_waiters(any_roles.database, *key), message="the other waits in the queue")
        await a.proved(1)
        assert await a.lock.step_down()
        second = await b.leads(above=first)
        await eventually(lambda: lock_waiters(any_roles.database, *key), message="the first waits in the queue")
        terminate(any_roles.database, lock_holders(any_roles.database, *key)[0])
        await a.leads(above=second.token)
        assert a.errors == []


@pytest.mark.parametrize("function", ["pg_try_advisory_lock", "pg_advisory_xact_lock"])
async def test_without_the_right_to_lock_the_error_has_the_grants_that_mend_it(
    roles: Roles, key: Key, function: str
) -> None:
    """Regression: the error named rights on the schema, which were all there."""
    elector, _ = roles.electors_and_writers()
    roles.run(LOCK_FUNCTIONS, app_elector=elector.name)
    roles.run(f"REVOKE EXECUTE ON FUNCTION pg_catalog.{function}(integer, integer) FROM {elector.name}")
    async with leader_of(Role("postgres", roles.database), key):
        a = Elector(elector.dsn, key)
        if function == "pg_try_advisory_lock":
            with pytest.raises(SchemaError) as refused:
                await a.lock.start()
            told: Exception = refused.value
        else:  # a later statement: the lock stops by itself
            await a.lock.start()
            told = await a.hears(SchemaError, function)
        await eventually(lambda: a.lock.state is LockState.STOPPED or not a.is_leader)
        await a.lock.shutdown()
    assert isinstance(told, SchemaError)
    assert function in str(told)
    assert "ON SCHEMA" not in told.sql
    as_administrator(roles.database, told.sql)
    async with leader_of(elector, key) as a, Elector(elector.dsn, key) as b:
        await eventually(lambda: lock_waiters(roles.database, *key))
        assert await a.lock.step_down()
        await b.leads()


async def test_one_that_polls_needs_the_right_to_try_only(roles: Roles, key: Key) -> None:
    elector, _ = roles.electors_and_writers()
    roles.run(LOCK_FUNCTIONS, app_elector=elector.name)
    roles.run(f"REVOKE EXECUTE ON FUNCTION pg_catalog.pg_advisory_xact_lock(integer, integer) FROM {elector.name}")
    async with (
        Elector(elector.dsn, key, acquire="poll") as a,
        Elector(elector.dsn, key, acquire="poll") as b,
    ):
        leader = await one_leads(a, b)
        other = b if leader is a else a
        assert await leader.lock.step_down(cooldown_s=60.0)
        await other.leads()
        assert a.errors == b.errors == []


# From another database


async def test_a_neighbour_that_fills_the_lock_table_of_the_server_does_not_unseat_the_leader(
    roles: Roles, key: Key
) -> None:
    """Regression: the proof looked into a shared catalog, for which the server needs a place in its lock table."""
    elector, _ = roles.electors_and_writers()
    hostile = roles.connect(roles.neighbour(), dbname="postgres")
    fill = "SELECT count(pg_advisory_lock(1, n)) FROM generate_series(1, 10000000) AS n"
    async with Elector(elector.dsn, key, lease_s=5.0, health_interval_s=0.2) as a:
        term = await a.leads()
        with pytest.raises(psycopg.errors.OutOfMemory):
            await asyncio.to_thread(hostile.execute, fill)
        try:
            with pytest.raises(psycopg.OperationalError, match="shared memory"):
                query(roles.database, "SELECT 1")  # nobody can even connect
            await a.proved(3, 10.0)
            assert (a.lock.term, a.errors) == (term, [])
        finally:
            hostile.close()
            await eventually(lambda: can_connect(roles.database))
        assert await a.lock.step_down()


def can_connect(dsn: str) -> bool:
    try:
        return bool(query(dsn, "SELECT 1"))
    except psycopg.OperationalError:
        return False
