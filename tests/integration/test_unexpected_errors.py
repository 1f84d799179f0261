"""An error that nobody expected ends neither the election nor, where it does, goes unnoticed."""

import asyncio
from typing import Any

import pytest

from pgelect import LockState, PgElectError
from pgelect._engine.events import Proved
from pgelect._engine.machine import step
from pgelect._postgres.session import PostgresSession
from tests.support.electors import Elector
from tests.support.locks import another_leads, is_free, no_tasks_but
from tests.support.server import lock_holders, lock_waiters, sessions, terminate
from tests.support.waiting import eventually, scaled

Key = tuple[int, int]
TIMES = 2


class UnexpectedError(Exception):
    """Nothing that the library or the driver would raise."""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", ["open", "try_lock", "wait_lock", "mint", "prove", "watch", "resume"])
async def test_an_unexpected_error_in_any_call_to_the_server_is_told_and_the_election_goes_on(
    database: str, key: Key, call: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the call, and after it: then the server has done what nobody has heard of."""
    left = [TIMES]
    method = getattr(PostgresSession, call)

    async def fails(session: PostgresSession, *args: Any, **kwargs: Any) -> Any:
        if session._options.identity != "me" or not left[0]:
            return await method(session, *args, **kwargs)
        if when == "after":
            await method(session, *args, **kwargs)
        left[0] -= 1
        raise UnexpectedError(call)

    grace_s = 30.0 if call == "resume" else None
    a = Elector(database, key, lease_s=10.0, health_interval_s=0.05, identity="me", reconnect_grace_s=grace_s)
    async with Elector(database, key, lease_s=10.0) as other:
        await other.leads()
        monkeypatch.setattr(PostgresSession, call, fails)
        async with a:
            waits = call not in ("open", "try_lock", "wait_lock")
            await eventually(lambda: lock_waiters(database, *key) if waits else not left[0], message="it has failed")
            await other.lock.shutdown()
            if call == "resume":
                await a.leads()
                terminate(database, lock_holders(database, *key)[0])
            await eventually(lambda: not left[0], message="it has failed so many times")
            await a.leads()
            await a.proved(3)
            if call in ("prove", "watch"):  # each of these is a loss, and told as such
                assert len(a.tokens("lost")) == TIMES
            else:
                assert sum(isinstance(error, UnexpectedError) for error in a.errors) == TIMES
                assert a.tokens("lost") == []
            a.check_pairs()
            await eventually(lambda: [one.pid for one in sessions(database)] == lock_holders(database, *key))


async def test_an_unexpected_error_in_an_unlock_frees_the_lock_all_the_same(
    database: str, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: Any) -> None:
        raise UnexpectedError("unlock")

    async with Elector(database, key, lease_s=60.0) as a:
        term = await a.leads()
        monkeypatch.setattr(PostgresSession, "unlock", fails)
        async with asyncio.timeout(scaled(10)):
            assert await a.lock.step_down(cooldown_s=0.1)
        monkeypatch.undo()
        assert not term.is_current
        await a.leads(above=term.token)
        a.check_pairs()
        await eventually(lambda: [one.pid for one in sessions(database)] == lock_holders(database, *key))


async def test_an_election_that_dies_of_a_bug_says_so_to_everybody_and_holds_nothing(
    database: str, key: Key, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not alive and silent: run() raises it, who waits is told, is_leader is False, and the lock is free."""
    before = asyncio.all_tasks()
    may_fail = asyncio.Event()

    def buggy(machine: Any, event: Any, now: float) -> Any:
        if may_fail.is_set() and isinstance(event, Proved):
            raise UnexpectedError("a bug")
        return step(machine, event, now)

    monkeypatch.setattr("pgelect._engine.runner.step", buggy)
    a = Elector(database, key, lease_s=60.0, health_interval_s=0.05)
    running = asyncio.create_task(a.lock.run())
    with a.looks:
        term = await a.leads()
        may_fail.set()
        await asyncio.wait({running}, timeout=10)
        assert isinstance(running.exception(), UnexpectedError)
        assert not a.is_leader
        assert not term.is_current
        assert a.lock.state is LockState.STOPPED
        assert a.terms == [("acquired", term.token), ("lost", term.token)]
        with pytest.raises(UnexpectedError):
            await a.lock.wait_for_leadership()
        assert "a bug" in caplog.text
        await is_free(database, key)
        await no_tasks_but(before)
    assert await another_leads(database, key) > term.token


async def test_an_election_whose_task_is_cancelled_by_a_stranger_holds_nothing_and_says_that_it_stopped(
    database: str, key: Key
) -> None:
    """As by code that cancels all the tasks it can find."""
    a = Elector(database, key, lease_s=60.0)
    with a.looks:
        await a.lock.start()
        term = await a.leads()
        waiting = asyncio.create_task(term.ended())
        (task,) = [task for task in asyncio.all_tasks() if task.get_name().startswith("pgelect-runner")]
        task.cancel()
        await asyncio.wait({task, waiting}, timeout=5)
        assert task.done()
        assert waiting.done()
        assert not a.is_leader
        assert a.lock.state is LockState.STOPPED
        with pytest.raises(PgElectError):
            await a.lock.wait_for_leadership()
        await is_free(database, key)
        await eventually(lambda: a.terms == [("acquired", term.token), ("lost", term.token)])
        await a.lock.shutdown()
        async with a.lock:
            await a.leads(above=term.token)
