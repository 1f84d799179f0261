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

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import AsyncCursor, Cursor, capabilities, pq
from psycopg.errors import error_from_result
from psycopg.generators import execute
from psycopg.rows import tuple_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from psycopg import AsyncConnection, BaseConnection, Connection
    from psycopg.abc import PQGen

    Answered = Callable[[BaseException | None], None]

_BEGIN = b"BEGIN; "
_BY_HAND = ("commit", "rollback")
_IDLE, _NO_PIPELINE = pq.TransactionStatus.IDLE, pq.PipelineStatus.OFF


class CheckedTransaction:
    """A transaction, or a savepoint in an open one, of which a check is the first statement; for one block.

    What enters it opens it with ``_open``. A class of as few calls as can be, since it is in the way of every fenced
    write: a generator, or a context manager inside another one, costs about as much as all that is done here.

    Args:
        conn: any.
    """

    __slots__ = ("_autocommit", "_conn", "_inner", "_opened")

    def __init__(self, conn: AsyncConnection[Any]) -> None:
        self._conn = conn
        self._opened = False
        self._autocommit = True
        self._inner: AbstractAsyncContextManager[Any] | None = None  # psycopg's, where it opens the transaction

    async def _open(self, check: bytes, answered: Answered) -> None:
        """Begin.

        Args:
            check: a query without parameters, which fails where the transaction must not go on.
            answered: told of its error, for which it may raise another one, or None.
        """
        if self._opened:
            raise RuntimeError("a fence is for one block: make another one for the next")
        self._opened = True
        conn = self._conn
        plainly = _begins_plainly(conn)
        if plainly:
            self._autocommit = conn.autocommit
            _refuse(conn, _refuse_commit, _refuse_rollback)
        else:
            inner = conn.transaction()
            await inner.__aenter__()
            self._inner = inner
        try:
            if not self._autocommit:  # else psycopg would send a BEGIN of its own first
                await conn.set_autocommit(True)
            try:
                if plainly:
                    async with conn.lock:
                        await conn.wait(_begun(conn, check))
                else:
                    await send_check(conn, check)
            except BaseException as error:
                answered(error)
                raise
            answered(None)
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if self._inner is not None:
            return await self._inner.__aexit__(kind, error, trace)
        conn = self._conn
        _refuse_no_more(conn)
        try:
            if error is None:
                _refuse_ended(conn)
                await conn.commit()
                return None
            with suppress(psycopg.Error):  # what came first says more
                await conn.rollback()
            return _stays_inside(error)
        finally:
            if not self._autocommit:
                try:
                    await conn.set_autocommit(False)
                except psycopg.Error:  # nobody knows how it stands: it must not be used for anything else
                    await conn.close()


@contextmanager
def sync_checked_transaction(conn: Connection[Any], check: bytes, answered: Answered) -> Iterator[None]:
    """Do the same on a blocking connection."""
    if not _begins_plainly(conn):
        with conn.transaction():
            _sync_told(lambda: sync_send_check(conn, check), answered)
            yield
        return
    autocommit = conn.autocommit
    try:
        try:
            _refuse(conn, _sync_refuse_commit, _sync_refuse_rollback)
            if not autocommit:
                conn.autocommit = True
            _sync_told(lambda: _sync_begin(conn, check), answered)
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


def _sync_told(send: Callable[[], None], answered: Answered) -> None:
    try:
        send()
    except BaseException as error:
        answered(error)
        raise
    answered(None)


async def send_check(conn: AsyncConnection[Any], query: bytes) -> None:
    """Send it. The cursor is of our making: the connection may have factories of its own."""
    await AsyncCursor(conn, row_factory=tuple_row).execute(query, prepare=False)


def sync_send_check(conn: Connection[Any], query: bytes) -> None:
    """Do the same on a blocking connection."""
    Cursor(conn, row_factory=tuple_row).execute(query, prepare=False)


def _sync_begin(conn: Connection[Any], check: bytes) -> None:
    with conn.lock:
        conn.wait(_begun(conn, check))


def _begun(conn: BaseConnection[Any], check: bytes) -> PQGen[None]:
    """Do what psycopg does for a BEGIN of its own: a cursor costs some percent of a short transaction."""
    conn.pgconn.send_query(_BEGIN + check)
    results = yield from execute(conn.pgconn)
    if results[-1].status == pq.ExecStatus.FATAL_ERROR:
        raise error_from_result(results[-1], conn.info.encoding)


def _begins_plainly(conn: BaseConnection[Any]) -> bool:
    """Whether a transaction of this connection begins now, with a mere BEGIN, and in a query of its own."""
    pgconn, kind = conn.pgconn, type(conn)
    if pgconn.transaction_status != _IDLE:
        return False
    for name in _BY_HAND:
        method = getattr(conn, name)
        if getattr(method, "__func__", None) is not getattr(kind, name):  # somebody's who watches over this connection
            if method in _REFUSING:
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


def _refuse(conn: BaseConnection[Any], *refusing: Callable[[], Any]) -> None:
    """Put these before the methods of this one connection, which psycopg refuses in its transactions, too.

    One by one: to touch the dictionary of an object makes Python slower with all its attributes from then on.
    """
    for name, refuse in zip(_BY_HAND, refusing, strict=True):
        setattr(conn, name, refuse)


def _refuse_no_more(conn: BaseConnection[Any]) -> None:
    """Take that off again."""
    for name in _BY_HAND:
        delattr(conn, name)


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


_REFUSING = frozenset({_refuse_commit, _refuse_rollback, _sync_refuse_commit, _sync_refuse_rollback})
