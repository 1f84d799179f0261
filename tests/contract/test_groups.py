"""What the session of a group's member promises, on the fake server and on real ones alike."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from pgelect import KeyCollisionError, LockKey, SessionLostError
from pgelect._group.session import Sight
from pgelect._group.shares import View
from tests.contract.conftest import SERVERS, Place
from tests.contract.election import WITHIN_S
from tests.contract.grouping import FakeStage, PostgresStage, Stage, in_time, is_stale

LONG_S = 0.8  # a wait in the server: less than its deadlock_timeout


@pytest_asyncio.fixture(params=SERVERS)
async def stage(
    request: pytest.FixtureRequest, key: tuple[int, int], places: Callable[[str, bool], Place]
) -> AsyncIterator[Stage]:
    made: Stage = FakeStage(key[0])
    if request.param != "fake":
        made = PostgresStage(key[0], places(request.param, False)[1])
    yield made
    await made.close()


def view_of(sight: Sight) -> View:
    assert sight.view is not None
    return sight.view


async def test_members_see_each_other_with_what_they_weigh_and_what_they_hold(stage: Stage) -> None:
    a, b = await stage.member(weight=2.5), await stage.member(most=7)
    keys = stage.keys(3)
    caught = await a.take(keys, WITHIN_S)
    assert {key for key, _ in caught.grants} == set(keys)
    seen = await b.look(None, None, 0.0, WITHIN_S)
    view = view_of(seen)
    members = {member.id: (member.pid, member.weight, member.most) for member in view.members}
    assert members == {a.me: (stage.pid(a), 2.5, None), b.me: (stage.pid(b), 1.0, 7)}
    assert {pair: view.holders.get(pair) for pair in ((key.key1, key.key2) for key in keys)} == {
        (key.key1, key.key2): stage.pid(a) for key in keys
    }
    assert view_of(await a.look(None, None, 0.0, WITHIN_S)).members == view.members


async def test_a_look_gives_the_group_only_when_it_has_changed(stage: Stage) -> None:
    a = await stage.member()
    first = await a.look(None, None, 0.0, WITHIN_S)
    again = await a.look(first.print, None, 0.0, WITHIN_S)
    assert again == Sight(first.print)
    b = await stage.member()
    joined = await a.look(first.print, None, 0.0, WITHIN_S)
    assert len(view_of(joined).members) == 2
    (key,) = stage.keys(1)
    await b.take((key,), WITHIN_S)
    taken = await a.look(joined.print, None, 0.0, WITHIN_S)
    assert view_of(taken).holders[key.key1, key.key2] == stage.pid(b)
    await b.close(1.0)
    left = await a.look(taken.print, b.me, LONG_S, WITHIN_S)  # the server may not have noticed yet
    assert left.print == first.print
    assert [member.id for member in view_of(left).members] == [a.me]


async def test_each_partition_has_one_taker_and_growing_tokens(stage: Stage) -> None:
    a, b = await stage.member(), await stage.member()
    keys = stage.keys(4)
    taken = dict((await a.take(keys[:2], WITHIN_S)).grants)
    both = await b.take(keys, WITHIN_S)
    assert {key for key, _ in both.grants} == set(keys[2:])
    assert (both.held_up, both.failed) == ((), ())
    assert all(grant.predecessor_clean and grant.prior is None for grant in taken.values())
    await a.free(tuple((key, grant.token) for key, grant in taken.items()), WITHIN_S)
    again = dict((await b.take(keys, WITHIN_S)).grants)  # what it holds already is not tried for again
    assert set(again) == set(keys[:2])
    for key, grant in again.items():
        assert grant.token > taken[key].token
        assert grant.predecessor_clean
        assert grant.prior is not None
        assert grant.prior.token == taken[key].token
        assert grant.record is not None
        assert grant.record.terms == 2
        assert await is_stale(stage, key, taken[key].token)
    await b.look(None, None, 0.0, WITHIN_S)  # it holds all four, and once each


async def test_a_lost_session_frees_everything_and_the_next_terms_know_that_it_was_not_clean(stage: Stage) -> None:
    a, b = await stage.member(), await stage.member()
    keys = stage.keys(3)
    await a.take(keys, WITHIN_S)
    await stage.terminate(a)
    sight = await b.look(None, a.me, LONG_S, WITHIN_S)
    assert sight.orphaned or a.me not in {member.id for member in view_of(sight).members}
    clean: dict[LockKey, bool] = {}
    async with asyncio.timeout(WITHIN_S):  # a server frees the locks of a session one after the other
        while left := tuple(key for key in keys if key not in clean):
            caught = await b.take(left, WITHIN_S)
            clean |= {key: grant.predecessor_clean for key, grant in caught.grants}
    assert clean == dict.fromkeys(keys, False)
    with pytest.raises(SessionLostError):
        await a.look(None, None, 0.0, WITHIN_S)


async def test_whoever_waits_for_a_member_hears_of_its_end_at_once_and_of_nothing_else(stage: Stage) -> None:
    a, b, c = await stage.member(), await stage.member(), await stage.member()
    assert not (await b.look(None, a.me, 0.05, WITHIN_S)).orphaned
    waiting = [asyncio.create_task(one.look(None, a.me, LONG_S, WITHIN_S)) for one in (b, c)]
    await asyncio.sleep(0.1)
    await stage.terminate(a)
    sights = [await in_time(task) for task in waiting]
    assert [sight.orphaned for sight in sights] == [True, True]
    assert {member.id for member in view_of(sights[0]).members} == {b.me, c.me}
    assert not (await c.look(None, b.me, 0.05, WITHIN_S)).orphaned


async def test_a_wait_can_be_cut_short_and_the_session_goes_on(stage: Stage) -> None:
    a, b = await stage.member(), await stage.member()
    (key,) = stage.keys(1)
    waiting = asyncio.create_task(b.look(None, a.me, LONG_S, WITHIN_S))
    await asyncio.sleep(0.05)
    b.hurry()
    assert not (await in_time(waiting)).orphaned
    assert len((await b.take((key,), WITHIN_S)).grants) == 1
    assert not (await b.look(None, a.me, 0.05, WITHIN_S)).orphaned


async def test_whenever_a_look_is_hurried_it_proves(stage: Stage) -> None:
    a, b = await stage.member(), await stage.member()
    for moment in range(60):
        waiting = asyncio.create_task(b.look(None, a.me, LONG_S, WITHIN_S))
        await asyncio.sleep(moment / 20_000)  # some before it begins, some amid the wait
        for _ in range(3):
            b.hurry()
            await asyncio.sleep(0)
        assert len(view_of(await in_time(waiting)).members) == 2


async def test_a_ring_of_members_may_wait_for_each_other_all_at_once(stage: Stage) -> None:
    members = [await stage.member() for _ in range(3)]
    ring = zip(members, [*members[1:], members[0]], strict=True)
    waits = [asyncio.create_task(one.look(None, other.me, 0.3, WITHIN_S)) for one, other in ring]
    assert [(await in_time(task)).orphaned for task in waits] == [False] * 3


async def test_locks_that_were_lost_behind_its_back_end_the_session(stage: Stage) -> None:
    a = await stage.member()
    await a.take(stage.keys(2), WITHIN_S)
    await stage.unlock_all(a)
    with pytest.raises(SessionLostError) as lost:
        await a.look(None, None, 0.0, WITHIN_S)
    assert lost.value.reason == "disproved"


async def test_giving_up_what_is_not_held_ends_the_session(stage: Stage) -> None:
    a = await stage.member()
    (key,) = stage.keys(1)
    ((_, grant),) = (await a.take((key,), WITHIN_S)).grants
    await stage.unlock_all(a)
    with pytest.raises(SessionLostError) as lost:
        await a.free(((key, grant.token),), WITHIN_S)
    assert lost.value.reason == "disproved"


async def test_a_fenced_transaction_of_the_last_term_holds_up_that_partition_alone(stage: Stage) -> None:
    a, b = await stage.member(), await stage.member()
    keys = stage.keys(2)
    tokens = {key: grant.token for key, grant in (await a.take(keys, WITHIN_S)).grants}
    await stage.begin_fenced(keys[0], tokens[keys[0]])
    await stage.terminate(a)
    await b.look(None, a.me, LONG_S, WITHIN_S)
    caught = await b.take(keys, WITHIN_S)
    assert [key for key, _ in caught.grants] == [keys[1]]
    assert caught.held_up == (keys[0],)
    await b.look(None, None, 0.0, WITHIN_S)  # it is locked, though
    grant = await b.mint(keys[0], WITHIN_S)  # and the transaction is ended for it
    assert grant.token > tokens[keys[0]]
    assert not grant.predecessor_clean
    await b.look(None, None, 0.0, WITHIN_S)


async def test_a_name_whose_keys_another_name_uses_is_refused_and_not_held(stage: Stage) -> None:
    a, b = await stage.member(), await stage.member()
    (key, other) = stage.keys(2)
    first, second = LockKey(key.key1, key.key2, "one"), LockKey(key.key1, key.key2, "two")
    ((_, grant),) = (await a.take((first,), WITHIN_S)).grants
    await a.free(((first, grant.token),), WITHIN_S)
    caught = await b.take((second, other), WITHIN_S)
    assert [key for key, _ in caught.grants] == [other]
    ((failed, error),) = caught.failed
    assert failed == second
    assert isinstance(error, KeyCollisionError)
    await b.look(None, None, 0.0, WITHIN_S)
    assert len((await a.take((first,), WITHIN_S)).grants) == 1


async def test_joining_ends_the_ghost_of_the_same_process(stage: Stage) -> None:
    a = stage.session()
    await a.open(WITHIN_S)
    backend = await a.join(None, WITHIN_S)
    keys = stage.keys(2)
    await a.take(keys, WITHIN_S)
    b = stage.session()
    await b.open(WITHIN_S)
    await b.join(backend, WITHIN_S)
    assert len((await b.take(keys, WITHIN_S)).grants) == 2
    assert [member.id for member in view_of(await b.look(None, None, 0.0, WITHIN_S)).members] == [b.me]


async def test_whoever_draws_the_number_of_a_live_member_does_not_join(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = await stage.member(), stage.session()
    monkeypatch.setattr(b, "_me", a.me)
    await b.open(WITHIN_S)
    with pytest.raises(SessionLostError, match="number that this member has drawn is taken"):
        await b.join(None, WITHIN_S)
    assert [member.id for member in view_of(await a.look(None, None, 0.0, WITHIN_S)).members] == [a.me]


async def test_a_request_to_step_down_is_heard_by_whoever_leads_that_partition(stage: Stage) -> None:
    a, b = await stage.member(), await stage.member()
    keys = stage.keys(3)
    grants = [*(await a.take(keys[:2], WITHIN_S)).grants, *(await b.take(keys[2:], WITHIN_S)).grants]
    tokens = {key: grant.token for key, grant in grants}
    for one, mine in ((a, grants[:2]), (b, grants[2:])):
        await one.tell(tuple(mine), WITHIN_S)
        assert (await one.look(None, None, 0.0, WITHIN_S)).called  # somebody may have called before it listened
        assert not (await one.look(None, None, 0.0, WITHIN_S)).called
        assert await one.heed(tuple((key, tokens[key]) for key, _ in mine), WITHIN_S) == ()
    await stage.request_step_down(keys[1])
    await a.watch(LONG_S)
    assert (await a.look(None, None, 0.0, WITHIN_S)).called
    assert not (await b.look(None, None, 0.0, WITHIN_S)).called
    ((key, by),) = await a.heed(tuple((key, tokens[key]) for key in keys[:2]), WITHIN_S)
    assert key == keys[1]
    assert by
    assert await a.heed(((keys[1], tokens[keys[1]] + 1),), WITHIN_S) == ()  # it was another term
