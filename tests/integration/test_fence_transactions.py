"""The transaction that a fence opens: it begins together with the check, and in all else it is psycopg's own.

Holds off a block that somebody ends by hand and writes on, unfenced; and a connection that comes back in another mode.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection, Connection, IsolationLevel, ProgrammingError, Rollback
from psycopg.pq import TransactionStatus

from pgelect import LeaderGroup, NotPrimaryError, SessionLostError, StaleTokenError, schema_sql
from pgelect import sync as blocking
from pgelect._engine.model import LockKey
from pgelect.fencing import fenced
from tests.support.ledger import connected, make_ledger, write, written
from tests.support.locks import Key
from tests.support.puppets import Puppet
from tests.support.server import query
from tests.support.waiting import eventually, scaled

Tune = Callable[[AsyncConnection[Any]], Any]

BY_NOW = "SELECT query FROM pg_stat_activity WHERE pid = %s"
each_mode = pytest.mark.parametrize("autocommit", [False, True], ids=["transactional", "autocommit"])
by_hand = pytest.mark.parametrize("name", ["commit", "rollback"])


@pytest.fixture
def ledger(database: str) -> str:
    return make_ledger(database)


@pytest.fixture
def token(ledger: str, key: Key) -> int:
    """The token of a term that lasts as long as nobody mints another."""
    query(ledger, schema_sql())
    with Puppet(ledger, LockKey(*key)) as puppet:
        return puppet.begin()


async def _plain(conn: AsyncConnection[Any]) -> None:
    """Leave it as it is: BEGIN is ours."""


async def _serializable(conn: AsyncConnection[Any]) -> None:
    """Have BEGIN say more: it is psycopg's."""
    await conn.set_isolation_level(IsolationLevel.SERIALIZABLE)


each_begin = pytest.mark.parametrize("tune", [_plain, _serializable])


def is_as_it_came(conn: psycopg.BaseConnection[Any], autocommit: bool) -> bool:
    return (
        conn.info.transaction_status is TransactionStatus.IDLE
        and conn.autocommit is autocommit
        and {"commit", "rollback"}.isdisjoint(vars(conn))
    )


def roll_back(transaction: psycopg.AsyncTransaction | None = None) -> None:
    raise Rollback(transaction)


# One round trip


@each_mode
async def test_begin_and_the_check_are_one_query(ledger: str, key: Key, token: int, autocommit: bool) -> None:
    async with connected(ledger, autocommit=autocommit) as conn, fenced(conn, LockKey(*key), token):
        ((sent,),) = query(ledger, BY_NOW, conn.info.backend_pid)
    assert sent.startswith("BEGIN; SELECT pgelect.check_token(")


@each_mode
def test_begin_and_the_check_are_one_query_on_a_blocking_connection(
    ledger: str, key: Key, token: int, autocommit: bool
) -> None:
    with psycopg.connect(ledger, autocommit=autocommit) as conn:
        with blocking.fenced(conn, LockKey(*key), token):
            ((sent,),) = query(ledger, BY_NOW, conn.info.backend_pid)
        assert is_as_it_came(conn, autocommit)
    assert sent.startswith("BEGIN; SELECT pgelect.check_token(")


@each_mode
async def test_what_the_connection_says_of_its_transactions_holds(
    ledger: str, key: Key, token: int, autocommit: bool
) -> None:
    async with connected(ledger, autocommit=autocommit) as conn:
        await conn.set_isolation_level(IsolationLevel.REPEATABLE_READ)
        async with fenced(conn, LockKey(*key), token):
            assert await (await conn.execute("SHOW transaction_isolation")).fetchone() == ("repeatable read",)
        await conn.set_isolation_level(None)
        for characteristic in ("read_only", "deferrable"):
            await getattr(conn, f"set_{characteristic}")(False)
            async with fenced(conn, LockKey(*key), token):
                ((sent,),) = query(ledger, BY_NOW, conn.info.backend_pid)
                assert not sent.startswith("BEGIN")  # that went before, with what the connection says
                await write(conn, token)
            await getattr(conn, f"set_{characteristic}")(None)
        await conn.set_read_only(True)
        with pytest.raises(NotPrimaryError):
            async with fenced(conn, LockKey(*key), token):
                pytest.fail("a check locks a row")
        assert is_as_it_came(conn, autocommit)
    assert written(ledger) == [token] * 2


@each_mode
async def test_in_pipeline_mode_it_works_as_well(ledger: str, key: Key, token: int, autocommit: bool) -> None:
    async with connected(ledger, autocommit=autocommit) as conn, conn.pipeline(), fenced(conn, LockKey(*key), token):
        await write(conn, token)
    assert written(ledger) == [token]


# Ends of the block


@each_begin
@each_mode
@by_hand
async def test_to_end_it_by_hand_is_refused_and_nothing_is_written(
    ledger: str, key: Key, token: int, *, autocommit: bool, name: str, tune: Tune
) -> None:
    async with connected(ledger, autocommit=autocommit) as conn:
        await tune(conn)

        async def end_it() -> None:
            async with fenced(conn, LockKey(*key), token):
                await write(conn, token)
                await getattr(conn, name)()

        with pytest.raises(ProgrammingError, match=rf"[Ee]xplicit {name}\(\) forbidden"):
            await end_it()
        assert is_as_it_came(conn, autocommit)
        await write(conn, 0)
        await getattr(conn, name)()  # it is usable again
    assert written(ledger) == ([0] if autocommit or name == "commit" else [])


@each_mode
@by_hand
def test_to_end_it_by_hand_is_refused_on_a_blocking_connection(
    ledger: str, key: Key, token: int, autocommit: bool, name: str
) -> None:
    with psycopg.connect(ledger, autocommit=autocommit) as conn:

        def end_it() -> None:
            with blocking.fenced(conn, LockKey(*key), token):
                conn.execute("INSERT INTO ledger (token) VALUES (1)")
                getattr(conn, name)()

        with pytest.raises(ProgrammingError, match=rf"explicit {name}\(\) forbidden"):
            end_it()
        assert is_as_it_came(conn, autocommit)
    assert written(ledger) == []


@each_begin
@each_mode
async def test_a_caught_refusal_does_not_spoil_the_block(
    ledger: str, key: Key, token: int, autocommit: bool, tune: Tune
) -> None:
    async with connected(ledger, autocommit=autocommit) as conn:
        await tune(conn)
        async with fenced(conn, LockKey(*key), token):
            with pytest.raises(ProgrammingError):
                await conn.commit()
            await write(conn, token)
            assert written(ledger) == []
        assert written(ledger) == [token]


@each_mode
async def test_a_statement_that_ends_it_is_told_of_at_the_end_of_the_block(
    ledger: str, key: Key, token: int, autocommit: bool
) -> None:
    async with connected(ledger, autocommit=autocommit) as conn:
        with pytest.raises(ProgrammingError, match="ended inside the block"):
            async with fenced(conn, LockKey(*key), token):
                await conn.execute("COMMIT")
        assert is_as_it_came(conn, autocommit)


@each_begin
@each_mode
async def test_psycopgs_rollback_stays_inside_unless_it_is_for_another_transaction(
    ledger: str, key: Key, token: int, autocommit: bool, tune: Tune
) -> None:
    async with connected(ledger, autocommit=autocommit) as conn, connected(ledger) as other:
        await tune(conn)
        async with fenced(conn, LockKey(*key), token):
            await write(conn, token)
            roll_back()
        assert is_as_it_came(conn, autocommit)
        passed = False
        async with other.transaction() as outer:
            async with fenced(conn, LockKey(*key), token):
                roll_back(outer)
            passed = True
        assert not passed
        assert is_as_it_came(conn, autocommit)
    assert written(ledger) == []


@each_begin
@each_mode
async def test_an_error_that_the_block_swallowed_leaves_nothing_written_and_a_usable_connection(
    ledger: str, key: Key, token: int, autocommit: bool, tune: Tune
) -> None:
    async with connected(ledger, autocommit=autocommit) as conn:
        await tune(conn)
        async with fenced(conn, LockKey(*key), token):
            await write(conn, token)
            with pytest.raises(psycopg.errors.DivisionByZero):
                await conn.execute("SELECT 1/0")
        assert is_as_it_came(conn, autocommit)
    assert written(ledger) == []


@each_begin
@each_mode
async def test_a_commit_that_the_server_refuses_comes_out(
    ledger: str, key: Key, token: int, autocommit: bool, tune: Tune
) -> None:
    query(ledger, "ALTER TABLE ledger ADD UNIQUE (token) DEFERRABLE INITIALLY DEFERRED")
    async with connected(ledger, autocommit=autocommit) as conn:
        await tune(conn)

        async def write_twice() -> None:
            async with fenced(conn, LockKey(*key), token):
                await write(conn, token)
                await write(conn, token)

        with pytest.raises(psycopg.errors.UniqueViolation):
            await write_twice()
        assert is_as_it_came(conn, autocommit)
    assert written(ledger) == []


@each_begin
@each_mode
async def test_a_session_that_ends_in_the_block_is_told_and_nothing_is_written(
    ledger: str, key: Key, token: int, autocommit: bool, tune: Tune
) -> None:
    async with connected(ledger, autocommit=autocommit) as conn:
        await tune(conn)

        async def lose_it() -> None:
            async with fenced(conn, LockKey(*key), token):
                await write(conn, token)
                query(ledger, "SELECT pg_terminate_backend(%s)", conn.info.backend_pid)
                await conn.execute("SELECT 1")

        with pytest.raises(psycopg.OperationalError):
            await lose_it()
        assert conn.closed
    assert written(ledger) == []


@each_mode
async def test_a_session_that_ended_before_is_told(ledger: str, key: Key, token: int, autocommit: bool) -> None:
    async with connected(ledger, autocommit=autocommit) as conn:
        query(ledger, "SELECT pg_terminate_backend(%s)", conn.info.backend_pid)
        with pytest.raises(SessionLostError):
            async with fenced(conn, LockKey(*key), token):
                pytest.fail("it was entered")
        assert conn.closed


@each_begin
@each_mode
async def test_a_cancel_while_the_check_waits_leaves_the_connection_as_it_came(
    ledger: str, key: Key, token: int, autocommit: bool, tune: Tune
) -> None:
    async with connected(ledger, autocommit=autocommit) as conn, connected(ledger) as minting:
        await tune(conn)
        await minting.execute("SELECT 1 FROM pgelect.token FOR UPDATE")

        async def enter() -> None:
            async with fenced(conn, LockKey(*key), token):
                pytest.fail("it was entered")

        entering = asyncio.create_task(enter())
        waits = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
        await eventually(lambda: query(ledger, waits, conn.info.backend_pid) == [(1,)])
        entering.cancel()
        await asyncio.wait({entering}, timeout=scaled(10))
        assert entering.cancelled()
        assert is_as_it_came(conn, autocommit)
        await minting.rollback()
        async with fenced(conn, LockKey(*key), token):
            await write(conn, token)
    assert written(ledger) == [token]


@each_mode
async def test_a_connection_that_cannot_be_given_back_as_it_came_is_closed(
    ledger: str, key: Key, token: int, autocommit: bool
) -> None:
    """It would commit what its next user believes to be in a transaction."""

    class Stubborn(AsyncConnection[Any]):
        async def rollback(self) -> None:
            raise psycopg.OperationalError("no rollback today")

    conn = await Stubborn.connect(ledger, autocommit=autocommit)
    with pytest.raises(ZeroDivisionError):
        async with fenced(conn, LockKey(*key), token):
            raise ZeroDivisionError
    assert conn.closed is not autocommit
    await conn.close()


# One inside another, and two tasks on one connection


@each_mode
async def test_a_fence_inside_a_fence_is_a_savepoint(ledger: str, key: Key, token: int, autocommit: bool) -> None:
    async with connected(ledger, autocommit=autocommit) as conn:

        async def fail() -> None:
            async with fenced(conn, LockKey(*key), token):
                await write(conn, 2)
                raise ZeroDivisionError

        async with fenced(conn, LockKey(*key), token):
            await write(conn, 1)
            with pytest.raises(ZeroDivisionError):
                await fail()
            with pytest.raises(StaleTokenError):
                async with fenced(conn, LockKey(*key), token + 1):
                    pytest.fail("it was entered")
            async with fenced(conn, LockKey(*key), token), conn.transaction():
                await write(conn, 3)
            with pytest.raises(ProgrammingError, match="forbidden"):
                await conn.commit()
            assert written(ledger) == []
        assert is_as_it_came(conn, autocommit)
    assert written(ledger) == [1, 3]


@each_mode
async def test_one_fence_is_for_one_block(ledger: str, key: Key, token: int, autocommit: bool) -> None:
    async with connected(ledger, autocommit=autocommit) as conn:
        once = fenced(conn, LockKey(*key), token)
        async with once:
            await write(conn, 1)
            with pytest.raises(RuntimeError, match="make another one"):
                async with once:
                    pytest.fail("it was entered")
        with pytest.raises(RuntimeError, match="make another one"):
            async with once:
                pytest.fail("it was entered")
        assert is_as_it_came(conn, autocommit)
    assert written(ledger) == [1]


@each_mode
async def test_a_fence_of_another_task_is_inside_the_one_that_is_open(
    ledger: str, key: Key, token: int, autocommit: bool
) -> None:
    async with connected(ledger, autocommit=autocommit) as conn:
        begun, inside = asyncio.Event(), asyncio.Event()

        async def first() -> None:
            async with fenced(conn, LockKey(*key), token):
                await write(conn, 1)
                begun.set()
                await inside.wait()
                await write(conn, 3)

        async def second() -> None:
            await begun.wait()
            async with fenced(conn, LockKey(*key), token):
                await write(conn, 2)
            assert written(ledger) == []
            inside.set()

        await asyncio.gather(first(), second())
        assert is_as_it_came(conn, autocommit)
    assert written(ledger) == [1, 2, 3]


async def test_two_tasks_that_begin_at_once_on_one_connection_do_not_share_a_transaction_unseen(
    ledger: str, key: Key, token: int
) -> None:
    """The one that ends first would commit the other one's, which would go on unfenced."""

    class Slow(AsyncConnection[Any]):
        async def set_autocommit(self, value: bool) -> None:
            await asyncio.sleep(0.01)
            await super().set_autocommit(value)

    conn = await Slow.connect(ledger)

    async def write_one() -> None:
        async with fenced(conn, LockKey(*key), token):
            await write(conn, 1)

    ends = await asyncio.gather(write_one(), write_one(), return_exceptions=True)
    assert ends[0] is None
    assert isinstance(ends[1], ProgrammingError)
    assert is_as_it_came(conn, False)
    assert written(ledger) == [1]
    await conn.close()


# Groups


async def test_a_group_begins_its_transactions_in_the_same_way(ledger: str) -> None:
    async with LeaderGroup(ledger, names=["a"]) as group, connected(ledger) as conn:
        await eventually(lambda: "a" in group.leading)
        async with group.fence(conn, "a") as term:
            ((sent,),) = query(ledger, BY_NOW, conn.info.backend_pid)
            await write(conn, term.token)
        assert is_as_it_came(conn, False)
    assert sent.startswith("BEGIN; SELECT pgelect.check_token(")
    assert written(ledger) == [term.token]


def test_a_blocking_block_ends_as_the_other_does(ledger: str, key: Key, token: int) -> None:
    lock = LockKey(*key)

    def write_here(conn: Connection[Any], value: int) -> None:
        conn.execute("INSERT INTO ledger (token) VALUES (%s)", (value,))

    def fail(conn: Connection[Any]) -> None:
        with blocking.fenced(conn, lock, token):
            write_here(conn, 1)
            raise ZeroDivisionError

    for autocommit in (False, True):
        with psycopg.connect(ledger, autocommit=autocommit) as conn:
            with blocking.fenced(conn, lock, token):
                write_here(conn, 1)
                roll_back()
            with pytest.raises(ZeroDivisionError):
                fail(conn)
            with pytest.raises(StaleTokenError), blocking.fenced(conn, lock, token + 1):
                pytest.fail("it was entered")
            with pytest.raises(ProgrammingError, match="ended inside"), blocking.fenced(conn, lock, token):
                conn.execute("ROLLBACK")
            with blocking.fenced(conn, lock, token), blocking.fenced(conn, lock, token):
                write_here(conn, 7)
            conn.isolation_level = IsolationLevel.SERIALIZABLE
            with blocking.fenced(conn, lock, token):
                write_here(conn, 8)
            assert is_as_it_came(conn, autocommit)
    assert written(ledger) == [7, 8] * 2
