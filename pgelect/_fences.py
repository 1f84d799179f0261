"""Fencing by a lock: transactions that count only in its present term."""

from __future__ import annotations

import time
from abc import abstractmethod
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from pgelect._engine.home import Owned
from pgelect._postgres.checked import CheckedTransaction
from pgelect.errors import NotLeaderError, StaleTokenError
from pgelect.fencing import check_failed, check_query, check_token

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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

    def fence(self, conn: AsyncConnection[Any]) -> AbstractAsyncContextManager[Term, bool | None]:
        """Open a transaction on ``conn`` (a savepoint inside an open one) that commits only under this term's token.

        From here to the end of the transaction no newer term can begin. The token is bound to the transaction, so that
        guarded tables can be written.

        Raises:
            NotLeaderError: this process does not lead; nothing was sent.
            StaleTokenError: a newer term has begun; the transaction is rolled back.
            SessionLostError: ``conn`` ended during the check. (Where it ends elsewhere, psycopg's own error says so.)
        """
        return _Fence(self, conn)

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

    def _answered(self, conn: BaseConnection[Any], term: Term) -> Callable[[BaseException | None], None]:
        """Make what hears of the answer to a check that is sent now: it is metered, and its error mapped."""
        began_at = time.monotonic()

        def answered(error: BaseException | None) -> None:
            told = error
            if isinstance(error, psycopg.Error):
                told = check_failed(error, conn, term.key, term.token)
            outcome: FenceOutcome = "ok" if told is None else "stale" if isinstance(told, StaleTokenError) else "failed"
            self._meter.tell(lambda to: to.fence_check(time.monotonic() - began_at, outcome))
            if told is not None and told is not error:
                raise told from error

        return answered

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
        if not self._settings.fencing:
            raise ValueError("this lock was made with fencing=False: there is no token to check")
        term = self.term
        if term is None:  # in a forked process, too
            self._check_pid()
            raise NotLeaderError(self.key, self.state)
        return term


class _Fence(CheckedTransaction):
    """One fenced transaction."""

    __slots__ = ("_fences",)

    def __init__(self, fences: Fences, conn: AsyncConnection[Any]) -> None:
        super().__init__(conn)
        self._fences = fences

    async def __aenter__(self) -> Term:
        term = self._fences._fencing_term()  # noqa: SLF001 -- the two are one
        answered = self._fences._answered(self._conn, term)  # noqa: SLF001 -- the two are one
        await self._open(check_query(term.key.key1, term.key.key2, term.token), answered)
        return term
