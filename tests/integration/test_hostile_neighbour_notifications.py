"""Anybody may notify, with anything in it: no leader loses its session by that, and no observer ends."""

from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgelect import LockKey, schema_sql
from pgelect._postgres.announcing import CHANGES, step_down_channel
from pgelect.observe import request_step_down
from pgelect.testing import Postgres
from tests.support.databases import fresh_database
from tests.support.electors import Elector
from tests.support.observers import Observer
from tests.support.server import query
from tests.support.waiting import eventually

Key = tuple[int, int]
QUICK = {"lease_s": 10.0, "health_interval_s": 0.2}
NOT_UTF8 = {"SQL_ASCII": b"\xff\xfe", "WIN1252": b"\x81"}
"""Databases in which a text can be sent that cannot be said in UTF-8: the server ends a session that would hear it."""


@pytest.fixture(params=NOT_UTF8)
def odd(request: pytest.FixtureRequest, server: Postgres) -> Iterator[tuple[str, str]]:
    """Such a database with the schema, and its encoding."""
    with fresh_database(server, request.param) as dsn:
        query(dsn, schema_sql())
        yield dsn, request.param


def notify(dsn: str, channels: tuple[str, ...], text: bytes, encoding: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("SELECT set_config('client_encoding', %s, false)", (encoding,))
        for channel in channels:
            conn.pgconn.exec_(b"SELECT pg_notify('" + channel.encode() + b"', '" + text + b"')")


async def test_what_cannot_be_said_in_utf8_ends_no_term_and_blinds_nobody(odd: tuple[str, str], key: Key) -> None:
    dsn, encoding = odd
    async with Observer(dsn, key, look_every_s=0.1) as seen, Elector(dsn, key, **QUICK) as a:
        term = await a.leads()
        await seen.sees("began", term.token)
        await eventually(lambda: query(dsn, "SELECT 1 FROM pgelect.history"), message="the term is written down")
        notify(dsn, (CHANGES, step_down_channel(LockKey(*key))), NOT_UTF8[encoding], encoding)
        await a.proved(3)
        assert a.terms == [("acquired", term.token)]
        assert await request_step_down(dsn, key) == term.token  # not heard, but looked for after each proof
        await seen.sees("released", term.token)
        assert a.errors == []
        assert not {"blind", "back"} & set(seen.kinds)


async def test_what_cannot_be_said_in_the_encoding_of_the_role_or_dsn_blinds_no_observer(
    database: str, key: Key
) -> None:
    query(database, schema_sql())
    for encoding in ("LATIN1", "SQL_ASCII"):
        async with Observer(make_conninfo(database, client_encoding=encoding), key) as seen:
            notify(database, (CHANGES,), "名".encode(), "UTF8")
            async with Elector(database, key, **QUICK) as a:
                token = (await a.leads()).token
                await seen.sees("began", token)
            assert not {"blind", "back"} & set(seen.kinds)


async def test_nonsense_of_any_depth_ends_no_observer(database: str, key: Key) -> None:
    query(database, schema_sql())
    async with Observer(database, key) as seen:
        notify(database, (CHANGES,), b"[" * 7999, "UTF8")
        notify(database, (CHANGES,), b'{"key1":' * 900, "UTF8")
        async with Elector(database, key, **QUICK) as a:
            await seen.sees("began", (await a.leads()).token)
        assert not {"blind", "back"} & set(seen.kinds)
