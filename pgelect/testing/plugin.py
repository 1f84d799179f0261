"""Fixtures for pytest, for those who ask: ``pytest_plugins = ["pgelect.testing.plugin"]`` in a ``conftest.py``.

- ``pgelect_election``: a ``LocalElection``; every lock and group of the test elects in memory.
- ``pgelect_postgres``: a throwaway PostgreSQL server, the same for the whole run.
- ``pgelect_database``: the connection string of an empty database on it, for one test.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from pgelect.testing.election import LocalElection, local_election
from pgelect.testing.postgres import Postgres, throwaway_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def pgelect_election() -> Iterator[LocalElection]:
    """Have every lock and group of this test elect in memory. See ``pgelect.testing.local_election``."""
    with local_election() as election:
        yield election


@pytest.fixture(scope="session")
def pgelect_postgres() -> Iterator[Postgres]:
    """Start a throwaway PostgreSQL server; needs the extra ``demo``."""
    with throwaway_postgres() as server:
        yield server


@pytest.fixture
def pgelect_database(pgelect_postgres: Postgres) -> Iterator[str]:
    """Make an empty database, and give its connection string; it is dropped afterwards, whoever is connected."""
    name = f"test_{secrets.token_hex(6)}"
    with psycopg.connect(pgelect_postgres.dsn(), autocommit=True) as conn:
        conn.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
        yield pgelect_postgres.dsn(name)
        conn.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(name)))
