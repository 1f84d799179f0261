"""A guarded table, with real locks: it takes the current leader's fenced writes, and no others."""

import secrets

import psycopg
import pytest

import pgelect
from pgelect import LeaderLock, LockKey
from tests.support.ledger import connected, make_ledger, write, written
from tests.support.locks import Key, leading
from tests.support.server import query
from tests.support.waiting import scaled


@pytest.fixture
def ledger(database: str) -> str:
    """A database with a table to write to."""
    return make_ledger(database)


async def test_a_guarded_table_takes_the_leaders_fenced_writes_and_no_others(ledger: str, key: Key) -> None:
    async with leading(ledger, key) as lock, connected(ledger) as conn:
        await pgelect.guard_table(conn, "public.ledger", lock.key)
        await conn.commit()
        async with lock.fence(conn) as term:
            await write(conn, term.token)
        async with conn.transaction():
            await lock.check_fence(conn)
            await write(conn, term.token)
        with pytest.raises(psycopg.Error, match="not fenced") as refused:
            await write(conn, term.token)  # whoever forgot
        assert refused.value.sqlstate == "PGE02"
        await conn.rollback()
        with pytest.raises(psycopg.Error, match="not fenced"):
            query(ledger, "DELETE FROM ledger")
        assert written(ledger) == [term.token] * 2
        await pgelect.unguard_table(conn, "ledger")
        await conn.commit()
        query(ledger, "DELETE FROM ledger")


async def test_a_write_after_the_term_is_over_is_refused_by_the_guard(ledger: str, key: Key) -> None:
    """The token is bound to the transaction, and the guard asks anew whether it is still the current one."""
    async with leading(ledger, key) as lock, connected(ledger) as conn:
        await pgelect.guard_table(conn, "ledger", lock.key)
        await conn.commit()
        async with lock.fence(conn) as term:
            await write(conn, term.token)
        await lock.step_down(cooldown_s=3600)
        with pytest.raises(psycopg.Error, match="not fenced"):
            await write(conn, term.token)
        await conn.rollback()
        await conn.execute("SELECT set_config(%s, %s, true)", (_binding(lock.key), str(term.token)))  # forged
        with pytest.raises(psycopg.Error, match="not fenced"):
            await write(conn, term.token)
        await conn.rollback()
        assert written(ledger) == [term.token]


def _binding(key: LockKey) -> str:
    return f"pgelect.fence_{key.classid}_{key.objid}"


async def test_one_fence_does_not_serve_another_lock(ledger: str, key: Key) -> None:
    other_key = (key[0], key[1] ^ 1)
    async with leading(ledger, key) as lock, leading(ledger, other_key) as other, connected(ledger) as conn:
        await pgelect.guard_table(conn, "ledger", lock.key)
        await conn.commit()
        with pytest.raises(psycopg.Error, match="not fenced"):
            async with other.fence(conn) as term:
                await write(conn, term.token)
        async with other.fence(conn), lock.fence(conn) as term:
            await write(conn, term.token)
        assert written(ledger) == [lock.token]


async def test_a_lock_that_is_made_by_name_fences_as_well(ledger: str) -> None:
    name = f"billing/{secrets.token_hex(4)}"
    async with LeaderLock(ledger, name=name) as lock, connected(ledger) as conn:
        await lock.wait_for_leadership(scaled(10))
        await pgelect.guard_table(conn, "ledger", LockKey.from_name(name))
        await conn.commit()
        async with lock.fence(conn) as term:
            await write(conn, term.token)
        assert written(ledger) == [lock.token]
