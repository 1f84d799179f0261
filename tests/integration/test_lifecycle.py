"""A lock from start to stop: what starting waits for, who may call what when, and that it can be started again."""

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from pgelect import LeaderLock, LockState, NotLeaderError
from tests.support.locks import Key, Story, another_leads, is_free, leading, make_lock, no_tasks_but, queueing
from tests.support.server import lock_holders, lock_waiters, query, sessions
from tests.support.waiting import eventually


async def test_one_leads_on_every_server_version_and_stops_cleanly(any_database: str, key: Key) -> None:
    lock = make_lock(any_database, key, identity="me", metadata={"zone": "a"})
    story = Story(lock)
    async with lock:
        term = await lock.wait_for_leadership(10)
        now = (lock.state, lock.is_leader, lock.term)
        assert now == (LockState.LEADER, True, term)
        assert (term.token, term.identity, term.metadata) == (lock.token, "me", {"zone": "a"})
        assert (term.key.key1, term.key.key2) == key
        assert lock.record is not None
        assert (lock.record.holder, lock.record.terms, lock.record.released_at) == ("me", 1, None)
        assert lock_holders(any_database, *key) == [lock.record.backend.pid]
    now = (lock.state, lock.is_leader, lock.term)
    assert now == (LockState.STOPPED, False, None)
    assert lock_holders(any_database, *key) == []
    await eventually(lambda: sessions(any_database) == [])
    assert story.told == ["acquired", "released"]
    assert story.states[0] == (LockState.STOPPED, LockState.FOLLOWER)
    assert story.states[-1] == (LockState.RELEASING, LockState.STOPPED)


async def test_entering_does_not_wait_for_leadership(database: str, key: Key) -> None:
    async with leading(database, key) as leader, make_lock(database, key) as follower:
        assert follower.state in {LockState.FOLLOWER, LockState.ACQUIRING}
        assert not follower.is_leader
        assert follower.term is None
        assert follower.token is None
        assert leader.is_leader
        assert len(lock_holders(database, *key)) == 1


async def test_start_does_not_wait_for_leadership(database: str, key: Key) -> None:
    async with leading(database, key):
        follower = make_lock(database, key)
        await follower.start()
        try:
            assert not follower.is_leader
            with pytest.raises(TimeoutError):
                await follower.wait_for_leadership(0.05)
        finally:
            await follower.shutdown()


async def test_a_second_start_is_an_error_and_changes_nothing_for_a_leader(database: str, key: Key) -> None:
    async with leading(database, key) as lock:
        story, held, token = Story(lock), lock_holders(database, *key), lock.token
        with pytest.raises(RuntimeError, match="runs already"):
            await lock.start()
        with pytest.raises(RuntimeError, match="runs already"):
            await lock.run()
        with pytest.raises(RuntimeError, match="runs already"):
            async with lock:
                pytest.fail("the block of a lock that runs already was entered")
        assert lock.is_leader
        assert lock.token == token
        assert lock_holders(database, *key) == held
        assert story.states == []
    assert story.told == ["released"]


async def test_a_second_start_is_an_error_and_changes_nothing_for_a_follower(database: str, key: Key) -> None:
    async with leading(database, key), queueing(database, key, identity="me") as follower:
        (mine,) = sessions(database, "pgelect:%:me")
        with pytest.raises(RuntimeError, match="runs already"):
            await follower.start()
        assert follower.state is LockState.FOLLOWER
        assert sessions(database, "pgelect:%:me")[0].pid == mine.pid


async def test_of_two_starts_at_the_same_time_one_is_an_error(database: str, key: Key) -> None:
    lock = make_lock(database, key)
    try:
        outcomes = await asyncio.gather(lock.start(), lock.start(), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [type(None), RuntimeError]
        await lock.wait_for_leadership(10)
        assert len(lock_holders(database, *key)) == 1
    finally:
        await lock.shutdown()


async def test_a_lock_can_be_started_again_after_it_stopped(database: str, key: Key) -> None:
    lock = make_lock(database, key)
    story, tokens = Story(lock), []
    for _ in range(3):
        async with lock:
            tokens.append((await lock.wait_for_leadership(10)).token)
        await is_free(database, key)
    assert tokens == sorted(set(tokens))
    assert story.told == ["acquired", "released"] * 3
    assert story.is_paired()


def test_a_lock_can_be_started_again_in_another_loop(database: str, key: Key) -> None:
    lock = make_lock(database, key)
    story = Story(lock)

    async def lead_once() -> int:
        async with lock:
            return (await lock.wait_for_leadership(10)).token

    assert asyncio.run(lead_once()) < asyncio.run(lead_once())
    assert story.told == ["acquired", "released"] * 2
    assert lock_holders(database, *key) == []


async def _start(lock: LeaderLock) -> None:
    await lock.start()


async def _shutdown(lock: LeaderLock) -> None:
    await lock.shutdown()


async def _step_down(lock: LeaderLock) -> None:
    await lock.step_down()


async def _wait(lock: LeaderLock) -> None:
    await lock.wait_for_leadership(1)


async def _lead(lock: LeaderLock) -> None:
    async def duty(_: object) -> None:
        pytest.fail("the duty began in another loop")

    await lock.lead(duty)


async def _terms(lock: LeaderLock) -> None:
    async for _ in lock.terms():
        pytest.fail("a term was given out in another loop")


@pytest.mark.parametrize("use", [_start, _shutdown, _step_down, _wait, _lead, _terms])
async def test_use_in_another_loop_is_a_clear_error(
    database: str, key: Key, use: Callable[[LeaderLock], Awaitable[None]]
) -> None:
    async with leading(database, key) as lock:
        heard: list[BaseException] = []

        async def use_it() -> None:
            await use(lock)

        def elsewhere() -> None:
            try:
                asyncio.run(use_it())
            except BaseException as error:  # noqa: BLE001 - looked at below
                heard.append(error)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        await eventually(lambda: not thread.is_alive())
        assert [type(error) for error in heard] == [RuntimeError]
        assert "runs already" in str(heard[0]) or "another event loop" in str(heard[0])
        assert lock.is_leader
        assert len(lock_holders(database, *key)) == 1


async def test_a_lock_that_never_ran_needs_no_shutdown(database: str, key: Key) -> None:
    lock = make_lock(database, key)
    await lock.shutdown()
    await lock.shutdown()
    assert lock.state is LockState.STOPPED
    assert not await lock.step_down()
    with pytest.raises(NotLeaderError) as refused:
        await lock.wait_for_leadership()
    assert refused.value.state is LockState.STOPPED
    await eventually(lambda: sessions(database) == [])


async def test_without_auto_reacquire_the_lock_stops_after_its_first_term(database: str, key: Key) -> None:
    before = asyncio.all_tasks()
    async with leading(database, key, auto_reacquire=False) as lock:
        story = Story(lock)
        assert await lock.step_down(cooldown_s=0)
        await eventually(lambda: lock.state is LockState.STOPPED)
        await story.tells("released")
        with pytest.raises(NotLeaderError):
            await lock.wait_for_leadership()
        await no_tasks_but(before)
        await eventually(lambda: sessions(database) == [])


async def test_the_error_of_the_block_comes_out_and_the_lock_is_free(database: str, key: Key) -> None:
    with pytest.raises(ZeroDivisionError):
        async with leading(database, key):
            1 / 0  # noqa: B018
    assert lock_holders(database, *key) == []


async def test_waiting_for_leadership_ends_when_the_lock_is_shut_down(database: str, key: Key) -> None:
    async with leading(database, key), queueing(database, key) as follower:
        waiting = asyncio.create_task(follower.wait_for_leadership())
        await asyncio.sleep(0)
        await follower.shutdown()
        with pytest.raises(NotLeaderError):
            await waiting
        # With a libpq older than 17 the server finds out by itself that the client is gone.
        await eventually(lambda: lock_waiters(database, *key) == [])


async def test_run_campaigns_until_it_is_shut_down(database: str, key: Key) -> None:
    lock = make_lock(database, key)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(lock.run())
        await eventually(lambda: lock.is_leader)
        assert not running.done()
        await lock.shutdown()
    assert running.result() is None
    assert lock_holders(database, *key) == []


async def test_run_in_a_task_group_that_is_cancelled_frees_the_lock(database: str, key: Key) -> None:
    lock = make_lock(database, key)
    story = Story(lock)

    async def program() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(lock.run())

    before = asyncio.all_tasks()
    task = asyncio.create_task(program())
    await eventually(lambda: lock.is_leader)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert lock_holders(database, *key) == []
    await no_tasks_but(before)
    assert story.told == ["acquired", "released"]
    await another_leads(database, key)


async def test_a_failing_sibling_in_the_task_group_frees_the_lock(database: str, key: Key) -> None:
    lock = make_lock(database, key)
    before = asyncio.all_tasks()

    async def fail_while_leading() -> None:
        await eventually(lambda: lock.is_leader)
        raise ZeroDivisionError

    async def program() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(lock.run())
            group.create_task(fail_while_leading())

    with pytest.raises(ExceptionGroup) as failed:
        await program()
    assert [type(error) for error in failed.value.exceptions] == [ZeroDivisionError]
    assert lock_holders(database, *key) == []
    await no_tasks_but(before)
    await another_leads(database, key)


async def test_the_leaders_session_is_idle_between_proofs(database: str, key: Key) -> None:
    """A session that idles in a transaction would hold back vacuum, and could not live under its timeout."""
    async with leading(database, key) as lock:
        assert lock.record is not None
        pid = lock.record.backend.pid
        states = {
            query(database, "SELECT state, backend_xmin FROM pg_stat_activity WHERE pid = %s", pid)[0]
            for _ in range(20)
        }
        assert ("idle", None) in states
        assert not any(state is not None and "transaction" in state for state, _ in states)
