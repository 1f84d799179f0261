"""lock.fence() and its kin, end to end: what commits, what is refused, and with which connections.

Holds off a leader of yesterday whose write commits today.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row
from psycopg.sql import SQL, Identifier
from psycopg_pool import AsyncConnectionPool

from pgelect import LeaderLock, NotLeaderError, PgElectError, StaleTokenError, Term
from pgelect.testing import Postgres
from tests.support.ledger import Connection, connected, make_ledger, write, written
from tests.support.locks import Key, leading, make_lock, queueing
from tests.support.server import lock_holders, query
from tests.support.waiting import eventually, scaled

ISOLATION = [None, *psycopg.IsolationLevel]


@pytest.fixture
def ledger(database: str) -> str:
    """A database with a table to write to."""
    return make_ledger(database)


@asynccontextmanager
async def _deposed(database: str, key: Key) -> AsyncIterator[tuple[LeaderLock, Term]]:
    """A lock that believes in its term although another term has begun: as after a pause that nobody noticed."""
    async with leading(database, key, lease_s=3600.0, health_interval_s=600.0) as lock:
        assert lock.term is not None
        query(database, "UPDATE pgelect.token SET token = token + 1, holder = 'another'")
        assert lock.is_leader
        yield lock, lock.term


@pytest.mark.parametrize("isolation", ISOLATION, ids=str)
@pytest.mark.parametrize("autocommit", [False, True], ids=["transactional", "autocommit"])
async def test_a_fenced_write_of_the_leader_commits(
    ledger: str, key: Key, autocommit: bool, isolation: psycopg.IsolationLevel | None
) -> None:
    async with leading(ledger, key) as lock, connected(ledger, autocommit=autocommit) as conn:
        await conn.set_isolation_level(isolation)
        for _ in range(2):
            async with lock.fence(conn) as term:
                assert term is lock.term
                await write(conn, term.token)
            assert conn.info.transaction_status is TransactionStatus.IDLE
        assert written(ledger) == [lock.token] * 2


@pytest.mark.parametrize("isolation", ISOLATION, ids=str)
@pytest.mark.parametrize("autocommit", [False, True], ids=["transactional", "autocommit"])
async def test_a_stale_write_is_refused_and_rolled_back(
    ledger: str, key: Key, autocommit: bool, isolation: psycopg.IsolationLevel | None
) -> None:
    async with _deposed(ledger, key) as (lock, term), connected(ledger, autocommit=autocommit) as conn:
        await conn.set_isolation_level(isolation)
        reached = False
        with pytest.raises(StaleTokenError) as stale:
            async with lock.fence(conn):
                reached = True
        assert not reached
        assert (stale.value.token, stale.value.key) == (term.token, lock.key)
        assert conn.info.transaction_status is TransactionStatus.IDLE
        await conn.execute("SELECT 1")  # the connection is usable


async def test_inside_an_open_transaction_the_fence_covers_all_of_it(ledger: str, key: Key) -> None:
    async with leading(ledger, key) as lock, connected(ledger) as conn:
        async with conn.transaction():
            await write(conn, 0)
            async with lock.fence(conn) as term:
                await write(conn, term.token)
            await write(conn, -1)
            assert written(ledger) == []
            # Until the outer transaction ends, no newer token can be minted:
            blocked = "SELECT token FROM pgelect.token FOR NO KEY UPDATE NOWAIT"
            with pytest.raises(psycopg.errors.LockNotAvailable):
                query(ledger, blocked)
        assert written(ledger) == [0, term.token, -1]
        assert query(ledger, blocked)


async def test_inside_an_open_transaction_a_stale_token_spoils_only_the_block(ledger: str, key: Key) -> None:
    async with _deposed(ledger, key) as (lock, term), connected(ledger) as conn:
        async with conn.transaction():
            await write(conn, 0)
            with pytest.raises(StaleTokenError):
                async with lock.fence(conn):
                    await write(conn, term.token)
            await write(conn, 1)
        assert written(ledger) == [0, 1]


async def test_an_error_in_the_block_rolls_back_and_comes_out(ledger: str, key: Key) -> None:
    async with leading(ledger, key) as lock, connected(ledger) as conn:

        async def fail() -> None:
            async with lock.fence(conn) as term:
                await write(conn, term.token)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        assert written(ledger) == []
        assert lock.is_leader


async def test_a_cancel_in_the_block_rolls_back(ledger: str, key: Key) -> None:
    async with leading(ledger, key) as lock, connected(ledger) as conn:
        inside = asyncio.Event()

        async def write_slowly() -> None:
            async with lock.fence(conn) as term:
                await write(conn, term.token)
                inside.set()
                await asyncio.Event().wait()

        writing = asyncio.create_task(write_slowly())
        await inside.wait()
        writing.cancel()
        await asyncio.wait({writing})
        assert writing.cancelled()
        assert written(ledger) == []
        assert query(ledger, "SELECT token FROM pgelect.token FOR NO KEY UPDATE NOWAIT")


async def test_pooled_connections_will_do(ledger: str, key: Key) -> None:
    async with (
        leading(ledger, key) as lock,
        AsyncConnectionPool(ledger, min_size=2, max_size=2, open=False) as pool,
    ):

        async def write_once() -> None:
            async with pool.connection() as conn, lock.fence(conn) as term:
                await write(conn, term.token)

        await asyncio.gather(*(write_once() for _ in range(10)))
        assert written(ledger) == [lock.token] * 10


async def test_connections_with_factories_of_their_own_will_do(ledger: str, key: Key) -> None:
    async with leading(ledger, key) as lock:
        for options in (
            {"row_factory": dict_row},
            {"cursor_factory": psycopg.AsyncClientCursor},
            {"prepare_threshold": 0},
            {"options": "-c search_path=pg_temp"},
        ):
            async with connected(ledger, **options) as conn, lock.fence(conn) as term:
                await conn.execute("INSERT INTO public.ledger (token) VALUES (%s)", (term.token,))
        assert written(ledger) == [lock.token] * 4


async def test_who_does_not_lead_is_told_before_anything_is_sent(ledger: str, key: Key) -> None:
    async with leading(ledger, key), queueing(ledger, key) as follower, connected(ledger) as conn:
        pid = conn.info.backend_pid
        for check in (follower.check_fence, _enter(follower)):
            with pytest.raises(NotLeaderError) as refused:
                await check(conn)
            assert refused.value.key == follower.key
            assert refused.value.state is follower.state
        assert conn.info.transaction_status is TransactionStatus.IDLE
        assert query(ledger, "SELECT query FROM pg_stat_activity WHERE pid = %s", pid) == [("",)]


def _enter(lock: LeaderLock) -> Callable[[Connection], Any]:
    async def enter(conn: Connection) -> None:
        async with lock.fence(conn):
            pytest.fail("the block was entered")

    return enter


async def test_without_fencing_it_is_refused_clearly(ledger: str, key: Key) -> None:
    async with leading(ledger, key, fencing=False) as lock, connected(ledger) as conn:
        assert lock.is_leader
        assert lock.record is None
        for check in (lock.check_fence, _enter(lock)):
            with pytest.raises(ValueError, match="fencing=False"):
                await check(conn)
        assert query(ledger, "SELECT to_regnamespace('pgelect')") == [(None,)]  # no schema is needed, or made


async def test_check_fence_protects_the_callers_own_transaction(ledger: str, key: Key) -> None:
    async with leading(ledger, key) as lock, connected(ledger) as conn:
        async with conn.transaction():
            await lock.check_fence(conn)
            await write(conn, lock.token or 0)
        assert written(ledger) == [lock.token]
        query(ledger, "UPDATE pgelect.token SET token = token + 1")
        with pytest.raises(StaleTokenError):
            await lock.check_fence(conn)
        await conn.rollback()


async def test_check_fence_in_autocommit_mode_is_refused(ledger: str, key: Key) -> None:
    """There it would end with its own statement, and protect nothing."""
    async with leading(ledger, key) as lock, connected(ledger, autocommit=True) as conn:
        with pytest.raises(PgElectError, match="autocommit"):
            await lock.check_fence(conn)
        assert conn.info.transaction_status is TransactionStatus.IDLE


async def test_the_next_term_begins_only_after_the_fenced_transactions_of_the_last(ledger: str, key: Key) -> None:
    async with leading(ledger, key) as lock, queueing(ledger, key) as other, connected(ledger) as conn:
        async with lock.fence(conn) as term:
            await write(conn, term.token)
            (mine,) = lock_holders(ledger, *key)
            query(ledger, "SELECT pg_terminate_backend(%s)", mine)
            await eventually(lambda: lock_holders(ledger, *key) not in ([], [mine]))
            assert not other.is_leader  # it holds the lock, but has no token yet
            committing = query(ledger, "SELECT clock_timestamp()")[0][0]
        after = await other.wait_for_leadership(scaled(10))
        assert after.token > term.token
        assert after.acquired_at > committing
        assert written(ledger) == [term.token]
        with pytest.raises(NotLeaderError):
            await lock.check_fence(conn)


@pytest.fixture
def writer(server: Postgres, ledger: str) -> Iterator[str]:
    """A connection string of a role that may write the ledger and call the check, and nothing else."""
    role = f"writer_{secrets.token_hex(6)}"
    query(server.dsn(), SQL("CREATE ROLE {} LOGIN").format(Identifier(role)).as_string())
    yield make_conninfo(ledger, user=role)
    query(ledger, f"DROP OWNED BY {role}")
    query(server.dsn(), f"DROP ROLE {role}")


async def test_plain_sql_of_another_role_with_only_execute_is_fenced_too(ledger: str, key: Key, writer: str) -> None:
    """Any driver and any language: the check is one SELECT."""
    role = psycopg.conninfo.conninfo_to_dict(writer)["user"]
    check = "SELECT pgelect.check_token(%s, %s, %s)"
    async with leading(ledger, key) as lock:
        assert lock.token is not None
        query(ledger, f"GRANT INSERT ON ledger TO {role}")
        query(ledger, f"GRANT USAGE ON SCHEMA pgelect TO {role}")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            query(writer, check, *key, lock.token)
        query(ledger, f"GRANT EXECUTE ON FUNCTION pgelect.check_token(integer, integer, bigint) TO {role}")
        with psycopg.connect(writer) as plain:
            plain.execute(check, (*key, lock.token))
            plain.execute("INSERT INTO ledger (token) VALUES (%s)", (lock.token,))
        assert written(ledger) == [lock.token]
        for stale in (lock.token - 1, lock.token + 1):
            with psycopg.connect(writer) as plain, pytest.raises(psycopg.Error) as refused:
                plain.execute(check, (*key, stale))
            assert refused.value.sqlstate == "PGE01"
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            query(writer, "SELECT token FROM pgelect.token")
        async with connected(writer) as conn, lock.fence(conn) as term:
            await write(conn, term.token)
        assert written(ledger) == [lock.token] * 2


async def test_a_stopped_lock_fences_nothing(ledger: str, key: Key) -> None:
    lock = make_lock(ledger, key)
    async with lock:
        await lock.wait_for_leadership(scaled(10))
    async with connected(ledger) as conn:
        with pytest.raises(NotLeaderError):
            await lock.check_fence(conn)
