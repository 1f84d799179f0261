"""The fence on a real server: stale writes are refused, the next token waits for fenced ones, tables are guarded."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import psycopg
import psycopg_pool
import pytest
import pytest_asyncio
from psycopg import AsyncConnection, IsolationLevel

from pgelect._engine.model import LockKey
from pgelect._postgres.install import SCHEMA_VERSION
from pgelect._postgres.session import PostgresSession, SessionOptions
from pgelect.errors import ConfigurationError, FenceBusyError, PgElectError, SchemaError, StaleTokenError
from pgelect.fencing import check_token, fenced, guard_table, install, schema_sql, unguard_table
from tests.support.server import eventually, lock_holders, query, sessions

WITHIN_S = 5.0
LEVELS = [IsolationLevel.READ_COMMITTED, IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE]
Make = Callable[..., PostgresSession]


@pytest_asyncio.fixture
async def make() -> AsyncIterator[Make]:
    """A factory of sessions that are closed after the test."""
    made: list[PostgresSession] = []

    def factory(dsn: str, key: LockKey, identity: str = "a", **options: Any) -> PostgresSession:
        session = PostgresSession(SessionOptions(key=key, identity=identity, dsn=dsn, lease_s=10.0, **options))
        made.append(session)
        return session

    yield factory
    for session in made:
        await session.close(1.0)


@pytest.fixture
def lock() -> LockKey:
    return LockKey.from_name("it's a job")


@pytest.fixture
def role(database: str) -> Any:
    """A factory of login roles without any rights."""
    made: list[str] = []

    def create() -> str:
        made.append(f"role_{secrets.token_hex(4)}")
        query(database, f"CREATE ROLE {made[-1]} LOGIN")
        return made[-1]

    yield create
    for name in made:
        query(
            database,
            "SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_activity WHERE usename = %s",
            name,
        )
        query(database, f"DROP OWNED BY {name}")
        query(database, f"DROP ROLE {name}")


async def term(session: PostgresSession) -> int:
    """A whole new term: its token."""
    await session.open(WITHIN_S)
    assert (await session.try_lock(None, WITHIN_S)).granted
    return (await session.mint(WITHIN_S)).token


async def over(session: PostgresSession, dsn: str, key: LockKey) -> None:
    """End a term uncleanly."""
    session.abandon()
    await eventually(lambda: not lock_holders(dsn, key.key1, key.key2))


def make_table(dsn: str) -> None:
    query(dsn, "CREATE TABLE work (n int)")


def work(dsn: str) -> list[int]:
    return [n for (n,) in query(dsn, "SELECT n FROM work ORDER BY n")]


# Checking


@pytest.mark.parametrize("level", LEVELS)
async def test_a_write_of_the_current_term_commits_and_a_stale_one_does_not(
    database: str, lock: LockKey, make: Make, level: IsolationLevel
) -> None:
    make_table(database)
    a = make(database, lock)
    old = await term(a)
    async with await AsyncConnection.connect(database) as conn:
        await conn.set_isolation_level(level)
        async with fenced(conn, lock, old):
            await conn.execute("INSERT INTO work VALUES (1)")
        await over(a, database, lock)
        await term(make(database, lock, "b"))
        with pytest.raises(StaleTokenError) as stale:
            async with fenced(conn, lock, old):
                await conn.execute("INSERT INTO work VALUES (2)")
        assert (stale.value.key, stale.value.token) == (lock, old)
    assert work(database) == [1]


@pytest.mark.parametrize("level", LEVELS)
async def test_a_snapshot_from_before_the_handover_does_not_help_a_stale_write(
    database: str, lock: LockKey, make: Make, level: IsolationLevel
) -> None:
    make_table(database)
    a = make(database, lock)
    old = await term(a)
    async with await AsyncConnection.connect(database, autocommit=True) as conn:
        await conn.set_isolation_level(level)
        async with conn.transaction():
            await conn.execute("SELECT count(*) FROM work")  # the snapshot
            await over(a, database, lock)
            await term(make(database, lock, "b"))
            with pytest.raises(StaleTokenError):
                async with fenced(conn, lock, old):
                    await conn.execute("INSERT INTO work VALUES (2)")
    assert work(database) == []


async def test_a_released_term_is_stale_at_once(database: str, lock: LockKey, make: Make) -> None:
    a = make(database, lock)
    token = await term(a)
    await a.unlock(token, WITHIN_S)
    async with await AsyncConnection.connect(database) as conn:
        with pytest.raises(StaleTokenError):
            await check_token(conn, lock, token)


async def test_a_stale_check_in_a_savepoint_leaves_the_outer_transaction_usable(
    database: str, lock: LockKey, make: Make
) -> None:
    make_table(database)
    token = await term(make(database, lock))
    async with await AsyncConnection.connect(database) as conn, conn.transaction():
        await conn.execute("INSERT INTO work VALUES (1)")
        with pytest.raises(StaleTokenError):
            async with fenced(conn, lock, token + 1):
                await conn.execute("INSERT INTO work VALUES (2)")
    assert work(database) == [1]


async def test_a_check_in_autocommit_mode_is_refused(database: str, lock: LockKey, make: Make) -> None:
    token = await term(make(database, lock))
    async with await AsyncConnection.connect(database, autocommit=True) as conn:
        with pytest.raises(ConfigurationError, match="autocommit"):
            await check_token(conn, lock, token)
        async with conn.transaction():
            await check_token(conn, lock, token)


async def test_any_connection_will_do(database: str, make: Make) -> None:
    make_table(database)
    key = LockKey(-(2**31), -1)
    token = await term(make(database, key))

    async def odd(conn: AsyncConnection[Any]) -> None:
        conn.cursor_factory = psycopg.AsyncRawCursor
        conn.row_factory = psycopg.rows.dict_row
        await conn.execute("SET search_path = ''")
        await conn.commit()

    async with psycopg_pool.AsyncConnectionPool(database, min_size=1, max_size=1, configure=odd, open=False) as pool:
        for n in range(8):
            async with pool.connection() as conn, fenced(conn, key, token):
                await conn.execute("INSERT INTO public.work VALUES ($1)", (n,))
    assert work(database) == list(range(8))


async def test_the_binding_ends_with_the_transaction(database: str, make: Make) -> None:
    key = LockKey(-1, 7)
    token = await term(make(database, key))
    bound = "SELECT current_setting('pgelect.fence_4294967295_7', true)"
    async with await AsyncConnection.connect(database, autocommit=True) as conn:
        async with fenced(conn, key, token):
            assert await (await conn.execute(bound)).fetchone() == (str(token),)
        assert (await (await conn.execute(bound)).fetchone()) in {(None,), ("",)}


# The next token


async def test_the_next_token_waits_for_a_fenced_write_that_ends(any_database: str, lock: LockKey, make: Make) -> None:
    make_table(any_database)
    a = make(any_database, lock)
    old = await term(a)
    async with await AsyncConnection.connect(any_database, autocommit=True) as conn:
        b = make(any_database, lock, "b")
        await b.open(WITHIN_S)
        async with fenced(conn, lock, old):
            await conn.execute("INSERT INTO work VALUES (1)")
            await over(a, any_database, lock)
            assert (await b.try_lock(None, WITHIN_S)).granted
            minting = asyncio.create_task(b.mint(WITHIN_S))
            await asyncio.sleep(0.2)
            assert not minting.done()
        grant = await minting
        assert grant.token > old
    assert work(any_database) == [1]


@pytest.mark.parametrize("stuck", [1, 3])
async def test_stuck_fenced_transactions_are_ended_exactly(
    any_database: str, lock: LockKey, make: Make, stuck: int
) -> None:
    """Three lock the row as a multixact, one as a plain transaction. A bystander holds the row of another lock."""
    make_table(any_database)
    other = LockKey.from_name("other")
    bystanding = await term(make(any_database, other))
    a = make(any_database, lock)
    old = await term(a)
    conns = [await AsyncConnection.connect(any_database) for _ in range(stuck)]
    bystander = await AsyncConnection.connect(any_database)
    await check_token(bystander, other, bystanding)
    for conn in conns:
        await conn.execute("SAVEPOINT s")
        await check_token(conn, lock, old)
        await conn.execute("RELEASE s")
        await conn.execute("INSERT INTO work VALUES (1)")
    await over(a, any_database, lock)
    b = make(any_database, lock, "b")
    began = time.monotonic()
    assert await term(b) > old
    assert time.monotonic() - began < 3
    for conn in conns:
        with pytest.raises(psycopg.OperationalError):
            await conn.commit()
        await conn.close()
    await bystander.execute("INSERT INTO work VALUES (7)")
    await bystander.commit()
    await bystander.close()
    assert work(any_database) == [7]


async def test_a_stream_of_fenced_transactions_does_not_starve_the_next_token(
    database: str, lock: LockKey, make: Make
) -> None:
    a = make(database, lock)
    old = await term(a)

    async def keep_writing(pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        while True:
            try:
                async with await AsyncConnection.connect(database) as conn, fenced(conn, lock, old):
                    await asyncio.sleep(0.3)
            except psycopg.OperationalError:
                continue
            except StaleTokenError:
                return

    writers = [asyncio.create_task(keep_writing(0.1 * n)) for n in range(4)]
    await asyncio.sleep(0.4)
    await over(a, database, lock)
    b = make(database, lock, "b")
    await b.open(WITHIN_S)
    assert (await b.try_lock(None, WITHIN_S)).granted
    began = time.monotonic()
    assert (await b.mint(WITHIN_S)).token > old
    assert time.monotonic() - began < 4
    await asyncio.wait_for(asyncio.gather(*writers), 5)


async def test_somebody_who_locks_the_whole_table_is_not_ended(database: str, lock: LockKey, make: Make) -> None:
    a = make(database, lock)
    await a.open(WITHIN_S)
    assert (await a.try_lock(None, WITHIN_S)).granted
    async with await AsyncConnection.connect(database) as administrator:
        await administrator.execute("LOCK TABLE pgelect.token")
        with pytest.raises(FenceBusyError) as busy:
            await a.mint(1.0)
        assert busy.value.blockers == ()
        await administrator.execute("SELECT 1")
    assert (await a.mint(WITHIN_S)).token == 1


async def test_a_blocker_that_the_role_may_not_end_is_reported_and_no_token_is_minted(
    database: str, lock: LockKey, make: Make, role: Callable[[], str]
) -> None:
    leader = role()
    a = make(database, lock)
    old = await term(a)
    query(database, f"GRANT USAGE ON SCHEMA pgelect TO {leader}")
    query(database, f"GRANT SELECT, INSERT, UPDATE ON pgelect.token, pgelect.closed TO {leader}")
    query(database, f"GRANT USAGE ON pgelect.token_seq TO {leader}")
    await over(a, database, lock)
    async with await AsyncConnection.connect(database) as stuck:
        await check_token(stuck, lock, old)
        b = make(f"{database} user={leader}", lock, "b")
        await b.open(WITHIN_S)
        assert (await b.try_lock(None, WITHIN_S)).granted
        began = time.monotonic()
        with pytest.raises(FenceBusyError) as busy:
            await b.mint(WITHIN_S)
        assert time.monotonic() - began < 3
        assert busy.value.blockers == (stuck.info.backend_pid,)
        assert query(database, "SELECT token FROM pgelect.token") == [(old,)]
        with pytest.raises(FenceBusyError):
            await b.mint(0.4)
    assert (await b.mint(WITHIN_S)).token > old


async def test_a_release_does_not_hang_on_our_own_fenced_transaction(database: str, lock: LockKey, make: Make) -> None:
    a = make(database, lock)
    token = await term(a)
    async with await AsyncConnection.connect(database) as stuck:
        await check_token(stuck, lock, token)
        assert await a.unlock(token, 1.0)
        assert lock_holders(database, lock.key1, lock.key2) == []
        assert query(database, "SELECT released_at FROM pgelect.token") == [(None,)]  # not marked: the row is taken
    await a.close(1.0)


async def test_resuming_does_not_wait_for_our_own_fenced_transaction(database: str, lock: LockKey, make: Make) -> None:
    a = make(database, lock)
    await a.open(WITHIN_S)
    assert (await a.try_lock(None, WITHIN_S)).granted
    grant = await a.mint(WITHIN_S)
    b = make(database, lock)
    await b.open(WITHIN_S)
    async with await AsyncConnection.connect(database) as conn:
        await check_token(conn, lock, grant.token)
        began = time.monotonic()
        assert (await b.resume(grant, WITHIN_S)).resumed
        assert time.monotonic() - began < 0.5
    async with await AsyncConnection.connect(database) as conn, fenced(conn, lock, grant.token):
        pass


# Guarded tables

WRITES = {
    "insert": "INSERT INTO work VALUES (9)",
    "update": "UPDATE work SET n = n + 1",
    "delete": "DELETE FROM work WHERE n = 1",
    "truncate": "TRUNCATE work",
    "merge": "MERGE INTO work USING (SELECT 1 AS n) AS s ON work.n = s.n WHEN MATCHED THEN DELETE",
}


@pytest.mark.parametrize("write", WRITES)
async def test_a_guarded_table_takes_fenced_writes_only(database: str, lock: LockKey, make: Make, write: str) -> None:
    make_table(database)
    query(database, "INSERT INTO work VALUES (1)")
    token = await term(make(database, lock))
    async with await AsyncConnection.connect(database, autocommit=True) as conn:
        await guard_table(conn, "work", lock)
        with pytest.raises(psycopg.Error, match="not fenced by the current term of lock 'it''s a job'") as refused:
            await conn.execute(WRITES[write].encode())
        assert refused.value.sqlstate == "PGE02"
        assert work(database) == [1]
        async with fenced(conn, lock, token):
            await conn.execute(WRITES[write].encode())
    assert work(database) != [1]


async def test_a_guarded_table_refuses_an_unfenced_copy(database: str, lock: LockKey, make: Make) -> None:
    make_table(database)
    token = await term(make(database, lock))

    async def copy(conn: AsyncConnection[Any]) -> None:
        async with conn.cursor().copy("COPY work FROM STDIN") as rows:
            await rows.write_row((5,))

    async with await AsyncConnection.connect(database, autocommit=True) as conn:
        await guard_table(conn, "work", lock)
        with pytest.raises(psycopg.Error, match="not fenced"):
            await copy(conn)
        async with fenced(conn, lock, token):
            await copy(conn)
    assert work(database) == [5]


@pytest.mark.parametrize("forged", ["999999999", "x", "-1", "", "99999999999999999999"])
@pytest.mark.parametrize("local", [True, False])
async def test_a_forged_binding_does_not_pass(
    database: str, lock: LockKey, make: Make, forged: str, local: bool
) -> None:
    make_table(database)
    await term(make(database, lock))
    async with await AsyncConnection.connect(database) as conn:
        await guard_table(conn, "work", lock)
        await conn.commit()
        name = f"pgelect.fence_{lock.classid}_{lock.objid}"
        await conn.execute("SELECT set_config(%s, %s, %s)", (name, forged, local))
        with pytest.raises(psycopg.Error, match="not fenced"):
            await conn.execute("INSERT INTO work VALUES (1)")


async def test_a_stale_binding_does_not_pass(database: str, lock: LockKey, make: Make) -> None:
    make_table(database)
    a = make(database, lock)
    old = await term(a)
    async with await AsyncConnection.connect(database, autocommit=True) as conn:
        await guard_table(conn, "work", lock)
        name = f"pgelect.fence_{lock.classid}_{lock.objid}"
        await conn.execute("SELECT set_config(%s, %s, false)", (name, str(old)))
        await over(a, database, lock)
        await term(make(database, lock, "b"))
        with pytest.raises(psycopg.Error, match="not fenced"):
            await conn.execute("INSERT INTO work VALUES (1)")


async def test_the_fence_of_another_lock_does_not_pass(database: str, lock: LockKey, make: Make) -> None:
    make_table(database)
    await term(make(database, lock))
    other = LockKey(1, 2)
    token = await term(make(database, other))
    async with await AsyncConnection.connect(database, autocommit=True) as conn:
        await guard_table(conn, "work", lock)
        with pytest.raises(psycopg.Error, match="not fenced"):
            async with fenced(conn, other, token):
                await conn.execute("INSERT INTO work VALUES (1)")
        await guard_table(conn, "work", other)  # another key replaces
        async with fenced(conn, other, token):
            await conn.execute("INSERT INTO work VALUES (1)")
    assert query(database, "SELECT count(*) FROM pg_trigger WHERE tgname = 'pgelect_guard'") == [(1,)]
    assert work(database) == [1]


async def test_guarding_and_unguarding_may_be_repeated(database: str, lock: LockKey) -> None:
    query(database, 'CREATE SCHEMA "My S"')
    query(database, 'CREATE TABLE "My S"."Odd.Name" (n int)')
    table = '"My S"."Odd.Name"'
    async with await AsyncConnection.connect(database, autocommit=True) as conn:
        await install(conn)
        for _ in range(2):
            await guard_table(conn, table, lock)
        with pytest.raises(psycopg.Error, match="not fenced"):
            await conn.execute(f"INSERT INTO {table} VALUES (1)".encode())
        for _ in range(2):
            await unguard_table(conn, table)
        await conn.execute(f"INSERT INTO {table} VALUES (1)".encode())
        await conn.execute('SET search_path = "My S"')
        await guard_table(conn, '"Odd.Name"', lock)


async def test_guarding_a_table_of_somebody_else_says_so(database: str, lock: LockKey, role: Callable[[], str]) -> None:
    make_table(database)
    stranger = role()
    query(database, schema_sql())
    query(database, f"GRANT USAGE ON SCHEMA pgelect TO {stranger}")
    query(database, f"GRANT EXECUTE ON FUNCTION pgelect.guard() TO {stranger}")
    async with await AsyncConnection.connect(f"{database} user={stranger}") as conn:
        with pytest.raises(PgElectError, match="lacks a right"):
            await guard_table(conn, "work", lock)


@pytest.mark.parametrize("table", ["nothing", "no.where", "a.b.c.d", "", "work;", "pg_locks", '"', "work_n_idx"])
async def test_what_is_no_table_is_a_value_error(any_database: str, lock: LockKey, table: str) -> None:
    make_table(any_database)
    query(any_database, "CREATE INDEX ON work (n)")
    async with await AsyncConnection.connect(any_database) as conn:
        await install(conn)
        with pytest.raises(ValueError, match="no table"):
            await guard_table(conn, table, lock)
        with pytest.raises(ValueError, match="no table"):
            await unguard_table(conn, table)
        await conn.execute("SELECT 1")  # the transaction goes on


# Rights and installation


async def test_a_writer_needs_execute_only(database: str, lock: LockKey, make: Make, role: Callable[[], str]) -> None:
    make_table(database)
    writer = role()
    query(database, f"GRANT SELECT, INSERT ON work TO {writer}")
    token = await term(make(database, lock))
    async with await AsyncConnection.connect(database, autocommit=True) as admin:
        await guard_table(admin, "work", lock)
    async with await AsyncConnection.connect(f"{database} user={writer}", autocommit=True) as conn:
        with pytest.raises(SchemaError) as refused:
            async with fenced(conn, lock, token):
                pass
        assert "GRANT EXECUTE ON FUNCTION pgelect.check_token" in refused.value.sql
        query(database, refused.value.sql)
        async with fenced(conn, lock, token):
            await conn.execute("INSERT INTO work VALUES (1)")
        for forbidden in ("SELECT * FROM pgelect.token", "UPDATE pgelect.token SET token = 0"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                await conn.execute(forbidden.encode())


async def test_nobody_has_rights_by_default(database: str) -> None:
    async with await AsyncConnection.connect(database) as conn:
        await install(conn)
    public = """
    SELECT count(*) FROM (
        SELECT relacl AS acl FROM pg_class WHERE relnamespace = 'pgelect'::regnamespace
        UNION ALL SELECT coalesce(proacl, acldefault('f', proowner)) FROM pg_proc
        WHERE pronamespace = 'pgelect'::regnamespace
        UNION ALL SELECT nspacl FROM pg_namespace WHERE nspname = 'pgelect'
    ) AS a, aclexplode(a.acl) AS x WHERE x.grantee = 0
    """
    assert query(database, public) == [(0,)]


async def test_check_without_the_schema_says_what_to_run(database: str, lock: LockKey) -> None:
    async with await AsyncConnection.connect(database) as conn:
        with pytest.raises(SchemaError) as missing:
            await check_token(conn, lock, 1)
    assert missing.value.sql == schema_sql()


@pytest.mark.parametrize("autocommit", [True, False])
async def test_install_may_be_repeated_in_any_kind_of_connection(any_database: str, autocommit: bool) -> None:
    async with await AsyncConnection.connect(any_database, autocommit=autocommit) as conn:
        await conn.execute("SET search_path = ''")
        await install(conn)
        await install(conn)
    assert query(any_database, "SELECT max(version) FROM pgelect.schema_version") == [(SCHEMA_VERSION,)]


async def test_install_inside_an_open_transaction_is_part_of_it(database: str) -> None:
    async with await AsyncConnection.connect(database) as conn:
        await conn.execute("SELECT 1")
        await install(conn)
        await conn.rollback()
    assert query(database, "SELECT 1 FROM pg_namespace WHERE nspname = 'pgelect'") == []


async def test_twenty_installs_at_once(any_database: str) -> None:
    conns = await asyncio.gather(*(AsyncConnection.connect(any_database, autocommit=True) for _ in range(20)))
    await asyncio.gather(*(install(conn) for conn in conns))
    for conn in conns:
        await conn.close()
    assert query(any_database, "SELECT max(version) FROM pgelect.schema_version") == [(SCHEMA_VERSION,)]


async def test_the_sql_may_be_run_by_hand_and_again(database: str, lock: LockKey, make: Make) -> None:
    for _ in range(2):
        query(database, schema_sql())
    await term(make(database, lock))
    query(database, schema_sql())
    assert query(database, "SELECT terms FROM pgelect.token") == [(1,)]


async def test_a_partial_schema_is_completed(database: str, lock: LockKey, make: Make, role: Callable[[], str]) -> None:
    owner = role()
    query(database, f"CREATE SCHEMA pgelect AUTHORIZATION {owner}")
    assert await term(make(f"{database} user={owner}", lock)) == 1
    assert sessions(database)
