"""The connection of an observer: it listens, and looks. A notification only says that it is time for a look.

Behind a pooler nothing is set and nothing is listened to, for both would reach other clients: it only looks. On a
standby, where one cannot listen, it only looks until that is promoted; and so it does in a database of an encoding in
which a neighbour could send what ends the session.
"""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Self

from psycopg.sql import SQL, Identifier, Literal

from pgelect._engine.model import LockKey
from pgelect._postgres.announcing import CHANGES, may_listen
from pgelect._postgres.asking import Batches
from pgelect._postgres.client import Client
from pgelect._postgres.observing import Here, look, look_around
from pgelect._postgres.opened import results

if TYPE_CHECKING:
    from psycopg import AsyncConnection

    from pgelect._engine.model import LeaderRecord

ANSWER_WITHIN_S = 5.0
# Not for ever: what is sent to somebody who has stopped reading fills a queue that all databases of the server share.
_SILENT_AT_LEAST_S = 60.0


class Watcher:
    """One connection, until it breaks."""

    def __init__(self, client: Client, key: LockKey | None, here: Here) -> None:
        self._client = client
        self._key = key
        self._here = here

    @classmethod
    async def open(cls, dsn: str, key: LockKey | None, look_every_s: float) -> Self:
        """Connect, and listen where that is possible. Whatever happens, nothing is left behind.

        Raises:
            SessionLostError: no connection, or no answer in time.
            PgElectError: the server refused, or the schema cannot be read.
        """
        client = await Client.connect(dsn)
        try:
            here = await client.run(_around, "looking at the schema pgelect", ANSWER_WITHIN_S)
            watcher = cls(client, key, here)
            if watcher._is_direct:
                silent_s = max(_SILENT_AT_LEAST_S, 10 * look_every_s)
                await client.run(lambda conn: _settle_in(conn, silent_s), "opening the session", ANSWER_WITHIN_S)
            await watcher._listen()
        except BaseException:
            client.close()
            raise
        return watcher

    async def look(self) -> dict[LockKey, LeaderRecord]:
        """Read how it is now.

        Raises:
            SessionLostError: no answer in time, or the session ended.
            PgElectError: the server refused.
        """
        if self._here.in_recovery:
            self._here = await self._client.run(_around, "looking at the schema pgelect", ANSWER_WITHIN_S)
            await self._listen()
        here = self._here
        records = await self._client.run(
            lambda conn: look(Batches(conn), here, self._key), "reading who leads", ANSWER_WITHIN_S
        )
        return {LockKey(record.key1, record.key2, record.name): record for record in records}

    async def wait(self, for_s: float) -> None:
        """Wait for news, that long at most.

        Raises:
            SessionLostError: the session ended.
        """
        await self._client.run(lambda conn: _news(conn, self._key, for_s), "waiting for news", for_s + ANSWER_WITHIN_S)

    def close(self) -> None:
        """End the connection; harmless when repeated."""
        self._client.close()

    @property
    def _is_direct(self) -> bool:
        return self._here.pid == self._client.conn.info.backend_pid

    async def _listen(self) -> None:
        if self._is_direct and not self._here.in_recovery and may_listen(self._client.conn):
            listen = SQL("LISTEN {}").format(Identifier(CHANGES))
            await self._client.run(lambda conn: results(conn, listen), "listening", ANSWER_WITHIN_S)


async def _around(conn: AsyncConnection[Any]) -> Here:
    return await look_around(Batches(conn))


async def _settle_in(conn: AsyncConnection[Any], silent_s: float) -> None:
    silent = f"{round(silent_s * 1000)}ms"
    values = {
        "application_name": "pgelect observer",
        "client_encoding": "UTF8",  # in which all can be said that a neighbour may send
        "idle_session_timeout": silent,
        "tcp_user_timeout": silent,
        "statement_timeout": "0",
    }
    settings = (SQL("pg_catalog.set_config({}, {}, false)").format(*map(Literal, item)) for item in values.items())
    await results(conn, SQL("SELECT {}").format(SQL(", ").join(settings)))


async def _news(conn: AsyncConnection[Any], key: LockKey | None, for_s: float) -> None:
    async with aclosing(conn.notifies(timeout=for_s)) as notes:
        async for note in notes:
            if note.channel == CHANGES and (key is None or _concerns(note.payload, key)):
                return


def _concerns(payload: str, key: LockKey) -> bool:
    """Whether a notification may be about that lock. Anybody can send one, with anything in it."""
    try:
        told = json.loads(payload)
    except (ValueError, RecursionError):
        return True
    if not isinstance(told, dict) or "key1" not in told or "key2" not in told:
        return True
    return (told["key1"], told["key2"]) == (key.key1, key.key2)
