"""A server that asks for passwords: whichever way one is given, right or wrong, nothing ever says it."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgelect import FixedInterval, LeaderLock, SessionLostError
from pgelect.testing import Postgres, throwaway_postgres
from tests.support.locks import Story
from tests.support.roles import as_administrator
from tests.support.said import all_said
from tests.support.server import lock_holders, terminate
from tests.support.waiting import eventually, scaled

Key = tuple[int, int]
SECRET = "s3cret"
RIGHT = f"p@ss/{SECRET} w:rd'\\%"
WRONG = f"n@t/{SECRET}  w:rd'\\%"
USER = "careful"
FORMS = ["pairs", "uri", "uri query", "callable", "async callable", "connect_fn", "PGPASSWORD", "password file"]


@pytest.fixture(scope="module")
def asking_server() -> Iterator[Postgres]:
    """A server that asks this one user for a password."""
    with throwaway_postgres() as server:
        rules = server.data_dir / "pg_hba.conf"
        rules.write_text(f"host all {USER} all scram-sha-256\n{rules.read_text()}")
        server.reload()
        yield server


@pytest.fixture
def asking(asking_server: Postgres) -> Iterator[str]:
    """A connection string to it, without the password."""
    escaped = RIGHT.replace("'", "''")
    as_administrator(asking_server.dsn(), f"CREATE ROLE {USER} LOGIN SUPERUSER PASSWORD '{escaped}'")
    yield asking_server.dsn(user=USER)
    as_administrator(asking_server.dsn(), f"DROP SCHEMA IF EXISTS pgelect CASCADE; DROP ROLE {USER}")


Give = Callable[[str, str, str], dict[str, Any]]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Give:
    """A function of a form, a DSN and a password: the arguments of a lock that gets it in that form."""

    def give(form: str, dsn: str, password: str) -> dict[str, Any]:
        pairs = make_conninfo(dsn, password=password)
        at = conninfo_to_dict(dsn)
        place, coded = f"{at['host']}:{at['port']}/{at['dbname']}", quote(password, safe="")

        async def later() -> str:
            return pairs

        async def connect() -> psycopg.AsyncConnection[Any]:
            return await psycopg.AsyncConnection.connect(pairs)

        if form == "PGPASSWORD":
            monkeypatch.setenv("PGPASSWORD", password)
        file = tmp_path / "passwords"
        file.write_text("*:*:*:{}:{}\n".format(USER, password.replace("\\", "\\\\").replace(":", "\\:")))
        file.chmod(0o600)
        forms: dict[str, dict[str, Any]] = {
            "pairs": {"dsn": pairs},
            "uri": {"dsn": f"postgresql://{USER}:{coded}@{place}"},
            "uri query": {"dsn": f"postgresql://{place}?user={USER}&password={coded}"},
            "callable": {"dsn": lambda: pairs},
            "async callable": {"dsn": later},
            "connect_fn": {"connect_fn": connect},
            "PGPASSWORD": {"dsn": dsn},
            "password file": {"dsn": make_conninfo(dsn, passfile=str(file))},
        }
        return forms[form]

    return give


@asynccontextmanager
async def started(
    key: Key, caplog: pytest.LogCaptureFixture, **arguments: Any
) -> AsyncIterator[tuple[LeaderLock, Story]]:
    caplog.set_level("DEBUG", "pgelect")
    settings: dict[str, Any] = {"lease_s": 2.0, "health_interval_s": 0.1, "retry_strategy": FixedInterval(0.05)}
    lock = LeaderLock(key1=key[0], key2=key[1], **settings, **arguments)
    story = Story(lock)
    async with lock:
        yield lock, story


def said(caplog: pytest.LogCaptureFixture, lock: LeaderLock, story: Story) -> str:
    parts = [lock, lock.term, lock.record, lock.bounds(), lock._settings, lock._runner, lock._new_runner, vars(lock)]
    return all_said(caplog.records, *parts, *story.errors, *story.failures)


@pytest.mark.parametrize("form", FORMS)
async def test_a_password_that_is_right_is_never_said(
    asking: str, key: Key, caplog: pytest.LogCaptureFixture, given: Give, form: str
) -> None:
    """Through a term, the loss of its session, a time in which the server refuses, and another term."""
    administrator = make_conninfo(asking, user="postgres")
    arguments = given(form, asking, RIGHT)
    async with started(key, caplog, **arguments) as (lock, story):
        await lock.wait_for_leadership(scaled(10))
        as_administrator(administrator, f"ALTER ROLE {USER} CONNECTION LIMIT 0 NOSUPERUSER")
        terminate(administrator, lock_holders(administrator, *key)[0])
        await eventually(lambda: any("too many connections" in str(error) for error in story.errors))
        as_administrator(administrator, f"ALTER ROLE {USER} CONNECTION LIMIT -1 SUPERUSER")
        await lock.wait_for_leadership(scaled(10))
        text = said(caplog, lock, story)
    assert "leader" in text
    assert "too many connections" in text
    assert SECRET not in text + all_said(caplog.records)


@pytest.mark.parametrize("form", FORMS)
async def test_a_password_that_is_wrong_is_never_said(
    asking: str, key: Key, caplog: pytest.LogCaptureFixture, given: Give, form: str
) -> None:
    arguments = given(form, asking, WRONG)
    async with started(key, caplog, **arguments) as (lock, story):
        await eventually(lambda: len(story.errors) >= 2)
        text = said(caplog, lock, story)
    assert all(isinstance(error, SessionLostError) for error in story.errors)
    assert "password authentication failed" in text
    assert SECRET not in text + all_said(caplog.records)


async def test_a_server_that_quotes_the_password_back_is_not_quoted(
    asking: str, key: Key, caplog: pytest.LogCaptureFixture
) -> None:
    """A server's text may hold what one sent it: here the password is the name of a database that does not exist."""
    dsn = make_conninfo(asking, user="postgres", password=RIGHT, dbname=RIGHT)
    async with started(key, caplog, dsn=dsn) as (lock, story):
        await eventually(lambda: story.errors)
        text = said(caplog, lock, story)
    assert 'database "***" does not exist' in text
    assert SECRET not in text
