"""Anybody may notify, with anything in it: no observer ends by that."""

import psycopg

from pgelect import schema_sql
from pgelect._postgres.announcing import CHANGES
from tests.support.electors import Elector
from tests.support.observers import Observer
from tests.support.server import query

Key = tuple[int, int]
QUICK = {"lease_s": 10.0, "health_interval_s": 0.2}


def notify(dsn: str, channels: tuple[str, ...], text: bytes, encoding: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("SELECT set_config('client_encoding', %s, false)", (encoding,))
        for channel in channels:
            conn.pgconn.exec_(b"SELECT pg_notify('" + channel.encode() + b"', '" + text + b"')")


async def test_nonsense_of_any_depth_ends_no_observer(database: str, key: Key) -> None:
    query(database, schema_sql())
    async with Observer(database, key) as seen:
        notify(database, (CHANGES,), b"[" * 7999, "UTF8")
        notify(database, (CHANGES,), b'{"key1":' * 900, "UTF8")
        async with Elector(database, key, **QUICK) as a:
            await seen.sees("began", (await a.leads()).token)
        assert not {"blind", "back"} & set(seen.kinds)
