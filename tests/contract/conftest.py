"""The servers that each test of the contract runs on: the fake one, and three major versions of the real one."""

import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack

import pytest
import pytest_asyncio

from pgelect._engine.model import LockKey
from pgelect.testing import Postgres, installed_postgres, throwaway_postgres
from tests.contract.election import Election
from tests.contract.on_fake import FakeElection
from tests.contract.on_postgres import PostgresElection, prepare
from tests.contract.replication import FakeReplicated, PostgresReplicated, Replicated, on_pair
from tests.support.databases import fresh_database
from tests.support.replication import VERSIONS, Pairs, shared_pairs

SERVERS = ("fake", "pg_debian", "pg16", "pg18")

Place = tuple[Postgres, str]  # a server and a connection string to a database on it


@pytest.fixture(scope="session")
def places(request: pytest.FixtureRequest) -> Iterator[Callable[[str, bool], Place]]:
    """The databases of this suite, one on each server: for hundreds of short tests, new ones would be most of the time.

    A test has a key of its own, and after it no session remains.
    """
    made: dict[tuple[str, bool], Place] = {}
    with ExitStack() as started:

        def get(name: str, restartable: bool) -> Place:
            if (name, restartable) not in made:
                server = request.getfixturevalue(name)
                assert isinstance(server, Postgres)
                if restartable:
                    another = (
                        installed_postgres(server.bin_dir)
                        if name == "pg_debian"
                        else throwaway_postgres(server.version)
                    )
                    server = started.enter_context(another)
                database = started.enter_context(fresh_database(server))
                prepare(database)
                made[name, restartable] = server, database
            return made[name, restartable]

        yield get


@pytest_asyncio.fixture(params=SERVERS)
async def election(
    request: pytest.FixtureRequest, key: tuple[int, int], places: Callable[[str, bool], Place]
) -> AsyncIterator[Election]:
    """An election that nobody has taken part in yet."""
    made: Election
    if request.param == "fake":
        made = FakeElection(LockKey(*key))
    else:
        made = PostgresElection(LockKey(*key), places(request.param, False)[1])
    yield made
    await made.close()


@pytest_asyncio.fixture(params=SERVERS)
async def own_election(
    request: pytest.FixtureRequest, key: tuple[int, int], places: Callable[[str, bool], Place]
) -> AsyncIterator[Election]:
    """The same, on a server that may be restarted."""
    made: Election
    if request.param == "fake":
        made = FakeElection(LockKey(*key))
    else:
        server, database = places(request.param, True)
        made = PostgresElection(LockKey(*key), database, server)
    yield made
    await made.close()


@pytest.fixture(scope="module")
def pairs() -> Iterator[Pairs]:
    with shared_pairs(max_prepared_transactions="5") as pairs:
        yield pairs


@pytest.fixture
def dbname() -> str:
    """Of a database of the test's own."""
    return f"test_{secrets.token_hex(6)}"


@pytest_asyncio.fixture(params=["fake", *VERSIONS])
async def replicated(
    request: pytest.FixtureRequest, key: tuple[int, int], pairs: Pairs, dbname: str
) -> AsyncIterator[Replicated]:
    """An election on a server with a standby, that nobody has taken part in yet."""
    if request.param == "fake":
        made = FakeReplicated(LockKey(*key))
        yield made
        await made.close()
        return
    with pairs.lend(request.param) as pair:
        async with on_pair(pair, key, dbname) as election:
            yield election


@pytest_asyncio.fixture(params=["pg18", "pg_debian"])
async def replicated_postgres(
    request: pytest.FixtureRequest, key: tuple[int, int], pairs: Pairs, dbname: str
) -> AsyncIterator[PostgresReplicated]:
    """The same, for what only a real server has."""
    with pairs.lend(request.param) as pair:
        async with on_pair(pair, key, dbname) as election:
            yield election
