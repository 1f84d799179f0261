"""What leaders tell stands in nobody's way: tables that are locked, or gone, cost no term."""

import psycopg
import pytest

from pgelect import schema_sql
from tests.support.electors import Elector
from tests.support.locks import Key
from tests.support.server import query
from tests.support.waiting import eventually

QUICK = {"lease_s": 1.0, "health_interval_s": 0.1}
TOLD = "SELECT token FROM pgelect.history WHERE key1 = %s AND key2 = %s"


async def test_a_leader_leads_on_while_an_administrator_has_locked_what_it_tells(any_database: str, key: Key) -> None:
    query(any_database, schema_sql())
    with psycopg.connect(any_database) as administrator:
        administrator.execute("LOCK TABLE pgelect.history, pgelect.step_down")
        async with Elector(any_database, key, **QUICK) as a:
            token = (await a.leads()).token
            await a.proved(10)
            assert len(a.terms) == 1
            assert len(a.errors) == 1, "it is said once, however often it is tried"
            assert "announcing a term" in str(a.errors[0])
            administrator.rollback()
            await eventually(lambda: query(any_database, TOLD, *key) == [(token,)], message="it is told now")
            assert query(any_database, "SELECT pgelect.request_step_down(%s, %s)", *key) == [(token,)]
            await eventually(lambda: not a.lock.is_leader, message="and heard")


@pytest.mark.parametrize("what", ["TABLE pgelect.history", "FUNCTION pgelect.announce", "TABLE pgelect.step_down"])
async def test_what_is_gone_costs_no_term(database: str, key: Key, what: str) -> None:
    query(database, schema_sql())
    async with Elector(database, key, **QUICK) as a:
        await a.leads()
        await eventually(lambda: query(database, TOLD, *key))
        query(database, f"DROP {what} CASCADE")
        token = a.lock.token
        await a.proved(3)
        assert a.lock.token == token
        assert await a.lock.step_down(cooldown_s=0.0)
        assert (await a.leads(above=token or 0)).token > (token or 0)
