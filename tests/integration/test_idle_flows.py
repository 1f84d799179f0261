"""A load balancer or NAT on the way forgets a connection that is idle for a while, and tells neither end."""

import asyncio
import itertools
import logging
import os
import socket

import psycopg
import pytest

from pgelect import FixedInterval, LeaderLock, LockState
from pgelect._engine.settings import Settings
from tests.support.electors import Elector
from tests.support.proxy import BreakableProxy, Forgetting
from tests.support.server import lock_holders, lock_waiters, sessions
from tests.support.waiting import eventually

Key = tuple[int, int]
WAYS: list[Forgetting] = ["silent", "reset"]
FORGETS_AFTER_S = 1.2  # longer than a wait in the server's queue, as every load balancer's time is
SHORTEST_KNOWN_S = 240.0  # of the load balancers in use: minutes, in place of the second here
ASKS_SELDOM = {"health_interval_s": 1.8, "health_timeout_s": 0.3, "lease_s": 3.0}


@pytest.fixture
def way_through(proxy: BreakableProxy, database: str) -> tuple[BreakableProxy, str]:
    return proxy, database


async def test_who_is_never_idle_for_so_long_is_never_forgotten(proxy: BreakableProxy, database: str, key: Key) -> None:
    """Neither the leader, by its proofs, nor a follower, by its waits in the queue; another flow is, meanwhile."""
    proxy.forget_idle(FORGETS_AFTER_S)
    settings = {"lease_s": 10.0, "health_interval_s": 0.2}
    async with (
        Elector(proxy.dsn(database), key, **settings) as a,
        await psycopg.AsyncConnection.connect(proxy.dsn(database), autocommit=True) as idle,
    ):
        token = (await a.leads()).token
        async with Elector(proxy.dsn(database), key, **settings) as b:
            await eventually(lambda: lock_waiters(database, *key), message="it waits in the queue")
            connections = proxy.total_connections
            await a.proved(25)
            asking = asyncio.create_task(idle.execute("SELECT 1"))
            await eventually(lambda: proxy.total_forgotten == 1, message="the idle flow is forgotten")
            assert not asking.done()
            assert a.terms == [("acquired", token)]
            assert len(a.looks.spans) == 1
            assert await a.lock.step_down(cooldown_s=60)
            await b.leads(above=token)
            assert proxy.total_connections == connections
            assert proxy.total_forgotten == 1
            assert a.errors == b.errors == []
            with socket.socket(fileno=os.dup(idle.fileno())) as end:
                end.shutdown(socket.SHUT_RDWR)
            await asyncio.wait({asking})
            assert asking.exception() is not None


@pytest.mark.parametrize(("how", "grace_s"), [*itertools.product(WAYS, [None, 20.0])])
async def test_a_leader_that_asks_too_seldom_loses_the_session_in_time_and_recovers_on_a_new_connection(
    way_through: tuple[BreakableProxy, str], key: Key, how: Forgetting, grace_s: float | None,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """With a grace it goes on with the same term, once nobody else led; without one it is a new term."""
    proxy, database = way_through
    async with Elector(proxy.dsn(database), key, **ASKS_SELDOM, reconnect_grace_s=grace_s) as a:
        term = await a.leads()
        (ghost,) = lock_holders(database, *key)
        await eventually(lambda: "_listen" in tasks(), message="it listens: there is nothing else to do for now")
        at_rest = tasks()
        proved_at = a.lock._runner.snapshot.proved_at
        proxy.forget_idle(FORGETS_AFTER_S, how)
        await eventually(lambda: proxy.total_forgotten == 1, message="the flow is forgotten")
        proxy.delay(0.03)  # so that reconnecting takes a while, and is_leader can be seen in between
        await eventually(lambda: a.states[-1] is not LockState.LEADER, message="the session is lost")
        proxy.forget_idle(float("inf"))
        await eventually(lambda: len(a.looks.spans) == 2, message="it leads again")
        assert a.looks.spans[0].last < proved_at + ASKS_SELDOM["lease_s"]
        if how == "silent":  # and it was the proof's own deadline that found it out, before the lease was over
            assert "no answer from the server within 0.3 s while proving leadership" in caplog.text
        if grace_s:
            assert a.lock.term is term
            assert a.terms == [("acquired", term.token)]
        else:
            await a.leads(above=term.token)
            assert a.tokens("lost") == [term.token]
        await eventually(lambda: ghost not in lock_holders(database, *key), message="the ghost does not hold the lock")
        await eventually(lambda: [one.pid for one in sessions(database)] == lock_holders(database, *key))
        await eventually(lambda: tasks() == at_rest, message="no task of the lost session is left")


def tasks() -> list[str]:
    return sorted(task.get_coro().__qualname__ for task in asyncio.all_tasks())  # type: ignore[union-attr]


async def test_a_rival_leads_only_when_the_forgotten_leader_has_given_up(
    proxy: BreakableProxy, database: str, key: Key
) -> None:
    """The leader finds out at its next question, the server by the lease: whoever is first, nobody leads twice."""
    settings = {"health_interval_s": 1.8, "lease_s": 2.4}
    async with Elector(proxy.dsn(database), key, **settings) as a:
        token = (await a.leads()).token
        async with Elector(database, key, lease_s=2.4) as b:
            await eventually(lambda: lock_waiters(database, *key), message="it waits in the queue")
            proxy.forget_idle(FORGETS_AFTER_S)
            successor = await b.leads(above=token)
            await a.has_lost(token)
            assert a.looks.last_true_at < b.looks.spans[0].first
            await eventually(lambda: lock_waiters(database, *key), message="the old leader waits in the queue")
            assert a.terms == [("acquired", token), ("lost", token)]
            assert b.lock.token == successor.token


@pytest.mark.parametrize("how", WAYS)
async def test_a_follower_that_polls_too_seldom_still_takes_over(
    proxy: BreakableProxy, database: str, key: Key, how: Forgetting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session was forgotten while it slept; the next attempt must end in time, and the one after it connect."""
    monkeypatch.setattr("pgelect._engine.performer.ANSWER_WITHIN_S", 0.3)
    settings = {"lease_s": 1.0, "health_timeout_s": 0.3, "acquire": "poll", "retry_strategy": FixedInterval(0.8)}
    proxy.forget_idle(0.5, how)
    async with Elector(database, key, lease_s=10.0) as leader, Elector(proxy.dsn(database), key, **settings) as a:
        token = (await leader.leads()).token
        await eventually(lambda: proxy.total_forgotten == 1, message="its flow is forgotten")
        await eventually(lambda: a.errors, message="it has noticed")
        assert leader.terms == [("acquired", token)]
        assert a.terms == []
        await leader.lock.shutdown()
        await a.leads(above=token)
        assert len(lock_holders(database, *key)) == 1


# What the settings say of it


def test_by_default_nothing_is_idle_for_as_long_as_the_shortest_time_in_use(key: Key) -> None:
    settings = LeaderLock("", *key)._settings
    assert isinstance(settings, Settings)
    assert settings.health_interval_s < SHORTEST_KNOWN_S / 10
    assert settings.proof_timeout_s < SHORTEST_KNOWN_S / 10


@pytest.mark.parametrize(("interval_s", "warns"), [(199.0, False), (200.0, True), (600.0, True)])
async def test_an_interval_so_long_that_a_load_balancer_forgets_the_flow_is_warned_of(
    database: str, key: Key, interval_s: float, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "pgelect")
    async with Elector(database, key, health_interval_s=interval_s, lease_s=3600.0) as a:
        await a.leads()
    told = [record.getMessage() for record in caplog.records if "health_interval_s" in record.getMessage()]
    assert len(told) == warns, caplog.text
