"""The server goes away and comes back: restarted fast, stopped at once, or killed; for a moment, or for long."""

import asyncio
import logging
from contextlib import ExitStack

import pytest

from pgelect import FixedInterval, LockState, SessionLostError
from pgelect.testing import Postgres
from tests.support.databases import fresh_database
from tests.support.electors import LEASE_S, Elector, one_leads
from tests.support.looks import now
from tests.support.server import lock_holders, lock_waiters, query, sessions
from tests.support.waiting import eventually

Key = tuple[int, int]
MODES = ("fast", "immediate", "kill")
OUTAGE_S = 1.5


@pytest.fixture
def own_database(own_server: Postgres, last_of_all: ExitStack) -> str:
    """A database on the server that the test stops; the same check for left sessions as on the shared one."""
    return last_of_all.enter_context(fresh_database(own_server))


async def stop(server: Postgres, mode: str) -> None:
    """In a thread: the loop of the electors must go on."""
    if mode == "kill":
        await asyncio.to_thread(server.kill)
    else:
        await asyncio.to_thread(server.stop, "fast" if mode == "fast" else "immediate")


async def settled(dsn: str, key: Key, *electors: Elector, above: int) -> Elector:
    """One leads with a token above that one, all others wait in the queue, and all of them live."""
    leader = await one_leads(*electors, above=above, timeout_s=30)
    others = len(electors) - 1
    await eventually(lambda: len(lock_waiters(dsn, *key)) == others, 30, "the others wait in the queue")
    assert len(lock_holders(dsn, *key)) == 1
    assert len(sessions(dsn)) == len(electors)
    assert [elector.is_leader for elector in electors].count(True) == 1
    for elector in electors:
        elector.check_pairs()
        assert elector.lock.state is not LockState.STOPPED
    return leader


@pytest.mark.parametrize("mode", MODES)
async def test_after_a_restart_exactly_one_of_two_leads(
    own_server: Postgres, own_database: str, key: Key, mode: str
) -> None:
    async with Elector(own_database, key, lease_s=10.0) as a, Elector(own_database, key, lease_s=10.0) as b:
        token = 0
        for _ in range(3):
            leader = await settled(own_database, key, a, b, above=token)
            term = leader.lock.term
            assert term is not None
            token = term.token
            await stop(own_server, mode)
            await asyncio.to_thread(own_server.start)
            await leader.has_lost(token)
            assert not term.is_current
        leader = await settled(own_database, key, a, b, above=token)
        assert len(a.tokens("lost") + b.tokens("lost")) == 3
        assert query(own_database, "SELECT token, terms FROM pgelect.token") == [(leader.lock.token, 4)]


@pytest.mark.parametrize("mode", MODES)
async def test_nobody_leads_throughout_an_outage(own_server: Postgres, own_database: str, key: Key, mode: str) -> None:
    async with Elector(own_database, key) as a, Elector(own_database, key) as b:
        leader = await settled(own_database, key, a, b, above=0)
        token = leader.lock.token or 0
        await stop(own_server, mode)
        down_at = now()
        await eventually(lambda: leader.tokens("lost") == [token], message="on_lost is told during the outage")
        await asyncio.sleep(OUTAGE_S)  # the outage itself
        up_at = now()
        assert [a.lock.state, b.lock.state] == [LockState.FOLLOWER] * 2
        await asyncio.to_thread(own_server.start)
        await settled(own_database, key, a, b, above=token)
        for elector in (a, b):
            assert not elector.looks.was_true(down_at + LEASE_S, up_at)
            assert len([span for span in elector.looks.spans if span.first < up_at]) == (elector is leader)
        assert leader.when("lost", token) < up_at


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_an_outage_longer_than_the_grace_ends_the_term_once(
    own_server: Postgres, own_database: str, key: Key, mode: str
) -> None:
    grace_s = 1.0
    async with (
        Elector(own_database, key, reconnect_grace_s=grace_s) as a,
        Elector(own_database, key, reconnect_grace_s=grace_s) as b,
    ):
        leader = await settled(own_database, key, a, b, above=0)
        token = leader.lock.token or 0
        still_up_at = now()
        await stop(own_server, mode)
        await eventually(lambda: leader.lock.state is LockState.RECONNECTING)
        down_at = now()
        await eventually(lambda: leader.tokens("lost") == [token], message="the grace is over")
        assert leader.when("lost", token) >= still_up_at + grace_s
        await asyncio.sleep(0.5)  # the outage goes on
        up_at = now()
        await asyncio.to_thread(own_server.start)
        await settled(own_database, key, a, b, above=token)
        assert leader.tokens("lost") == [token]
        at = leader.states.index(LockState.RECONNECTING)
        assert leader.states[at - 1 : at + 2] == [LockState.LEADER, LockState.RECONNECTING, LockState.FOLLOWER]
        assert not a.looks.was_true(down_at, up_at)
        assert not b.looks.was_true(down_at, up_at)


async def test_a_restart_within_the_grace_goes_on_with_the_same_term(
    own_server: Postgres, own_database: str, key: Key
) -> None:
    async with Elector(own_database, key, reconnect_grace_s=30) as a:
        term = await a.leads()
        await stop(own_server, "fast")
        await eventually(lambda: a.lock.state is LockState.RECONNECTING)
        down_at = now()
        await asyncio.sleep(0.3)  # the outage itself
        up_at = now()
        await asyncio.to_thread(own_server.start)
        await eventually(lambda: a.is_leader, message="it leads again")
        assert a.terms == [("acquired", term.token)]
        assert a.lock.term is term
        assert not a.looks.was_true(down_at, up_at)
        assert lock_holders(own_database, *key) == [session.pid for session in sessions(own_database)]


async def test_five_outages_in_a_row_leave_the_electors_alive(
    own_server: Postgres, own_database: str, key: Key
) -> None:
    """Regression: an elector task that died unobserved in an outage, and a leader that led nothing afterwards."""
    async with (
        Elector(own_database, key, reconnect_grace_s=0.5) as a,
        Elector(own_database, key) as b,
        Elector(own_database, key, acquire="poll") as c,
    ):
        for outage_s in (0.0, 0.2, 1.2, 0.0, 0.4):
            await one_leads(a, b, c, timeout_s=30)
            await stop(own_server, "immediate")
            await eventually(lambda: not (a.is_leader or b.is_leader or c.is_leader), message="nobody leads")
            await asyncio.sleep(outage_s)  # the outage itself
            await asyncio.to_thread(own_server.start)
        leader = await one_leads(a, b, c, timeout_s=30)
        await eventually(lambda: len(sessions(own_database)) == 3, 30, "all are connected")
        assert len(lock_holders(own_database, *key)) == 1
        assert leader.is_leader
        for elector in (a, b, c):
            elector.check_pairs()
            assert elector.lock.state is not LockState.STOPPED


async def test_the_log_does_not_fill_up_during_an_outage(
    own_server: Postgres, own_database: str, key: Key, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pgelect")
    async with Elector(own_database, key, retry_strategy=FixedInterval(0.02)) as a:
        token = (await a.leads()).token
        await stop(own_server, "fast")
        failures = 20
        await eventually(lambda: len(a.errors) > failures, message="many attempts fail")
        told = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert 1 <= len(told) <= 4, [record.getMessage() for record in told]
        assert all(isinstance(error, SessionLostError) for error in a.errors)
        assert str(own_server.port) in str(a.errors[-1])
        await asyncio.to_thread(own_server.start)
        await a.leads(above=token)
