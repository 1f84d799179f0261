"""Roles with few rights: what is missing is said before anything is locked, with the SQL that mends it."""

import secrets
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.sql import Identifier

from pgelect import LockState, SchemaError, schema_sql
from pgelect._postgres.install import FUNCTIONS, RELATIONS
from tests.support import roles
from tests.support.electors import Elector
from tests.support.roles import as_administrator
from tests.support.server import lock_holders, query, sessions, terminate
from tests.support.waiting import eventually

Key = tuple[int, int]
NAMES = ["plain_role", 'Odd "Role" é']


def quoted(role: str) -> str:
    return Identifier(role).as_string(None)


@pytest.fixture(params=NAMES)
def role(request: pytest.FixtureRequest, database: str, last_of_all: ExitStack) -> str:
    """A role that may connect, and nothing else."""
    name = f"{request.param}_{secrets.token_hex(3)}"
    as_administrator(database, f"CREATE ROLE {quoted(name)} LOGIN")
    last_of_all.callback(as_administrator, database, f"DROP OWNED BY {quoted(name)}; DROP ROLE {quoted(name)}")
    return name


@pytest.fixture
def dsn(database: str, role: str) -> str:
    """A connection as that role."""
    return make_conninfo(database, user=role)


def nothing_left(database: str, key: Key) -> bool:
    return lock_holders(database, *key) == [] == sessions(database)


async def refused(dsn: str, key: Key) -> SchemaError:
    """Start a lock that must not start; return why."""
    elector = Elector(dsn, key)
    with pytest.raises(SchemaError) as caught:
        await elector.lock.start()
    assert elector.lock.state is LockState.STOPPED
    assert elector.terms == []
    return caught.value


async def leads(dsn: str, database: str, key: Key) -> None:
    async with Elector(dsn, key) as a:
        term = await a.leads()
        await eventually(
            lambda: lock_holders(database, *key) == [one.pid for one in sessions(database)],
            message="no other session is left",
        )
    assert a.terms == [("acquired", term.token), ("released", term.token)]
    assert a.errors == []


async def test_without_the_right_to_create_the_schema_the_error_has_the_sql_that_mends_it(
    database: str, dsn: str, role: str, key: Key
) -> None:
    error = await refused(dsn, key)
    await eventually(lambda: nothing_left(database, key))
    assert query(database, "SELECT to_regnamespace('pgelect')") == [(None,)]
    assert role in str(error)
    assert error.sql in str(error)
    assert "CREATE SCHEMA pgelect" in error.sql
    as_administrator(database, error.sql)
    await leads(dsn, database, key)


async def test_the_sql_of_the_error_gives_no_more_than_is_needed(database: str, dsn: str, role: str, key: Key) -> None:
    as_administrator(database, (await refused(dsn, key)).sql)
    await leads(dsn, database, key)
    assert sorted(query(database, OTHERS)) == [
        *(("function", called, "EXECUTE") for called in ("announce", "asked_to_step_down")),
        ("function", "check_token", "EXECUTE"),  # for its fenced transactions
        ("function", "report_lost", "EXECUTE"),
        *(("relation", table, right) for table in ("closed", "token") for right in ("INSERT", "SELECT", "UPDATE")),
        ("relation", "token_seq", "USAGE"),
        ("schema", "pgelect", "USAGE"),
    ]
    for forbidden in (
        "DELETE FROM pgelect.token",
        "TRUNCATE pgelect.token",
        "DROP TABLE pgelect.token",
        "SELECT setval('pgelect.token_seq', 1)",
        "ALTER SEQUENCE pgelect.token_seq RESTART",
        "CREATE TABLE pgelect.mine ()",
        "CREATE SCHEMA mine",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            query(dsn, forbidden)


async def test_objects_that_an_administrator_made_are_enough_with_the_documented_grants(
    database: str, dsn: str, role: str, key: Key
) -> None:
    """Regression: CREATE ... IF NOT EXISTS asks for the right to create before it looks whether the object is there."""
    as_administrator(database, schema_sql())
    as_administrator(
        database,
        f"GRANT USAGE ON SCHEMA pgelect TO {quoted(role)};"
        f"GRANT SELECT, INSERT, UPDATE ON pgelect.token, pgelect.closed TO {quoted(role)};"
        f"GRANT USAGE ON SEQUENCE pgelect.token_seq TO {quoted(role)}",
    )
    await leads(dsn, database, key)


@pytest.mark.parametrize(
    "missing",
    [
        "USAGE ON SCHEMA pgelect",
        "SELECT ON pgelect.token",
        "INSERT ON pgelect.token",
        "UPDATE ON pgelect.token",
        "SELECT ON pgelect.closed",
        "INSERT ON pgelect.closed",
        "UPDATE ON pgelect.closed",
        "USAGE ON SEQUENCE pgelect.token_seq",
    ],
)
async def test_each_missing_grant_is_refused_with_the_grants_that_mend_it(
    database: str, dsn: str, role: str, key: Key, missing: str
) -> None:
    as_administrator(database, (await refused(dsn, key)).sql)
    as_administrator(database, f"REVOKE {missing} FROM {quoted(role)}")
    error = await refused(dsn, key)
    await eventually(lambda: nothing_left(database, key))
    assert "CREATE" not in error.sql
    as_administrator(database, error.sql)
    await leads(dsn, database, key)


@pytest.mark.parametrize(
    "part",
    ["TABLE pgelect.token", "TABLE pgelect.closed", "SEQUENCE pgelect.token_seq", "FUNCTION pgelect.check_token"],
)
async def test_a_schema_that_lacks_a_part_is_refused_with_the_sql_that_completes_it(
    database: str, dsn: str, role: str, key: Key, part: str
) -> None:
    as_administrator(database, (await refused(dsn, key)).sql)
    as_administrator(database, f"DROP {part} CASCADE")
    error = await refused(dsn, key)
    await eventually(lambda: nothing_left(database, key))
    as_administrator(database, error.sql)
    await leads(dsn, database, key)


async def test_a_role_that_may_create_needs_no_administrator(database: str, dsn: str, role: str, key: Key) -> None:
    name = str(conninfo_to_dict(database)["dbname"])
    as_administrator(database, f"GRANT CREATE ON DATABASE {quoted(name)} TO {quoted(role)}")
    await leads(dsn, database, key)


async def test_without_fencing_no_right_is_needed_at_all(database: str, dsn: str, key: Key) -> None:
    async with Elector(dsn, key, fencing=False) as a:
        await eventually(lambda: a.is_leader)
        await eventually(
            lambda: lock_holders(database, *key) == [one.pid for one in sessions(database)],
            message="no other session is left",
        )
    assert query(database, "SELECT to_regnamespace('pgelect')") == [(None,)]


async def test_a_right_that_is_taken_away_later_stops_the_next_term_and_not_the_elector(
    database: str, dsn: str, role: str, key: Key
) -> None:
    """Regression: electors on a role whose rights had been cut crash-looped."""
    as_administrator(database, (await refused(dsn, key)).sql)
    async with Elector(dsn, key) as a:
        term = await a.leads()
        as_administrator(database, f"REVOKE UPDATE ON pgelect.token FROM {quoted(role)}")
        for _ in range(10):
            assert term.is_current
            await eventually(lambda: a.lock.is_leader_confirmed_within(0.1))
        terminate(database, lock_holders(database, *key)[0])
        error = await a.hears(SchemaError)
        assert "GRANT" in str(error)
        assert a.terms == [("acquired", term.token), ("lost", term.token)]
        assert not a.is_leader
        await eventually(lambda: lock_holders(database, *key) == [])
        as_administrator(database, f"GRANT UPDATE ON pgelect.token TO {quoted(role)}")
        await a.leads(above=term.token)


# What the schema says of itself. Whatever is added to it later is looked at, too.

OBJECTS = """
SELECT 'schema' AS kind, n.nspname::text AS name, coalesce(n.nspacl, acldefault('n', n.nspowner)) AS acl
FROM pg_namespace AS n WHERE n.nspname = 'pgelect'
UNION ALL
SELECT 'relation', c.relname::text,
    coalesce(c.relacl, acldefault(CASE c.relkind WHEN 'S' THEN 's'::"char" ELSE 'r' END, c.relowner))
FROM pg_class AS c WHERE c.relnamespace = 'pgelect'::regnamespace AND c.relkind NOT IN ('i', 'I', 't')
UNION ALL
SELECT 'column', c.relname || '.' || a.attname, a.attacl
FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
WHERE c.relnamespace = 'pgelect'::regnamespace AND c.relkind NOT IN ('i', 'I', 't') AND a.attnum > 0
UNION ALL
SELECT 'function', p.proname::text, coalesce(p.proacl, acldefault('f', p.proowner))
FROM pg_proc AS p WHERE p.pronamespace = 'pgelect'::regnamespace
UNION ALL
SELECT 'type', t.typname::text, coalesce(t.typacl, acldefault('T', t.typowner))
FROM pg_type AS t WHERE t.typnamespace = 'pgelect'::regnamespace AND t.typelem = 0
"""
TO_PUBLIC = f"SELECT o.kind, o.name, a.privilege_type FROM ({OBJECTS}) AS o, aclexplode(o.acl) AS a WHERE a.grantee = 0"
OTHERS = f"""
SELECT o.kind, o.name, a.privilege_type FROM ({OBJECTS}) AS o, aclexplode(o.acl) AS a
WHERE a.grantee <> (SELECT nspowner FROM pg_namespace WHERE nspname = 'pgelect')
"""


def test_everybody_has_no_right_on_anything_in_the_schema(any_database: str) -> None:
    as_administrator(any_database, schema_sql())
    kinds = {kind for (kind,) in query(any_database, f"SELECT DISTINCT o.kind FROM ({OBJECTS}) AS o")}
    assert kinds == {"schema", "relation", "column", "function", "type"}, "all of it was looked at"
    assert query(any_database, TO_PUBLIC) == []
    assert query(any_database, OTHERS) == []


def test_what_is_in_the_schema_is_what_is_looked_for(database: str) -> None:
    """Owners are checked, and completeness is, for the names listed in the code: a new object has to be entered."""
    as_administrator(database, schema_sql())
    names = f"SELECT o.name FROM ({OBJECTS}) AS o WHERE o.kind = %s ORDER BY 1"
    assert [name for (name,) in query(database, names, "relation")] == sorted(RELATIONS)
    assert [name for (name,) in query(database, names, "function")] == sorted(FUNCTIONS)
    assert [name for (name,) in query(database, names, "type")] == sorted(set(RELATIONS) - {"token_seq"})


def test_each_function_pins_its_search_path_with_the_temporary_schema_last(any_database: str) -> None:
    """Else a caller's own functions, operators and tables would be found first, and run with the owner's rights."""
    as_administrator(any_database, schema_sql())
    functions = query(
        any_database,
        "SELECT proname::text, prosecdef, proconfig FROM pg_proc "
        "WHERE pronamespace = 'pgelect'::regnamespace ORDER BY 1",
    )
    assert functions == [(name, True, ["search_path=pg_catalog, pg_temp"]) for name in sorted(FUNCTIONS)]


def test_installing_again_keeps_grants_and_revokes_and_takes_from_everybody_what_was_given(
    database: str, role: str
) -> None:
    as_administrator(database, schema_sql())
    as_administrator(
        database,
        f"GRANT USAGE ON SCHEMA pgelect TO {quoted(role)};"
        f"GRANT SELECT, UPDATE ON pgelect.token TO {quoted(role)}; REVOKE UPDATE ON pgelect.token FROM {quoted(role)};"
        f"GRANT EXECUTE ON FUNCTION pgelect.check_token(integer, integer, bigint) TO {quoted(role)};"
        "GRANT ALL ON SCHEMA pgelect TO PUBLIC; GRANT ALL ON pgelect.token, pgelect.token_seq TO PUBLIC;"
        "GRANT ALL ON FUNCTION pgelect.guard() TO PUBLIC; GRANT ALL ON TYPE pgelect.token TO PUBLIC",
    )
    for _ in range(2):
        as_administrator(database, schema_sql())
        assert query(database, TO_PUBLIC) == []
        assert sorted(query(database, OTHERS)) == [
            ("function", "check_token", "EXECUTE"),
            ("relation", "token", "SELECT"),
            ("schema", "pgelect", "USAGE"),
        ]


@pytest.mark.parametrize(
    "sql",
    ["GRANTS", "READER", "OPERATOR", "MAY_END_WRITERS", "OWN_DATABASE", "LOCK_FUNCTIONS", "HAND_OVER", "RESTORED"],
)
def test_the_sql_for_administrators_is_in_the_readme_word_for_word(sql: str) -> None:
    """What the tests run is what people are told to run."""
    assert getattr(roles, sql) in (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
