"""A table that leaders write their token to, and connections to write with."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg

from tests.support.server import query

Connection = psycopg.AsyncConnection[Any]


def make_ledger(database: str) -> str:
    """Make the table in this database; returns the database."""
    query(database, "CREATE TABLE ledger (id int GENERATED ALWAYS AS IDENTITY, token bigint NOT NULL)")
    return database


def written(database: str) -> list[int]:
    return [token for (token,) in query(database, "SELECT token FROM ledger ORDER BY id")]


async def write(conn: Connection, token: int) -> None:
    await conn.execute("INSERT INTO ledger (token) VALUES (%s)", (token,))


@asynccontextmanager
async def connected(database: str, **options: Any) -> AsyncIterator[Connection]:
    conn = await psycopg.AsyncConnection.connect(database, **options)
    try:
        async with conn:
            yield conn
    finally:
        await conn.close()  # a cancel that meets the rollback at the end of that leaves it open
