"""A writer's connection to the fake server: transactions that are begun, checked, written and committed by a client."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pgelect.testing._fake_client_end import ClientEnd
from pgelect.testing._fake_transactions import FakeTransaction, Isolation

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgelect._engine.model import LockKey
    from pgelect.testing._fake_cluster import FakeBackend
    from pgelect.testing._fake_transactions import Tables
    from pgelect.testing._fake_wire import Wire

ANSWER_WITHIN_S = 60.0


class FakeClient:
    """One connection of a program that writes under the fence. Made by ``FakeServer.client``.

    Every call may raise SessionLostError: the connection is gone, and what the server did last is uncertain.

    Args:
        within_s: how long each call waits for its answer, in seconds, before it drops the connection.
    """

    def __init__(
        self,
        tables: Tables,
        key: LockKey,
        new_wire: Callable[[], Wire],
        *,
        within_s: float = ANSWER_WITHIN_S,
        killable: bool = True,
    ) -> None:
        self.key = key
        self._tables = tables
        self._end = ClientEnd(tables.cluster, new_wire, lease_s=None)
        self._within_s = within_s
        self._killable = killable
        self._transaction: FakeTransaction | None = None  # of the server

    @property
    def pid(self) -> int | None:
        """The pid of the server process; None before ``open``."""
        return self._end.pid

    async def open(self) -> None:
        """Connect."""
        await self._end.open(self._within_s, lambda: None)

    async def begin(self, isolation: Isolation = "read committed") -> None:
        """Begin a transaction. Its first statement takes its snapshot."""
        await self._end.ask(self._within_s, partial(self._begin, isolation))

    async def check(self, token: int) -> None:
        """Check a token, as ``pgelect.check_token`` does; from here on no newer one can be minted.

        Raises:
            StaleTokenError: it is not that of a current term.
            FakeSerializationError: the row was changed after the snapshot of this transaction.
        """
        await self._end.ask(self._within_s, lambda _: self._open().check(token))

    async def peek(self) -> int | None:
        """Read the token by a plain SELECT, which is no fence."""
        return await self._end.ask(self._within_s, lambda _: self._open().peek())

    async def write(self, value: int, token: int | None = None) -> None:
        """Insert a line into the ledger, with the token that was checked, or that one."""
        await self._end.ask(self._within_s, lambda _: self._write(value, token))

    async def commit(self) -> None:
        """Commit."""
        await self._end.ask(self._within_s, lambda _: self._open().commit())

    async def rollback(self) -> None:
        """Roll back."""
        await self._end.ask(self._within_s, lambda _: self._open().rollback())

    async def close(self) -> None:
        """End the connection; an open transaction is rolled back."""
        await self._end.close(self._within_s)

    def abandon(self) -> None:
        """Drop the link at once."""
        self._end.abandon()

    def _begin(self, isolation: Isolation, backend: FakeBackend) -> None:
        end = partial(self._tables.cluster.end, backend, "ended by a newer term of the lock")
        transaction = FakeTransaction(
            self._tables, self.key, backend.id.pid, isolation=isolation, killable=self._killable, on_kill=end
        )
        backend.on_end.append(transaction.rollback)
        self._transaction = transaction

    def _open(self) -> FakeTransaction:
        if self._transaction is None:
            raise RuntimeError("there is no transaction")
        return self._transaction

    def _write(self, value: int, token: int | None) -> None:
        transaction = self._open()
        transaction.write(transaction.token if token is None else token, value)
