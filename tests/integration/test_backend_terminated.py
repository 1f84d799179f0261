"""The server ends a session of ours while the process lives: an administrator, maintenance, a failover tool."""

import asyncio
import itertools
import random
import secrets

import psycopg
import pytest

from pgelect import FixedInterval, LockState, SessionLostError, StaleTokenError
from tests.support.electors import Elector, one_leads
from tests.support.ledger import connected, make_ledger, write, written
from tests.support.proxy import BreakableProxy
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


# Any moment, and the leader that cannot be told


async def test_fifty_terminations_at_any_moment_of_an_election_leave_pairs_and_growing_tokens(
    database: str, key: Key
) -> None:
    """Mostly nothing is waited for: they strike between lock and token and in the midst of handovers, too."""
    seed = secrets.randbelow(10**6)
    chance = random.Random(seed)
    async with (
        Elector(database, key, lease_s=LEASE_S, health_interval_s=0.05, retry_strategy=FixedInterval(0.02)) as a,
        Elector(database, key, lease_s=LEASE_S, health_interval_s=0.05, retry_strategy=FixedInterval(0.02)) as b,
    ):
        killed = 0

        async def settled() -> Elector:
            await gone(database, killed)
            await eventually(lambda: len(lock_waiters(database, *key)) == 1, message="one has heard, and waits")
            await eventually(lambda: lock_holders(database, *key), message="the other one holds the lock")
            return await one_leads(a, b)

        for round_ in range(50):
            if round_ % 5 == 0:
                await settled()  # else on a busy machine every one may be ended before it has a token
            (killed,) = (await eventually(lambda: lock_holders(database, *key), message="somebody holds it"))[:1]
            terminate(database, killed)
            await asyncio.sleep(chance.choice([0.0, chance.uniform(0, 0.01), chance.uniform(0, 0.06)]))
        leader = await settled()
        follower = b if leader is a else a
        begun = sorted(a.tokens("acquired") + b.tokens("acquired"))
        assert begun[-1] == leader.lock.token, f"seed {seed}"
        await eventually(lambda: len(a.terms) + len(b.terms) == 2 * len(begun) - 1, message="every end is told")
        a.check_pairs()
        b.check_pairs()
        assert len(begun) == len(set(begun)) > 5, f"seed {seed}: too few terms for the test to mean anything"
        assert not follower.is_leader
        starts = {token: elector.when("acquired", token) for elector in (a, b) for token in elector.tokens("acquired")}
        ends = {token: elector.when("lost", token) for elector in (a, b) for token in elector.tokens("lost")}
        for token, successor in itertools.pairwise(begun):
            assert ends[token] <= starts[successor] + LEASE_S, f"seed {seed}"
        assert len(lock_holders(database, *key)) == 1
        ((token, terms),) = query(database, "SELECT token, terms FROM pgelect.token")
        assert token == begun[-1]
        assert terms >= len(begun)  # a token that was minted, and whose session ended before it was heard, is used up


async def test_a_session_that_ends_between_lock_and_token_hands_the_lock_to_the_rival(database: str, key: Key) -> None:
    async with Elector(database, key, lease_s=LEASE_S) as first:
        token = (await first.leads()).token
    async with await psycopg.AsyncConnection.connect(database) as held:
        await held.execute("UPDATE pgelect.token SET terms = terms")  # both mints wait for the end of this
        async with Elector(database, key, lease_s=LEASE_S, retry_strategy=FixedInterval(3600.0)) as a:
            (pid,) = await eventually(lambda: lock_holders(database, *key), message="the lock is held")
            waiting = "SELECT 1 FROM pg_locks WHERE pid = %s AND locktype IN ('transactionid', 'tuple') AND NOT granted"
            await eventually(lambda: query(database, waiting, pid), message="the mint waits")
            async with Elector(database, key, lease_s=LEASE_S) as b:
                (rival,) = await eventually(lambda: lock_waiters(database, *key), message="the rival waits")
                assert terminate(database, pid)
                await a.hears(SessionLostError)
                await eventually(lambda: lock_holders(database, *key) == [rival], message="the rival has the lock")
                assert a.terms == b.terms == []
                await held.rollback()
                successor = await b.leads(above=token)
                assert a.terms == []
                assert a.lock.state is LockState.FOLLOWER
                assert b.terms == [("acquired", successor.token)]


@pytest.mark.parametrize("takeover_delay_s", [0.0, 2.0])
async def test_a_leader_that_the_news_cannot_reach_believes_no_longer_than_the_bound_and_cannot_write(
    proxy: BreakableProxy, database: str, key: Key, takeover_delay_s: float
) -> None:
    """Its backend is ended behind a silent link: until its trust runs out only the token protects what is written.

    Who cannot live with that sets a takeover delay, of a lease.
    """
    make_ledger(database)
    settings = {"lease_s": 2.0, "health_interval_s": 0.3, "takeover_delay_s": takeover_delay_s}
    async with Elector(proxy.dsn(database), key, **settings) as a:
        term = await a.leads()
        overlap_s = a.lock.bounds().overlap_session.seconds
        async with Elector(database, key, **settings) as b, connected(database) as conn:
            await eventually(lambda: lock_waiters(database, *key), message="the other waits in the queue")
            proxy.freeze()
            assert terminate(database, lock_holders(database, *key)[0])
            successor = await b.leads(above=term.token)
            if not takeover_delay_s:
                assert a.is_leader, "the news has reached it: the test shows nothing"
                with pytest.raises(StaleTokenError):
                    async with a.lock.fence(conn):
                        await write(conn, term.token)
            async with b.lock.fence(conn):
                await write(conn, successor.token)
            await conn.commit()
            await a.has_lost(term.token)
            believed_s = a.looks.last_true_at - b.when("acquired", successor.token)
            assert believed_s <= overlap_s
            if takeover_delay_s:
                assert a.looks.last_true_at < b.looks.spans[0].first
            assert a.terms == [("acquired", term.token), ("lost", term.token)]
            assert written(database) == [successor.token]
            proxy.cut()
