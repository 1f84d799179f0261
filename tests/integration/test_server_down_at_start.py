"""The server cannot be reached, or refuses, when the process starts: that is waited out, and on_error says why."""

import asyncio
import socket
from contextlib import ExitStack, suppress
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgelect import LockState, SessionLostError
from pgelect.testing import Postgres
from tests.support.databases import fresh_database
from tests.support.electors import Elector
from tests.support.server import lock_holders, query, sessions
from tests.support.waiting import eventually

Key = tuple[int, int]
PASSWORD = "open-sesame-4711"


@pytest.fixture
def own_database(own_server: Postgres, last_of_all: ExitStack) -> str:
    return last_of_all.enter_context(fresh_database(own_server))


def name_of(dsn: str) -> str:
    return str(conninfo_to_dict(dsn)["dbname"])


def is_waiting_as_follower(elector: Elector) -> bool:
    return elector.lock.state is LockState.FOLLOWER and not elector.is_leader and not elector.looks.spans


def said_nowhere(secret: str, *told: object) -> bool:
    return not any(secret in f"{item} {item!r}" for item in told)


async def leads_at_last(elector: Elector, dsn: str, key: Key) -> None:
    term = await elector.leads()
    assert elector.terms == [("acquired", term.token)]
    assert lock_holders(dsn, *key) == [session.pid for session in sessions(dsn)]


async def test_a_server_that_is_down_is_waited_for(own_server: Postgres, own_database: str, key: Key) -> None:
    own_server.stop()
    async with Elector(own_database, key) as a:  # start() returns
        error = await a.hears(SessionLostError, "refused")
        assert getattr(error, "reason", "") == "connect"
        assert str(own_server.port) in str(error)
        assert is_waiting_as_follower(a)
        await eventually(lambda: len(a.errors) > 3, message="it keeps trying")
        with pytest.raises(TimeoutError):
            await a.lock.wait_for_leadership(timeout_s=0.1)
        await asyncio.to_thread(own_server.start)
        await leads_at_last(a, own_database, key)


async def test_a_lock_whose_server_never_came_can_be_shut_down(
    own_server: Postgres, own_database: str, key: Key
) -> None:
    own_server.stop()
    async with Elector(own_database, key) as a:
        await a.hears(SessionLostError)
    assert a.lock.state is LockState.STOPPED
    assert a.terms == []
    own_server.start()


async def test_a_wrong_password_is_tried_again_and_never_shown(
    own_server: Postgres, own_database: str, key: Key, caplog: pytest.LogCaptureFixture
) -> None:
    query(own_database, f"CREATE ROLE guest LOGIN PASSWORD '{PASSWORD}-right'")
    query(own_database, f"GRANT CREATE ON DATABASE {name_of(own_database)} TO guest")
    ask_for_passwords(own_server, "guest")
    dsn = make_conninfo(own_database, user="guest", password=PASSWORD)
    caplog.set_level("DEBUG", "pgelect")
    async with Elector(dsn, key) as a:
        error = await a.hears(SessionLostError, "password authentication failed")
        assert "guest" in str(error)
        await eventually(lambda: len(a.errors) > 2, message="it keeps trying")
        assert is_waiting_as_follower(a)
        query(own_database, f"ALTER ROLE guest PASSWORD '{PASSWORD}'")
        await leads_at_last(a, own_database, key)
        assert said_nowhere(PASSWORD, *a.errors, a.lock, caplog.text)


async def test_a_password_that_rotates_is_asked_for_at_each_attempt(
    own_server: Postgres, own_database: str, key: Key
) -> None:
    query(own_database, f"CREATE ROLE guest SUPERUSER LOGIN PASSWORD '{PASSWORD}-new'")
    ask_for_passwords(own_server, "guest")
    passwords = iter([f"{PASSWORD}-old", f"{PASSWORD}-older"])

    async def dsn() -> str:
        return make_conninfo(own_database, user="guest", password=next(passwords, f"{PASSWORD}-new"))

    async with Elector(dsn, key) as a:
        await leads_at_last(a, own_database, key)
        assert ["password authentication failed" in str(error) for error in a.errors] == [True, True]
        assert said_nowhere(PASSWORD, *a.errors)


async def test_a_missing_database_is_waited_for(own_server: Postgres, key: Key) -> None:
    dsn = own_server.dsn("not_yet", password=PASSWORD)
    async with Elector(dsn, key) as a:
        error = await a.hears(SessionLostError, 'database "not_yet" does not exist')
        assert said_nowhere(PASSWORD, error)
        assert is_waiting_as_follower(a)
        query(own_server.dsn(), "CREATE DATABASE not_yet TEMPLATE template0")
        await leads_at_last(a, dsn, key)


async def test_a_server_that_is_full_is_waited_for(own_server: Postgres, own_database: str, key: Key) -> None:
    own_server.configure(max_connections="12")
    own_server.restart()
    with ExitStack() as guests:
        with suppress(psycopg.OperationalError):
            while True:
                guests.enter_context(psycopg.connect(own_database, password=PASSWORD))
        async with Elector(make_conninfo(own_database, password=PASSWORD), key) as a:
            error = await a.hears(SessionLostError, "too many clients")
            assert said_nowhere(PASSWORD, error)
            assert is_waiting_as_follower(a)
            guests.close()
            await leads_at_last(a, own_database, key)


async def test_a_server_that_lets_nobody_into_the_database_is_waited_for(
    own_server: Postgres, own_database: str, key: Key
) -> None:
    name = name_of(own_database)
    query(own_server.dsn(), "CREATE ROLE guest LOGIN")
    query(own_server.dsn(), f"GRANT CREATE ON DATABASE {name} TO guest")
    query(own_server.dsn(), f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    async with Elector(make_conninfo(own_database, user="guest"), key) as a:
        await a.hears(SessionLostError, "not currently accepting connections")
        query(own_server.dsn(), f"ALTER DATABASE {name} ALLOW_CONNECTIONS true CONNECTION LIMIT 0")
        await a.hears(SessionLostError, "too many connections for database")
        assert is_waiting_as_follower(a)
        query(own_server.dsn(), f"ALTER DATABASE {name} CONNECTION LIMIT -1")
        await leads_at_last(a, own_database, key)


async def test_a_name_is_resolved_anew_for_each_attempt(
    database: str, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[Any] = [socket.gaierror(socket.EAI_AGAIN, "try again"), "127.0.0.2"]
    resolve = socket.getaddrinfo

    def resolved(host: str, *args: Any, **kwargs: Any) -> Any:
        if host != "db.invalid":
            return resolve(host, *args, **kwargs)
        answer = answers.pop(0) if answers else "127.0.0.1"
        if isinstance(answer, Exception):
            raise answer
        return resolve(answer, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    async with Elector(make_conninfo(database, host="db.invalid"), key) as a:
        await leads_at_last(a, database, key)
        assert "db.invalid" in str(a.errors[0])
        assert "127.0.0.2" in str(a.errors[1])
        assert len(a.errors) == 2


def ask_for_passwords(server: Postgres, role: str) -> None:
    """Have this role give a password; all others are trusted as before."""
    rules = server.data_dir / "pg_hba.conf"
    rules.write_text(f"host all {role} 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
    server.reload()
