"""A hostile role is there first: it makes the schema, or doubles of what is used, before others come."""

from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import pgelect
from pgelect import LockKey, SchemaError, schema_sql
from pgelect._postgres.install import SCHEMA_VERSION
from tests.support.electors import Elector
from tests.support.roles import GRANTS, HAND_OVER, Role, Roles, as_administrator, refused
from tests.support.server import lock_holders, query, sessions
from tests.support.waiting import eventually

Key = tuple[int, int]

# Runs with the rights of whoever writes to the table, and takes them over.
TRAP = """
CREATE FUNCTION {own}.trap() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN EXECUTE 'ALTER ROLE {own} SUPERUSER'; RETURN NEW; END $$;
"""
VERSION = """
CREATE TABLE pgelect.schema_version (version integer PRIMARY KEY, installed_at timestamptz NOT NULL DEFAULT now());
CREATE TRIGGER trap BEFORE INSERT ON pgelect.schema_version FOR EACH ROW EXECUTE FUNCTION {own}.trap();
"""
TOKEN = """
CREATE TABLE pgelect.token (
    key1 integer, key2 integer, name text, token bigint, holder text, metadata jsonb, acquired_at timestamptz,
    released_at timestamptz, terms bigint, lease_s float8, backend_pid integer, backend_start timestamptz,
    PRIMARY KEY (key1, key2)
);
CREATE TRIGGER trap BEFORE INSERT ON pgelect.token FOR EACH ROW EXECUTE FUNCTION {own}.trap();
"""
CLOSED = "CREATE TABLE pgelect.closed (key1 integer, key2 integer, token bigint, PRIMARY KEY (key1, key2));"
SEQUENCE = "CREATE SEQUENCE pgelect.token_seq MINVALUE -5 MAXVALUE 5 START 5 CYCLE;"
CHECK = """
CREATE FUNCTION pgelect.check_token(key1 integer, key2 integer, token bigint) RETURNS void LANGUAGE sql AS '';
"""
OVERLOAD = "CREATE FUNCTION pgelect.check_token(integer, integer, integer) RETURNS void LANGUAGE sql AS '';"
GUARD = "CREATE FUNCTION pgelect.guard() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
ALL = VERSION + TOKEN + CLOSED + SEQUENCE + CHECK + GUARD
TO_ALL = """
GRANT USAGE ON SCHEMA pgelect, {own} TO PUBLIC; GRANT ALL ON ALL TABLES IN SCHEMA pgelect TO PUBLIC;
GRANT ALL ON ALL SEQUENCES IN SCHEMA pgelect TO PUBLIC;
"""


def first(roles: Roles, parts: str, *, schema: str = "CREATE SCHEMA pgelect;") -> Role:
    """A neighbour that may create schemas in the database, and made these parts of ours first."""
    hostile = roles.neighbour()
    roles.run(f"GRANT CREATE ON DATABASE {roles.dbname} TO {hostile.name}")
    roles.give_schema(hostile)
    as_administrator(hostile.dsn, (TRAP + schema + parts).replace("{own}", hostile.name))
    return hostile


def is_trapped(roles: Roles, hostile: Role) -> bool:
    return query(roles.database, "SELECT rolsuper FROM pg_roles WHERE rolname = %s", hostile.name) == [(True,)]


# Who made it


def test_a_neighbour_cannot_make_the_schema_first_unless_it_may_create_schemas(any_roles: Roles) -> None:
    conn = any_roles.connect(any_roles.neighbour())
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied for database"):
        conn.execute("CREATE SCHEMA pgelect")
    any_roles.run(schema_sql())
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        conn.execute("CREATE TABLE pgelect.mine ()")


@pytest.mark.parametrize("parts", ["", VERSION, TOKEN, CLOSED, SEQUENCE, CHECK, OVERLOAD, GUARD, ALL])
def test_the_sql_does_not_install_into_a_schema_that_a_stranger_made(roles: Roles, parts: str) -> None:
    """Regression: an administrator who ran it wrote to the stranger's table, and made the stranger a superuser."""
    hostile = first(roles, parts)
    before = _objects(roles)
    with pytest.raises(psycopg.Error, match=f"belongs to the role {hostile.name}") as refused:
        as_administrator(roles.database, schema_sql())
    assert refused.value.sqlstate == "PGE03"
    assert not is_trapped(roles, hostile)
    assert _objects(roles) == before, "nothing was added"


def _objects(roles: Roles) -> list[tuple[Any, ...]]:
    return query(
        roles.database,
        "SELECT c.relname, c.relowner FROM pg_class AS c WHERE c.relnamespace = to_regnamespace('pgelect') "
        "UNION ALL SELECT p.proname, p.proowner FROM pg_proc AS p WHERE p.pronamespace = to_regnamespace('pgelect') "
        "ORDER BY 1, 2",
    )


@pytest.mark.parametrize("parts", [VERSION, TOKEN, CLOSED, SEQUENCE, CHECK, OVERLOAD, GUARD])
def test_one_part_that_a_stranger_made_in_a_schema_of_ours_is_refused_as_well(roles: Roles, parts: str) -> None:
    owner = roles.make("owner", "SUPERUSER")
    roles.run(f"CREATE SCHEMA pgelect AUTHORIZATION {owner.name}; GRANT ALL ON SCHEMA pgelect TO PUBLIC")
    hostile = first(roles, parts, schema="")
    with pytest.raises(psycopg.Error, match=f"belongs to the role {hostile.name}"):
        as_administrator(roles.database, schema_sql())
    assert not is_trapped(roles, hostile)


def test_the_sql_is_one_statement_so_that_nothing_goes_on_after_the_refusal(database: str) -> None:
    """psql goes on after an error unless told otherwise; the extended protocol takes a single statement only."""
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(schema_sql().encode(), prepare=True)
        with pytest.raises(psycopg.errors.SyntaxError, match="multiple commands"):
            conn.execute(b"SELECT 1; SELECT 2", prepare=True)
    assert query(database, "SELECT max(version) FROM pgelect.schema_version") == [(SCHEMA_VERSION,)]


@pytest.mark.parametrize("parts", ["", ALL])
async def test_install_refuses_a_schema_that_a_stranger_made_and_its_sql_does_nothing_when_pasted(
    any_roles: Roles, parts: str
) -> None:
    hostile = first(any_roles, parts)
    async with await psycopg.AsyncConnection.connect(any_roles.database, autocommit=True) as conn:
        with pytest.raises(SchemaError, match=f'belongs to the role "{hostile.name}"') as refused:
            await pgelect.install(conn)
    before = _objects(any_roles)
    as_administrator(any_roles.database, refused.value.sql)  # what to do is for a person to decide
    assert _objects(any_roles) == before
    assert not is_trapped(any_roles, hostile)


@pytest.mark.parametrize("parts", ["", ALL + TO_ALL], ids=["empty", "complete"])
async def test_a_lock_does_not_use_a_schema_that_a_stranger_made(any_roles: Roles, key: Key, parts: str) -> None:
    """Regression: it wrote its token into the stranger's table, and the stranger's code ran with its rights."""
    hostile = first(any_roles, parts)
    elector = any_roles.make("elector")
    any_roles.run(f"GRANT CREATE ON DATABASE {any_roles.dbname} TO {elector.name}")
    # Whoever may hand out its own membership (any role did before PostgreSQL 15) is not trusted for that.
    any_roles.run(f"GRANT {hostile.name} TO {elector.name}")
    for dsn in (elector.dsn, any_roles.database):
        assert f'belongs to the role "{hostile.name}"' in str(await refused(dsn, key))
        await eventually(lambda: not sessions(any_roles.database))
        assert lock_holders(any_roles.database, *key) == []
    if parts:
        assert query(any_roles.database, "SELECT count(*) FROM pgelect.token") == [(0,)]
    assert not is_trapped(any_roles, hostile)


@pytest.mark.parametrize("who", ["the elector", "a superuser", "the owner of the database", "one with its rights"])
async def test_a_schema_of_the_role_itself_a_superuser_or_the_owner_of_the_database_is_used(
    roles: Roles, key: Key, who: str
) -> None:
    elector = roles.make("elector")
    owner = roles.make("owner", "SUPERUSER" if who == "a superuser" else "")
    if who == "the elector":
        owner = elector
    elif who == "one with its rights":
        database_owner = roles.make("database_owner")
        roles.run(f"GRANT {database_owner.name} TO {owner.name}")
        roles.run(f"ALTER DATABASE {roles.dbname} OWNER TO {database_owner.name}")
    elif who == "the owner of the database":
        roles.run(f"ALTER DATABASE {roles.dbname} OWNER TO {owner.name}")
    roles.run(f"GRANT CREATE ON DATABASE {roles.dbname} TO {owner.name}")
    as_administrator(owner.dsn, schema_sql())
    as_administrator(owner.dsn, GRANTS.replace("app_elector", elector.name).replace("app_writer", elector.name))
    async with Elector(elector.dsn, key) as a:
        await a.leads()
        assert a.errors == []
    as_administrator(owner.dsn, schema_sql())  # and it may be run again
    assert {name for (name,) in query(roles.database, OWNERS)} == {owner.name}
    roles.run(f"ALTER DATABASE {roles.dbname} OWNER TO postgres")


OWNERS = """
SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = 'pgelect'
UNION ALL SELECT relowner::regrole::text FROM pg_class WHERE relnamespace = 'pgelect'::regnamespace
UNION ALL SELECT proowner::regrole::text FROM pg_proc WHERE pronamespace = 'pgelect'::regnamespace
"""


async def test_the_schema_of_one_elector_is_another_ones_after_it_was_handed_over(roles: Roles, key: Key) -> None:
    """The first lock that connects makes the schema and owns it: its role can do anything to it, to tokens, too."""
    one, other = roles.make("elector"), roles.make("elector")
    roles.run(f"GRANT CREATE ON DATABASE {roles.dbname} TO {one.name}")
    async with Elector(one.dsn, key) as a:
        first_token = (await a.leads()).token
        assert {name for (name,) in query(roles.database, OWNERS)} == {one.name}
        owner = roles.connect(one)
        owner.execute("SELECT setval('pgelect.token_seq', 100)")
    roles.run(HAND_OVER, app_owner="postgres")
    for elector in (one, other):
        roles.run(GRANTS, app_elector=elector.name, app_writer=elector.name)
    assert {name for (name,) in query(roles.database, OWNERS)} == {"postgres"}
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        owner.execute("SELECT setval('pgelect.token_seq', 100)")
    for elector in (one, other):
        async with Elector(elector.dsn, key) as a:
            first_token = (await a.leads(above=first_token)).token


# Doubles on the search_path

DOUBLES = """
CREATE FUNCTION {on}.hit() RETURNS integer LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'a double was used, as %', current_user; END $$;
CREATE FUNCTION {on}.is(name, name) RETURNS boolean LANGUAGE sql AS 'SELECT {on}.hit() > 0';
CREATE FUNCTION {on}.is(oid, oid) RETURNS boolean LANGUAGE sql AS 'SELECT {on}.hit() > 0';
CREATE FUNCTION {on}.is(bigint, bigint) RETURNS boolean LANGUAGE sql AS 'SELECT {on}.hit() > 0';
CREATE FUNCTION {on}.is(name, text) RETURNS boolean LANGUAGE sql AS 'SELECT {on}.hit() > 0';
CREATE OPERATOR {on}.= (FUNCTION = {on}.is, LEFTARG = name, RIGHTARG = name);
CREATE OPERATOR {on}.= (FUNCTION = {on}.is, LEFTARG = name, RIGHTARG = text);
CREATE OPERATOR {on}.= (FUNCTION = {on}.is, LEFTARG = oid, RIGHTARG = oid);
CREATE OPERATOR {on}.= (FUNCTION = {on}.is, LEFTARG = bigint, RIGHTARG = bigint);
CREATE OPERATOR {on}.<> (FUNCTION = {on}.is, LEFTARG = name, RIGHTARG = name);
CREATE FUNCTION {on}.min(text) RETURNS text LANGUAGE sql AS 'SELECT {on}.hit()::pg_catalog.text';
CREATE FUNCTION {on}.quote_ident(text) RETURNS text LANGUAGE sql AS 'SELECT {on}.hit()::pg_catalog.text';
CREATE FUNCTION {on}.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT to_timestamp({on}.hit())';
CREATE FUNCTION {on}.to_regclass(text) RETURNS regclass LANGUAGE sql AS 'SELECT {on}.hit()::oid::regclass';
CREATE FUNCTION {on}.set_config(text, text, boolean) RETURNS text LANGUAGE sql AS 'SELECT {on}.hit()::pg_catalog.text';
CREATE FUNCTION {on}.pg_advisory_xact_lock(integer, integer) RETURNS integer LANGUAGE sql AS 'SELECT {on}.hit()';
CREATE FUNCTION {on}.check_token(integer, integer, bigint) RETURNS integer LANGUAGE sql AS 'SELECT {on}.hit()';
CREATE FUNCTION {on}.guard() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM {on}.hit(); RETURN NULL; END $$;
CREATE VIEW {on}.pg_class AS SELECT {on}.hit() AS oid;
CREATE VIEW {on}.pg_namespace AS SELECT {on}.hit() AS oid;
CREATE TABLE {on}.token (n integer);
CREATE SEQUENCE {on}.token_seq;
CREATE DOMAIN {on}.text AS pg_catalog.text CHECK ({on}.hit() > 0);
CREATE DOMAIN {on}.jsonb AS pg_catalog.jsonb CHECK ({on}.hit() > 0);
CREATE DOMAIN {on}.name AS pg_catalog.name CHECK ({on}.hit() > 0);
CREATE TYPE {on}.void AS (n integer);
CREATE CAST ({on}.void AS text) WITH INOUT AS IMPLICIT;
"""


@pytest.mark.parametrize("before", [True, False], ids=["before the catalog", "after the catalog"])
async def test_doubles_on_the_search_path_are_not_used_by_installing_leading_fencing_or_guarding(
    any_roles: Roles, key: Key, before: bool
) -> None:
    """The kind of CVE-2018-1058: before PostgreSQL 15, any role may create things in the schema public."""
    hostile = any_roles.neighbour()
    any_roles.run(f"GRANT USAGE, CREATE ON SCHEMA public TO {hostile.name}")
    as_administrator(hostile.dsn, DOUBLES.replace("{on}", "public"))
    path = "public,pg_catalog" if before else "pg_catalog,public"
    dsn = make_conninfo(any_roles.database, options=f"-c search_path={path}")
    with pytest.raises(psycopg.Error, match="a double was used, as postgres"):  # they work
        query(dsn, "SELECT 'x'::public.text")
    if before:
        with pytest.raises(psycopg.Error, match="a double was used"):
            query(dsn, "SELECT 'x'::name = 'y'::name")
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        await pgelect.install(conn)
    as_administrator(dsn, schema_sql())
    columns = "SELECT DISTINCT t.typnamespace::regnamespace::text FROM pg_attribute AS a JOIN pg_type AS t "
    columns += "ON t.oid = a.atttypid WHERE a.attrelid = 'pgelect.token'::regclass AND a.attnum > 0"
    assert query(any_roles.database, columns) == [("pg_catalog",)]
    any_roles.run("CREATE SCHEMA app; CREATE TABLE app.work (n integer)")
    async with Elector(dsn, key) as a, await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        await a.leads()
        await pgelect.install(conn)
        await pgelect.guard_table(conn, "app.work", LockKey(*key))
        with pytest.raises(psycopg.Error, match="is not fenced"):
            await conn.execute("INSERT INTO app.work VALUES (1)")
        async with a.lock.fence(conn):
            await a.lock.check_fence(conn)
            await conn.execute("INSERT INTO app.work VALUES (1)")
        await pgelect.unguard_table(conn, "app.work")
        assert a.errors == []


# What others set for new objects


def test_defaults_that_would_open_new_objects_to_everybody_do_not_open_these(roles: Roles) -> None:
    kinds = ("SCHEMAS", "TABLES", "SEQUENCES", "FUNCTIONS", "TYPES")
    roles.run("; ".join(f"ALTER DEFAULT PRIVILEGES GRANT ALL ON {kind} TO PUBLIC" for kind in kinds))
    roles.run(schema_sql())
    conn = roles.connect(roles.neighbour())
    for forbidden in (
        "SELECT * FROM pgelect.token",
        "SELECT pgelect.check_token(1, 2, 3)",
        "CREATE TABLE pgelect.x ()",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute(forbidden.encode())
