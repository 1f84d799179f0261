"""The schema is upgraded from version 1 while locks of version 1 lead and write, and a later one is left alone."""

import asyncio
import logging
from contextlib import AsyncExitStack
from pathlib import Path

import psycopg
import pytest
from psycopg import AsyncConnection

from pgelect import ConfigurationError, LockKey, SchemaError, install, schema_sql
from pgelect._postgres.install import FUNCTIONS, RELATIONS, SCHEMA_VERSION
from pgelect.fencing import check_token, fenced, guard_table, schema_version
from pgelect.observe import get_history, get_leader, request_step_down
from tests.support.electors import Elector, one_leads
from tests.support.locks import token_row
from tests.support.puppets import Puppet
from tests.support.roles import GRANTS, HAND_OVER, Role, Roles
from tests.support.server import lock_holders, query
from tests.support.waiting import eventually

Key = tuple[int, int]

DATA = Path(__file__).parents[1] / "data"
V1, V2 = ((DATA / f"schema_v{version}.sql").read_text(encoding="utf-8") for version in (1, 2))
ALL = list(range(1, SCHEMA_VERSION + 1))
LATER = SCHEMA_VERSION + 1
V1_GRANTS = """
GRANT USAGE ON SCHEMA pgelect TO app_elector;
GRANT SELECT, INSERT, UPDATE ON pgelect.token, pgelect.closed TO app_elector;
GRANT USAGE ON SEQUENCE pgelect.token_seq TO app_elector;
GRANT EXECUTE ON FUNCTION pgelect.check_token(integer, integer, bigint) TO app_elector;
"""
PARTS = """
SELECT relname::text FROM pg_class WHERE relnamespace = 'pgelect'::regnamespace AND relkind IN ('r', 'S', 'v')
UNION ALL SELECT proname::text FROM pg_proc WHERE pronamespace = 'pgelect'::regnamespace
"""
BODIES = "SELECT proname::text, md5(prosrc) FROM pg_proc WHERE pronamespace = 'pgelect'::regnamespace ORDER BY 1"
STATE = """
SELECT (SELECT jsonb_agg(t) FROM pgelect.token AS t), (SELECT last_value FROM pgelect.token_seq),
    (SELECT jsonb_agg(c) FROM pgelect.closed AS c),
    (SELECT array_agg(a::text ORDER BY a::text) FROM pg_class, unnest(relacl) AS a
     WHERE relnamespace = 'pgelect'::regnamespace AND relname IN ('token', 'closed', 'token_seq'))
"""


@pytest.fixture
def old(any_database: str) -> str:
    """A database that the first version of this library has been used in, on each server."""
    return with_version_1(any_database)


@pytest.fixture
def here(database: str) -> str:
    """The same on the default server."""
    return with_version_1(database)


def with_version_1(dsn: str) -> str:
    query(dsn, V1)
    with Puppet(dsn, LockKey.from_name("an old lock"), silent=True) as puppet:
        for _ in range(3):
            puppet.begin()
            puppet.release()
    return dsn


def restricted(roles: Roles) -> Role:
    """An elector with the rights of version 1, in a schema of version 1."""
    with_version_1(roles.database)
    role = roles.make("elector")
    roles.run(V1_GRANTS, app_elector=role.name)
    return role


def versions(dsn: str) -> list[int]:
    return [version for (version,) in query(dsn, "SELECT version FROM pgelect.schema_version ORDER BY 1")]


def is_complete(dsn: str) -> bool:
    return {name for (name,) in query(dsn, PARTS)} == {*RELATIONS, *FUNCTIONS}


async def install_in(dsn: str) -> None:
    async with await AsyncConnection.connect(dsn, autocommit=True) as conn:
        await install(conn)


# The upgrade


@pytest.mark.parametrize("how", ["install", "the SQL", "a lock"])
async def test_an_upgrade_adds_what_is_new_and_changes_nothing_else(old: str, key: Key, how: str) -> None:
    before = query(old, STATE)
    assert versions(old) == [1]
    if how == "install":
        await install_in(old)
    elif how == "the SQL":
        query(old, schema_sql())
    else:
        async with Elector(old, key) as a:
            await a.leads()
        query(old, f"DELETE FROM pgelect.token WHERE key1 = {key[0]}")
        query(old, f"SELECT setval('pgelect.token_seq', {before[0][1]})")
    assert versions(old) == ALL
    assert is_complete(old)
    after = query(old, STATE)
    assert after[0][0] == before[0][0]
    assert after[0][1] == before[0][1]
    assert after[0][3] == before[0][3]
    await install_in(old)
    assert versions(old) == ALL


async def test_an_upgrade_that_is_rolled_back_leaves_version_1(here: str) -> None:
    async with await AsyncConnection.connect(here) as conn:
        await conn.execute("SELECT 1")
        await install(conn)
        assert await schema_version(conn) == SCHEMA_VERSION
        await conn.rollback()
    assert versions(here) == [1]
    assert not is_complete(here)


async def test_while_an_upgrade_is_open_leaders_prove_mint_and_write_and_do_not_wait(roles: Roles, key: Key) -> None:
    """An upgrade that took a lock on the token table would hold up every leader's next term and every fenced write."""
    role = restricted(roles)
    roles.run(f"CREATE TABLE work (token bigint); GRANT ALL ON work TO {role.name}")
    async with (
        Elector(role.dsn, key, lease_s=10.0, health_interval_s=0.2) as a,
        await AsyncConnection.connect(roles.database) as upgrading,
        await AsyncConnection.connect(role.dsn, autocommit=True) as writer,
    ):
        first = (await a.leads()).token
        await upgrading.execute("SELECT 1")
        await install(upgrading)  # and not committed yet
        assert versions(roles.database) == [1]
        await a.proved(3)
        async with a.lock.fence(writer):
            await writer.execute("INSERT INTO work VALUES (%s)", (first,))
        await a.lock.step_down(cooldown_s=0)
        second = (await a.leads(above=first)).token
        async with a.lock.fence(writer):
            await writer.execute("INSERT INTO work VALUES (%s)", (second,))
        with Puppet(role.dsn, LockKey.from_name("an old lock"), silent=True) as old_process:
            third = old_process.begin()
            await check_token_in_vain(writer, old_process.key, third - 1)
            old_process.release()
        await upgrading.commit()
        assert versions(roles.database) == ALL
        await a.proved(1)
        assert a.errors == []
        assert query(roles.database, "SELECT token FROM work ORDER BY token") == [(first,), (second,)]
    assert token_row(roles.database, key) == (second, 2, True)


async def check_token_in_vain(conn: AsyncConnection[tuple[object, ...]], key: LockKey, token: int) -> None:
    with pytest.raises(Exception, match="stale"):
        async with conn.transaction():
            await check_token(conn, key, token)


async def test_an_upgrade_waits_for_no_fenced_transaction_and_the_fence_holds_across_it(old: str, key: Key) -> None:
    lock = LockKey(*key)
    query(old, "CREATE TABLE work (n int)")
    with Puppet(old, lock, silent=True) as puppet, Puppet(old, lock, silent=True) as successor:
        first = puppet.begin()
        async with await AsyncConnection.connect(old, autocommit=True) as writer:
            await guard_table(writer, "work", lock)
            async with writer.transaction():
                await check_token(writer, lock, first)
                await writer.execute("INSERT INTO work VALUES (1)")
                async with await AsyncConnection.connect(old, options="-c lock_timeout=5s") as upgrading:
                    await install(upgrading)
                assert versions(old) == ALL
                puppet.die()
                await eventually(lambda: lock_holders(old, *key) == [])
                successor.conn.execute("SET lock_timeout = '100ms'")
                with pytest.raises(psycopg.errors.LockNotAvailable):
                    successor.begin()  # no next term before the transaction of the last one has ended
                await writer.execute("INSERT INTO work VALUES (2)")
            successor.conn.execute("SELECT pg_advisory_unlock_all()")
            second = successor.begin()
            assert second > first
            with pytest.raises(psycopg.Error) as stale:
                async with writer.transaction():
                    await writer.execute("SELECT pgelect.check_token(%s::int, %s::int, %s::bigint)", (*key, first))
            assert stale.value.sqlstate == "PGE01"
            with pytest.raises(psycopg.Error) as unfenced:
                await writer.execute("INSERT INTO work VALUES (3)")
            assert unfenced.value.sqlstate == "PGE02"
    assert query(old, "SELECT n FROM work ORDER BY n") == [(1,), (2,)]


async def test_twenty_first_starts_at_once_on_version_1_all_come_up(old: str, key: Key) -> None:
    before = query(old, "SELECT last_value FROM pgelect.token_seq")[0][0]
    electors = [Elector(old, key, lease_s=10.0) for _ in range(20)]
    async with AsyncExitStack() as stack:
        results = await asyncio.gather(
            *(stack.enter_async_context(elector) for elector in electors), return_exceptions=True
        )
        assert [one for one in results if isinstance(one, BaseException)] == []
        leader = await one_leads(*electors)
        assert (leader.lock.token or 0) > before
        assert versions(old) == ALL
        assert is_complete(old)
        assert [elector.errors for elector in electors] == [[]] * 20
        await eventually(lambda: query(old, "SELECT token FROM pgelect.history") == [(leader.lock.token,)])


async def test_the_sql_of_version_2_is_refused(here: str) -> None:
    await install_in(here)
    before = query(here, BODIES)
    with pytest.raises(psycopg.Error, match="Nothing was changed"):
        query(here, V2)
    assert versions(here) == ALL
    assert query(here, BODIES) == before


async def test_the_sql_of_version_1_sets_back_only_how_a_token_is_checked_and_that_holds(here: str, key: Key) -> None:
    """An administrator of the first version runs it again: it does not look whether there is a later one."""
    await install_in(here)
    before = query(here, BODIES)
    query(here, V1)
    assert versions(here) == ALL
    assert [name for name, body in query(here, BODIES) if (name, body) not in before] == ["check_token", "guard"]
    async with Elector(here, key) as a, await AsyncConnection.connect(here) as writer:
        token = (await a.leads()).token
        async with a.lock.fence(writer):
            pass
        await check_token_in_vain(writer, a.lock.key, token - 1)
    query(here, schema_sql())
    assert query(here, BODIES) == before


# The functions alone


@pytest.mark.parametrize("how", ["install", "the SQL", "a lock"])
async def test_an_upgrade_replaces_functions_where_no_part_is_added(any_database: str, key: Key, how: str) -> None:
    """To look only whether all parts are there would leave them as they are for good."""
    query(any_database, schema_sql())
    wanted = query(any_database, BODIES)
    query(any_database, "DROP SCHEMA pgelect CASCADE")
    query(any_database, V2)
    assert is_complete(any_database)
    assert versions(any_database) == [1, 2]
    assert query(any_database, BODIES) != wanted
    if how == "install":
        await install_in(any_database)
    elif how == "the SQL":
        query(any_database, schema_sql())
    else:
        async with Elector(any_database, key) as a:
            await a.leads()
    assert versions(any_database) == ALL
    assert query(any_database, BODIES) == wanted
    async with await AsyncConnection.connect(any_database, autocommit=True) as conn:
        assert await schema_version(conn) == SCHEMA_VERSION


async def test_a_session_that_checked_before_the_upgrade_checks_after_it(here: str, key: Key) -> None:
    """It has the old functions planned, in transactions that go on over it and in later ones."""
    query(here, V2)
    query(here, "CREATE TABLE work (n int)")
    lock = LockKey(*key)
    with Puppet(here, lock) as puppet:
        token = puppet.begin()
        async with await AsyncConnection.connect(here, autocommit=True) as writer:
            await guard_table(writer, "work", lock)
            async with fenced(writer, lock, token):
                await writer.execute("INSERT INTO work VALUES (1)")
                await install_in(here)
                await writer.execute("INSERT INTO work VALUES (2)")
            async with fenced(writer, lock, token):
                await writer.execute("INSERT INTO work VALUES (3)")
            await check_token_in_vain(writer, lock, token + 1)
            with pytest.raises(psycopg.Error) as unfenced:
                await writer.execute("INSERT INTO work VALUES (4)")
            assert unfenced.value.sqlstate == "PGE02"
    assert query(here, "SELECT n FROM work ORDER BY n") == [(1,), (2,), (3,)]


async def test_a_lock_that_may_not_upgrade_version_2_has_all_of_it(roles: Roles, key: Key) -> None:
    role = roles.make("elector")
    roles.run(V2)
    roles.run(GRANTS, app_elector=role.name, app_writer=role.name)
    async with (
        Elector(role.dsn, key, lease_s=10.0, health_interval_s=0.2) as a,
        await AsyncConnection.connect(role.dsn) as writer,
    ):
        token = (await a.leads()).token
        async with a.lock.fence(writer):
            pass
        await check_token_in_vain(writer, a.lock.key, token - 1)
        assert await schema_version(writer) == 2
        await a.proved(2)
        assert a.errors == []
        await eventually(lambda: query(roles.database, "SELECT token FROM pgelect.history") == [(token,)])
    assert versions(roles.database) == [1, 2]
    with pytest.raises(SchemaError, match=r"of an earlier version, and the role .* may not"):
        await install_in(role.dsn)


@pytest.mark.parametrize("others", ["FUNCTION pgelect.check_token", "TABLE pgelect.closed", "SCHEMA pgelect"])
async def test_a_lock_that_owns_only_a_part_leads_and_leaves_the_version_as_it_is(
    roles: Roles, key: Key, others: str
) -> None:
    """It could not upgrade, and that is no reason not to start."""
    role, admin = roles.make("elector"), roles.make("owner", "SUPERUSER")
    roles.run(V2)
    roles.run(GRANTS, app_elector=role.name, app_writer=role.name)
    roles.run(f"GRANT CREATE ON SCHEMA pgelect TO {role.name}")
    roles.run(HAND_OVER, app_owner=role.name)
    roles.run(f"ALTER {others} OWNER TO {admin.name}")
    roles.run(GRANTS, app_elector=role.name, app_writer=role.name)
    async with Elector(role.dsn, key) as a:
        await a.leads()
        assert a.errors == []
    assert versions(roles.database) == [1, 2]


# Locks without the right to upgrade


async def test_a_lock_that_may_not_upgrade_leads_as_before_without_noise(
    any_roles: Roles, key: Key, caplog: pytest.LogCaptureFixture
) -> None:
    role = restricted(any_roles)
    before = query(any_roles.database, "SELECT last_value FROM pgelect.token_seq")[0][0]
    with caplog.at_level(logging.INFO, logger="pgelect"):
        async with Elector(role.dsn, key, lease_s=10.0, health_interval_s=0.2) as a:
            tokens = [(await a.leads(above=before)).token]
            for _ in range(2):
                await a.lock.step_down(cooldown_s=0)
                tokens.append((await a.leads(above=tokens[-1])).token)
            await a.proved(2)
        assert a.errors == []
    assert a.terms == [pair for token in tokens for pair in (("acquired", token), ("released", token))]
    assert versions(any_roles.database) == [1]
    assert token_row(any_roles.database, key) == (tokens[-1], 3, True)
    besides = [record.getMessage() for record in caplog.records if "->" not in record.getMessage()]
    assert len(besides) == 1
    assert "may not write down who leads" in besides[0]
    assert max(record.levelno for record in caplog.records) <= logging.WARNING


async def test_onlookers_of_version_1_are_told_what_upgrades_it(roles: Roles, key: Key) -> None:
    role = restricted(roles)
    for dsn in (role.dsn, roles.database):
        for call in (get_leader(dsn, key), get_history(dsn, key), request_step_down(dsn, key)):
            with pytest.raises(SchemaError, match=r"is of version 1.*'pgelect init' upgrades it") as refused:
                await call
            assert schema_sql() in refused.value.sql
    with pytest.raises(SchemaError, match="may not create it"):
        await install_in(role.dsn)
    assert versions(roles.database) == [1]
    await install_in(roles.database)
    record = await get_leader(roles.database, "an old lock")
    assert record is not None
    assert (record.terms, record.alive, record.released_at is not None) == (3, False, True)
    assert [(term.term, term.ending) for term in await get_history(roles.database, "an old lock")] == [(3, "released")]


# A later version


async def test_a_later_version_is_refused_by_an_upgrade_and_nothing_is_changed(here: str) -> None:
    await install_in(here)
    query(here, f"INSERT INTO pgelect.schema_version VALUES ({LATER})")
    parts = "SELECT proname::text, xmin::text FROM pg_proc WHERE pronamespace = 'pgelect'::regnamespace ORDER BY 1"
    before = query(here, parts)
    async with await AsyncConnection.connect(here, autocommit=True) as conn:
        assert await schema_version(conn) == LATER
        with pytest.raises(
            ConfigurationError, match=rf"is of version {LATER}, .* Nothing was changed\. Upgrade pgelect"
        ):
            await install(conn)
    with pytest.raises(psycopg.Error) as refused:
        query(here, schema_sql())
    assert (refused.value.sqlstate, "Nothing was changed" in str(refused.value)) == ("PGE04", True)
    query(here, "DROP FUNCTION pgelect.request_step_down")
    async with await AsyncConnection.connect(here, autocommit=True) as conn:
        with pytest.raises(ConfigurationError, match=f"is of version {LATER}"):
            await install(conn)
    assert versions(here) == [*ALL, LATER]
    assert [row for row in before if row[0] != "request_step_down"] == query(here, parts)


async def test_locks_lead_on_a_later_version_that_has_all_parts(here: str, key: Key) -> None:
    await install_in(here)
    query(
        here,
        f"INSERT INTO pgelect.schema_version VALUES ({LATER}); ALTER TABLE pgelect.token ADD COLUMN later text",
    )
    async with Elector(here, key) as a:
        token = (await a.leads()).token
        record = await get_leader(here, key)
        assert record is not None
        assert (record.token, record.alive) == (token, True)
        assert a.errors == []
    assert versions(here) == [*ALL, LATER]


# Which version it is


async def test_the_version_is_told_to_whoever_asks(roles: Roles) -> None:
    role = roles.make("elector")

    async def told() -> list[int | None]:
        found = []
        for dsn in (roles.database, role.dsn):
            async with await AsyncConnection.connect(dsn) as conn:
                found.append(await schema_version(conn))
        return found

    assert await told() == [None, None]
    roles.run(V1)
    assert await told() == [1, 1]
    roles.run(V1_GRANTS, app_elector=role.name)
    assert await told() == [1, 1]
    roles.run(V2)
    assert await told() == [2, 2]
    roles.run(schema_sql())
    assert await told() == [SCHEMA_VERSION, SCHEMA_VERSION]


async def test_the_version_of_a_strangers_schema_is_not_asked_for(roles: Roles) -> None:
    hostile = roles.neighbour()
    roles.run(f"CREATE SCHEMA pgelect AUTHORIZATION {hostile.name}")
    with psycopg.connect(hostile.dsn, autocommit=True) as conn:
        conn.execute("CREATE VIEW pgelect.schema_version AS SELECT 1/0 AS version")
    async with await AsyncConnection.connect(roles.database) as conn:
        for ask in (schema_version, install):
            with pytest.raises(SchemaError, match="belongs to the role"):
                await ask(conn)
