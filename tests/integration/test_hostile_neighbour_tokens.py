"""A hostile role and the tokens: it cannot raise, read or mint one, nor keep the next one from being written."""

from contextlib import suppress
from typing import Any

import psycopg
import pytest

from pgelect import FenceBusyError
from pgelect.testing import Postgres
from tests.support.electors import Elector, one_leads
from tests.support.locks import token_row
from tests.support.roles import MAY_END_WRITERS, READER, Roles, refused_all
from tests.support.server import lock_holders, query, terminate
from tests.support.waiting import eventually

Key = tuple[int, int]

# The sequence has an oid, and by that it can be named without the right to look into its schema.
SEQUENCE = "(SELECT c.oid FROM pg_class AS c WHERE c.relname = 'token_seq')"
TOUCHES_THE_TABLE = [
    "UPDATE pgelect.token SET token = token + 1000",
    "INSERT INTO pgelect.token SELECT * FROM pgelect.token",
    "DELETE FROM pgelect.token",
    "TRUNCATE pgelect.token",
    "DROP TABLE pgelect.token",
    "ALTER TABLE pgelect.token DISABLE ROW LEVEL SECURITY",
    "LOCK TABLE pgelect.token IN ROW SHARE MODE",
    "LOCK TABLE pgelect.token IN ACCESS EXCLUSIVE MODE",
    "SELECT token FROM pgelect.token FOR KEY SHARE",
    "SELECT token FROM pgelect.token FOR SHARE",
    "SELECT token FROM pgelect.token FOR UPDATE",
    "CREATE INDEX ON pgelect.token (token)",
    "CREATE TRIGGER mine BEFORE UPDATE ON pgelect.token EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "CREATE RULE mine AS ON UPDATE TO pgelect.token DO INSTEAD NOTHING",
    "CREATE TABLE mine (key1 int, key2 int, FOREIGN KEY (key1, key2) REFERENCES pgelect.token (key1, key2))",
    "CREATE TABLE mine (row pgelect.token)",
]
TOUCHES_THE_REST = [
    f"SELECT nextval({SEQUENCE})",
    f"SELECT setval({SEQUENCE}, 1)",
    "SELECT nextval('pgelect.token_seq')",
    "ALTER SEQUENCE pgelect.token_seq RESTART",
    "SELECT last_value FROM pgelect.token_seq",
    "INSERT INTO pgelect.schema_version VALUES (3)",
    "ALTER FUNCTION pgelect.check_token(integer, integer, bigint) RESET search_path",
    "CREATE OR REPLACE FUNCTION pgelect.check_token(key1 int, key2 int, token bigint) RETURNS void LANGUAGE sql AS ''",
    "CREATE FUNCTION pgelect.check_token(integer, integer, integer) RETURNS void LANGUAGE sql AS ''",
    "CREATE TABLE pgelect.mine ()",
    "ALTER SCHEMA pgelect RENAME TO mine",
    "DROP SCHEMA pgelect CASCADE",
    "INSERT INTO pgelect.history SELECT * FROM pgelect.history",
    "UPDATE pgelect.history SET holder = 'mine'",
    "DELETE FROM pgelect.history",
    "INSERT INTO pgelect.step_down SELECT * FROM pgelect.step_down",
    "SELECT requested_by FROM pgelect.step_down",
    "SELECT pgelect.request_step_down(1, 2)",
    "SELECT token FROM pgelect.leaders FOR SHARE",
    "LOCK TABLE pgelect.leaders IN ROW SHARE MODE",
    "LOCK TABLE pgelect.leaders IN ACCESS EXCLUSIVE MODE",
]
STATE = "SELECT to_jsonb(t), s.last_value FROM pgelect.token AS t, pgelect.token_seq AS s"
READS = [
    "SELECT metadata FROM pgelect.token",
    "COPY pgelect.token TO STDOUT",
    "SELECT version FROM pgelect.schema_version",
    "SELECT pgelect.report_lost(1, 2, 3, '', 0)",
    "SELECT pgelect.asked_to_step_down(1, 2, 3)",
]
LOOKS_ON = ["SELECT metadata FROM pgelect.leaders", "SELECT reason FROM pgelect.history"]


def grants_nothing(conn: psycopg.Connection[Any]) -> None:
    """To grant what one was not given to hand on is an error or, where one has the right oneself, a mere warning."""
    with suppress(psycopg.errors.InsufficientPrivilege):
        conn.execute("GRANT SELECT, UPDATE ON pgelect.token TO PUBLIC")
    public = (
        "SELECT has_table_privilege('public', c.oid, 'SELECT, UPDATE') FROM pg_class AS c WHERE c.relname = 'token'"
    )
    assert conn.execute(public).fetchall() == [(False,)]


# Touching tokens


@pytest.mark.parametrize("kind", ["neighbour", "reader", "writer"])
async def test_who_is_no_elector_can_change_lock_or_shadow_nothing_in_the_schema(
    any_roles: Roles, key: Key, kind: str
) -> None:
    elector, writer = any_roles.electors_and_writers()
    role = writer if kind == "writer" else any_roles.make(kind)
    any_roles.give_schema(role)
    forbidden = [*TOUCHES_THE_TABLE, *TOUCHES_THE_REST, *READS]
    if kind == "reader":
        any_roles.run(READER, app_reader=role.name)
    else:
        forbidden += LOOKS_ON
    if kind != "writer":
        forbidden.append("SELECT pgelect.check_token(1, 2, 3)")
    async with Elector(elector.dsn, key) as a:
        await a.leads()
        before = query(any_roles.database, STATE)
        conn = any_roles.connect(role)
        refused_all(conn, forbidden)
        grants_nothing(conn)
        assert query(any_roles.database, STATE) == before
        await a.proved(1)
        assert a.errors == []


async def test_an_elector_may_write_tokens_and_take_numbers_and_no_more(any_roles: Roles, key: Key) -> None:
    """Electors of one database trust each other: whoever may lead may also raise the tokens of other locks."""
    elector, _ = any_roles.electors_and_writers()
    any_roles.give_schema(elector)
    conn = any_roles.connect(elector)
    conn.execute("SELECT nextval('pgelect.token_seq')")
    for allowed in ("UPDATE pgelect.token SET token = token", "SELECT * FROM pgelect.token FOR SHARE"):
        conn.execute(allowed.encode())
    owning = [statement for statement in TOUCHES_THE_TABLE if statement.split()[0] in {"CREATE", "DROP", "ALTER"}]
    removing = ["DELETE FROM pgelect.token", "TRUNCATE pgelect.token", f"SELECT setval({SEQUENCE}, 1)"]
    numbers_and_reading = 5
    refused_all(conn, [*owning, *removing, *TOUCHES_THE_REST[numbers_and_reading:]])
    grants_nothing(conn)


# Holding up the next token


async def test_a_reader_with_an_open_transaction_holds_up_no_term(any_roles: Roles, key: Key) -> None:
    elector, _ = any_roles.electors_and_writers()
    reader = any_roles.make("reader")
    any_roles.run(READER, app_reader=reader.name)
    async with Elector(elector.dsn, key) as a, Elector(elector.dsn, key) as b:
        first = (await (await one_leads(a, b)).leads()).token
        hostile = any_roles.connect(reader)
        hostile.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        hostile.execute("LOCK TABLE pgelect.leaders, pgelect.history IN ACCESS SHARE MODE")
        assert hostile.execute("SELECT token FROM pgelect.leaders").fetchone() == (first,)
        terminate(any_roles.database, lock_holders(any_roles.database, *key)[0])
        await eventually(lambda: (a.lock.token or b.lock.token or 0) > first)
        assert hostile.execute("SELECT token FROM pgelect.leaders").fetchone() == (first,), (
            "still open, and it saw no end"
        )
        assert FenceBusyError not in {type(error) for error in (*a.errors, *b.errors)}


async def test_a_guessed_token_binds_only_the_transaction_of_who_guesses_and_is_ended_by_the_next_term(
    any_roles: Roles, key: Key
) -> None:
    """Tokens are numbers that count up, no secrets: whoever may check one may hold up a term, in bounded time."""
    elector, writer = any_roles.electors_and_writers()
    any_roles.run(MAY_END_WRITERS, app_elector=elector.name, app_writer=writer.name)
    hostile = any_roles.connect(writer)
    check = "SELECT pgelect.check_token(%s::int, %s::int, %s::bigint)"
    async with Elector(elector.dsn, key) as a:
        term = await a.leads()
        for wrong in (term.token - 1, term.token + 1, 0, -1, 2**63 - 1):
            with pytest.raises(psycopg.Error) as refused:
                hostile.execute(check, (*key, wrong))
            assert refused.value.sqlstate == "PGE01"
        with pytest.raises(psycopg.Error, match="stale"):
            hostile.execute(check, (key[0], key[1] ^ 1, term.token))
        hostile.execute("BEGIN")
        hostile.execute(check, (*key, term.token))  # and now it sits there
        await a.proved(2)
        (holder,) = lock_holders(any_roles.database, *key)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):  # the other way round it may not
            any_roles.connect(writer).execute("SELECT pg_terminate_backend(%s)", (holder,))
        terminate(any_roles.database, holder)
        await a.leads(above=term.token)
        with pytest.raises(psycopg.OperationalError):
            hostile.execute("COMMIT")
        a.check_pairs()
    assert query(any_roles.database, "SELECT count(*) FROM pg_stat_activity WHERE usename = %s", writer.name) == [(1,)]


async def test_a_prepared_transaction_under_a_token_is_beyond_the_electors_and_nobody_leads_until_it_is_rolled_back(
    own_server: Postgres, key: Key
) -> None:
    """It has no session to be ended. A server does not allow them unless max_prepared_transactions was set."""
    own_server.configure(max_prepared_transactions="2")
    own_server.restart()
    with Roles(own_server.dsn()) as roles:
        await prepared_under_a_token(roles, key)


async def prepared_under_a_token(roles: Roles, key: Key) -> None:
    elector, writer = roles.electors_and_writers()
    roles.run(MAY_END_WRITERS, app_elector=elector.name, app_writer=writer.name)
    hostile = roles.connect(writer)
    async with Elector(elector.dsn, key) as a:
        term = await a.leads()
        hostile.execute("BEGIN")
        hostile.execute("SELECT pgelect.check_token(%s::int, %s::int, %s::bigint)", (*key, term.token))
        hostile.execute("PREPARE TRANSACTION 'hold up'")
        terminate(roles.database, lock_holders(roles.database, *key)[0])
        await a.hears(FenceBusyError)
        assert not a.is_leader
        assert token_row(roles.database, key)[0] == term.token
        assert query(roles.database, "SELECT gid, owner FROM pg_prepared_xacts") == [("hold up", writer.name)]
        query(roles.database, "ROLLBACK PREPARED 'hold up'")
        await a.leads(above=term.token)


async def test_transactions_cannot_be_prepared_unless_the_server_was_told_to_allow_it(any_database: str) -> None:
    assert query(any_database, "SHOW max_prepared_transactions") == [("0",)]


def test_the_tests_of_refusals_can_fail(roles: Roles) -> None:
    """Holds off a vacuous test: a statement with a slip in it is no refusal."""
    conn = roles.connect(roles.neighbour())
    for statement in ("SELECT 1", "SELECT nothing", "SELEC"):
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            refused_all(conn, [statement])
