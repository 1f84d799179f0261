"""Whatever dies inside an elector, it either goes on or is seen to have stopped: nobody leads by belief alone.

Holds off a leader that is wedged while all looks healthy: its task is dead or its link silent, and it still says that
it leads (faults like kubernetes/kubernetes#70971), or waits for ever although nothing runs any more.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from pgelect import LeaderLock, LockState, PgElectError, Term
from pgelect._engine.clock import SystemClock
from tests.support.electors import Elector
from tests.support.locks import Key, Story, another_leads, is_free, leading, make_lock, no_tasks_but, queueing, state_of
from tests.support.proxy import BreakableProxy
from tests.support.server import lock_holders, sessions
from tests.support.waiting import eventually, scaled

Task = asyncio.Task[Any]
OUTSIDE = "from outside"
QUICK_LEASE: dict[str, Any] = {"lease_s": 2.0, "health_interval_s": 0.2}


# A task inside of it dies


def _runner_of(lock: LeaderLock) -> Task:
    task = lock._runner._task  # no public name leads to it
    assert task is not None
    return task


@asynccontextmanager
async def _following(database: str, key: Key, proxy: BreakableProxy) -> AsyncIterator[LeaderLock]:
    async with leading(database, key), queueing(proxy.dsn(database), key) as lock:
        yield lock


@asynccontextmanager
async def _minting(database: str, key: Key, proxy: BreakableProxy) -> AsyncIterator[LeaderLock]:
    await another_leads(database, key)
    async with await psycopg.AsyncConnection.connect(database) as conn:
        await conn.execute("SELECT 1 FROM pgelect.token FOR UPDATE")
        async with make_lock(proxy.dsn(database), key, lease_s=15.0) as lock:
            await eventually(lambda: lock_holders(database, *key))
            assert lock.state is LockState.ACQUIRING
            yield lock


@asynccontextmanager
async def _leading(database: str, key: Key, proxy: BreakableProxy) -> AsyncIterator[LeaderLock]:
    async with leading(proxy.dsn(database), key) as lock:
        yield lock


@asynccontextmanager
async def _reconnecting(database: str, key: Key, proxy: BreakableProxy) -> AsyncIterator[LeaderLock]:
    async with leading(proxy.dsn(database), key, reconnect_grace_s=3600.0) as lock:
        proxy.refuse()
        proxy.cut()
        await eventually(lambda: lock.state is LockState.RECONNECTING)
        yield lock


@asynccontextmanager
async def _releasing(database: str, key: Key, proxy: BreakableProxy) -> AsyncIterator[LeaderLock]:
    async with leading(proxy.dsn(database), key) as lock:
        begun = asyncio.Event()

        async def stay(_: Term) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.3)

        working = asyncio.create_task(lock.lead(stay))
        await begun.wait()
        stepping_down = asyncio.create_task(lock.step_down())
        await eventually(lambda: lock.state is LockState.RELEASING)
        yield lock
        await asyncio.wait({working, stepping_down}, timeout=scaled(5))
        assert stepping_down.done(), "step_down() waits for a release that nobody carries out any more"
        assert working.done(), "lead() waits for a term that can never begin"
        working.exception()


Scene = Callable[[str, Key, BreakableProxy], Any]
SCENES: list[Scene] = [_following, _minting, _leading, _reconnecting, _releasing]


def _name(value: Callable[..., object]) -> str:
    return value.__name__.strip("_").replace("_", " ")


async def _seen(call: Awaitable[object]) -> object:
    """What a call that waits for something of the lock comes to, in time."""
    try:
        async with asyncio.timeout(scaled(5)):
            return await call
    except TimeoutError:
        return "still waits"
    except PgElectError as error:
        return error


async def _duty(_: Term) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("scene", SCENES, ids=_name)
async def test_a_dead_runner_is_a_stopped_lock_that_holds_nothing(
    database: str, key: Key, proxy: BreakableProxy, scene: Scene
) -> None:
    """A stranger cancels the task of the lock, as a framework does that cancels all tasks it can see."""
    with pytest.raises(PgElectError, match=OUTSIDE):  # out of the block, too
        await _kill_the_runner(database, key, proxy, scene)


async def _kill_the_runner(database: str, key: Key, proxy: BreakableProxy, scene: Scene) -> None:
    async with scene(database, key, proxy) as lock:
        story = Story(lock)
        had_term = lock.state in {LockState.LEADER, LockState.RECONNECTING, LockState.RELEASING}
        ours = [session.pid for session in sessions(database, f"pgelect:%:{lock.identity}"[:63])]
        runner = _runner_of(lock)
        runner.cancel()
        await asyncio.wait({runner}, timeout=scaled(5))
        assert state_of(lock) is LockState.STOPPED
        assert (lock.is_leader, lock.term, lock.token) == (False, None, None)
        await eventually(lambda: not {it.pid for it in sessions(database)} & set(ours), 2.0, "its session is gone")
        await story.tells(*(["lost"] if had_term else []))
        for call in (lock.wait_for_leadership(), lock.lead(_duty)):
            assert OUTSIDE in str(await _seen(call))
        assert await _seen(lock.step_down()) is False
        await lock.shutdown()


@pytest.mark.parametrize("call", ["run", "lead", "wait_for_leadership", "block"])
async def test_who_waits_for_a_lock_whose_runner_dies_is_told_why(database: str, key: Key, call: str) -> None:
    """Holds off an election that has ended by a fault and looks like one that was shut down in good order."""
    lock = make_lock(database, key)

    async def main() -> object:
        if call == "run":
            await lock.run()
            return None
        async with lock:
            if call == "lead":
                return await lock.lead(_duty, repeat=True)
            if call == "wait_for_leadership":
                while True:
                    term = await lock.wait_for_leadership()
                    await term.ended()
            await eventually(lambda: lock.state is LockState.STOPPED)
        return None

    waiting = asyncio.create_task(main())
    await eventually(lambda: lock.is_leader)
    _runner_of(lock).cancel()
    await asyncio.wait({waiting}, timeout=scaled(5))
    assert waiting.done()
    assert isinstance(waiting.exception(), PgElectError), waiting
    assert OUTSIDE in str(waiting.exception())
    await is_free(database, key)


async def test_a_bug_in_the_runner_is_raised_where_somebody_waits(
    database: str, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = make_lock(database, key)
    story = Story(lock)
    running = asyncio.create_task(lock.run())
    await story.tells("acquired")
    working = asyncio.create_task(lock.lead(_duty))
    await asyncio.sleep(0)

    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("pgelect._engine.transitions.idle", fail)
    await asyncio.wait({running, working}, timeout=scaled(5))
    monkeypatch.undo()
    assert [type(task.exception()) for task in (running, working)] == [ZeroDivisionError] * 2
    assert isinstance(await _seen(asyncio.create_task(_raised(lock))), ZeroDivisionError)
    assert lock.state is LockState.STOPPED
    assert not lock.is_leader
    await story.tells("acquired", "lost")
    await is_free(database, key)
    async with lock:  # and it can be started again
        await lock.wait_for_leadership(scaled(10))


async def _raised(lock: LeaderLock) -> BaseException | None:
    try:
        await lock.wait_for_leadership()
    except ZeroDivisionError as error:
        return error
    return None


async def test_whichever_of_its_tasks_dies_it_leads_with_proofs_or_is_seen_not_to(database: str, key: Key) -> None:
    """Each task that is there while it leads, in turn; those of the driver, too."""
    before = asyncio.all_tasks()
    killed: list[str] = []
    for turn in range(20):
        lock = make_lock(database, key)
        story = Story(lock)
        await lock.start()
        try:
            await lock.wait_for_leadership(scaled(10))
            mine = sorted(asyncio.all_tasks() - before - {asyncio.current_task()}, key=lambda task: task.get_name())
            if turn >= len(mine):
                break
            killed.append(repr(mine[turn].get_coro()))
            mine[turn].cancel()
            await asyncio.wait({mine[turn]}, timeout=scaled(2))

            def settled(lock: LeaderLock = lock) -> bool:
                return lock.is_leader_confirmed_within(0.9) or lock.state is LockState.STOPPED

            await eventually(settled, message="it leads, by a fresh proof, or has stopped")
            await asyncio.sleep(0.3)
            await eventually(settled, message="and it stays so")
            assert len(lock_holders(database, *key)) == int(lock.is_leader)
        finally:
            await lock.shutdown()
        assert story.is_paired()
        await is_free(database, key)
    assert len(killed) >= 3, killed
    assert any("_run" in name for name in killed)
    await no_tasks_but(before)


# Time passes, and nothing runs


@pytest.mark.parametrize("grace_s", [None, 30.0], ids=["without a grace", "with a grace"])
async def test_time_that_nobody_noticed_ends_the_belief_before_anything_has_run(
    database: str, key: Key, grace_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the machine was suspended: the clock is set forward by a lease."""
    async with Elector(database, key, lease_s=10.0, health_interval_s=0.3, reconnect_grace_s=grace_s) as a:
        token = (await a.leads()).token
        term = a.lock.term
        assert term is not None
        real_now = SystemClock.now
        monkeypatch.setattr(SystemClock, "now", lambda clock: real_now(clock) + 10.0)
        assert (a.is_leader, a.lock.token, term.is_current) == (False, None, False)
        assert not a.lock.is_leader_confirmed_within(5.0)
        await eventually(lambda: a.is_leader, message="it leads again, by a proof")
        assert a.lock.token == token if grace_s else (a.lock.token or 0) > token
        assert a.tokens("lost") == ([] if grace_s else [token])


async def test_a_link_that_falls_silent_ends_the_belief_and_a_new_one_brings_it_back(
    database: str, key: Key, proxy: BreakableProxy
) -> None:
    token = 0
    async with Elector(proxy.dsn(database), key, **QUICK_LEASE) as a:
        for _ in range(2):
            token = (await a.leads(above=max(a.tokens("acquired"), default=0))).token
            proxy.freeze()
            await eventually(lambda: not a.is_leader, 5.0, "it does not believe any more")
            assert not a.lock.is_leader_confirmed_within(QUICK_LEASE["lease_s"])
            await a.has_lost(token)
            proxy.cut()
            proxy.thaw()
        await a.leads(above=token)


async def test_a_follower_without_a_connection_is_no_leader_but_lives(
    database: str, key: Key, proxy: BreakableProxy
) -> None:
    proxy.refuse()
    async with Elector(proxy.dsn(database), key) as a:
        await eventually(lambda: len(a.errors) >= 3, message="it says that it cannot connect")
        assert a.lock.state is LockState.FOLLOWER
        assert not a.is_leader
        proxy.refuse(False)
        await a.leads()


async def test_what_it_says_of_itself_can_be_asked_from_any_thread(database: str, key: Key) -> None:
    """A health endpoint mostly runs in another thread."""
    with pytest.raises(PgElectError, match=OUTSIDE):
        await _ask_in_threads(database, key)


async def _ask_in_threads(database: str, key: Key) -> None:
    async with leading(database, key) as lock:
        seen: list[tuple[bool, LockState, bool]] = []

        def ask() -> None:
            seen.append((lock.is_leader, lock.state, lock.is_leader_confirmed_within(5.0)))

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        assert seen == [(True, LockState.LEADER, True)]
        _runner_of(lock).cancel()
        await eventually(lambda: lock.state is LockState.STOPPED)
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        assert seen[1] == (False, LockState.STOPPED, False)
