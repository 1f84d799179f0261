"""A hostile role and the functions that run with their owner's rights: checking a token, guarding a table."""

from typing import Any

import psycopg
import pytest

import pgelect
from pgelect import LockKey, schema_sql
from tests.support.electors import Elector
from tests.support.roles import Role, Roles, refused_all
from tests.support.server import query

Key = tuple[int, int]


TRAPS = """
SET ROLE {own};
CREATE FUNCTION {own}.trap() RETURNS integer LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'code of % ran as %', '{own}', current_user; END $$;
CREATE FUNCTION {own}.set_config(text, text, boolean) RETURNS text LANGUAGE sql AS 'SELECT {own}.trap()::text';
CREATE FUNCTION {own}.current_setting(text, boolean) RETURNS text LANGUAGE sql AS 'SELECT {own}.trap()::text';
CREATE FUNCTION {own}.format(text, bigint, bigint) RETURNS text LANGUAGE sql AS 'SELECT {own}.trap()::text';
CREATE FUNCTION {own}.concat_ws(text, text, text) RETURNS text LANGUAGE sql AS 'SELECT {own}.trap()::text';
CREATE FUNCTION {own}.quote_ident(text) RETURNS text LANGUAGE sql AS 'SELECT {own}.trap()::text';
CREATE FUNCTION {own}.is(integer, integer) RETURNS boolean LANGUAGE sql AS 'SELECT {own}.trap() > 0';
CREATE FUNCTION {own}.is(bigint, bigint) RETURNS boolean LANGUAGE sql AS 'SELECT {own}.trap() > 0';
CREATE FUNCTION {own}.mask(bigint, bigint) RETURNS bigint LANGUAGE sql AS 'SELECT {own}.trap()::bigint';
CREATE FUNCTION {own}.like(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT {own}.trap() > 0';
CREATE OPERATOR {own}.= (FUNCTION = {own}.is, LEFTARG = integer, RIGHTARG = integer);
CREATE OPERATOR {own}.= (FUNCTION = {own}.is, LEFTARG = bigint, RIGHTARG = bigint);
CREATE OPERATOR {own}.& (FUNCTION = {own}.mask, LEFTARG = bigint, RIGHTARG = bigint);
CREATE OPERATOR {own}.~ (FUNCTION = {own}.like, LEFTARG = text, RIGHTARG = text);
CREATE DOMAIN {own}.text AS pg_catalog.text CHECK ({own}.trap() > 0);
RESET ROLE;
"""


def trapped(roles: Roles, role: Role) -> psycopg.Connection[Any]:
    """A session of that role in which everything that the functions use has a double of the role's own making."""
    roles.give_schema(role)
    roles.run(TRAPS.format(own=role.name))
    conn = roles.connect(role)
    conn.execute(f"SET search_path = {role.name}, pg_catalog".encode())
    with pytest.raises(psycopg.Error, match=f"code of {role.name} ran as {role.name}"):  # they are in force
        conn.execute("SELECT 1::bigint & 2::bigint")
    conn.execute("CREATE TEMP TABLE token (key1 int, key2 int, token bigint, released_at timestamptz)")
    conn.execute(f"CREATE DOMAIN pg_temp.text AS pg_catalog.text CHECK ({role.name}.trap() > 0)".encode())
    return conn


async def test_no_code_of_the_caller_runs_with_the_rights_of_the_functions_owner(any_roles: Roles, key: Key) -> None:
    """A function with its owner's rights must not look anything up where its caller says."""
    elector, writer = any_roles.electors_and_writers()
    any_roles.run(f"CREATE TABLE public.work (n integer); GRANT INSERT, SELECT ON public.work TO {writer.name}")
    check = "SELECT pgelect.check_token(%s::pg_catalog.int4, %s::pg_catalog.int4, %s::pg_catalog.int8)"
    async with await psycopg.AsyncConnection.connect(any_roles.database) as administrator:
        await pgelect.guard_table(administrator, "work", LockKey(*key))
    async with Elector(elector.dsn, key) as a:
        term = await a.leads()
        hostile = trapped(any_roles, writer)
        for refused in (lambda: hostile.execute(check, (*key, term.token + 1)), lambda: _write(hostile)):
            with pytest.raises(psycopg.Error, match=r"is stale|is not fenced"):
                refused()
        with hostile.transaction():
            hostile.execute(check, (*key, term.token))
            _write(hostile)
    assert query(any_roles.database, "SELECT n FROM public.work") == [(1,)]


def _write(conn: psycopg.Connection[Any]) -> None:
    conn.execute("INSERT INTO public.work VALUES (1)")


# Guarded tables


async def test_only_who_owns_a_guarded_table_or_may_make_triggers_on_it_can_take_its_guard_off(
    any_roles: Roles, key: Key
) -> None:
    _, writer = any_roles.electors_and_writers()
    any_roles.run(
        f"CREATE TABLE public.work (n integer); GRANT INSERT, UPDATE, DELETE, SELECT ON public.work TO {writer.name};"
        f"GRANT EXECUTE ON FUNCTION pgelect.guard() TO {writer.name}"
    )
    any_roles.give_schema(writer)
    async with await psycopg.AsyncConnection.connect(any_roles.database) as administrator:
        await pgelect.guard_table(administrator, "work", LockKey(*key))
    hostile = any_roles.connect(writer)
    hostile.execute(
        f"CREATE FUNCTION {writer.name}.nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'".encode()
    )
    replace = (
        "CREATE OR REPLACE TRIGGER pgelect_guard BEFORE INSERT ON public.work FOR EACH STATEMENT "
        f"EXECUTE FUNCTION {writer.name}.nothing()"
    )
    refused_all(
        hostile,
        [
            replace,
            "DROP TRIGGER pgelect_guard ON public.work",
            "ALTER TABLE public.work DISABLE TRIGGER ALL",
            "ALTER TABLE public.work DISABLE TRIGGER pgelect_guard",
            "SET session_replication_role = replica",
            "TRUNCATE public.work",
            "DROP FUNCTION pgelect.guard() CASCADE",
        ],
    )
    for write in ("INSERT INTO public.work VALUES (1)", "UPDATE public.work SET n = 2", "DELETE FROM public.work"):
        with pytest.raises(psycopg.Error, match="is not fenced"):
            hostile.execute(write.encode())
    any_roles.run(f"GRANT TRIGGER ON public.work TO {writer.name}")  # this is what must not be granted
    hostile.execute(replace.encode())
    _write(hostile)


async def test_what_fires_no_triggers_passes_the_guard_by(any_roles: Roles, key: Key) -> None:
    """As whoever applies changes of another server does: logical replication writes as a replica."""
    any_roles.run(schema_sql() + ";CREATE TABLE public.work (n integer)")
    async with await psycopg.AsyncConnection.connect(any_roles.database, autocommit=True) as administrator:
        await pgelect.guard_table(administrator, "work", LockKey(*key))
        with pytest.raises(psycopg.Error, match="is not fenced"):
            await administrator.execute("INSERT INTO public.work VALUES (1)")
        await administrator.execute("SET session_replication_role = replica")
        await administrator.execute("INSERT INTO public.work VALUES (1)")
    conn = any_roles.connect(any_roles.neighbour())
    refused_all(conn, ["SET session_replication_role = replica"])


async def test_who_may_write_a_guarded_table_and_knows_the_token_may_bind_it_by_hand_and_is_fenced_then(
    any_roles: Roles, key: Key
) -> None:
    """Tokens are no secrets: the guard holds off mistakes and the past, and a setting binds as well as the check."""
    elector, _ = any_roles.electors_and_writers()
    neighbour = any_roles.neighbour()
    any_roles.run(f"CREATE TABLE public.work (n integer); GRANT INSERT ON public.work TO {neighbour.name}")
    async with await psycopg.AsyncConnection.connect(any_roles.database) as administrator:
        await pgelect.guard_table(administrator, "work", LockKey(*key))
    conn = any_roles.connect(neighbour)
    setting = f"pgelect.fence_{key[0] % 2**32}_{key[1] % 2**32}"
    row_locks = "SELECT count(*) FROM pg_locks WHERE relation = 'pgelect.token'::regclass AND mode = 'RowShareLock'"
    async with Elector(elector.dsn, key) as a:
        term = await a.leads()
        for token in (term.token - 1, term.token + 1):
            conn.execute("SELECT set_config(%s, %s, false)", (setting, str(token)))
            with pytest.raises(psycopg.Error, match=r"is stale|is not fenced"):
                _write(conn)
        conn.execute("SELECT set_config(%s, %s, false)", (setting, str(term.token)))
        with conn.transaction():
            _write(conn)
            assert query(any_roles.database, row_locks) == [(1,)], "the next term waits for it"
