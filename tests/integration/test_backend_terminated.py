"""The server ends a session of ours while the process lives: an administrator, maintenance, a failover tool."""

import asyncio
import random
import secrets

import psycopg

from pgelect import FixedInterval, LockState, SessionLostError
from tests.support.electors import Elector, one_leads
from tests.support.server import lock_holders, lock_waiters, query, sessions, terminate
from tests.support.waiting import eventually

Key = tuple[int, int]
LEASE_S = 10.0  # so long that nothing here can be the lease's doing


async def gone(dsn: str, pid: int) -> None:
    """Wait until the server has forgotten a session."""
    await eventually(lambda: not query(dsn, "SELECT 1 FROM pg_stat_activity WHERE pid = %s", pid), message="it is gone")


async def waits_to_mint(dsn: str, pid: int) -> None:
    """Wait until a session waits for a lock on a table."""
    waiting = "SELECT 1 FROM pg_locks WHERE pid = %s AND locktype = 'relation' AND NOT granted"
    await eventually(lambda: query(dsn, waiting, pid), message="the mint waits")


async def test_a_leader_whose_backend_is_ended_loses_the_term_and_the_follower_leads(database: str, key: Key) -> None:
    async with Elector(database, key, lease_s=LEASE_S) as a:
        term = await a.leads()
        async with Elector(database, key, lease_s=LEASE_S) as b:
            await eventually(lambda: lock_waiters(database, *key))
            (killed,) = lock_holders(database, *key)
            assert terminate(database, killed)
            successor = await b.leads(above=term.token)
            await eventually(lambda: lock_waiters(database, *key), message="the old leader waits in the queue")
            assert not a.is_leader
            assert not term.is_current
            assert a.terms == [("acquired", term.token), ("lost", term.token)]
            assert a.states[a.states.index(LockState.LEADER) + 1] is LockState.FOLLOWER
            assert lock_holders(database, *key) != [killed]
            assert b.lock.token == successor.token
            assert len(sessions(database)) == 2
    assert b.terms[-1] == ("released", successor.token)


async def test_twenty_kills_of_whoever_leads_give_twenty_pairs_and_growing_tokens(database: str, key: Key) -> None:
    """Nobody drops out of the election, no begin or end of a term is doubled or missing, and one leads in the end."""
    seed = secrets.randbelow(10**6)
    chance = random.Random(seed)
    async with Elector(database, key, lease_s=LEASE_S) as a, Elector(database, key, lease_s=LEASE_S) as b:
        token = 0
        for _ in range(20):
            leader = await one_leads(a, b, above=token)
            token = leader.lock.token or 0
            await asyncio.sleep(chance.random() * 0.2)  # the instant of the fault within a round of the proof
            for pid in lock_holders(database, *key):
                terminate(database, pid)
        leader = await one_leads(a, b, above=token)
        token = leader.lock.token or 0
        await eventually(lambda: len(lock_waiters(database, *key)) == 1, message="the other one waits in the queue")
        a.check_pairs()
        b.check_pairs()
        begun = sorted(a.tokens("acquired") + b.tokens("acquired"))
        assert len(begun) == len(set(begun)) == 21, f"seed {seed}"
        assert sorted(a.tokens("lost") + b.tokens("lost")) == begun[:-1], f"seed {seed}"
        assert begun[-1] == token
        assert [a.is_leader, b.is_leader].count(True) == 1
        assert len(lock_holders(database, *key)) == 1
        terms = query(database, "SELECT token, terms FROM pgelect.token")
        assert terms == [(token, 21)]


async def test_a_session_that_ends_between_lock_and_token_never_leads(database: str, key: Key) -> None:
    """The mint waits for a lock on the table, which the test holds: no half-open term may remain of it."""
    async with Elector(database, key, lease_s=LEASE_S) as first:
        token = (await first.leads()).token
    async with await psycopg.AsyncConnection.connect(database) as held:
        await held.execute("LOCK TABLE pgelect.token IN SHARE MODE")
        async with Elector(database, key, lease_s=LEASE_S, retry_strategy=FixedInterval(0.3)) as a:
            for _ in range(3):
                (pid,) = await eventually(lambda: lock_holders(database, *key), message="the lock is held")
                await waits_to_mint(database, pid)
                assert a.lock.state is LockState.ACQUIRING
                assert terminate(database, pid)
                await gone(database, pid)
            await a.hears(SessionLostError)
            assert a.terms == []
            assert a.looks.spans == []
            await held.rollback()
            term = await a.leads(above=token)
            assert a.terms == [("acquired", term.token)]
            assert query(database, "SELECT token, terms FROM pgelect.token") == [(term.token, 2)]


async def test_a_follower_whose_wait_is_ended_waits_again(database: str, key: Key) -> None:
    async with Elector(database, key, lease_s=LEASE_S) as a, Elector(database, key, lease_s=LEASE_S) as b:
        leader = await one_leads(a, b)
        follower = b if leader is a else a
        for _ in range(5):
            (pid,) = await eventually(lambda: lock_waiters(database, *key), message="it waits in the queue")
            terminate(database, pid)
            await gone(database, pid)
        await eventually(lambda: lock_waiters(database, *key), message="it waits in the queue")
        await follower.hears(SessionLostError)
        assert follower.terms == []
        assert leader.terms == [("acquired", leader.lock.token)]


async def test_a_drop_of_all_sessions_at_once_leaves_one_leader(database: str, key: Key) -> None:
    electors = [Elector(database, key, lease_s=LEASE_S) for _ in range(4)]
    async with electors[0], electors[1], electors[2], electors[3]:
        token = (await one_leads(*electors)).lock.token or 0
        await eventually(lambda: len(lock_waiters(database, *key)) == 3)
        pids = [session.pid for session in sessions(database)]
        query(database, "SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) AS pid", pids)
        leader = await one_leads(*electors, above=token)
        await eventually(lambda: len(lock_waiters(database, *key)) == 3, message="the others wait in the queue")
        assert len(lock_holders(database, *key)) == 1
        for elector in electors:
            elector.check_pairs()
        assert leader.is_leader
        assert not {session.pid for session in sessions(database)} & set(pids)
