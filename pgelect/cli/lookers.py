"""A connection for a subcommand that looks on, and what the server's clock says: ages are told by it, not by ours."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from psycopg.sql import SQL

from pgelect._postgres.client import Client
from pgelect._postgres.opened import results
from pgelect._postgres.sql import instant

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from datetime import datetime

    from psycopg import AsyncConnection

T = TypeVar("T")

_NOW = SQL("SELECT (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::pg_catalog.int8")


class Looker:
    """Asks a server what an onlooker asks, each call bounded."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def ask(self, work: Callable[[AsyncConnection[Any]], Coroutine[Any, Any, T]]) -> T:
        """Run a function of ``pgelect.observe`` on the connection.

        Raises:
            PgElectError: no answer in time, the session ended, or the server refused.
        """
        return await self._client.run(work, "looking on")

    async def now(self) -> datetime:
        """Read the server's clock."""

        async def work(conn: AsyncConnection[Any]) -> int:
            return int((await results(conn, _NOW))[0][0][0])

        return instant(await self.ask(work))


@asynccontextmanager
async def looking(dsn: str) -> AsyncIterator[Looker]:
    """Connect, and leave nothing behind.

    Raises:
        ValueError, ConfigurationError: the DSN cannot be read.
        SessionLostError: no connection.
    """
    client = await Client.connect(dsn)
    try:
        yield Looker(client)
    finally:
        client.close()
