"""Fencing by a lock: transactions that count only in its present term."""

from __future__ import annotations

import time
from abc import abstractmethod
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from pgelect._engine.home import Owned
from pgelect._postgres.checked import checked_transaction
from pgelect.errors import NotLeaderError, StaleTokenError
from pgelect.fencing import check_query, check_token, checking

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from psycopg import AsyncConnection, BaseConnection

    from pgelect._engine.meter import FenceOutcome, Meter
    from pgelect._engine.model import LockKey, LockState, Term
    from pgelect._engine.settings import Settings


class Fences(Owned):
    """The half of a lock that checks tokens."""

    _settings: Settings
    _meter: Meter

    @property
    @abstractmethod
    def key(self) -> LockKey:
        """The key of the lock."""

    @property
    @abstractmethod
    def state(self) -> LockState:
        """What the lock is doing."""

    @property
    @abstractmethod
    def term(self) -> Term | None:
        """The present term."""

    @asynccontextmanager
    async def fence(self, conn: AsyncConnection[Any]) -> AsyncIterator[Term]:
        """Open a transaction on ``conn`` (a savepoint inside an open one) that commits only under this term's token.

        From here to the end of the transaction no newer term can begin. The token is bound to the transaction, so that
        guarded tables can be written.

        Raises:
            NotLeaderError: this process does not lead; nothing was sent.
            StaleTokenError: a newer term has begun; the transaction is rolled back.
            SessionLostError: ``conn`` ended during the check. (Where it ends elsewhere, psycopg's own error says so.)
        """
        term = self._fencing_term()
        check = check_query(term.key.key1, term.key.key2, term.token)
        async with checked_transaction(conn, check, lambda: self._checking(conn, term.token)):
            yield term

    async def check_fence(self, conn: AsyncConnection[Any]) -> None:
        """Check this term's token in the open transaction of ``conn``, and bind it to that transaction.

        Raises:
            NotLeaderError: this process does not lead; nothing was sent.
            StaleTokenError: a newer term has begun; roll back.
            SessionLostError: ``conn`` ended during the check.
        """
        term = self._fencing_term()
        with self._metered_check():
            await check_token(conn, term.key, term.token)

    @contextmanager
    def _checking(self, conn: BaseConnection[Any], token: int) -> Iterator[None]:
        with self._metered_check(), checking(conn, self.key, token):
            yield

    @contextmanager
    def _metered_check(self) -> Iterator[None]:
        began_at = time.monotonic()
        outcome: FenceOutcome = "failed"
        try:
            yield
            outcome = "ok"
        except StaleTokenError:
            outcome = "stale"
            raise
        finally:
            self._meter.tell(lambda to: to.fence_check(time.monotonic() - began_at, outcome))

    def _fencing_term(self) -> Term:
        self._check_pid()
        if not self._settings.fencing:
            raise ValueError("this lock was made with fencing=False: there is no token to check")
        term = self.term
        if term is None:
            raise NotLeaderError(self.key, self.state)
        return term
