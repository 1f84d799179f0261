"""What the demo cannot do it refuses, with the exit code of every command and one line that says why, no password."""

import re
import secrets
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

import pgelect
from pgelect.testing import Postgres
from tests.support.demos import Demo, demo_place, demos, nothing_of_it_is_left_in
from tests.support.pgbouncer import PgBouncer
from tests.support.processes import Worker
from tests.support.server import query


@pytest.fixture
def place() -> Iterator[Path]:
    with demo_place() as directory:
        yield directory


@pytest.fixture
def demo(place: Path, worker: Callable[..., Worker]) -> Demo:
    return demos(worker, place)


def fails(show: Worker, code: int, complaint: str) -> None:
    """It ends with that exit code and one line that says why."""
    assert show.wait(30) == code
    assert len(show.errors) == 1, show.errors
    assert re.search(complaint, show.errors[0])
    assert "Traceback" not in "\n".join(show.lines + show.errors)


@pytest.mark.parametrize(
    ("dsn", "code", "complaint"),
    [
        ("postgresql://me:hush-hush@127.0.0.1:1/x", 3, "pgelect demo: cannot connect: .*refused"),
        ("postgresql://me:hush-hu/sh@127.0.0.1:1/x", 4, "not percent-encoded"),
        ("hush-hush", 2, "dsn cannot be parsed"),
    ],
)
def test_a_server_that_cannot_be_reached_is_told_in_one_line(demo: Demo, dsn: str, code: int, complaint: str) -> None:
    show = demo("--dsn", dsn)
    fails(show, code, complaint)
    assert "hush" not in "\n".join(show.lines + show.errors)


def test_a_version_that_is_not_there_is_told_in_one_line(demo: Demo) -> None:
    fails(demo("--postgres", "17"), 1, r"no PostgreSQL 17; it has \[16, 18\]")


def test_a_schema_that_no_demo_made_is_left_alone(demo: Demo, database: str) -> None:
    query(database, "CREATE SCHEMA pgelect_demo; CREATE TABLE pgelect_demo.ledger AS SELECT 42 AS dear_data")
    fails(demo("--dsn", database), 4, "has a schema pgelect_demo that no demo made")
    assert query(database, "SELECT * FROM pgelect_demo.ledger") == [(42,)]


def test_a_role_that_may_not_make_a_schema_is_told_so(demo: Demo, database: str) -> None:
    role = f"role_{secrets.token_hex(4)}"
    query(database, f"{pgelect.schema_sql()}; CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA pgelect TO {role}")
    try:
        fails(
            demo("--dsn", make_conninfo(database, user=role)), 4, "this role may not make the demo's schema: permission"
        )
    finally:
        query(database, f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_second_demo_in_a_database_is_refused_and_the_first_goes_on(demo: Demo, database: str) -> None:
    first = demo("--dsn", database)
    first.wait_line("leads, with token 1", 20)
    fails(demo("--dsn", database), 1, "another pgelect demo is running in this database")
    first.wait_line("^Act 3", 30)
    first.signal(signal.SIGINT)
    assert first.wait(20) == 130
    nothing_of_it_is_left_in(database)


def test_a_transaction_pooler_is_refused_and_no_lock_is_left_in_it(
    demo: Demo, pgbouncer: Callable[..., PgBouncer], database: str
) -> None:
    fails(demo("--dsn", pgbouncer("transaction").through(database)), 4, "pooler in transaction mode")
    assert query(database, "SELECT * FROM pg_catalog.pg_locks WHERE locktype = 'advisory'") == []


def test_a_standby_is_refused(demo: Demo, standby_pair: tuple[Postgres, Postgres]) -> None:
    fails(demo("--dsn", standby_pair[1].dsn()), 3, "is a standby")
