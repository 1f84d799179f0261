"""Where connections come from: a DSN, a callable that is asked each time, or the user's own function."""

import asyncio
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from pgelect import ConfigurationError, LeaderLock, LockState, SessionLostError
from tests.support.locks import Key, Story, make_lock
from tests.support.server import lock_holders, query, sessions, terminate
from tests.support.waiting import eventually, scaled

Connection = psycopg.AsyncConnection[Any]
SECRET = "s3cret"


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
async def test_a_dsn_that_is_a_callable_is_asked_for_each_attempt(database: str, key: Key, is_async: bool) -> None:
    """Holds off a password that rotates, and a lock that keeps knocking with the old one."""
    asked: list[str] = []

    def dsn() -> str:
        asked.append("a dsn")
        return database if len(asked) > 2 else "host=127.0.0.1 port=1"

    async def dsn_later() -> str:
        await asyncio.sleep(0)
        return dsn()

    lock = LeaderLock(dsn_later if is_async else dsn, *key, retry_strategy=lambda _: 0.02)
    story = Story(lock)
    async with lock:
        await lock.wait_for_leadership(scaled(10))
        assert len(asked) == 3
        assert len(story.errors) == 2
        terminate(database, lock_holders(database, *key)[0])
        await story.tells("acquired", "lost", "acquired")
        assert len(asked) == 4


async def test_a_dsn_callable_that_fails_is_asked_again_and_tells_no_password(database: str, key: Key) -> None:
    calls: list[int] = []

    async def dsn() -> str:
        calls.append(1)
        if len(calls) < 3:
            raise RuntimeError(f"the vault refused postgresql://me:{SECRET}@db/app password={SECRET}")
        return database

    lock = LeaderLock(dsn, *key, retry_strategy=lambda _: 0.02)
    story = Story(lock)
    async with lock:
        await lock.wait_for_leadership(scaled(10))
    assert [type(error) for error in story.errors] == [SessionLostError] * 2
    assert all("RuntimeError" in str(error) for error in story.errors)
    assert all(SECRET not in str(error) + repr(error) for error in story.errors)


@pytest.mark.parametrize("answer", [None, 42, b"host=db"])
async def test_a_dsn_callable_that_returns_no_text_is_a_mistake(key: Key, answer: Any) -> None:
    lock = LeaderLock(lambda: answer, *key)
    with pytest.raises(ConfigurationError, match="dsn callable"):
        await lock.start()
    assert lock.state is LockState.STOPPED


BAD = [
    f"host=db {SECRET}",
    f"postgresql://me:{SECRET}%zz@db/app",
    f"postgresql://me:{SECRET}@[::1/app",
    f"postgresql://me@db/app?nonsense={SECRET}",
    f"password='{SECRET}",
    f"{SECRET}",
]


@pytest.mark.parametrize("dsn", BAD)
def test_a_dsn_that_cannot_be_read_is_refused_without_showing_it(key: Key, dsn: str) -> None:
    with pytest.raises(ValueError, match="dsn") as refused:
        LeaderLock(dsn, *key)
    assert SECRET not in str(refused.value)
    assert SECRET not in "".join(map(str, refused.value.args))


async def test_a_password_that_is_not_percent_encoded_is_refused_without_showing_it(key: Key) -> None:
    """libpq would take a part of it for the host, and print it."""
    for secret in ("p/ss", "p@ss"):
        dsn = f"postgresql://me:{secret}@db/app"
        lock = LeaderLock(dsn, *key)
        with pytest.raises(ConfigurationError, match="percent-encoded") as refused:
            await lock.start()
        assert secret not in str(refused.value)


async def test_connect_fn_gives_the_connection_and_the_dsn_is_not_used(database: str, key: Key) -> None:
    made: list[Connection] = []

    async def connect() -> Connection:
        conn = await psycopg.AsyncConnection.connect(database, autocommit=True)
        made.append(conn)
        return conn

    lock = make_lock("host=127.0.0.1 port=1", key, connect_fn=connect)
    async with lock:
        await lock.wait_for_leadership(scaled(10))
        assert lock_holders(database, *key) == [made[0].info.backend_pid]
        assert sessions(database)[0].application_name.startswith("pgelect:")
        terminate(database, made[0].info.backend_pid)
        await eventually(lambda: len(made) == 2)
        await lock.wait_for_leadership(scaled(10))
    assert all(conn.closed for conn in made)
    assert lock_holders(database, *key) == []


async def test_a_connection_that_is_not_in_autocommit_is_switched(database: str, key: Key) -> None:
    """Holds off a session that idles in a transaction, and a lock that is gone with a rollback."""
    made: list[Connection] = []

    async def connect() -> Connection:
        conn = await psycopg.AsyncConnection.connect(
            database, row_factory=dict_row, cursor_factory=psycopg.AsyncClientCursor, prepare_threshold=0
        )
        made.append(conn)
        return conn

    async with make_lock(database, key, connect_fn=connect) as lock:
        await lock.wait_for_leadership(scaled(10))
        assert made[0].autocommit
        (pid,) = lock_holders(database, *key)
        await eventually(lambda: query(database, "SELECT state FROM pg_stat_activity WHERE pid=%s", pid) == [("idle",)])
        assert lock.is_leader


@pytest.mark.parametrize("outcome", ["open", "failed"])
async def test_a_connection_inside_a_transaction_is_refused_clearly(database: str, key: Key, outcome: str) -> None:
    made: list[Connection] = []

    async def connect() -> Connection:
        conn = await psycopg.AsyncConnection.connect(database)
        made.append(conn)
        with suppress(psycopg.Error):
            await conn.execute("SELECT 1" if outcome == "open" else "SELECT 1/0")
        return conn

    lock = make_lock(database, key, connect_fn=connect)
    with pytest.raises(ConfigurationError, match="transaction"):
        await lock.start()
    assert lock.state is LockState.STOPPED
    assert made[0].closed
    await eventually(lambda: lock_holders(database, *key) == [])
    others = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    await eventually(lambda: query(database, others) == [])


@pytest.mark.parametrize("wrong", [None, "a connection", 42])
async def test_a_connect_fn_that_returns_something_else_is_a_mistake(key: Key, wrong: Any) -> None:
    async def connect() -> Any:
        return wrong

    with pytest.raises(ConfigurationError, match="connect_fn"):
        await LeaderLock("", *key, connect_fn=connect).start()


async def test_a_connect_fn_that_is_not_async_is_a_mistake(database: str, key: Key) -> None:
    with psycopg.connect(database) as conn:

        def connect() -> Any:
            return conn

        with pytest.raises(ConfigurationError, match="connect_fn"):
            await LeaderLock("", *key, connect_fn=connect).start()


async def test_a_connect_fn_that_fails_or_gives_a_closed_connection_is_asked_again(database: str, key: Key) -> None:
    calls: list[int] = []

    async def connect() -> Connection:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError(f"cannot reach postgresql://me:{SECRET}@db/app")
        conn = await psycopg.AsyncConnection.connect(database)
        if len(calls) == 2:
            await conn.close()
        return conn

    lock = make_lock(database, key, connect_fn=connect)
    story = Story(lock)
    async with lock:
        await lock.wait_for_leadership(scaled(10))
    assert [type(error) for error in story.errors] == [SessionLostError] * 2
    assert "RuntimeError" in str(story.errors[0])
    assert SECRET not in str(story.errors[0])
    assert "closed" in str(story.errors[1])


async def test_a_connect_fn_that_hangs_is_ended_with_the_lock(key: Key) -> None:
    begun, ended = asyncio.Event(), list[int]()

    async def connect() -> Connection:
        try:
            begun.set()
            await asyncio.Event().wait()
            raise AssertionError
        finally:
            ended.append(1)

    lock = make_lock("", key, connect_fn=connect)
    starting = asyncio.create_task(lock.start())
    await begun.wait()
    async with asyncio.timeout(scaled(2)):
        await lock.shutdown()
        await starting
    await eventually(lambda: ended == [1])


async def test_the_environment_is_used_without_a_dsn(database: str, key: Key, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in psycopg.conninfo.conninfo_to_dict(database).items():
        monkeypatch.setenv({"dbname": "PGDATABASE"}.get(name, f"PG{name.upper()}"), str(value))
    async with LeaderLock(key1=key[0], key2=key[1]) as lock:
        await lock.wait_for_leadership(scaled(10))
        assert len(lock_holders(database, *key)) == 1
