"""A program closes its event loop with the lock running in it and goes on in another: the old term ends."""

import asyncio
import gc
from collections.abc import Iterator

import pytest

from pgelect import GroupState, LeaderGroup, LeaderLock, LockState, Term
from tests.support.locks import Key, Story, leading, make_lock
from tests.support.server import lock_holders, sessions
from tests.support.waiting import eventually, eventually_sync, scaled

# Of the tasks that were left in the middle of a wait, in a loop that was closed so, Python itself complains.
pytestmark = pytest.mark.filterwarnings("ignore:Exception ignored in. <corout:pytest.PytestUnraisableExceptionWarning")

LEASE_S = 60.0  # so long that nothing here ends by it


@pytest.fixture
def left() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that a test leaves, and closes, as no well-behaved program does."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()
    gc.collect()


def lead_and_leave(loop: asyncio.AbstractEventLoop, lock: LeaderLock) -> Term:
    """Lead in that loop, and close it without a shutdown."""
    told: list[int] = []
    lock.on_acquired(lambda term: told.append(term.token))

    async def once() -> Term:
        await lock.start()
        term = await lock.wait_for_leadership(scaled(10))
        await eventually(lambda: told)
        return term

    term = loop.run_until_complete(once())
    loop.close()
    return term


def test_a_forsaken_term_is_over_before_its_link_is_dropped(
    database: str, key: Key, left: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: it was current for as long as its lease would have lasted, though others could lead already."""
    lock = make_lock(database, key, lease_s=LEASE_S)
    term = lead_and_leave(left, lock)
    assert term.is_current  # the session is there, and the server keeps the lock for it
    assert len(lock_holders(database, *key)) == 1
    seen: list[bool] = []
    drop = lock._runner._performer.abandon

    def look_and_drop() -> None:
        seen.append(term.is_current)
        drop()

    monkeypatch.setattr(lock._runner._performer, "abandon", look_and_drop)

    async def again() -> None:
        await lock.start()
        assert not term.is_current
        await asyncio.wait_for(term.ended(), 1.0)
        await lock.wait_for_leadership(scaled(10))
        assert not term.is_current
        assert len(lock_holders(database, *key)) == 1
        await lock.shutdown()

    asyncio.run(again())
    assert seen == [False]
    assert lock_holders(database, *key) == []


def test_a_shutdown_in_another_loop_frees_the_lock(database: str, key: Key, left: asyncio.AbstractEventLoop) -> None:
    """Regression: "this lock runs in another event loop; call it there", of a loop that was closed."""
    lock = make_lock(database, key, lease_s=LEASE_S)
    term = lead_and_leave(left, lock)
    asyncio.run(lock.shutdown())
    assert (lock.state, lock.is_leader, term.is_current) == (LockState.STOPPED, False, False)
    assert lock.record is not None
    assert lock.record.token == term.token  # what was seen last is still known
    eventually_sync(lambda: lock_holders(database, *key) == [] == sessions(database), message="the lock is free")


def test_a_function_for_leaders_only_follows_the_lock(database: str, key: Key, left: asyncio.AbstractEventLoop) -> None:
    """Regression: it asked the runner of the loop that was closed."""
    lock = make_lock(database, key, lease_s=LEASE_S)
    led = lock.leader_only(lambda: "led")
    lead_and_leave(left, lock)
    assert led() == "led"

    async def again() -> str | None:
        async with leading(database, (key[0], key[1] ^ 1)):  # whatever else runs in this loop
            await lock.start()
            assert led() is None
            await lock.wait_for_leadership(scaled(10))
            said = led()
            await lock.shutdown()
            return said

    assert asyncio.run(again()) == "led"
    assert led() is None


def test_the_end_of_the_term_is_told_in_the_next_loop(database: str, key: Key, left: asyncio.AbstractEventLoop) -> None:
    """Every on_acquired has its on_lost, whatever a program does with its loops."""
    lock = make_lock(database, key, lease_s=LEASE_S)
    story = Story(lock)
    lead_and_leave(left, lock)
    asyncio.run(lock.shutdown())  # nothing runs there that could tell
    assert story.told == ["acquired"]

    async def again() -> None:
        async with lock:
            await story.tells("acquired", "lost", "acquired")

    asyncio.run(again())
    assert story.told == ["acquired", "lost", "acquired", "released"]


def test_a_group_that_is_shut_down_in_another_loop_frees_its_locks_and_tells_of_them_in_the_next(
    database: str, left: asyncio.AbstractEventLoop
) -> None:
    """Regression: shutdown() did nothing, and the locks stayed for as long as the process did."""
    names = ["one", "two"]
    group = LeaderGroup(database, names=names, lease_s=LEASE_S)
    told: list[tuple[str, str]] = []
    group.on_acquired(lambda term: told.append(("acquired", term.key.name)))
    group.on_lost(lambda term: told.append(("lost", term.key.name)))
    group.on_released(lambda term: told.append(("released", term.key.name)))

    async def leads(told_in_all: int) -> list[Term]:
        await eventually(lambda: (len(told), len(group.leading)) == (told_in_all, 2), message="both are led, and told")
        return list(group.leading.values())

    async def once() -> list[Term]:
        await group.start()
        return await leads(2)

    terms = left.run_until_complete(once())
    left.close()
    assert all(term.is_current for term in terms)

    asyncio.run(group.shutdown())
    assert (group.state, dict(group.leading)) == (GroupState.STOPPED, {})
    assert not any(term.is_current for term in terms)
    eventually_sync(lambda: sessions(database) == [], message="the locks are free")
    assert len(told) == 2  # nothing ran there that could tell

    async def again() -> None:
        async with group:
            assert {term.token for term in await leads(6)}.isdisjoint(term.token for term in terms)

    asyncio.run(again())
    for name in names:
        assert [what for what, which in told if which == name] == ["acquired", "lost", "acquired", "released"]
