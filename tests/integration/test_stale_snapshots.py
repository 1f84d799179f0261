"""A write of a term that is over never commits, however old the snapshot of its transaction, and however it checks.

Holds off an ex-leader whose write commits after the handover because its token was looked at under an old snapshot, or
without locking the row (a fault like Tr3kkR/Yuzu#4015).
"""

import asyncio
from collections.abc import Awaitable, Callable

import psycopg
import pytest
from psycopg import IsolationLevel

from pgelect import LockKey, StaleTokenError
from pgelect.fencing import check_token, fenced, guard_table
from tests.support.electors import Elector
from tests.support.ledger import Connection, connected, make_ledger, write, written
from tests.support.server import lock_holders, query, terminate
from tests.support.waiting import eventually, scaled

Key = tuple[int, int]
Way = Callable[[Connection, LockKey, int], Awaitable[None]]
LEVELS = [IsolationLevel.READ_COMMITTED, IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE]
REFUSED = {"PGE01", "PGE02", "40001"}  # stale; not fenced; the row changed after the snapshot


@pytest.fixture
def ledger(database: str) -> str:
    return make_ledger(database)


async def _by_fenced(conn: Connection, key: LockKey, token: int) -> None:
    async with fenced(conn, key, token):
        await write(conn, token)


async def _by_check_token(conn: Connection, key: LockKey, token: int) -> None:
    await check_token(conn, key, token)
    await write(conn, token)


async def _by_plain_sql(conn: Connection, key: LockKey, token: int) -> None:
    await conn.execute("SELECT pgelect.check_token(%s, %s, %s)", (key.key1, key.key2, token))
    await write(conn, token)


async def _by_a_check_after_the_write(conn: Connection, key: LockKey, token: int) -> None:
    await write(conn, token)
    await conn.execute("SELECT pgelect.check_token(%s, %s, %s)", (key.key1, key.key2, token))


async def _by_one_statement(conn: Connection, key: LockKey, token: int) -> None:
    statement = """
    WITH fence AS MATERIALIZED (SELECT pgelect.check_token(%(key1)s, %(key2)s, %(token)s))
    INSERT INTO ledger (token) SELECT %(token)s FROM fence
    """
    await conn.execute(statement, {"key1": key.key1, "key2": key.key2, "token": token})


async def _by_a_guarded_table(conn: Connection, key: LockKey, token: int) -> None:
    """With a binding that says the old token, as a pooled connection or a forger may have it."""
    name = f"pgelect.fence_{key.classid}_{key.objid}"
    await conn.execute("SELECT set_config(%s, %s, true)", (name, str(token)))
    await write(conn, token)


WAYS = [_by_fenced, _by_check_token, _by_plain_sql, _by_a_check_after_the_write, _by_one_statement, _by_a_guarded_table]


def _name(value: object) -> str:
    return str(getattr(value, "__name__", getattr(value, "name", value))).strip("_").replace("_", " ").lower()


async def _prepare(way: Way, database: str, key: LockKey) -> None:
    """Guard the table only where the guard is what is tried: it would cover up for the others."""
    if way is _by_a_guarded_table:
        async with connected(database) as conn:
            await guard_table(conn, "ledger", key)


@pytest.mark.parametrize("level", LEVELS, ids=_name)
@pytest.mark.parametrize("way", WAYS, ids=_name)
async def test_a_transaction_begun_in_the_term_cannot_write_after_it(
    ledger: str, key: Key, way: Way, level: IsolationLevel
) -> None:
    async with Elector(ledger, key, lease_s=10.0) as a, connected(ledger) as conn:
        token = (await a.leads()).token
        await _prepare(way, ledger, a.lock.key)
        await conn.set_isolation_level(level)
        await conn.execute("SELECT count(*) FROM ledger, pgelect.token")  # the snapshot: in it the term is current
        async with Elector(ledger, key, lease_s=10.0) as b:
            terminate(ledger, lock_holders(ledger, *key)[0])
            await eventually(lambda: max(a.lock.token or 0, b.lock.token or 0) > token, message="a newer term")
            with pytest.raises((StaleTokenError, psycopg.Error)) as refused:
                await way(conn, a.lock.key, token)
            if isinstance(refused.value, psycopg.Error):
                assert refused.value.sqlstate in REFUSED
            await conn.rollback()
    assert written(ledger) == []


@pytest.mark.parametrize("level", LEVELS, ids=_name)
@pytest.mark.parametrize("way", WAYS, ids=_name)
@pytest.mark.parametrize("minted", [True, False], ids=["committed", "rolled back"])
async def test_a_check_that_meets_a_mint_in_flight_waits_for_it(
    ledger: str, key: Key, way: Way, level: IsolationLevel, minted: bool
) -> None:
    """Committed, the token is stale; rolled back, it is as good as before, under any level."""
    async with (
        Elector(ledger, key, lease_s=10.0) as a,
        connected(ledger) as minting,
        connected(ledger) as conn,
    ):
        token = (await a.leads()).token
        await _prepare(way, ledger, a.lock.key)
        await minting.execute("UPDATE pgelect.token SET token = token + 1")
        await conn.set_isolation_level(level)
        writing = asyncio.ensure_future(way(conn, a.lock.key, token))
        waits = "SELECT 1 FROM pg_locks WHERE pid = %s AND NOT granted"
        await eventually(lambda: query(ledger, waits, conn.info.backend_pid), message="the check waits for the mint")
        await (minting.commit() if minted else minting.rollback())
        await asyncio.wait({writing}, timeout=scaled(5))
        if minted:
            error = writing.exception()
            assert isinstance(error, StaleTokenError) or getattr(error, "sqlstate", None) in REFUSED, error
            await conn.rollback()
        else:
            writing.result()
            await conn.commit()
    assert written(ledger) == ([] if minted else [token])


WEAK = {
    "a plain read": "SELECT token FROM pgelect.token WHERE token = %s",
    "a lock that spares the key": "SELECT token FROM pgelect.token WHERE token = %s FOR KEY SHARE",
}


@pytest.mark.parametrize("level", LEVELS, ids=_name)
@pytest.mark.parametrize("check", WEAK.values(), ids=WEAK.keys())
async def test_a_weaker_check_would_let_a_stale_write_commit(
    ledger: str, key: Key, check: str, level: IsolationLevel
) -> None:
    """What the server does, and why the fence locks the row for share: this is no promise of ours."""
    async with Elector(ledger, key, lease_s=10.0) as a, connected(ledger) as conn:
        token = (await a.leads()).token
        await conn.set_isolation_level(level)
        assert await (await conn.execute(check.encode(), (token,))).fetchall() == [(token,)]
        terminate(ledger, lock_holders(ledger, *key)[0])
        await a.leads(above=token)
        await write(conn, token)
        await conn.commit()
    assert written(ledger) == [token]


@pytest.mark.parametrize(("level", "rows"), [*zip(LEVELS, [0, 1, 1], strict=True)], ids=_name)
async def test_a_condition_in_the_write_would_be_judged_by_the_snapshot(
    ledger: str, key: Key, level: IsolationLevel, rows: int
) -> None:
    """What the server does: only under READ COMMITTED does a later statement see the newer term."""
    async with Elector(ledger, key, lease_s=10.0) as a, connected(ledger) as conn:
        token = (await a.leads()).token
        await conn.set_isolation_level(level)
        await conn.execute("SELECT count(*) FROM ledger")
        terminate(ledger, lock_holders(ledger, *key)[0])
        await a.leads(above=token)
        statement = "INSERT INTO ledger (token) SELECT %s WHERE EXISTS (SELECT FROM pgelect.token WHERE token = %s)"
        await conn.execute(statement, (token, token))
        await conn.commit()
    assert written(ledger) == [token] * rows
