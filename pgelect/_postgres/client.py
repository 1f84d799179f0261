"""A connection for a command or an onlooker: bounded calls, and errors that are one line without a password."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from pgelect._engine.model import LockKey
from pgelect._postgres.connect import Connector
from pgelect._postgres.dsn import check_dsn
from pgelect._postgres.link import Deadline, Link
from pgelect._postgres.options import SessionOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from psycopg import AsyncConnection

T = TypeVar("T")

CONNECT_WITHIN_S = 10.0
ANSWER_WITHIN_S = 10.0
_NO_KEY = LockKey(0, 0)  # the connector asks for one, and connecting uses none


class Client:
    """One connection in autocommit mode. A call that is cancelled or late drops it."""

    def __init__(self, link: Link) -> None:
        self._link = link

    @classmethod
    async def connect(cls, dsn: str) -> Client:
        """Connect; empty: as libpq's environment says.

        Raises:
            ValueError, ConfigurationError: the DSN cannot be read.
            SessionLostError: no connection.
        """
        check_dsn(dsn)
        options = SessionOptions(key=_NO_KEY, identity="pgelect", lease_s=CONNECT_WITHIN_S, dsn=dsn)
        return cls(await Connector(options).connect(Deadline.after(CONNECT_WITHIN_S)))

    @classmethod
    @asynccontextmanager
    async def connected(cls, dsn: str) -> AsyncIterator[Client]:
        """Connect for the length of a block."""
        client = await cls.connect(dsn)
        try:
            yield client
        finally:
            client.close()

    @property
    def conn(self) -> AsyncConnection[Any]:
        """The driver's connection, for calls that need no deadline."""
        return self._link.conn

    @property
    def closed(self) -> bool:
        """Whether the connection is gone."""
        return self._link.dropped or self._link.conn.closed

    async def run(
        self,
        work: Callable[[AsyncConnection[Any]], Coroutine[Any, Any, T]],
        doing: str,
        within_s: float = ANSWER_WITHIN_S,
    ) -> T:
        """Run ``work`` on the connection within that many seconds; ``doing`` names it in errors.

        Raises:
            SessionLostError: no answer in time, or the session ended.
            PgElectError: the server refused a statement.
        """
        return await self._link.run(work, Deadline.after(within_s), doing)

    def close(self) -> None:
        """End the connection; harmless when repeated."""
        self._link.drop()
