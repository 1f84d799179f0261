"""A writer's connection to PostgreSQL, and the ledger that it writes to."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg

from pgelect._engine.model import LockKey
from pgelect._postgres.errors import is_lost
from pgelect.errors import PgElectError, SessionLostError, StaleTokenError
from tests.contract.client import Client, SerializationError

# The order of the commits is what the server says: each transaction takes its number when it is about to commit, and a
# lock, held until it has committed, keeps the next one from taking a number before.
CREATE_LEDGER = """
CREATE TABLE public.ledger (
    id bigint GENERATED ALWAYS AS IDENTITY, key1 int NOT NULL, key2 int NOT NULL, token bigint NOT NULL,
    value bigint NOT NULL
);
CREATE TABLE public.committed (n bigint GENERATED ALWAYS AS IDENTITY, id bigint NOT NULL);
CREATE FUNCTION public.note_commit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_catalog.pg_advisory_xact_lock(20261130);
    INSERT INTO public.committed (id) VALUES (NEW.id);
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER note_commit AFTER INSERT ON public.ledger DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION public.note_commit()
"""
READ_LEDGER = """
SELECT token, value FROM public.ledger JOIN public.committed USING (id) WHERE key1 = %s AND key2 = %s ORDER BY n
"""
_WRITE = "INSERT INTO public.ledger (key1, key2, token, value) VALUES (%s, %s, %s, %s)"

_STALE = "PGE01"


class PostgresClient(Client):
    """One connection, with transactions begun and ended by hand."""

    def __init__(self, key: LockKey, dsn: str) -> None:
        self._key = key
        self._dsn = dsn
        self._conn: psycopg.AsyncConnection[Any] | None = None
        self._token = 0

    async def open(self) -> None:
        self._conn = await psycopg.AsyncConnection.connect(self._dsn, autocommit=True)
        self.pid = self._conn.info.backend_pid

    async def begin(self, isolation: str = "read committed") -> None:
        self._token = 0
        await self._execute(f"BEGIN ISOLATION LEVEL {isolation}")

    async def check(self, token: int) -> None:
        # Not pgelect.check_token: that tells a serialization failure as a stale token.
        async with self._refusals(token):
            await self._execute("SELECT pgelect.check_token(%s, %s, %s)", self._key.key1, self._key.key2, token)
        self._token = token

    async def peek(self) -> int | None:
        rows = await self._execute(
            "SELECT token FROM pgelect.token WHERE key1 = %s AND key2 = %s", self._key.key1, self._key.key2
        )
        if not rows:
            return None
        self._token = rows[0][0]
        return self._token

    async def write(self, value: int) -> None:
        async with self._refusals(self._token):
            await self._execute(_WRITE, self._key.key1, self._key.key2, self._token, value)

    async def commit(self) -> None:
        async with self._refusals(self._token):
            await self._execute("COMMIT")

    async def rollback(self) -> None:
        await self._execute("ROLLBACK")

    async def close(self) -> None:
        if self._conn is not None:
            await self._conn.close()

    @asynccontextmanager
    async def _refusals(self, token: int) -> AsyncIterator[None]:
        try:
            yield
        except psycopg.errors.SerializationFailure as error:
            raise SerializationError(str(error)) from error
        except psycopg.Error as error:
            if error.sqlstate == _STALE:
                raise StaleTokenError(self._key, token) from error
            raise PgElectError(str(error)) from error

    async def _execute(self, statement: str, *params: object) -> list[tuple[Any, ...]]:
        assert self._conn is not None
        try:
            cursor = await self._conn.execute(statement.encode(), params or None)
            return await cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            if is_lost(error, self._conn):
                raise SessionLostError("closed", str(error)) from error
            raise
