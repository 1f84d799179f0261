"""Fencing on psycopg's blocking connections; see ``pgelect.fencing``, whose statements and errors these are."""

# ruff: noqa: SLF001 -- what it works with is its own lock

from __future__ import annotations

from abc import abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from pgelect._postgres.checked import sync_checked_transaction, sync_send_check
from pgelect.fencing import check_answered, check_failed, check_query, refuse_autocommit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgelect._engine import model
    from pgelect._engine.model import LockKey
    from pgelect._sync_term import Term
    from pgelect.lock import LeaderLock


def check_token(conn: psycopg.Connection[Any], key: LockKey, token: int) -> None:
    """Check the token in the current transaction, and hold off the next one until that ends.

    Args:
        conn: in a transaction, or one that begins a transaction with its next statement.
        key: the lock.
        token: that of the term which the transaction's writes belong to.

    Raises:
        StaleTokenError: the term is over; roll back.
        ConfigurationError: the connection is in autocommit mode outside a transaction: the check would protect nothing.
        SchemaError: the schema is missing, or the role may not call the check.
        SessionLostError: the connection ended during the check.
        PgElectError: the server refused for another reason.
    """
    refuse_autocommit(conn)
    try:
        sync_send_check(conn, check_query(key.key1, key.key2, token))
    except psycopg.Error as error:
        raise check_failed(error, conn, key, token) from error


@contextmanager
def fenced(conn: psycopg.Connection[Any], key: LockKey, token: int) -> Iterator[None]:
    """Open a transaction (a savepoint inside an open one) whose writes count only in the term of ``token``.

    It commits at the end of the block and rolls back on any exception.

    Raises:
        StaleTokenError: the term is over; nothing was written.
        PgElectError: as ``check_token``.
    """
    check = check_query(key.key1, key.key2, token)
    with sync_checked_transaction(conn, check, check_answered(conn, key, token)):
        yield


class Fences:
    """The half of a blocking lock that checks tokens."""

    _inner: LeaderLock

    @abstractmethod
    def _own(self, term: model.Term) -> Term:
        """Return that term as threads see it."""

    @contextmanager
    def fence(self, conn: psycopg.Connection[Any]) -> Iterator[Term]:
        """Open a transaction on ``conn`` (a savepoint inside an open one) that commits only under this term's token.

        Raises:
            NotLeaderError: this process does not lead; nothing was sent.
            StaleTokenError: a newer term has begun; the transaction is rolled back.
            SessionLostError: ``conn`` ended during the check.
        """
        term = self._inner._fencing_term()
        check = check_query(term.key.key1, term.key.key2, term.token)
        with sync_checked_transaction(conn, check, self._inner._answered(conn, term)):
            yield self._own(term)

    def check_fence(self, conn: psycopg.Connection[Any]) -> None:
        """Check this term's token in the open transaction of ``conn``, and bind it to that transaction.

        Raises:
            NotLeaderError: this process does not lead; nothing was sent.
            StaleTokenError: a newer term has begun; roll back.
            SessionLostError: ``conn`` ended during the check.
        """
        term = self._inner._fencing_term()
        with self._inner._metered_check():
            check_token(conn, term.key, term.token)
