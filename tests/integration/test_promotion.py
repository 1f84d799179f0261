"""The primary dies and its standby is promoted: a leader is found there, under a greater token, whatever was lost."""

import asyncio
import itertools
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection

import pgelect
from pgelect import FixedInterval, LeaderLock, LockKey, LockState, NotLeaderError, SessionLostError, StaleTokenError
from pgelect.fencing import check_token, fenced
from pgelect.testing import Postgres
from tests.support.electors import LEASE_S, Elector, one_leads
from tests.support.looks import now
from tests.support.proxy import BreakableProxy
from tests.support.replication import TIMELINE, Pair, hosts
from tests.support.server import lock_holders, lock_waiters, query, sessions, terminate
from tests.support.waiting import eventually

Key = tuple[int, int]
LONG: dict[str, Any] = {"lease_s": 30.0, "health_interval_s": 0.2}  # a lease that is never what ends a term


def use_up(server: Postgres, numbers: int = 64) -> None:
    """Other locks in the database take so many numbers: more than one record in the WAL holds."""
    query(server.dsn(), "SELECT count(nextval('pgelect.token_seq')) FROM generate_series(1, %s)", numbers)


def held(server: Postgres, key: Key) -> tuple[int, int]:
    """How many hold the lock there, and how many wait for it."""
    return len(lock_holders(server.dsn(), *key)), len(lock_waiters(server.dsn(), *key))


def last_token(server: Postgres) -> int:
    return int(query(server.dsn(), "SELECT coalesce(max(token), 0) FROM pgelect.token")[0][0])


def last_number(server: Postgres) -> int:
    return int(query(server.dsn(), "SELECT last_value FROM pgelect.token_seq")[0][0])


async def test_with_both_hosts_one_leads_on_the_new_primary_and_never_before_it_is_one(
    any_pair: Pair, key: Key
) -> None:
    pair, old, new = any_pair, any_pair.primary, any_pair.standby
    async with Elector(hosts(old, new), key, **LONG) as a, Elector(hosts(new, old), key, **LONG) as b:
        first = (await one_leads(a, b)).lock.token or 0
        await eventually(lambda: held(old, key) == (1, 1), message="the other waits in the queue")
        pair.caught_up()
        assert held(new, key) == (0, 0)
        await asyncio.to_thread(old.stop, "immediate")
        tried = len(a.errors) + len(b.errors) + 6
        while len(a.errors) + len(b.errors) < tried:  # the standby is all that can be reached
            assert held(new, key) == (0, 0)
            await asyncio.sleep(0.02)
        assert not a.is_leader
        assert not b.is_leader
        await asyncio.to_thread(pair.fail_over)
        leader = await one_leads(a, b, above=first)
        await eventually(lambda: held(new, key) == (1, 1), message="the other waits in the queue there")
        assert leader.lock.token == last_token(new) > first
        assert len(sessions(new.dsn())) == 2
        for elector in (a, b):
            elector.check_pairs()
            assert all(isinstance(error, pgelect.PgElectError) for error in elector.errors)


async def test_failover_after_failover_the_tokens_grow_and_one_leads_at_a_time(pair: Pair, key: Key) -> None:
    """Each loses its tail: the row and the sequence both go back, as the servers say."""
    handed_out: list[int] = []
    dsn = hosts(pair.primary, pair.standby)
    async with Elector(dsn, key, **LONG) as a, Elector(dsn, key, **LONG) as b:
        for _ in range(3):
            await one_leads(a, b, above=max(handed_out, default=0))
            await asyncio.to_thread(pair.hold_back)
            use_up(pair.primary)
            leader = await one_leads(a, b)
            known = leader.lock.token or 0
            assert await leader.lock.step_down(cooldown_s=0)
            leader = await one_leads(a, b, above=known)
            lost, number = leader.lock.token or 0, last_number(pair.primary)
            assert lost == last_token(pair.primary)
            handed_out += [known, lost]
            await asyncio.to_thread(pair.primary.stop, "immediate")
            assert last_token(pair.standby) == known < lost, "the row has gone back"
            assert last_number(pair.standby) < number, "the sequence has gone back"
            await asyncio.to_thread(pair.fail_over)
            await one_leads(a, b, above=lost)
            await asyncio.to_thread(pair.rejoin)
        await eventually(lambda: held(pair.primary, key) == (1, 1), message="the other waits in the queue")
        assert held(pair.standby, key) == (0, 0)
        handed_out.append(last_token(pair.primary))
        assert handed_out == sorted(set(handed_out))
        spans = sorted((span.first, span.last) for elector in (a, b) for span in elector.looks.spans)
        assert all(one[1] < other[0] for one, other in itertools.pairwise(spans)), "two led at a time"
        a.check_pairs()
        b.check_pairs()


async def test_a_standby_that_followed_the_first_failover_gives_greater_tokens_at_the_second(
    pair: Pair, key: Key
) -> None:
    """Three servers, two of which die one after the other. One that never followed would be on the same timeline."""
    with pair.primary.standby() as third:
        async with Elector(hosts(pair.primary, pair.standby, third), key, **LONG) as a:
            first = (await a.leads()).token
            await asyncio.to_thread(Pair(pair.primary, third).hold_back)  # ahead of the new primary it could not follow
            await asyncio.to_thread(pair.caught_up)
            await asyncio.to_thread(pair.fail_over)
            second = (await a.leads(above=first)).token
            spare = Pair(pair.primary, third)
            await asyncio.to_thread(spare.follow)
            third_at_least = (await a.leads(above=first)).token
            assert held(third, key) == (0, 0)
            await asyncio.to_thread(spare.fail_over)
            token = (await a.leads(above=third_at_least)).token
            assert first // TIMELINE + 2 == second // TIMELINE + 1 == token // TIMELINE
            assert held(third, key) == (1, 0)
        await eventually(lambda: sessions(third.dsn()) == [], message="its sessions are gone")


@pytest.mark.parametrize("tail", ["replicated", "lost"])
async def test_the_old_term_writes_nothing_on_the_new_primary(pair: Pair, key: Key, tail: str) -> None:
    dsn = hosts(pair.primary, pair.standby)
    query(pair.primary.dsn(), "CREATE TABLE ledger (token bigint)")
    async with Elector(pair.primary.dsn(), key) as before:
        await before.leads()
    async with await AsyncConnection.connect(pair.primary.dsn()) as conn:
        await pgelect.guard_table(conn, "ledger", LockKey(*key))
        await conn.commit()
    if tail == "lost":
        await asyncio.to_thread(pair.hold_back)
    async with Elector(dsn, key, auto_reacquire=False, **LONG) as a:
        old = await a.leads()
        pair_lost = pair.primary.dsn()
        async with await AsyncConnection.connect(pair_lost) as conn, a.lock.fence(conn):
            await conn.execute("INSERT INTO ledger VALUES (%s)", (old.token,))
        if tail == "replicated":
            await asyncio.to_thread(pair.caught_up)
        await asyncio.to_thread(pair.fail_over)
        await a.has_lost(old.token)
        new_dsn = pair.primary.dsn()
        async with Elector(new_dsn, key, **LONG) as b, await AsyncConnection.connect(new_dsn, autocommit=True) as conn:
            new = await b.leads(above=old.token)
            with pytest.raises(NotLeaderError):
                async with a.lock.fence(conn):
                    raise AssertionError
            with pytest.raises(StaleTokenError):  # by somebody who kept the number
                async with fenced(conn, LockKey(*key), old.token):
                    raise AssertionError
            async with conn.transaction(force_rollback=True):
                with pytest.raises(StaleTokenError):
                    await check_token(conn, LockKey(*key), old.token)
            with pytest.raises(psycopg.Error, match="not fenced"):
                await conn.execute("INSERT INTO ledger VALUES (%s)", (old.token,))
            async with b.lock.fence(conn):
                await conn.execute("INSERT INTO ledger VALUES (%s)", (new.token,))
            written = query(new_dsn, "SELECT token FROM ledger ORDER BY token")
            assert written == ([(old.token,), (new.token,)] if tail == "replicated" else [(new.token,)])


async def test_no_old_token_counts_on_the_new_primary_though_no_term_has_begun_there(any_pair: Pair, key: Key) -> None:
    """Holds off the last but one: of the term after it, which the promotion lost, nothing is known there."""
    pair = any_pair
    query(pair.primary.dsn(), "CREATE TABLE ledger (token bigint)")
    async with Elector(pair.primary.dsn(), key, auto_reacquire=False, **LONG) as a:
        known = (await a.leads()).token
        async with await AsyncConnection.connect(pair.primary.dsn()) as conn:
            await pgelect.guard_table(conn, "ledger", LockKey(*key))
            await conn.commit()
        await asyncio.to_thread(pair.hold_back)
        terminate(pair.primary.dsn(), lock_holders(pair.primary.dsn(), *key)[0])
        await a.has_lost(known)
    async with Elector(pair.primary.dsn(), key, auto_reacquire=False, **LONG) as b:
        lost = (await b.leads(above=known)).token
        await asyncio.to_thread(pair.fail_over)
        assert last_token(pair.primary) == known
        for token in (known, lost):
            async with await AsyncConnection.connect(pair.primary.dsn(), autocommit=True) as conn:
                with pytest.raises(StaleTokenError):
                    async with fenced(conn, LockKey(*key), token):
                        raise AssertionError
                # Nor by whoever binds the number by hand.
                name = f"pgelect.fence_{LockKey(*key).classid}_{LockKey(*key).objid}"
                await conn.execute("SELECT set_config(%s, %s, false)", (name, str(token)))
                with pytest.raises(psycopg.Error, match="not fenced"):
                    await conn.execute("INSERT INTO ledger VALUES (%s)", (token,))
    assert query(pair.primary.dsn(), "SELECT token FROM ledger") == []


@pytest.mark.parametrize("tail", ["replicated", "lost"])
async def test_a_term_in_its_grace_is_not_resumed_on_the_new_primary(
    pair: Pair, key: Key, tail: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Though the row is as it was: on the old primary another may have led, and been lost with the tail."""
    caplog.set_level("INFO", "pgelect")
    timeline = pair.timeline
    async with Elector(hosts(pair.primary, pair.standby), key, reconnect_grace_s=60.0, **LONG) as a:
        term = await a.leads()
        await asyncio.to_thread(pair.hold_back if tail == "lost" else pair.caught_up)
        if tail == "lost":
            use_up(pair.primary)
        await asyncio.to_thread(pair.fail_over)
        successor = await a.leads(above=term.token)
        assert a.terms == [("acquired", term.token), ("lost", term.token), ("acquired", successor.token)]
        assert not term.is_current
        assert a.states.index(LockState.RECONNECTING) < len(a.states) - 1
        assert f"the server was promoted (timeline {timeline} -> {timeline + 1})" in caplog.text
        rows = query(pair.primary.dsn(), "SELECT token, terms FROM pgelect.token")
        assert rows == [(successor.token, 2)]


async def test_a_leader_cut_off_with_the_old_primary_has_a_smaller_token_and_gives_up_by_its_lease(
    pair: Pair, key: Key
) -> None:
    """The old primary lives on behind a partition, with its leader; nobody there can hear of the promotion."""
    with BreakableProxy("127.0.0.1", pair.primary.port) as proxy:
        dsn = hosts(proxy, pair.standby)
        async with Elector(dsn, key) as a:
            old = await a.leads()
            await asyncio.to_thread(pair.caught_up)
            frozen_at = now()
            proxy.freeze()
            await asyncio.to_thread(pair.fail_over)
            async with Elector(pair.primary.dsn(), key, **LONG) as b:
                new = await b.leads(above=old.token)
                await a.has_lost(old.token)
                assert a.looks.last_true_at < frozen_at + LEASE_S
                assert len(a.looks.spans) == 1
                proxy.refuse()
                proxy.cut()
                await eventually(lambda: held(pair.primary, key) == (1, 1), message="it waits in the queue there")
                assert new.is_current
                assert a.terms == [("acquired", old.token), ("lost", old.token)]


@pytest.mark.parametrize("way", ["dsn callable", "async dsn callable", "connect_fn", "connect_fn with hosts"])
async def test_whoever_says_where_to_connect_may_point_at_the_standby_and_then_at_the_new_primary(
    pair: Pair, key: Key, way: str
) -> None:
    old, new = pair.primary, pair.standby
    asked: list[int] = []
    pointing_at = old

    def dsn() -> str:
        asked.append(pointing_at.port)
        return pointing_at.dsn()

    async def later() -> str:
        return dsn()

    async def connect() -> AsyncConnection[Any]:
        return await AsyncConnection.connect(dsn(), autocommit=True)

    async def connect_to_any() -> AsyncConnection[Any]:
        dsn()
        return await AsyncConnection.connect(hosts(new, old, target_session_attrs="primary", connect_timeout=2))

    ways: dict[str, dict[str, Any]] = {
        "dsn callable": {"dsn": dsn},
        "async dsn callable": {"dsn": later},
        "connect_fn": {"dsn": "", "connect_fn": connect},
        "connect_fn with hosts": {"dsn": "", "connect_fn": connect_to_any},
    }
    async with Elector(key=key, **ways[way], **LONG) as a:
        token = (await a.leads()).token
        assert held(old, key) == (1, 0)
        await asyncio.to_thread(pair.caught_up)
        pointing_at = new
        await asyncio.to_thread(old.stop, "immediate")
        asked_before = len(asked)
        await eventually(lambda: len(asked) > asked_before + 3, message="it is asked for each attempt")
        assert held(new, key) == (0, 0)
        assert a.terms == [("acquired", token), ("lost", token)]
        await asyncio.to_thread(pair.fail_over)
        successor = await a.leads(above=token)
        assert successor.token // TIMELINE == token // TIMELINE + 1
        await eventually(
            lambda: lock_holders(new.dsn(), *key) == [one.pid for one in sessions(new.dsn())],
            message="no other session is left",
        )


async def test_without_fencing_too_nobody_leads_on_the_standby(pair: Pair, key: Key) -> None:
    """There is no token then whose minting a standby would refuse."""
    old, new = pair.primary, pair.standby
    async with (
        Elector(hosts(new, old), key, fencing=False, **LONG) as a,
        Elector(new.dsn(), key, fencing=False, **LONG) as b,
    ):
        await eventually(lambda: a.is_leader, message="it leads on the primary")
        tried = len(b.errors) + 3
        while len(b.errors) < tried:
            assert held(new, key) == (0, 0)
            await asyncio.sleep(0.02)
        assert held(old, key) == (1, 0)
        await asyncio.to_thread(pair.fail_over)
        await eventually(lambda: held(new, key) == (1, 1), message="one leads there, and the other waits")
        await eventually(lambda: a.is_leader != b.is_leader, message="one leads")


async def test_a_duty_is_ended_before_the_next_one_begins_on_the_new_primary(pair: Pair, key: Key) -> None:
    ran: list[tuple[str, int]] = []
    lock = LeaderLock(hosts(pair.primary, pair.standby), *key, retry_strategy=FixedInterval(0.1), **LONG)
    errors: list[Exception] = []
    lock.on_error(errors.append)

    async def duty(term: pgelect.Term) -> None:
        ran.append(("began", term.token))
        try:
            await asyncio.Event().wait()
        finally:
            ran.append(("ended", term.token))

    async with lock:
        leading = asyncio.create_task(lock.lead(duty))
        await eventually(lambda: len(ran) == 1)
        await asyncio.to_thread(pair.caught_up)
        await asyncio.to_thread(pair.fail_over)
        await eventually(lambda: len(ran) == 3)
        leading.cancel()
        with suppress(asyncio.CancelledError):
            await leading
    (first, second) = ran[0][1], ran[2][1]
    assert ran == [("began", first), ("ended", first), ("began", second), ("ended", second)]
    assert second // TIMELINE == first // TIMELINE + 1
    assert all(isinstance(error, SessionLostError | pgelect.NotPrimaryError) for error in errors)
