"""Leadership that cannot be proved is not believed, and nobody else's session or row proves it.

A fault like oban-bg/oban#1488: a check that failed left the flag as it was, and one that succeeded had found somebody
else's row of the same name; two nodes did the work for nineteen days.
"""

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Composed, Literal

from pgelect import LockState, PgElectError, schema_sql
from pgelect._postgres import campaign_sql
from tests.support.electors import LEASE_S, Elector
from tests.support.looks import now
from tests.support.proxy import BreakableProxy
from tests.support.server import lock_holders, lock_waiters, query, terminate
from tests.support.waiting import eventually

Key = tuple[int, int]


@pytest.fixture
def role(database: str, last_of_all: ExitStack) -> str:
    """A role without any right that it does not need; the schema is an administrator's."""
    name = f"guest_{secrets.token_hex(3)}"
    query(database, f"CREATE ROLE {name} LOGIN")
    last_of_all.callback(query, database, f"DROP ROLE {name}")
    last_of_all.callback(query, database, f"DROP OWNED BY {name}")
    with psycopg.connect(database) as conn:
        conn.execute(schema_sql().encode())
        conn.execute(f"GRANT USAGE ON SCHEMA pgelect TO {name}".encode())
        conn.execute(f"GRANT SELECT, INSERT, UPDATE ON pgelect.token, pgelect.closed TO {name}".encode())
        conn.execute(f"GRANT USAGE ON SEQUENCE pgelect.token_seq TO {name}".encode())
    return name


@contextmanager
def proofs_refused(database: str) -> Iterator[None]:
    """While inside, every proof of a role without rights fails on a live session, and so does each new attempt."""
    query(database, "REVOKE SELECT ON pg_catalog.pg_locks FROM PUBLIC")
    try:
        yield
    finally:
        query(database, "GRANT SELECT ON pg_catalog.pg_locks TO PUBLIC")


async def test_a_leader_whose_proofs_all_fail_gives_up_before_another_leads_and_never_comes_back_by_itself(
    database: str, role: str, key: Key
) -> None:
    """The server answers each of them, with an error: the session lives, and the lock is held all the time."""
    async with Elector(make_conninfo(database, user=role), key) as a:
        token = (await a.leads()).token
        async with Elector(database, key) as b:
            await eventually(lambda: lock_waiters(database, *key), message="another waits in the queue")
            with proofs_refused(database):
                refused_at = now()
                await a.hears(PgElectError, "pg_locks")
                successor = await b.leads(above=token)
                await a.has_lost(token)
                assert a.looks.last_true_at < refused_at + LEASE_S
                assert a.looks.last_true_at < b.looks.spans[0].first
                seen = len(a.errors)
                await eventually(lambda: len(a.errors) > seen + 2, message="the old leader keeps trying")
            await eventually(lambda: lock_waiters(database, *key), message="the old leader waits in the queue")
            await b.proved(5)
            assert a.terms == [("acquired", token), ("lost", token)]
            assert len(a.looks.spans) == 1
            assert b.terms == [("acquired", successor.token)]
            assert await b.lock.step_down(cooldown_s=60)
            await a.leads(above=successor.token)


async def test_alone_with_proofs_that_all_fail_it_does_not_believe_for_longer_than_a_lease(
    database: str, role: str, key: Key
) -> None:
    """Nobody takes the lock from it, and it could take it again; but it could not prove that it holds it."""
    async with Elector(make_conninfo(database, user=role), key) as a:
        token = (await a.leads()).token
        with proofs_refused(database):
            refused_at = now()
            await a.has_lost(token)
            seen = len(a.errors)
            await eventually(lambda: len(a.errors) > seen + 3, message="it keeps trying")
            restored_at = now()
        await a.leads(above=token)
        a.check_pairs()
        assert not a.looks.was_true(refused_at + LEASE_S, restored_at)
        assert a.terms[:2] == [("acquired", token), ("lost", token)]


@pytest.mark.parametrize("fencing", [True, False])
async def test_the_lock_in_the_session_of_a_namesake_proves_nothing(database: str, key: Key, fencing: bool) -> None:
    """Two processes of one identity, as with host names that are not unique; the lock is freed behind the first one."""
    made: list[psycopg.AsyncConnection[Any]] = []

    async def connect() -> psycopg.AsyncConnection[Any]:
        made.append(await psycopg.AsyncConnection.connect(database, autocommit=True))
        return made[-1]

    same = {"identity": "web", "lease_s": 10.0, "health_interval_s": 0.2, "fencing": fencing}
    async with Elector("", key, connect_fn=connect, **same) as a:
        term = await a.lock.wait_for_leadership(10)
        async with Elector(database, key, **same) as b:
            (waiting,) = await eventually(lambda: lock_waiters(database, *key), message="the namesake waits")
            unlocking = asyncio.create_task(made[0].execute("SELECT pg_advisory_unlock_all()"))
            await eventually(lambda: a.terms[-1][0] == "lost", message="the first one has noticed")
            await unlocking
            assert not term.is_current
            await b.lock.wait_for_leadership(10)
            await b.proved(5)
            assert lock_holders(database, *key) == [waiting]
            assert [what for what, _ in a.terms] == ["acquired", "lost"]
            assert [what for what, _ in b.terms] == ["acquired"]
            if fencing:
                assert b.tokens("acquired")[0] > a.tokens("acquired")[0]
                holder = query(database, "SELECT holder, token FROM pgelect.token")
                assert holder == [("web", b.lock.token)]


async def test_who_cannot_get_back_in_stays_out_while_another_leads(database: str, role: str, key: Key) -> None:
    """Its backend is ended, the other one wins, and all it hears from the server afterwards are errors."""
    async with Elector(make_conninfo(database, user=role), key) as a:
        token = (await a.leads()).token
        async with Elector(database, key) as b:
            (waiting,) = await eventually(lambda: lock_waiters(database, *key), message="another waits in the queue")
            query(database, f"ALTER ROLE {role} NOLOGIN")
            terminate(database, lock_holders(database, *key)[0])
            successor = await b.leads(above=token)
            await eventually(lambda: len(a.errors) > 4, message="it keeps trying")
            assert a.terms == [("acquired", token), ("lost", token)]
            assert len(a.looks.spans) == 1
            assert lock_holders(database, *key) == [waiting]
            query(database, f"ALTER ROLE {role} LOGIN")
            await eventually(lambda: lock_waiters(database, *key), message="it waits in the queue")
            assert a.terms == [("acquired", token), ("lost", token)]
            assert b.terms == [("acquired", successor.token)]


# An error is no answer; but one error is no loss either


def raising(sqlstate: str) -> Composed:
    """Render a statement that fails with this SQLSTATE, on a session that stays usable."""
    text = f"BEGIN RAISE EXCEPTION 'on purpose' USING ERRCODE = '{sqlstate}'; END"
    return SQL("DO {}").format(Literal(text))


PASSING = {
    "prepared statement does not exist": SQL("EXECUTE pgelect_gone"),
    "prepared statement exists already": SQL("PREPARE p AS SELECT 1; PREPARE p AS SELECT 1"),
    "26000": raising("26000"),
    "42P05": raising("42P05"),
    "53200 out of memory": raising("53200"),
    "55P03 lock not available": raising("55P03"),
    "40001 serialization failure": raising("40001"),
    "57014 cancelled": raising("57014"),
    "XX000 internal": raising("XX000"),
    "unknown": raising("ZZ123"),
}


@pytest.mark.parametrize("statement", PASSING.values(), ids=PASSING.keys())
async def test_an_error_in_place_of_one_proof_is_no_loss(
    proxy: BreakableProxy, database: str, key: Key, statement: Composed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as the prepared statement that a pooler has lost, like psycopg#280; the next proof says what is."""
    asked: list[int] = []
    prove = campaign_sql.prove

    def fails_twice(*args: Any) -> Any:
        asked.append(1)
        return statement if len(asked) in (3, 4) else prove(*args)

    async with Elector(database, key, lease_s=10.0, health_interval_s=0.05) as a:
        token = (await a.leads()).token
        (pid,) = lock_holders(database, *key)
        monkeypatch.setattr(campaign_sql, "prove", fails_twice)
        await eventually(lambda: len(asked) > 8, message="proofs go on")
        await a.proved(3)
        assert a.terms == [("acquired", token)]
        assert a.states[-1] is LockState.LEADER
        assert len(a.looks.spans) == 1
        assert len(a.errors) == 2
        assert lock_holders(database, *key) == [pid]
