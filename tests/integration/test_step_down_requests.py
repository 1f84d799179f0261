"""request_step_down: a leader that is asked hands over at once; who may ask is a matter of grants."""

import asyncio

import psycopg
import pytest

from pgelect import LockKey, schema_sql
from pgelect.observe import get_leader, request_step_down
from tests.support.electors import Elector, one_leads
from tests.support.locks import token_row
from tests.support.puppets import Puppet
from tests.support.roles import OPERATOR, Roles
from tests.support.server import lock_waiters, query
from tests.support.waiting import eventually

Key = tuple[int, int]
QUICK = {"lease_s": 10.0, "health_interval_s": 0.2}
ASKED = "SELECT pgelect.asked_to_step_down(%s, %s, %s)"


@pytest.fixture
def here(database: str) -> str:
    """A database with the schema."""
    query(database, schema_sql())
    return database


async def listening(dsn: str, key: Key) -> None:
    """The leader has written down that it leads; by then it listens."""
    written = "SELECT 1 FROM pgelect.history AS h JOIN pgelect.token AS t USING (key1, key2, token) WHERE key1 = %s"
    await eventually(lambda: query(dsn, written, key[0]), message="the leader listens")


async def test_a_leader_that_is_asked_hands_over_to_the_one_that_waits(any_database: str, key: Key) -> None:
    settings = {"lease_s": 60.0, "health_interval_s": 20.0}  # it must not be a proof that finds the request
    async with Elector(any_database, key, **settings) as a, Elector(any_database, key, **settings) as b:
        await eventually(lambda: len(lock_waiters(any_database, *key)) == 1)
        leader = await one_leads(a, b)
        follower = b if leader is a else a
        term = await leader.leads()
        await listening(any_database, key)
        assert await request_step_down(any_database, key) == term.token
        await follower.leads(above=term.token)
        assert leader.terms == [("acquired", term.token), ("released", term.token)]
        assert a.errors == b.errors == []


async def test_a_request_for_another_token_is_ignored_and_one_for_this_is_heard(here: str, key: Key) -> None:
    async with Elector(here, key, **QUICK) as a:
        first = (await a.leads()).token
        await a.lock.step_down(cooldown_s=0)
        second = (await a.leads(above=first)).token
        await listening(here, key)
        for stale in (first, second + 1):
            assert await request_step_down(here, key, stale) is None
        for _ in range(3):  # nor does a bare notification do anything
            channel = f"pgelect_step_down_{key[0] % 2**32}_{key[1] % 2**32}"
            query(here, "SELECT pg_notify(%s, %s)", channel, str(second))
        await a.proved(2)
        assert a.lock.token == second
        assert await request_step_down(here, key, second) == second
        await eventually(lambda: ("released", second) in a.terms)


async def test_inside_a_transaction_the_leader_hears_of_it_when_that_is_committed(here: str, key: Key) -> None:
    async with Elector(here, key, **QUICK) as a:
        token = (await a.leads()).token
        await listening(here, key)
        async with await psycopg.AsyncConnection.connect(here) as conn:
            await conn.execute("SELECT 1")
            assert await request_step_down(conn, key) == token
            await a.proved(2)
            assert a.lock.token == token
            await conn.rollback()
            assert await request_step_down(conn, key) == token  # one of its own: it is committed at once
            await eventually(lambda: ("released", token) in a.terms)


async def test_of_a_lock_that_nobody_leads_nobody_is_asked(here: str, key: Key) -> None:
    assert await request_step_down(here, key) is None
    with Puppet(here, LockKey(*key)) as puppet:
        token = puppet.begin()
        puppet.release()
        assert await request_step_down(here, key) is None
        assert await request_step_down(here, key, token) is None
        assert query(here, "SELECT count(*) FROM pgelect.step_down") == [(0,)]


async def test_who_asked_is_written_down_and_for_which_token(roles: Roles) -> None:
    lock = LockKey.from_name("名前")
    roles.run(schema_sql())
    operator = roles.make("operator")
    roles.run(OPERATOR, app_operator=operator.name)
    with Puppet(roles.database, lock) as puppet:
        first = puppet.begin()
        assert await request_step_down(operator.dsn, "名前") == first
        assert query(roles.database, ASKED, lock.key1, lock.key2, first) == [(operator.name,)]
        puppet.release()
        second = puppet.begin()
        assert query(roles.database, ASKED, lock.key1, lock.key2, second) == [(None,)], "the next term was not asked"


async def test_an_operator_needs_no_other_right_and_has_none(roles: Roles, key: Key) -> None:
    elector, writer = roles.electors_and_writers()
    operator = roles.make("operator")
    roles.run(OPERATOR, app_operator=operator.name)
    async with Elector(elector.dsn, key, **QUICK) as a:
        token = (await a.leads()).token
        await listening(roles.database, key)
        for nobody in (elector, writer, roles.neighbour()):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                query(nobody.dsn, "SELECT pgelect.request_step_down(%s, %s)", *key)
        for forbidden in (
            "SELECT * FROM pgelect.step_down",
            "SELECT * FROM pgelect.token",
            "SELECT * FROM pgelect.leaders",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                query(operator.dsn, forbidden)
        await a.proved(1)
        assert a.lock.token == token
        assert await request_step_down(operator.dsn, key) == token
        await eventually(lambda: ("released", token) in a.terms)


@pytest.mark.parametrize("lock", [LockKey(-(2**31), 2**31 - 1), LockKey(-1, 0)], ids=str)
async def test_keys_of_any_sign_reach_their_leader(here: str, lock: LockKey) -> None:
    key = (lock.key1, lock.key2)
    async with Elector(here, key, lease_s=60.0, health_interval_s=20.0) as a:
        token = (await a.leads()).token
        await listening(here, key)
        assert await request_step_down(here, lock) == token
        await eventually(lambda: ("released", token) in a.terms)


async def test_many_who_ask_at_once_end_one_term(here: str, key: Key) -> None:
    async with Elector(here, key, **QUICK) as a:
        token = (await a.leads()).token
        await listening(here, key)
        asked = await asyncio.gather(*(request_step_down(here, key, token) for _ in range(8)))
        assert set(asked) <= {token, None}
        await eventually(lambda: ("released", token) in a.terms)
        record = await get_leader(here, key)
        assert record is not None
        assert record.terms == token_row(here, key)[1] <= 2
