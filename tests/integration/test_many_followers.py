"""Many followers of one lock: some wait in the server's queue, the others stand aside, are counted, and come back."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest_asyncio
from psycopg import AsyncConnection

from pgelect import LeaderLock, get_leader
from pgelect._engine.crowd import PLACES
from pgelect._postgres.campaign_sql import aside_halves
from tests.support.server import query
from tests.support.waiting import eventually

NUMBER = PLACES + 4  # a leader, a full queue, and three aside
_CROWD = """
SELECT pid, objsubid = 2 AND granted, objsubid = 2 AND NOT granted, objsubid = 1 FROM pg_catalog.pg_locks
WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_catalog.pg_database
    WHERE datname = pg_catalog.current_database())
  AND ((objsubid = 2 AND classid = %s AND objid = %s) OR (objsubid = 1 AND classid = %s AND objid = %s))
"""


class Crowd:
    """Locks of one key, as the server sees them."""

    def __init__(self, dsn: str, locks: list[LeaderLock]) -> None:
        self._dsn = dsn
        self.locks = locks
        key = locks[0].key
        self._numbers = (key.classid, key.objid, *aside_halves(key))

    def pids(self) -> list[list[int]]:
        """Who holds the lock, who waits for it, and who stands aside."""
        rows = query(self._dsn, _CROWD, *self._numbers)
        return [[row[0] for row in rows if row[column]] for column in (1, 2, 3)]

    async def settles(self, number: int) -> None:
        """Wait until one leads, the queue is full, and all others stand aside."""

        def as_it_should_be() -> bool:
            holders, waiting, aside = self.pids()
            everybody = {*holders, *waiting, *aside}
            return (len(holders), len(waiting)) == (1, PLACES) and len(everybody) == number

        await eventually(as_it_should_be, message=f"one leads, {PLACES} wait, and the others stand aside")

    def leader(self) -> LeaderLock | None:
        """Who says that it leads."""
        return next((lock for lock in self.locks if lock.is_leader), None)


@pytest_asyncio.fixture
async def crowd(database: str) -> AsyncIterator[Crowd]:
    async with AsyncExitStack() as stack:
        locks = [LeaderLock(database, name="crowded", identity=f"lock-{number}") for number in range(NUMBER)]
        await asyncio.gather(*(stack.enter_async_context(lock) for lock in locks))
        yield Crowd(database, locks)


async def test_of_many_followers_a_few_wait_and_the_others_stand_aside(crowd: Crowd) -> None:
    await crowd.settles(NUMBER)


async def test_a_queue_that_has_lost_somebody_is_filled_again(crowd: Crowd, database: str) -> None:
    await crowd.settles(NUMBER)
    before = crowd.leader()
    assert before is not None
    await before.shutdown()
    await eventually(lambda: crowd.leader() not in {None, before}, message="another leads")
    await crowd.settles(NUMBER - 1)


async def test_when_the_leader_and_all_who_wait_end_at_once_one_of_those_aside_leads(
    crowd: Crowd, database: str
) -> None:
    await crowd.settles(NUMBER)
    holders, waiting, aside = crowd.pids()
    ended = [*holders, *waiting]
    query(database, "SELECT pg_terminate_backend(pid) FROM unnest(%s::int4[]) AS pid", ended)

    def led_anew() -> bool:
        now, _, _ = crowd.pids()
        return bool(now) and now != holders and crowd.leader() is not None

    await eventually(led_anew, message="somebody leads")
    assert aside
    await crowd.settles(NUMBER)  # those that were ended come back


async def test_a_stranger_who_has_the_lock_of_those_aside_only_makes_them_wait(database: str) -> None:
    key = LeaderLock(database, name="crowded").key
    high, low = aside_halves(key)
    number = (high << 32 | low) - (1 << 64 if high >> 31 else 0)
    async with AsyncExitStack() as stack:
        async with await AsyncConnection.connect(database, autocommit=True) as stranger:
            await stranger.execute(f"SELECT pg_advisory_lock({number})")
            locks = [LeaderLock(database, name="crowded", identity=f"lock-{n}") for n in range(NUMBER)]
            await asyncio.gather(*(stack.enter_async_context(lock) for lock in locks))
            crowd = Crowd(database, locks)

            def all_wait() -> bool:
                holders, waiting, _ = crowd.pids()
                return len(holders) == 1 and len(waiting) > PLACES

            await eventually(all_wait, message="the followers wait though nobody can stand aside")
        await crowd.settles(NUMBER)


async def test_onlookers_and_the_leader_count_those_aside_among_the_followers(crowd: Crowd, database: str) -> None:
    await crowd.settles(NUMBER)

    async def all_are_seen() -> bool:  # but for one that is between two slices
        seen = await get_leader(database, "crowded")
        return seen is not None and seen.followers == NUMBER - 1

    check: Callable[[], bool | Awaitable[bool]] = all_are_seen
    await eventually(check, message=f"{NUMBER - 1} followers are seen")
