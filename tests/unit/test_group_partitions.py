"""Partitions that are added and removed: at any moment, and many at once."""

import asyncio
import gc
from collections.abc import Iterator

import pytest

from pgelect import LeaderGroup, LockKey, Term
from pgelect._engine.dispatch import Dispatcher
from pgelect.testing import LocalElection, local_election


@pytest.fixture
def election() -> Iterator[LocalElection]:
    with local_election() as made:
        yield made


async def test_a_removal_ends_when_the_partition_is_added_again_meanwhile(election: LocalElection) -> None:
    async def cleans_up(_: str, term: Term) -> None:
        try:
            await term.ended()
        finally:
            await asyncio.shield(cleaned.wait())

    cleaned = asyncio.Event()
    async with LeaderGroup(names=["a", "b"]) as group, asyncio.timeout(20):
        working = asyncio.create_task(group.lead(cleans_up))
        await election.advance(1)
        removing = asyncio.create_task(group.remove("a"))
        await asyncio.sleep(0)
        group.add("a")
        await removing
        cleaned.set()
        await election.advance(3)
        assert sorted(group.leading) == ["a", "b"]
    await working


@pytest.mark.parametrize("turns", range(16))
async def test_what_is_added_while_a_group_stops_is_led_after_its_next_start(
    election: LocalElection, turns: int
) -> None:
    group = LeaderGroup(names=["a"])
    await group.start()
    await election.advance(1)
    stopping = asyncio.create_task(group.shutdown())
    for _ in range(turns):
        await asyncio.sleep(0)
    group.add("b")
    await stopping
    async with group:
        await election.advance(3)
        assert sorted(group.leading) == ["a", "b"]


async def test_many_are_taken_and_removed_without_comparing_each_with_each(
    election: LocalElection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That would hold up the event loop for longer than the lease."""
    compared = 0

    def equal(one: LockKey, other: object) -> bool:
        nonlocal compared
        compared += 1
        return isinstance(other, LockKey) and (one.key1, one.key2) == (other.key1, other.key2)

    keys = [(7, number) for number in range(-500, 500)]
    monkeypatch.setattr(LockKey, "__eq__", equal)
    async with LeaderGroup(keys=keys) as group:
        await election.advance(3)
        assert len(group.leading) == len(keys)
        await group.remove(*keys[:500])
        assert len(group.leading) == 500
    assert compared < 100 * len(keys)


async def test_partitions_that_come_and_go_leave_nothing_behind(election: LocalElection) -> None:
    told: list[str | None] = []
    async with LeaderGroup(names=["a"]) as group:
        group.on_released(lambda term: told.append(term.key.name))
        for number in range(100):
            group.add(f"tenant {number}")
            await election.advance(0.5)
            await group.remove(f"tenant {number}")
        await election.settle()
        assert told == [f"tenant {number}" for number in range(100)]
        gc.collect()
        assert sum(isinstance(one, Dispatcher) for one in gc.get_objects()) < 50


async def test_what_only_one_member_knows_is_led_within_its_share_and_all_of_it_once_all_know(
    election: LocalElection,
) -> None:
    """A member cannot know what others do not campaign for."""
    names = [f"p{number}" for number in range(4)]
    async with LeaderGroup(names=names, group="g") as one, LeaderGroup(names=names, group="g") as other:
        await election.advance(12)
        assert (len(one.leading), len(other.leading)) == (2, 2)
        one.add("p4", "p5", "p6", "p7")
        await election.advance(12)
        assert (len(one.leading), len(other.leading)) == (4, 2)
        other.add("p4", "p5", "p6", "p7")
        await election.advance(12)
        assert (len(one.leading), len(other.leading)) == (4, 4)


async def test_a_partition_that_is_being_given_up_counts_as_led_no_more_while_its_handler_cleans_up(
    election: LocalElection,
) -> None:
    async def cleans_up(_: str, term: Term) -> None:
        try:
            await term.ended()
        finally:
            seen.append((sorted(group.leading), group.is_leader("a"), term.is_current))

    seen: list[tuple[list[str], bool, bool]] = []
    async with LeaderGroup(names=["a", "b"]) as group:
        working = asyncio.create_task(group.lead(cleans_up))
        await election.advance(1)
        assert await group.step_down("a")
        assert seen == [(["b"], False, False)]
    await working
