"""Settings that a role, a database or a DSN brings along do not disturb an election."""

import secrets
from contextlib import ExitStack

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgelect import LeaderLock
from pgelect.testing import Postgres
from tests.support.electors import Elector, one_leads
from tests.support.server import lock_holders, lock_waiters, query, sessions, terminate
from tests.support.waiting import eventually, scaled

Key = tuple[int, int]
LEASE_S = 10.0
INTERVAL_S = 1.0  # longer than every timeout below

HOSTILE = {
    "statement_timeout": "400ms",
    "lock_timeout": "200ms",
    "idle_session_timeout": "700ms",
    "idle_in_transaction_session_timeout": "400ms",
    "default_transaction_read_only": "on",
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "search_path": "evil, pg_catalog",
    "synchronous_commit": "off",
    "standard_conforming_strings": "off",
    "backslash_quote": "off",
    "client_encoding": "LATIN1",
    "DateStyle": "SQL, DMY",
    "TimeZone": "Pacific/Kiritimati",
    "IntervalStyle": "sql_standard",
    "extra_float_digits": "-15",
    "bytea_output": "escape",
    "row_security": "off",
    "client_min_messages": "debug1",
    "quote_all_identifiers": "on",
    "enable_seqscan": "off",
    "application_name": "somebody else",
}
SINCE_17 = {"transaction_timeout": "700ms"}

# Whatever of the catalog a session could be lured to use by search_path; each of them raises when it is called.
EVIL = """
CREATE SCHEMA evil;
CREATE FUNCTION evil.trap() RETURNS integer LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'a function of the search_path was called'; END $$;
CREATE FUNCTION evil.pg_try_advisory_lock(integer, integer) RETURNS boolean LANGUAGE sql AS 'SELECT evil.trap() > 0';
CREATE FUNCTION evil.pg_advisory_xact_lock(integer, integer) RETURNS integer LANGUAGE sql AS 'SELECT evil.trap()';
CREATE FUNCTION evil.pg_advisory_unlock(integer, integer) RETURNS boolean LANGUAGE sql AS 'SELECT evil.trap() > 0';
CREATE FUNCTION evil.pg_advisory_unlock_all() RETURNS integer LANGUAGE sql AS 'SELECT evil.trap()';
CREATE FUNCTION evil.pg_backend_pid() RETURNS integer LANGUAGE sql AS 'SELECT evil.trap()';
CREATE FUNCTION evil.pg_is_in_recovery() RETURNS boolean LANGUAGE sql AS 'SELECT evil.trap() > 0';
CREATE FUNCTION evil.set_config(text, text, boolean) RETURNS text LANGUAGE sql AS 'SELECT evil.trap()::text';
CREATE FUNCTION evil.current_setting(text) RETURNS text LANGUAGE sql AS 'SELECT evil.trap()::text';
CREATE FUNCTION evil.current_setting(text, boolean) RETURNS text LANGUAGE sql AS 'SELECT evil.trap()::text';
CREATE FUNCTION evil.current_database() RETURNS name LANGUAGE sql AS 'SELECT evil.trap()::text::name';
CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT evil.trap()::text::timestamptz';
CREATE FUNCTION evil.nextval(regclass) RETURNS bigint LANGUAGE sql AS 'SELECT evil.trap()::bigint';
CREATE FUNCTION evil.pg_terminate_backend(integer) RETURNS boolean LANGUAGE sql AS 'SELECT evil.trap() > 0';
CREATE FUNCTION evil.equal(integer, integer) RETURNS boolean LANGUAGE sql AS 'SELECT evil.trap() > 0';
CREATE FUNCTION evil.equal(bigint, bigint) RETURNS boolean LANGUAGE sql AS 'SELECT evil.trap() > 0';
CREATE FUNCTION evil.equal(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT evil.trap() > 0';
CREATE OPERATOR evil.= (FUNCTION = evil.equal, LEFTARG = integer, RIGHTARG = integer);
CREATE OPERATOR evil.= (FUNCTION = evil.equal, LEFTARG = bigint, RIGHTARG = bigint);
CREATE OPERATOR evil.= (FUNCTION = evil.equal, LEFTARG = text, RIGHTARG = text);
CREATE VIEW evil.pg_locks AS SELECT evil.trap();
CREATE VIEW evil.pg_stat_activity AS SELECT evil.trap();
CREATE VIEW evil.pg_settings AS SELECT evil.trap();
CREATE VIEW evil.pg_database AS SELECT evil.trap();
GRANT USAGE ON SCHEMA evil TO PUBLIC;
"""


def hostile(version: int) -> dict[str, str]:
    """All of the settings that a server of this version has."""
    return {**HOSTILE, **(SINCE_17 if version >= 17 else {})}


@pytest.fixture
def traps(any_database: str) -> None:
    with psycopg.connect(any_database, autocommit=True) as conn:
        conn.execute(EVIL.encode())


@pytest.fixture
def role(any_database: str, traps: None, last_of_all: ExitStack) -> str:
    """A role that may create what it needs, without any hostile setting yet."""
    name = f"guest_{secrets.token_hex(3)}"
    query(any_database, f"CREATE ROLE {name} LOGIN")
    last_of_all.callback(query, any_database, f"DROP ROLE {name}")
    last_of_all.callback(query, any_database, f"DROP OWNED BY {name}")
    query(any_database, f"GRANT CREATE ON DATABASE {conninfo_to_dict(any_database)['dbname']} TO {name}")
    return name


async def two_lead_in_turn(dsn: str, administrator: str, key: Key) -> None:
    """From an empty schema on: one leads for several intervals while the other waits; then the other does."""
    settings = {"lease_s": LEASE_S, "health_interval_s": INTERVAL_S, "identity": "it's \\ é"}
    async with Elector(dsn, key, **settings) as a, Elector(dsn, key, **settings) as b:
        leader = await one_leads(a, b)
        follower = b if leader is a else a
        token = leader.lock.token or 0
        await leader.proved(3)
        await eventually(lambda: lock_waiters(administrator, *key), message="the other waits in the queue")
        assert leader.terms == [("acquired", token)]
        assert follower.terms == []
        assert a.errors == b.errors == []
        assert {one.application_name.split(":")[0] for one in sessions(administrator, "%it's%")} == {"pgelect"}
        terminate(administrator, lock_holders(administrator, *key)[0])
        await follower.leads(above=token)
        assert await follower.lock.step_down()
        await leader.leads(above=token)
        holders = query(administrator, "SELECT DISTINCT holder, acquired_at <= clock_timestamp() FROM pgelect.token")
        assert holders == [("it's \\ é", True)]


async def test_settings_of_the_role(any_server: Postgres, any_database: str, role: str, key: Key) -> None:
    for name, value in hostile(any_server.version).items():
        quoted = value if name == "search_path" else f"'{value}'"
        query(any_database, f"ALTER ROLE {role} SET {name} = {quoted}")
    dsn = make_conninfo(any_database, user=role)
    with pytest.raises(psycopg.Error, match=r"search_path was called|read-only|timeout"):  # they are in force
        query(dsn, "SELECT pg_backend_pid()")
    await two_lead_in_turn(dsn, any_database, key)


async def test_settings_of_the_dsn(any_server: Postgres, any_database: str, role: str, key: Key) -> None:
    options = " ".join(
        f"-c {name}={value.replace(' ', chr(92) + ' ')}"
        for name, value in hostile(any_server.version).items()
        if name not in ("client_encoding", "application_name")  # libpq has words of its own for these
    )
    dsn = make_conninfo(any_database, user=role, options=options, client_encoding="LATIN1", application_name="x")
    with pytest.raises(psycopg.Error, match=r"search_path was called|read-only|timeout"):
        query(dsn, "SELECT pg_backend_pid()")
    await two_lead_in_turn(dsn, any_database, key)


@pytest.mark.parametrize("name", sorted(HOSTILE))
async def test_each_setting_alone(database: str, key: Key, name: str, last_of_all: ExitStack) -> None:
    """So that one hostile setting cannot hide what another one would do."""
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(EVIL.encode())
    role = f"guest_{secrets.token_hex(3)}"
    query(database, f"CREATE ROLE {role} SUPERUSER LOGIN")
    last_of_all.callback(query, database, f"DROP ROLE {role}")
    last_of_all.callback(query, database, f"DROP OWNED BY {role}")
    value = HOSTILE[name]
    query(database, f"ALTER ROLE {role} SET {name} = " + (value if name == "search_path" else f"'{value}'"))
    interval_s = INTERVAL_S if name.endswith("timeout") else 0.1
    async with Elector(make_conninfo(database, user=role), key, lease_s=LEASE_S, health_interval_s=interval_s) as a:
        term = await a.leads()
        await a.proved(1)
        async with Elector(make_conninfo(database, user=role), key, lease_s=LEASE_S) as b:
            await eventually(lambda: lock_waiters(database, *key))
            assert await a.lock.step_down()
            await b.leads(above=term.token)
        assert a.errors == b.errors == []


async def test_a_role_that_becomes_another_one_at_login(database: str, key: Key, last_of_all: ExitStack) -> None:
    """ALTER ROLE ... SET role: what counts are the rights of the role that it becomes."""
    login, worker = (f"guest_{secrets.token_hex(3)}" for _ in range(2))
    query(database, f"CREATE ROLE {worker}")
    query(database, f"CREATE ROLE {login} LOGIN IN ROLE {worker}")
    query(database, f"ALTER ROLE {login} SET role = {worker}")
    for role in (worker, login):
        last_of_all.callback(query, database, f"DROP ROLE {role}")
        last_of_all.callback(query, database, f"DROP OWNED BY {role}")
    query(database, f"GRANT CREATE ON DATABASE {conninfo_to_dict(database)['dbname']} TO {worker}")
    async with Elector(make_conninfo(database, user=login), key) as a:
        await a.leads()
        assert query(database, "SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = 'pgelect'") == [
            (worker,)
        ]


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
@pytest.mark.parametrize("whose", ["role", "dsn", "connect_fn"])
async def test_an_encoding_of_the_session_that_the_name_does_not_fit_into(
    database: str, last_of_all: ExitStack, encoding: str, whose: str
) -> None:
    """psycopg encodes a statement as the session is before it: the first one, which sets UTF8, could not be sent."""
    role = f"guest_{secrets.token_hex(3)}"
    query(database, f"CREATE ROLE {role} SUPERUSER LOGIN")
    last_of_all.callback(query, database, f"DROP ROLE {role}")
    last_of_all.callback(query, database, f"DROP OWNED BY {role}")
    dsn = make_conninfo(database, user=role, client_encoding=encoding if whose == "dsn" else None)
    query(database, f"ALTER ROLE {role} SET client_encoding = '{'UTF8' if whose == 'dsn' else encoding}'")

    async def connect() -> psycopg.AsyncConnection[psycopg.rows.TupleRow]:
        return await psycopg.AsyncConnection.connect(dsn)

    connect_fn = connect if whose == "connect_fn" else None
    lock = LeaderLock("" if connect_fn else dsn, name="übersicht-日本", identity="größe-日本", connect_fn=connect_fn)
    async with lock:
        await lock.wait_for_leadership(scaled(10))
        assert query(database, "SELECT name, holder FROM pgelect.token") == [("übersicht-日本", "größe-日本")]
