"""Who leads, asked of the server: get_leader, list_leaders and the view, for any lock, role and connection."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection, AsyncRawCursor, pq
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row

from pgelect import LockKey, NotPrimaryError, PgElectError, SchemaError, SessionLostError, install, schema_sql
from pgelect.observe import get_history, get_leader, list_leaders, request_step_down
from tests.integration.test_hostile_settings import EVIL, hostile
from tests.support.electors import Elector
from tests.support.pgbouncer import PgBouncer
from tests.support.proxy import BreakableProxy
from tests.support.puppets import Puppet
from tests.support.replication import Pair
from tests.support.roles import READER, Roles
from tests.support.server import lock_waiters, query, sessions, terminate
from tests.support.waiting import eventually

Key = tuple[int, int]
LONG = "a very long name, " * 20 + "naïve 名前 \\ ' \" % {}"
INT32 = (-(2**31), 2**31 - 1)
ROW = "SELECT to_jsonb(l) - 'last_contact_at' FROM pgelect.leaders AS l"


@pytest.fixture
def installed(any_database: str) -> str:
    """A database with the schema, on each server."""
    query(any_database, schema_sql())
    return any_database


# What is told


async def test_a_leader_and_its_followers_are_seen_as_they_are(any_database: str, key: Key) -> None:
    before = datetime.now(UTC)
    settings = {"lease_s": 8.5, "identity": "naïve 名前", "metadata": {"n": [1.5, None, {"é": "\\"}]}}
    async with Elector(any_database, key, **settings) as a:
        term = await a.leads()
        async with Elector(any_database, key, lease_s=10.0):
            await eventually(lambda: len(lock_waiters(any_database, *key)) == 1)
            record = await get_leader(any_database, key)
            assert record is not None
            seen = (record.key1, record.key2, record.name, record.token, record.terms, record.lease_s)
            assert seen == (*key, None, term.token, 1, 8.5)
            assert (record.holder, record.metadata) == (settings["identity"], settings["metadata"])
            assert (record.alive, record.followers, record.released_at) == (True, 1, None)
            assert record.acquired_at == term.acquired_at
            (session, *_) = sessions(any_database)
            assert (record.pid, record.application_name) == (session.pid, session.application_name)
            assert record.client_addr == "127.0.0.1"
            assert (record.database,) == query(any_database, "SELECT current_database()")[0]
            assert record.last_contact_at is not None
            assert abs(record.last_contact_at - before).total_seconds() < 120
            (listed,) = await list_leaders(any_database)
            assert replace(listed, last_contact_at=None) == replace(record, last_contact_at=None)
    after = await get_leader(any_database, key)
    assert after is not None
    assert (after.alive, after.followers, after.application_name, after.last_contact_at) == (False, 0, None, None)
    assert after.released_at is not None


@pytest.mark.parametrize(
    "lock", [LockKey.from_name(LONG), *(LockKey(a, b) for a in INT32 for b in (*INT32, -1, 0))], ids=str
)
async def test_every_name_and_pair_of_keys_is_found_again_and_no_other_is_taken_for_it(
    here: str, lock: LockKey
) -> None:
    with Puppet(here, lock) as puppet, Puppet(here, LockKey(lock.key2, lock.key1)) as swapped:
        swapped_differs = lock.key1 != lock.key2
        token = puppet.begin()
        if swapped_differs:
            assert await get_leader(here, (lock.key2, lock.key1)) is None
            swapped.begin()
        asked: list[Any] = [lock, (lock.key1, lock.key2), *([lock.name] if lock.name else [])]
        for form in asked:
            record = await get_leader(here, form)
            assert record is not None
            assert (record.key1, record.key2, record.name, record.token) == (lock.key1, lock.key2, lock.name, token)
            assert (record.alive, record.pid) == (True, puppet.conn.info.backend_pid)
        puppet.die()
        await eventually(lambda: query(here, "SELECT alive FROM pgelect.leaders WHERE token = %s", token) == [(False,)])
        gone = await get_leader(here, lock)
        assert gone is not None
        assert (gone.alive, gone.released_at) == (False, None)


async def test_all_locks_come_sorted_by_name_and_then_keys(here: str) -> None:
    locks = [LockKey.from_name("b"), LockKey(5, -1), LockKey.from_name("a"), LockKey(-5, 1), LockKey(5, -2)]
    for lock in locks:
        with Puppet(here, lock) as puppet:
            puppet.begin()
    found = [(record.name, record.key1, record.key2) for record in await list_leaders(here)]
    a, b = LockKey.from_name("a"), LockKey.from_name("b")
    assert found == [("a", a.key1, a.key2), ("b", b.key1, b.key2), (None, -5, 1), (None, 5, -2), (None, 5, -1)]


async def test_of_no_lock_there_is_nothing(here: str) -> None:
    assert await get_leader(here, "nobody") is None
    assert await list_leaders(here) == []
    assert await get_history(here, "nobody") == []


async def test_a_lock_that_a_stranger_holds_is_not_led(here: str, key: Key) -> None:
    """Whoever holds the lock: who leads is the session that the row names."""
    with Puppet(here, LockKey(*key)) as puppet, psycopg.connect(here, autocommit=True) as stranger:
        puppet.begin()
        pid = puppet.conn.info.backend_pid
        puppet.die()
        stranger.execute("SELECT pg_advisory_lock(%s::int, %s::int)", key)
        record = await get_leader(here, key)
        assert record is not None
        assert (record.alive, record.pid) == (False, pid)


async def test_the_same_lock_of_another_database_is_another_one(here: str, key: Key) -> None:
    with Puppet(here, LockKey(*key)) as puppet:
        puppet.begin()
        puppet.die()
        elsewhere = make_conninfo(here, dbname="postgres")
        with psycopg.connect(elsewhere, autocommit=True) as other:
            other.execute("SELECT pg_advisory_lock(%s::int, %s::int)", key)
            record = await get_leader(here, key)
            assert record is not None
            assert record.alive is False


# Roles


async def test_a_role_for_looking_sees_who_leads_and_not_what_is_hidden_from_it(any_roles: Roles, key: Key) -> None:
    elector, _ = any_roles.electors_and_writers()
    reader = any_roles.make("reader")
    any_roles.run(READER, app_reader=reader.name)
    async with Elector(elector.dsn, key, lease_s=10.0) as a:
        term = await a.leads()
        record = await get_leader(reader.dsn, key)
        assert record is not None
        assert (record.token, record.alive, record.followers) == (term.token, True, 0)
        assert (record.client_addr, record.last_contact_at) == (None, None)
        assert a.lock.record is not None
        assert record.backend == a.lock.record.backend
        assert [one.token for one in await list_leaders(reader.dsn)] == [term.token]
        assert [one.ending for one in await get_history(reader.dsn, key)] == [None]
        terminate(any_roles.database, record.pid)
        await a.has_lost(term.token)


async def test_a_role_without_a_right_is_told_which_sql_gives_it(roles: Roles, key: Key) -> None:
    roles.run(schema_sql())
    reader = roles.make("reader")
    for call in (list_leaders(reader.dsn), get_history(reader.dsn, key)):
        with pytest.raises(SchemaError, match="may not read who leads"):
            await call
    with pytest.raises(SchemaError, match="may not read who leads") as refused:
        await get_leader(reader.dsn, key)
    assert "CREATE" not in refused.value.sql
    with pytest.raises(SchemaError, match="may not ask leaders to step down") as asked:
        await request_step_down(reader.dsn, key)
    roles.run(refused.value.sql)
    assert await get_leader(reader.dsn, key) is None
    assert await get_history(reader.dsn, key) == []
    roles.run(asked.value.sql)
    assert await request_step_down(reader.dsn, key) is None


async def test_where_nothing_is_installed_the_error_has_the_sql_for_an_administrator(roles: Roles, key: Key) -> None:
    reader = roles.make("reader")
    with pytest.raises(SchemaError, match="there is no schema pgelect in this database") as missing:
        await get_leader(reader.dsn, key)
    roles.run(missing.value.sql)
    assert await get_leader(reader.dsn, key) is None
    roles.run("DROP SCHEMA pgelect CASCADE")
    with pytest.raises(SchemaError, match="there is no schema"):
        await request_step_down(reader.dsn, key)


async def test_nothing_of_a_strangers_schema_is_touched(roles: Roles, key: Key) -> None:
    """A view runs code of whoever made it with the rights of whoever reads it, such as a superuser's at night."""
    hostile_role = roles.neighbour()
    roles.run(f"GRANT CREATE ON DATABASE {roles.dbname} TO {hostile_role.name}; ")
    with psycopg.connect(hostile_role.dsn, autocommit=True) as conn:
        conn.execute(schema_sql().encode())
        conn.execute("CREATE TABLE pgelect.trapped (who text); GRANT ALL ON SCHEMA pgelect TO PUBLIC")
        conn.execute("DROP VIEW pgelect.leaders; GRANT ALL ON pgelect.trapped TO PUBLIC")
        conn.execute(
            "CREATE FUNCTION pgelect.trap() RETURNS int LANGUAGE plpgsql AS "
            "$$ BEGIN INSERT INTO pgelect.trapped VALUES (current_user); RETURN 1; END $$"
        )
        conn.execute("CREATE VIEW pgelect.leaders AS SELECT pgelect.trap() AS key1, 1 AS key2")
    for call in (get_leader(roles.database, key), get_history(roles.database, key), list_leaders(roles.database)):
        with pytest.raises(SchemaError, match="belongs to the role"):
            await call
    with pytest.raises(SchemaError, match="belongs to the role"):
        await request_step_down(roles.database, key)
    assert query(roles.database, "SELECT * FROM pgelect.trapped") == []


# Connections


@pytest.mark.parametrize("autocommit", [True, False])
@pytest.mark.parametrize("in_transaction", [True, False])
async def test_a_connection_of_the_users_is_left_as_it_was(
    here: str, key: Key, autocommit: bool, in_transaction: bool
) -> None:
    with Puppet(here, LockKey(*key)) as puppet:
        token = puppet.begin()
        async with await AsyncConnection.connect(
            here, autocommit=autocommit, row_factory=dict_row, cursor_factory=AsyncRawCursor
        ) as conn:
            if in_transaction:
                await conn.execute("BEGIN" if autocommit else "SELECT 1")
            state = conn.info.transaction_status
            record = await get_leader(conn, key)
            assert record is not None
            assert (record.token, record.alive) == (token, True)
            assert [one.token for one in await get_history(conn, key)] == [token]
            assert [one.token for one in await list_leaders(conn)] == [token]
            assert await request_step_down(conn, key, token + 1) is None
            with pytest.raises(ValueError, match="limit"):
                await get_history(conn, key, limit=0)
            assert conn.info.transaction_status == state
            assert (state == pq.TransactionStatus.INTRANS) == in_transaction
            assert (await (await conn.execute("SELECT 1 AS one")).fetchall()) == [{"one": 1}]


async def test_a_transaction_that_failed_is_named_as_what_is_in_the_way(here: str, key: Key) -> None:
    async with await AsyncConnection.connect(here) as conn:
        with pytest.raises(psycopg.errors.DivisionByZero):
            await conn.execute("SELECT 1/0")
        with pytest.raises(PgElectError, match="roll this one back first"):
            await get_leader(conn, key)
        await conn.rollback()
        assert await get_leader(conn, key) is None


async def test_an_error_inside_a_users_transaction_does_not_end_it(database: str, key: Key) -> None:
    async with await AsyncConnection.connect(database) as conn:
        await conn.execute("CREATE TABLE kept (n int)")
        with pytest.raises(SchemaError):
            await get_leader(conn, key)
        await conn.execute("INSERT INTO kept VALUES (1)")
        await conn.commit()
    assert query(database, "SELECT n FROM kept") == [(1,)]


async def test_a_connection_that_ended_is_a_lost_session(here: str, key: Key) -> None:
    async with await AsyncConnection.connect(here) as conn:
        terminate(here, conn.info.backend_pid)
        with pytest.raises(SessionLostError):
            await get_leader(conn, key)
        with pytest.raises(SessionLostError):
            await get_leader(conn, key)


async def test_settings_that_would_change_the_answer_do_not(installed: str, key: Key) -> None:
    """Every setting that a role, a database or a DSN may bring, and doubles of what is called on the search_path."""
    query(installed, EVIL)
    lock = LockKey(*key, name=LONG)  # in LATIN1 it cannot be said
    with Puppet(installed, lock, holder="名前", note="名") as puppet:
        token = puppet.begin()
        options = " ".join(f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in hostile(14).items())
        bad = make_conninfo(installed, options=options)
        records = [await get_leader(bad, lock)]
        for autocommit in (True, False):
            async with await AsyncConnection.connect(bad, autocommit=autocommit) as conn:
                records.append(await get_leader(conn, lock))
                assert [one.name for one in await get_history(conn, lock)] == [LONG]
                assert await request_step_down(conn, lock) == token
                await conn.execute("SET client_encoding = 'SQL_ASCII'")
                records.append(await get_leader(conn, lock))
                await conn.rollback()
        for record in records:
            assert record is not None
            assert (record.name, record.holder, record.metadata) == (LONG, "名前", {"note": "名"})
            assert (record.token, record.alive, record.lease_s) == (token, True, 15.0)
            assert (record.acquired_at,) == query(installed, "SELECT acquired_at FROM pgelect.token")[0]
        assert await request_step_down(bad, lock) == token


async def test_a_transaction_that_reads_only_cannot_ask_a_leader_to_step_down(here: str, key: Key) -> None:
    with Puppet(here, LockKey(*key)) as puppet:
        token = puppet.begin()
        async with await AsyncConnection.connect(here) as conn:
            await conn.set_read_only(True)
            assert await request_step_down(conn, key) == token  # a transaction of its own
            await conn.execute("SELECT 1")
            with pytest.raises(PgElectError, match="needs a transaction that may write"):
                await request_step_down(conn, key)
            await conn.rollback()


async def test_a_pipeline_is_refused_and_not_ended(here: str, key: Key) -> None:
    async with await AsyncConnection.connect(here, autocommit=True) as conn, conn.pipeline():
        with pytest.raises(PgElectError, match="not in pipeline mode"):
            await get_leader(conn, key)
        assert await (await conn.execute("SELECT 1")).fetchall() == [(1,)]


async def test_through_a_pooler_in_transaction_mode_the_answers_are_the_same(
    here: str, key: Key, pgbouncer: Callable[..., PgBouncer]
) -> None:
    pooler = pgbouncer("transaction", pool_size=1)
    dsn = pooler.through(here)
    with Puppet(here, LockKey(*key)) as puppet:
        token = puppet.begin()
        for _ in range(3):
            record = await get_leader(dsn, key)
            assert record is not None
            assert (record.token, record.alive) == (token, True)
        assert [one.token for one in await get_history(dsn, key)] == [token]
        assert await request_step_down(dsn, key) == token
        kept = query(dsn, "SELECT current_setting('statement_timeout'), current_setting('transaction_isolation')")
        assert kept == [("0", "read committed")]


async def test_a_server_that_does_not_answer_is_given_up_in_bounded_time_and_nothing_is_left(
    here: str, key: Key, proxy: BreakableProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgelect._postgres.client.CONNECT_WITHIN_S", 0.3)
    proxy.freeze()
    with pytest.raises(SessionLostError, match=r"no connection within 0\.3 s"):
        await get_leader(proxy.dsn(here), key)
    proxy.thaw()
    await eventually(lambda: proxy.connections == 0, message="the socket was closed")


async def test_no_server_at_all_is_said_in_one_line_without_the_password(key: Key) -> None:
    with pytest.raises(SessionLostError) as lost:
        await get_leader("host=127.0.0.1 port=1 user=x password=hunter2 dbname=x", key)
    assert "hunter2" not in repr(lost.value)
    assert "\n" not in str(lost.value)


# A standby


async def test_a_standby_tells_who_was_written_down_and_not_who_holds_the_lock(pair: Pair, key: Key) -> None:
    """Advisory locks are not replicated: on a standby the lock is always free, and "lost" would be a lie."""
    primary, standby = pair.primary.dsn(), pair.standby.dsn()
    query(primary, schema_sql())
    with Puppet(primary, LockKey(*key)) as puppet:
        token = puppet.begin()
        await asyncio.to_thread(pair.caught_up)
        record = await get_leader(standby, key)
        assert record is not None
        assert (record.token, record.alive, record.released_at) == (token, None, None)
        assert (record.followers, record.client_addr, record.last_contact_at) == (None, None, None)
        assert [(one.token, one.ending) for one in await get_history(standby, key)] == [(token, None)]
        assert query(standby, "SELECT alive, followers FROM pgelect.leaders") == [(None, None)]  # for dashboards
        with pytest.raises(NotPrimaryError, match=str(pair.standby.port)):
            await request_step_down(standby, key)
        for autocommit in (True, False):
            async with await AsyncConnection.connect(standby, autocommit=autocommit) as conn:
                assert await get_leader(conn, key) == record
                with pytest.raises(NotPrimaryError):
                    await request_step_down(conn, key)
                assert conn.info.transaction_status == pq.TransactionStatus.IDLE
                await conn.execute("BEGIN" if autocommit else "SELECT 1")
                with pytest.raises(NotPrimaryError):
                    await request_step_down(conn, key)
                await conn.rollback()


# The view


async def test_psql_and_dashboards_read_the_same_from_the_view(installed: str, key: Key) -> None:
    async with await AsyncConnection.connect(installed, autocommit=True) as conn:
        await install(conn)
    with Puppet(installed, LockKey(*key), note="x") as puppet:
        token = puppet.begin()
        ((row,),) = query(installed, ROW)
        record = await get_leader(installed, key)
        assert record is not None
        assert row["token"] == record.token == token
        assert {name: row[name] for name in ("alive", "pid", "client_addr", "database", "followers", "terms")} == {
            "alive": True,
            "pid": record.pid,
            "client_addr": record.client_addr,
            "database": record.database,
            "followers": 0,
            "terms": 1,
        }
