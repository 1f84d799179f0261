"""A transaction that begins with a check: BEGIN and the check travel together.

psycopg's own transaction sends BEGIN apart, and that is the dearest part of a short one. So where BEGIN alone says what
psycopg would say, it is sent from here, and committing and rolling back is left to the methods of the connection.
Elsewhere psycopg's transaction is opened, and the check is its first statement: in an open transaction (where it is a
savepoint), in pipeline mode, and where the connection sets an isolation level, READ ONLY or DEFERRABLE.

Inside the block both are alike: to commit or to roll back by hand is refused, since it would end the transaction that
was checked; ``psycopg.Rollback`` rolls back and stays inside; any other exception rolls back and comes out.

A connection that begins transactions by itself is in autocommit mode for the time of the block.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import AsyncCursor, Cursor, capabilities, pq
from psycopg.rows import tuple_row

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from contextlib import AbstractContextManager

    from psycopg import AsyncConnection, BaseConnection, Connection

    Around = Callable[[], AbstractContextManager[None]]

_BEGIN = b"BEGIN; "
_BY_HAND = frozenset({"commit", "rollback"})
_IDLE, _NO_PIPELINE = pq.TransactionStatus.IDLE, pq.PipelineStatus.OFF


@asynccontextmanager
async def checked_transaction(conn: AsyncConnection[Any], check: bytes, around: Around) -> AsyncIterator[None]:
    """Open a transaction, or a savepoint in an open one, of which this is the first statement.

    Args:
        conn: any.
        check: a query without parameters, which fails where the transaction must not go on.
        around: makes what is around the sending of it, to map errors.
    """
    if not _begins_plainly(conn):
        async with conn.transaction():
            with around():
                await send_check(conn, check)
            yield
        return
    autocommit = conn.autocommit
    try:
        try:
            vars(conn).update(commit=_refuse_commit, rollback=_refuse_rollback)
            if not autocommit:  # else psycopg would send a BEGIN of its own first
                await conn.set_autocommit(True)
            with around():
                await send_check(conn, _BEGIN + check)
            yield
        finally:
            _refuse_no_more(conn)
    except BaseException as error:
        with suppress(psycopg.Error):  # what came first says more
            await conn.rollback()
        if not _stays_inside(error):
            raise
    else:
        _refuse_ended(conn)
        await conn.commit()
    finally:
        if not autocommit:
            try:
                await conn.set_autocommit(False)
            except psycopg.Error:  # nobody knows how it stands: it must not be used for anything else
                await conn.close()


@contextmanager
def sync_checked_transaction(conn: Connection[Any], check: bytes, around: Around) -> Iterator[None]:
    """Do the same on a blocking connection."""
    if not _begins_plainly(conn):
        with conn.transaction():
            with around():
                sync_send_check(conn, check)
            yield
        return
    autocommit = conn.autocommit
    try:
        try:
            vars(conn).update(commit=_sync_refuse_commit, rollback=_sync_refuse_rollback)
            if not autocommit:
                conn.autocommit = True
            with around():
                sync_send_check(conn, _BEGIN + check)
            yield
        finally:
            _refuse_no_more(conn)
    except BaseException as error:
        with suppress(psycopg.Error):
            conn.rollback()
        if not _stays_inside(error):
            raise
    else:
        _refuse_ended(conn)
        conn.commit()
    finally:
        if not autocommit:
            try:
                conn.autocommit = False
            except psycopg.Error:
                conn.close()


async def send_check(conn: AsyncConnection[Any], query: bytes) -> None:
    """Send it. The cursor is of our making: the connection may have factories of its own."""
    await AsyncCursor(conn, row_factory=tuple_row).execute(query, prepare=False)


def sync_send_check(conn: Connection[Any], query: bytes) -> None:
    """Do the same on a blocking connection."""
    Cursor(conn, row_factory=tuple_row).execute(query, prepare=False)


def _begins_plainly(conn: BaseConnection[Any]) -> bool:
    """Whether a transaction of this connection begins now, with a mere BEGIN, and in a query of its own."""
    pgconn = conn.pgconn
    if pgconn.transaction_status != _IDLE:
        return False
    if not _BY_HAND.isdisjoint(vars(conn)):  # ours, or somebody's who watches over this connection
        if vars(conn).get("commit") in {_refuse_commit, _sync_refuse_commit}:
            raise psycopg.ProgrammingError("somebody else is just beginning a fence on this connection")
        return False
    return (
        conn.isolation_level is None
        and conn.read_only is None
        and conn.deferrable is None
        and (not capabilities.has_pipeline() or pgconn.pipeline_status == _NO_PIPELINE)
    )


def _stays_inside(error: BaseException) -> bool:
    """Whether it is the exception that only asks for a rollback, and not of a transaction that somebody else opened."""
    return isinstance(error, psycopg.Rollback) and error.transaction is None


def _refuse_no_more(conn: BaseConnection[Any]) -> None:
    """Take off what stood before the methods of this one connection, which psycopg refuses in its transactions, too."""
    for name in _BY_HAND:
        vars(conn).pop(name, None)


def _refuse_ended(conn: BaseConnection[Any]) -> None:
    """Raise where a COMMIT or ROLLBACK was sent as a statement: it is too late then, but it is said."""
    if conn.pgconn.transaction_status == _IDLE:
        raise psycopg.ProgrammingError(
            "the transaction of a fence was ended inside the block: what came after that was not fenced"
        )


def _by_hand(name: str) -> psycopg.ProgrammingError:
    return psycopg.ProgrammingError(
        f"explicit {name}() forbidden inside a fence: what comes after it would not be fenced. The transaction is "
        "committed at the end of the block, and rolled back by an exception; psycopg.Rollback is one that stays inside."
    )


async def _refuse_commit() -> None:
    raise _by_hand("commit")


async def _refuse_rollback() -> None:
    raise _by_hand("rollback")


def _sync_refuse_commit() -> None:
    raise _by_hand("commit")


def _sync_refuse_rollback() -> None:
    raise _by_hand("rollback")
