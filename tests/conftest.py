"""Fixtures: servers shared by the whole run, a database for each test, and things to break them with.

Every test starts on an empty database of its own. After it, no task of its loop and no session of pgelect may remain.
"""

import asyncio
import inspect
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from pgelect.testing import Postgres, installed_postgres, throwaway_postgres
from tests.support.databases import fresh_database
from tests.support.environment import installed_programs, missing, named_installed
from tests.support.pgbouncer import PgBouncer, PoolMode, find_pgbouncer
from tests.support.processes import Worker
from tests.support.proxy import BreakableProxy
from tests.support.unclosed import name_the_makers
from tests.support.waiting import POLL_S, scaled

TESTS = Path(__file__).parent
KINDS = ("unit", "contract", "simulation", "integration")
SERVERS = ("pg16", "pg18", "pg_debian")
NEEDS = {"pg_debian": "debian", "pgbouncer": "pgbouncer"}


def pytest_configure() -> None:
    """Have a connection that nobody closed say where it came from."""
    name_the_makers()


def pytest_report_header() -> str:
    """Name the server whose version depends on the machine."""
    return f"pg_debian: {named_installed()}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by their directory and by what they need."""
    for item in items:
        kind = item.path.relative_to(TESTS).parts[0] if item.path.is_relative_to(TESTS) else ""
        if kind in KINDS:
            item.add_marker(kind)
        if isinstance(item, pytest.Function):
            callspec = getattr(item, "callspec", None)
            names = {*item.fixturenames, *(map(str, callspec.params.values()) if callspec else ())}
            for name in NEEDS.keys() & names:
                item.add_marker(NEEDS[name])


# Servers


@pytest.fixture(scope="session")
def pg18() -> Iterator[Postgres]:
    with throwaway_postgres(18) as server:
        yield server


@pytest.fixture(scope="session")
def pg16() -> Iterator[Postgres]:
    with throwaway_postgres(16) as server:
        yield server


@pytest.fixture(scope="session")
def pg_debian() -> Iterator[Postgres]:
    """The server that the system installed: PostgreSQL 15, or at a desk without it the newest there is."""
    with installed_postgres(installed_programs()) as server:
        yield server


@pytest.fixture(scope="session")
def server(pg18: Postgres) -> Postgres:
    """The default server. Shared: a test that stops or reconfigures it takes `own_server`."""
    return pg18


@pytest.fixture(scope="session", params=SERVERS)
def any_server(request: pytest.FixtureRequest) -> Postgres:
    """Each major version in turn."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Postgres)
    return found


@pytest.fixture
def own_server() -> Iterator[Postgres]:
    """A server that the test may do anything to."""
    with throwaway_postgres() as server:
        yield server


@pytest.fixture
def standby_pair(own_server: Postgres) -> Iterator[tuple[Postgres, Postgres]]:
    """A primary, and a hot standby that streams from it."""
    with own_server.standby() as standby:
        yield own_server, standby


# Databases


@pytest.fixture(autouse=True)
def last_of_all() -> Iterator[ExitStack]:
    """What is entered here ends after every other fixture of the test: it comes first, whatever the test asks for."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def database(server: Postgres, last_of_all: ExitStack) -> str:
    """A connection string to a database of the test's own, on the default server."""
    return last_of_all.enter_context(fresh_database(server))


@pytest.fixture
def any_database(any_server: Postgres, last_of_all: ExitStack) -> str:
    """The same on each major version in turn."""
    return last_of_all.enter_context(fresh_database(any_server))


@pytest.fixture
def key() -> tuple[int, int]:
    """The two halves of a lock key that no other test has: signed 32-bit numbers."""
    return secrets.randbelow(2**32) - 2**31, secrets.randbelow(2**32) - 2**31


# Things that break, or stand between


@pytest.fixture
def proxy(server: Postgres) -> Iterator[BreakableProxy]:
    """A breakable proxy in front of the default server: connect to `proxy.dsn(database)`."""
    with BreakableProxy("127.0.0.1", server.port) as proxy:
        yield proxy


@pytest.fixture
def pgbouncer(server: Postgres) -> Iterator[Callable[..., PgBouncer]]:
    """A factory: `pgbouncer("transaction", pool_size=1)`, in front of the default server or of `upstream`."""
    if find_pgbouncer() is None:
        missing("pgbouncer")
    with ExitStack() as started:

        def start(
            pool_mode: PoolMode = "transaction",
            pool_size: int = 20,
            *,
            upstream: Postgres | None = None,
            settings: dict[str, str] | None = None,
        ) -> PgBouncer:
            pooler = PgBouncer(upstream or server, pool_mode, pool_size, settings=settings)
            return started.enter_context(pooler)

        yield start


@pytest.fixture
def worker() -> Iterator[Callable[..., Worker]]:
    """A factory of child processes: `worker("-c", code, dsn)`; killed at the end, stopped or not."""
    with ExitStack() as started:
        yield lambda *arguments, **options: started.enter_context(Worker(*arguments, **options))


# Nothing may be left


@pytest.fixture(autouse=True)
def nothing_left_running(request: pytest.FixtureRequest) -> None:
    """Check the tasks of tests that have an event loop, and only of those."""
    if inspect.iscoroutinefunction(getattr(request, "function", None)):
        request.getfixturevalue("no_tasks_left")


@pytest_asyncio.fixture
async def no_tasks_left() -> AsyncIterator[None]:
    """After the test, no task but our own remains within a second."""
    before = asyncio.all_tasks()
    yield
    loop = asyncio.get_running_loop()
    deadline = loop.time() + scaled(1.0)
    while left := asyncio.all_tasks() - before - {asyncio.current_task()}:
        if loop.time() > deadline:
            pytest.fail("tasks remain after the test:\n" + "\n".join(map(repr, left)))
        await asyncio.sleep(POLL_S)
