"""The server grants the lock, and the client does not hear of it: whatever the client does next, nobody holds it.

A fault like greptimedb#7670: a timeout or a cancel in the client, the lock held on a session that stayed open, and an
election that stood still although every node was a follower.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from pgelect import LockState, SessionLostError
from pgelect._postgres import campaign_sql, sql
from tests.support.electors import Elector
from tests.support.locks import another_leads, leading, no_tasks_but
from tests.support.proxy import BreakableProxy
from tests.support.server import lock_holders, lock_waiters, sessions, terminate
from tests.support.waiting import eventually

Key = tuple[int, int]
LEASE_S = 60.0  # so long that it is not the lease that frees anything here
ANSWER_S = 0.4
SETTINGS: dict[str, Any] = {"lease_s": LEASE_S, "health_interval_s": 0.2, "health_timeout_s": ANSWER_S}


class Silence:
    """From the moment at which a certain statement is sent, the way back from the server is frozen."""

    def __init__(self, proxy: BreakableProxy, patch: pytest.MonkeyPatch) -> None:
        self.proxy = proxy
        self._patch = patch

    def after(self, statement: str) -> None:
        """Choose the statement, by the name of what renders it."""
        module = campaign_sql if hasattr(campaign_sql, statement) else sql
        render = getattr(module, statement)

        def render_and_freeze(*args: Any, **kwargs: Any) -> Any:
            self._patch.setattr(module, statement, render)
            self.proxy.freeze("down")
            return render(*args, **kwargs)

        self._patch.setattr(module, statement, render_and_freeze)


@pytest.fixture
def silence(proxy: BreakableProxy, monkeypatch: pytest.MonkeyPatch) -> Silence:
    monkeypatch.setattr("pgelect._engine.performer.ANSWER_WITHIN_S", ANSWER_S)
    return Silence(proxy, monkeypatch)


@asynccontextmanager
async def running(elector: Elector) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(elector.lock.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})


@asynccontextmanager
async def granted_unheard(
    silence: Silence, elector: Elector, database: str, key: Key, grant: str
) -> AsyncIterator[asyncio.Task[None]]:
    """Inside, the server says that the elector's session holds the lock, and the elector does not know."""
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as other:
        if grant == "wait_lock":
            await other.execute("SELECT pg_advisory_lock(%s, %s)", key)
        silence.after(grant)
        async with running(elector) as task:
            if grant == "wait_lock":
                await eventually(lambda: lock_waiters(database, *key), message="it waits in the queue")
                await other.execute("SELECT pg_advisory_unlock_all()")
            (pid,) = await eventually(lambda: lock_holders(database, *key), message="the server has granted it")
            assert pid in [one.pid for one in sessions(database)]
            assert not elector.is_leader
            assert elector.terms == []
            yield task


# What the client does then


async def is_cancelled(elector: Elector, task: asyncio.Task[None], _: BreakableProxy) -> None:
    task.cancel()
    await asyncio.wait({task}, timeout=2.0)  # of which a second to have the server cancel a wait in its queue
    assert task.cancelled()


async def is_shut_down(elector: Elector, task: asyncio.Task[None], _: BreakableProxy) -> None:
    await elector.lock.shutdown(timeout_s=1.0)
    await asyncio.wait({task}, timeout=1.0)
    assert task.done()


async def loses_the_link(elector: Elector, task: asyncio.Task[None], proxy: BreakableProxy) -> None:
    proxy.cut()
    await elector.hears(SessionLostError)


async def waits_no_longer(elector: Elector, task: asyncio.Task[None], _: BreakableProxy) -> None:
    await elector.hears(SessionLostError, "no answer from the server within")


REACTIONS = [is_cancelled, is_shut_down, loses_the_link, waits_no_longer]


def _name(value: Callable[..., object]) -> str:
    return value.__name__


@pytest.mark.parametrize("reaction", REACTIONS, ids=_name)
@pytest.mark.parametrize("grant", ["try_lock", "wait_lock", "mint"])
async def test_a_grant_that_was_not_heard_of_is_held_by_nobody(
    silence: Silence, database: str, key: Key, grant: str, reaction: Callable[..., Any]
) -> None:
    """The lock is free within a second, another wins, and an elector that goes on wins again after that."""
    settings = dict(SETTINGS)
    if grant == "mint":
        await another_leads(database, key)  # so that the schema is there, and its row
        settings["lease_s"] = 1.2 if reaction is waits_no_longer else LEASE_S  # what a mint is given
    before = asyncio.all_tasks()
    elector = Elector(silence.proxy.dsn(database), key, **settings)
    async with granted_unheard(silence, elector, database, key, grant) as task:
        await reaction(elector, task, silence.proxy)
        await eventually(lambda: not lock_holders(database, *key), 1.0, "the lock is free")
        async with leading(database, key) as rival:
            token = rival.token or 0
            assert elector.terms == []
            assert elector.lock.state is not LockState.LEADER
        silence.proxy.thaw()
        if not task.done():
            await eventually(lambda: elector.tokens("acquired"), message="it leads at last")
            assert elector.tokens("acquired")[0] > token
            assert len(lock_holders(database, *key)) == 1
    await no_tasks_but(before)
    await eventually(lambda: not lock_holders(database, *key) and not sessions(database), 1.0)


@pytest.mark.parametrize("reaction", [is_cancelled, is_shut_down, loses_the_link], ids=_name)
@pytest.mark.parametrize("statement", ["try_lock", "adopt"])
async def test_a_term_that_was_resumed_unheard_is_held_by_nobody(
    silence: Silence, database: str, key: Key, statement: str, reaction: Callable[..., Any]
) -> None:
    """The same on the way back to a term within its grace."""
    before = asyncio.all_tasks()
    elector = Elector(silence.proxy.dsn(database), key, **SETTINGS, reconnect_grace_s=60.0)
    async with running(elector) as task:
        await eventually(lambda: elector.tokens("acquired"))
        token = elector.tokens("acquired")[0]
        (old,) = lock_holders(database, *key)
        silence.after(statement)
        terminate(database, old)
        await eventually(lambda: lock_holders(database, *key) not in ([], [old]), message="the server has granted it")
        assert not elector.is_leader
        assert elector.lock.state is LockState.RECONNECTING
        await reaction(elector, task, silence.proxy)
        await eventually(lambda: not lock_holders(database, *key), 1.0, "the lock is free")
        async with leading(database, key) as rival:
            successor = rival.token or 0
            assert successor > token
        silence.proxy.thaw()
        if task.done():
            assert elector.terms == [("acquired", token), ("lost", token)]
        else:
            await eventually(lambda: len(elector.tokens("acquired")) == 2, message="it leads at last")
            assert elector.tokens("lost") == [token]
            assert elector.tokens("acquired")[1] > successor
    await no_tasks_but(before)
    elector.check_pairs()
