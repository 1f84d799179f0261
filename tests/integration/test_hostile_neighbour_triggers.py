"""A hostile role comes between electors and what they write: triggers, and what an earlier owner has left behind."""

import psycopg
import pytest

import pgelect
from pgelect import SchemaError, schema_sql
from tests.support.electors import Elector, one_leads
from tests.support.locks import token_row
from tests.support.roles import Role, Roles, as_administrator, refused, refused_all
from tests.support.server import lock_holders, query, sessions, terminate
from tests.support.waiting import eventually

Key = tuple[int, int]

TRAP = """
GRANT USAGE ON SCHEMA {own} TO PUBLIC;
CREATE TABLE {own}.seen (who text);
GRANT INSERT ON {own}.seen TO PUBLIC;
CREATE FUNCTION {own}.trap() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO {own}.seen VALUES (current_user); NEW.token := 1; RETURN NEW; END $$;
CREATE FUNCTION {own}.nothing() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
"""
BEFORE = "CREATE TRIGGER trap BEFORE INSERT OR UPDATE ON pgelect.token FOR EACH ROW EXECUTE FUNCTION {own}.trap()"
AFTER = "CREATE TRIGGER late AFTER UPDATE ON pgelect.token FOR EACH STATEMENT EXECUTE FUNCTION {own}.nothing()"
ODD = 'CREATE TRIGGER "Odd ""one""" BEFORE INSERT ON pgelect.schema_version EXECUTE FUNCTION {own}.nothing()'
OF_THE_SERVER = (
    "CREATE TRIGGER quiet BEFORE UPDATE ON pgelect.token FOR EACH ROW EXECUTE FUNCTION "
    "pg_catalog.suppress_redundant_updates_trigger()"
)
RULE = "CREATE RULE mine AS ON UPDATE TO pgelect.token DO ALSO NOTHING"
POLICY = "CREATE POLICY mine ON pgelect.token USING (true); ALTER TABLE pgelect.token ENABLE ROW LEVEL SECURITY"


def with_trigger_right(roles: Roles) -> Role:
    """A neighbour that has got the right TRIGGER, as GRANT ALL gives it, and a trap to call."""
    hostile = roles.neighbour()
    roles.give_schema(hostile)
    as_administrator(hostile.dsn, TRAP.replace("{own}", hostile.name))
    roles.run(f"GRANT USAGE ON SCHEMA pgelect TO {hostile.name}")
    roles.run(f"GRANT SELECT, TRIGGER ON pgelect.token, pgelect.schema_version TO {hostile.name}")
    return hostile


@pytest.mark.parametrize(
    ("made", "removal"),
    [
        (BEFORE, "DROP TRIGGER trap ON pgelect.token"),
        (AFTER, "DROP TRIGGER late ON pgelect.token"),
        (ODD, 'DROP TRIGGER "Odd ""one""" ON pgelect.schema_version'),
        (OF_THE_SERVER, "DROP TRIGGER quiet ON pgelect.token"),
        (RULE, "DROP RULE mine ON pgelect.token"),
        (POLICY, "ALTER TABLE pgelect.token DISABLE ROW LEVEL SECURITY"),
    ],
)
async def test_what_somebody_put_on_a_table_of_the_schema_is_refused_by_name_before_it_is_written_to(
    roles: Roles, key: Key, made: str, removal: str
) -> None:
    """Regression: three terms were led with the tokens 1, 1 and 1, and code of a neighbour ran as the elector."""
    elector, _ = roles.electors_and_writers()
    hostile = with_trigger_right(roles)
    # What takes the owner to make is there because the owner was another one once.
    maker = hostile.dsn if made.startswith("CREATE TRIGGER") else roles.database
    as_administrator(maker, made.replace("{own}", hostile.name))
    error = await refused(elector.dsn, key)
    assert removal in str(error)
    assert removal in error.sql
    assert (await refused(roles.database, key)).sql == error.sql, "a superuser least of all"
    await eventually(lambda: not sessions(roles.database))
    assert lock_holders(roles.database, *key) == []
    with pytest.raises(psycopg.Error, match="something that does not belong there") as again:
        as_administrator(roles.database, schema_sql())
    assert (again.value.sqlstate, removal in str(again.value.diag.message_hint)) == ("PGE03", True)
    async with await psycopg.AsyncConnection.connect(roles.database, autocommit=True) as conn:
        with pytest.raises(SchemaError, match="something that does not belong there"):
            await pgelect.install(conn)
    assert query(roles.database, f"SELECT * FROM {hostile.name}.seen") == []
    as_administrator(roles.database, error.sql)
    as_administrator(roles.database, schema_sql())
    async with Elector(elector.dsn, key) as a:
        await a.leads()
        assert a.errors == []


async def test_a_trigger_that_comes_while_electors_are_connected_repeats_no_token_and_begins_no_term(
    any_roles: Roles, key: Key
) -> None:
    """The mint is rolled back, so that the old token does not count again. Then the trigger is found and named."""
    elector, _ = any_roles.electors_and_writers()
    hostile = with_trigger_right(any_roles)
    async with Elector(elector.dsn, key) as a, Elector(elector.dsn, key) as b:
        leader = await one_leads(a, b)
        first = (await leader.leads()).token
        other = b if leader is a else a
        as_administrator(hostile.dsn, BEFORE.replace("{own}", hostile.name))
        terminate(any_roles.database, lock_holders(any_roles.database, *key)[0])
        await leader.has_lost(first)
        await other.hears(SchemaError, "no term was begun")
        for elected in (leader, other):
            await elected.hears(SchemaError, "DROP TRIGGER trap ON pgelect.token")
        await eventually(lambda: lock_holders(any_roles.database, *key) == [], message="the lock is free")
        assert token_row(any_roles.database, key)[0] == first
        assert query(any_roles.database, f"SELECT * FROM {hostile.name}.seen") == [], "rolled back with the mint"
        assert other.terms == []
        any_roles.run("DROP TRIGGER trap ON pgelect.token")
        await eventually(lambda: (a.lock.token or b.lock.token or 0) > first, message="one leads again")
        for elected in (a, b):
            elected.check_pairs()


async def test_the_right_to_make_triggers_is_nobodys_but_the_owners(any_roles: Roles) -> None:
    for role in (*any_roles.electors_and_writers(), any_roles.neighbour()):
        any_roles.give_schema(role)
        as_administrator(role.dsn, TRAP.replace("{own}", role.name))
        makes = [made.replace("{own}", role.name) for made in (BEFORE, AFTER, ODD, OF_THE_SERVER, RULE)]
        refused_all(any_roles.connect(role), [*makes, "ALTER TABLE pgelect.token ENABLE ROW LEVEL SECURITY"])
