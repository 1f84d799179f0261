"""With a grace, a lost session does not end the term if nobody led in between; until that is proved, nobody leads."""

import asyncio
import itertools

import pytest
from psycopg.conninfo import make_conninfo

from pgelect import LockState, Term
from tests.support.electors import Elector
from tests.support.looks import now
from tests.support.proxy import BreakableProxy
from tests.support.replicas import Replica
from tests.support.server import lock_holders, lock_waiters, query, sessions, terminate
from tests.support.waiting import eventually

Key = tuple[int, int]
GRACE_S = 20.0
LEASE_S = 10.0
LEADER, RECONNECTING, FOLLOWER = LockState.LEADER, LockState.RECONNECTING, LockState.FOLLOWER


def after_first_lead(elector: Elector) -> list[LockState]:
    return elector.states[elector.states.index(LEADER) :]


async def passed_through(elector: Elector, states: list[LockState]) -> None:
    await eventually(lambda: after_first_lead(elector) == states, message=f"it passed through {states}")


async def resumed(elector: Elector, term: Term, lost_at: float) -> None:
    """Wait until it leads again, with the term it had."""
    await eventually(lambda: [span for span in elector.looks.spans if span.first > lost_at], message="it leads again")
    assert elector.lock.term is term
    assert term.is_current
    assert elector.terms == [("acquired", term.token)]


@pytest.mark.parametrize("fault", ["cut", "terminate"])
async def test_a_session_lost_while_nobody_waits_does_not_end_the_term(
    proxy: BreakableProxy, database: str, key: Key, fault: str
) -> None:
    async with Elector(proxy.dsn(database), key, lease_s=LEASE_S, reconnect_grace_s=GRACE_S) as a:
        term = await a.leads()
        proxy.delay(0.03)  # so that reconnecting takes a while, and is_leader can be seen in between
        for n in range(1, 4):
            (before,) = lock_holders(database, *key)
            lost_at = now()
            if fault == "cut":
                proxy.cut()
            else:
                terminate(database, before)
            await resumed(a, term, lost_at)
            assert len(a.looks.spans) == n + 1, "is_leader was False in between"
            (after,) = lock_holders(database, *key)
            assert after != before
            await passed_through(a, [LEADER, *[RECONNECTING, LEADER] * n])
            row = query(database, "SELECT token, terms, released_at, backend_pid FROM pgelect.token")
            assert row == [(term.token, 1, None, after)]
    assert a.terms == [("acquired", term.token), ("released", term.token)]


async def test_nobody_leads_during_the_grace(proxy: BreakableProxy, database: str, key: Key) -> None:
    async with Elector(proxy.dsn(database), key, lease_s=LEASE_S, reconnect_grace_s=GRACE_S) as a:
        term = await a.leads()
        proxy.refuse()
        proxy.cut()
        await eventually(lambda: a.lock.state is RECONNECTING)
        down_at = now()
        await asyncio.sleep(0.5)  # the outage itself
        assert a.lock.term is None
        assert a.lock.token is None
        assert not term.is_current
        up_at = now()
        proxy.refuse(False)
        await resumed(a, term, up_at)
        assert not a.looks.was_true(down_at, up_at)


async def test_a_waiting_follower_leads_at_once_and_ends_the_grace(
    proxy: BreakableProxy, database: str, key: Key
) -> None:
    """The grace is not a time in which nobody may lead: the lock is free, and whoever waits takes it."""
    async with Elector(proxy.dsn(database), key, lease_s=LEASE_S, reconnect_grace_s=GRACE_S) as a:
        term = await a.leads()
        async with Elector(database, key, lease_s=LEASE_S) as b:
            (b_pid,) = await eventually(lambda: lock_waiters(database, *key))
            proxy.cut()
            successor = await b.leads(above=term.token)
            await eventually(lambda: lock_waiters(database, *key), message="the old leader waits in the queue")
            assert a.terms == [("acquired", term.token), ("lost", term.token)]
            assert lock_holders(database, *key) == [b_pid]
            assert b.lock.term is successor
            assert after_first_lead(a)[:3] == [LEADER, RECONNECTING, FOLLOWER]


@pytest.mark.parametrize("end", ["shutdown", "kill"])
async def test_another_process_that_led_for_half_a_second_ends_the_old_term_always(
    proxy: BreakableProxy, database: str, key: Key, end: str
) -> None:
    """Regression: the lock was free again when the old leader came back, and it went on as if nobody had led."""
    async with Elector(proxy.dsn(database), key, lease_s=LEASE_S, reconnect_grace_s=GRACE_S) as a:
        for n in range(1, 6):
            term = await a.leads(above=max(a.tokens("lost"), default=0))
            proxy.refuse()
            proxy.cut()
            await eventually(lambda: a.lock.state is RECONNECTING)
            with Replica(database, key, f"other{n}", lease_s=LEASE_S) as other:
                led = await asyncio.to_thread(other.wait_for, "acquired", 30)
                assert led["token"] > term.token
                await asyncio.sleep(0.5)  # so long it leads
                assert a.lock.state is RECONNECTING
                if end == "shutdown":
                    await asyncio.to_thread(other.ask, "shutdown")
                    await asyncio.to_thread(other.wait)
                else:
                    other.kill()
            await eventually(lambda: lock_holders(database, *key) == [], message="the lock is free again")
            proxy.refuse(False)
            await a.leads(above=led["token"])
            assert len(a.tokens("lost")) == n
            a.check_pairs()
            assert not term.is_current
            assert term.token < led["token"] < (a.lock.token or 0)


@pytest.mark.parametrize("fault", ["refuse", "freeze"])
async def test_a_grace_that_runs_out_ends_the_term_once(
    proxy: BreakableProxy, database: str, key: Key, fault: str
) -> None:
    async with Elector(proxy.dsn(database), key, lease_s=LEASE_S, reconnect_grace_s=0.6) as a:
        term = await a.leads()
        lost_at = now()
        if fault == "refuse":
            proxy.refuse()
        else:
            proxy.freeze()  # a new connection is accepted, and then hears nothing
        proxy.cut()
        await eventually(lambda: a.tokens("lost") == [term.token])
        assert a.when("lost", term.token) >= lost_at + 0.6
        assert a.lock.state is FOLLOWER
        assert after_first_lead(a)[:3] == [LEADER, RECONNECTING, FOLLOWER]
        proxy.refuse(False)
        proxy.thaw()
        successor = await a.leads(above=term.token)
        assert a.terms[-1] == ("acquired", successor.token)
        a.check_pairs()
        await eventually(
            lambda: lock_holders(database, *key) == [one.pid for one in sessions(database)],
            message="no other session is left",
        )


@pytest.mark.parametrize("grace_s", [GRACE_S, None])
async def test_the_own_ghost_is_ended_and_not_waited_for(
    proxy: BreakableProxy, database: str, key: Key, grace_s: float | None
) -> None:
    """The link is dead but the server has not noticed: our old session holds our own lock, for as long as a lease."""
    ways = itertools.chain([proxy.dsn(database)], itertools.repeat(database))
    settings = {"lease_s": 60.0, "health_interval_s": 0.1, "health_timeout_s": 0.3, "reconnect_grace_s": grace_s}
    async with Elector(lambda: next(ways), key, **settings) as a:
        term = await a.leads()
        (ghost,) = lock_holders(database, *key)
        lost_at = now()
        proxy.freeze()
        if grace_s:
            await resumed(a, term, lost_at)
        else:
            await a.leads(above=term.token)
            assert a.tokens("lost") == [term.token]
        (holder,) = lock_holders(database, *key)
        assert holder != ghost
        assert [one.pid for one in sessions(database)] == [holder]
        proxy.cut()


async def test_a_ghost_that_lost_the_lock_is_left_alone(proxy: BreakableProxy, database: str, key: Key) -> None:
    """Only what holds our lock is ended: a session of another elector is not, whatever became of ours."""
    async with Elector(proxy.dsn(database), key, lease_s=LEASE_S, reconnect_grace_s=GRACE_S) as a:
        term = await a.leads()
        proxy.refuse()
        proxy.cut()
        async with Elector(database, key, lease_s=LEASE_S) as b:
            successor = await b.leads(above=term.token)
            proxy.refuse(False)
            await eventually(lambda: lock_waiters(database, *key), message="the old leader waits in the queue")
            assert successor.is_current
            assert b.terms == [("acquired", successor.token)]
            assert len(b.looks.spans) == 1


async def test_a_grace_behind_a_password_that_changed_says_so(database: str, key: Key) -> None:
    """What keeps it from reconnecting is told while the grace lasts, not only when it is over."""
    ways = itertools.chain([database], itertools.repeat(make_conninfo(database, user="nobody_known")))
    async with Elector(lambda: next(ways), key, lease_s=LEASE_S, reconnect_grace_s=GRACE_S) as a:
        await a.leads()
        terminate(database, lock_holders(database, *key)[0])
        await a.hears(Exception, 'role "nobody_known" does not exist')
        assert a.lock.state is RECONNECTING
        assert a.tokens("lost") == []
