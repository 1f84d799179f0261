"""A database for one test, and the check that nothing was left in it."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from pgelect.testing import Postgres
from tests.support.server import Session, query, sessions
from tests.support.waiting import eventually_sync

STRATEGIES_FROM = 15
"""The first version of PostgreSQL that can be told how to copy a database."""


@contextmanager
def fresh_database(server: Postgres, encoding: str | None = None) -> Iterator[str]:
    """Make an empty database and yield its connection string; at the end no session of pgelect may remain in it."""
    name = f"test_{secrets.token_hex(6)}"
    options = "" if encoding is None else f"ENCODING '{encoding}' LOCALE 'C'"
    if server.version >= STRATEGIES_FROM:
        options += " STRATEGY FILE_COPY"  # half the work of the default, where nothing is durable
    query(server.dsn(), f"CREATE DATABASE {name} TEMPLATE template0 {options}")
    dsn = server.dsn(name)
    try:
        yield dsn
        if server.is_running:
            _none_remain(dsn)
    finally:
        if server.is_running:
            query(server.dsn(), f"DROP DATABASE {name} WITH (FORCE)")


def _none_remain(dsn: str) -> None:
    left: list[Session] = []

    def none_left() -> bool:
        left[:] = sessions(dsn)
        return not left

    try:
        eventually_sync(none_left, 2.0)
    except AssertionError:
        raise AssertionError(f"sessions of pgelect remain after the test: {left}") from None
