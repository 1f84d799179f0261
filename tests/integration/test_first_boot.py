"""Twenty processes start for the first time on an empty database, all at once."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from pgelect._engine.crowd import PLACES
from pgelect._postgres.install import FUNCTIONS, RELATIONS, SCHEMA_VERSION
from tests.support.electors import Elector, one_leads
from tests.support.replicas import Replicas
from tests.support.server import lock_holders, lock_waiters, query, sessions
from tests.support.waiting import eventually, eventually_sync

Key = tuple[int, int]
MANY = 20
OBJECTS = """
SELECT relname::text FROM pg_class WHERE relnamespace = 'pgelect'::regnamespace AND relkind IN ('r', 'S', 'v')
UNION ALL SELECT proname::text FROM pg_proc WHERE pronamespace = 'pgelect'::regnamespace
"""


async def start_at_once(stack: AsyncExitStack, electors: list[Elector]) -> list[BaseException | None]:
    """Start all behind a barrier; what each start raised. They end with the stack."""
    barrier = asyncio.Barrier(len(electors))

    async def start(elector: Elector) -> None:
        await barrier.wait()
        await stack.enter_async_context(elector)

    return await asyncio.gather(*(start(elector) for elector in electors), return_exceptions=True)


async def test_twenty_first_starts_at_once_all_come_up_and_one_leads(any_database: str, key: Key) -> None:
    """Regression: CREATE ... IF NOT EXISTS of several sessions at once fails with a duplicate key in the catalogs."""
    assert query(any_database, "SELECT to_regnamespace('pgelect')") == [(None,)]
    electors = [Elector(any_database, key, lease_s=10.0) for _ in range(MANY)]
    async with AsyncExitStack() as stack:
        assert await start_at_once(stack, electors) == [None] * MANY
        leader = await one_leads(*electors)
        await eventually(lambda: len(lock_waiters(any_database, *key)) == PLACES, message="others wait")
        assert len(lock_holders(any_database, *key)) == 1
        assert len(sessions(any_database)) == MANY
        assert {name for (name,) in query(any_database, OBJECTS)} == {*RELATIONS, *FUNCTIONS}
        rows = query(any_database, "SELECT key1, key2, token, holder, terms FROM pgelect.token")
        assert rows == [(*key, leader.lock.token, leader.lock.identity, 1)]
        assert query(any_database, "SELECT max(version) FROM pgelect.schema_version") == [(SCHEMA_VERSION,)]
        assert [elector.errors for elector in electors] == [[]] * MANY


@pytest.mark.parametrize("n", range(4))
async def test_first_starts_on_different_keys_get_a_row_each(database: str, key: Key, n: int) -> None:
    """The schema is shared though the locks are not: nothing but its own creation serialises these starts."""
    electors = [Elector(database, (key[0], i), lease_s=10.0) for i in range(MANY // 2)]
    async with AsyncExitStack() as stack:
        assert await start_at_once(stack, electors) == [None] * len(electors)
        terms = [await elector.leads() for elector in electors]
        assert len({term.token for term in terms}) == len(electors)
        assert query(database, "SELECT count(*), count(DISTINCT token) FROM pgelect.token") == [(len(electors),) * 2]
        assert [elector.errors for elector in electors] == [[]] * len(electors)


def test_first_starts_of_real_processes(database: str, key: Key) -> None:
    with Replicas(database, key, lease_s=10.0) as group:
        replicas = [group.launch(f"r{n}") for n in range(4)]
        for replica in replicas:
            replica.wait_for("started", 30)
        eventually_sync(lambda: sum(1 for replica in replicas if replica.term) == 1, message="one leads")
        eventually_sync(lambda: len(lock_waiters(database, *key)) == 3, message="the others wait in the queue")
        assert len(group.holders()) == 1
        assert query(database, "SELECT count(*) FROM pgelect.token") == [(1,)]
        assert [replica.all("error", "start_raised") for replica in replicas] == [[]] * 4
