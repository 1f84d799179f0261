"""Pairs of servers, a primary and its standby, that the tests of one module share; a schema; roles with few rights."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from pgelect import schema_sql
from tests.support.replication import VERSIONS, Pair, Pairs, shared_pairs
from tests.support.roles import Roles
from tests.support.server import query


@pytest.fixture(scope="module")
def pairs() -> Iterator[Pairs]:
    with shared_pairs() as pairs:
        yield pairs


@pytest.fixture
def pair(pairs: Pairs) -> Iterator[Pair]:
    """Put in order before each test; its configuration is to be left as it is."""
    with pairs.lend() as pair:
        yield pair


@pytest.fixture(params=VERSIONS)
def any_pair(request: pytest.FixtureRequest, pairs: Pairs) -> Iterator[Pair]:
    """On each major version in turn."""
    with pairs.lend(request.param) as pair:
        yield pair


@pytest.fixture
def here(database: str) -> str:
    """A database with the schema."""
    query(database, schema_sql())
    return database


@pytest.fixture
def roles(database: str, last_of_all: ExitStack) -> Roles:
    """In a database of the test's own; they are dropped when all else is closed."""
    return last_of_all.enter_context(Roles(database))


@pytest.fixture
def any_roles(any_database: str, last_of_all: ExitStack) -> Roles:
    """The same on each kind of server in turn."""
    return last_of_all.enter_context(Roles(any_database))
