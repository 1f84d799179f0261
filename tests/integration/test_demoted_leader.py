"""The server under a leader's feet is demoted: what answers on its connection, or at its address, is in recovery."""

import asyncio
from typing import Any

import pytest

from pgelect import FixedInterval, LeaderGroup, LockState, NotPrimaryError, SessionLostError
from pgelect._postgres.group_session import PostgresGroupSession
from pgelect._postgres.session import PostgresSession
from pgelect.testing import Postgres
from tests.support.electors import Elector
from tests.support.looks import now
from tests.support.replication import TIMELINE, Pair, hosts
from tests.support.server import lock_holders, lock_waiters, query, sessions
from tests.support.splice import RawSession, SpliceableProxy
from tests.support.waiting import eventually

Key = tuple[int, int]
LEASE_S = 30.0  # so long that it is never what ends a term here
QUICK: dict[str, Any] = {"lease_s": LEASE_S, "health_interval_s": 0.2}


async def is_alone(dsn: str, key: Key) -> None:
    """Wait until the holder's session is the only one there."""
    await eventually(
        lambda: lock_holders(dsn, *key) == [one.pid for one in sessions(dsn)], message="no other session is left"
    )


def twin(elector: Elector, server: Postgres, key: Key) -> RawSession:
    """A session there that answers as the elector's own does, lock and nonce included."""
    (session,) = elector.lock._runner._performer._sessions.values()
    assert isinstance(session, PostgresSession)
    return RawSession(
        server,
        f"SELECT set_config('pgelect.nonce', '{session._nonce}', false), set_config('application_name', 'twin', false)",
        f"SELECT pg_advisory_lock({key[0]}, {key[1]})",
    )


def is_untouched(server: Postgres, key: Key) -> bool:
    """Nobody holds the lock there, nor waits for it."""
    return lock_holders(server.dsn(), *key) == lock_waiters(server.dsn(), *key) == []


async def never_locks(server: Postgres, key: Key, elector: Elector, attempts: int = 3) -> None:
    """While it tries again and again, no look at that server finds the lock taken."""
    until = len(elector.errors) + attempts
    while len(elector.errors) < until:
        assert is_untouched(server, key)
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("grace_s", [None, 60.0], ids=["no grace", "grace"])
async def test_a_connection_that_answers_in_recovery_ends_leading_at_the_next_proof(
    any_pair: Pair, key: Key, grace_s: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    """A fault like gpustack#6107: the old node went on to answer, as a standby, and nobody asked it for its role.

    All else is as the proof wants it: the same connection, the nonce, the lock.
    """
    pair = any_pair
    caplog.set_level("INFO", "pgelect")
    with SpliceableProxy(pair.primary) as proxy:
        async with Elector(proxy.dsn(), key, reconnect_grace_s=grace_s, **QUICK) as a:
            term = await a.leads()
            pair.caught_up()
            session = twin(a, pair.standby, key)
            assert len(lock_holders(pair.standby.dsn(), *key)) == 1
            proxy.upstream = pair.standby  # where its address leads now
            await a.proved(1)
            proxy.splice(session)
            await eventually(lambda: not a.is_leader, message="it leads no more")
            assert a.lock.state in {LockState.FOLLOWER, LockState.RECONNECTING}
            assert "in recovery" in caplog.text
            after = LockState.FOLLOWER if grace_s is None else LockState.RECONNECTING
            change = (LockState.LEADER, after)
            await eventually(lambda: change in [told.detail for told in a.told], message="on_state_change says so")
            await a.hears(NotPrimaryError, "standby")
            await eventually(lambda: is_untouched(pair.standby, key), message="the lock it had there is gone")
            await never_locks(pair.standby, key, a)
            assert len(a.looks.spans) == 1
            await asyncio.to_thread(pair.fail_over)
            successor = await a.leads(above=term.token)
            assert a.terms == [("acquired", term.token), ("lost", term.token), ("acquired", successor.token)]
            assert successor.token // TIMELINE == term.token // TIMELINE + 1
            await is_alone(pair.primary.dsn(), key)


async def test_on_error_hears_why_a_connection_that_answers_in_recovery_is_left(pair: Pair, key: Key) -> None:
    with SpliceableProxy(pair.primary) as proxy:
        async with Elector(proxy.dsn(), key, **QUICK) as a:
            term = await a.leads()
            pair.caught_up()
            proxy.splice(twin(a, pair.standby, key))
            error = await a.hears(SessionLostError, "in recovery")
            assert getattr(error, "reason", "") == "disproved"
            await a.has_lost(term.token)


async def test_it_goes_on_to_find_the_primary_at_its_address(pair: Pair, key: Key) -> None:
    """Nothing was promoted: only this one connection had gone astray."""
    with SpliceableProxy(pair.primary) as proxy:
        async with Elector(proxy.dsn(), key, **QUICK) as a:
            term = await a.leads()
            pair.caught_up()
            await a.proved(1)
            spliced_at = now()
            proxy.splice(twin(a, pair.standby, key))
            successor = await a.leads(above=term.token)
            assert a.when("lost", term.token) > spliced_at
            assert successor.token == term.token + 1
            assert len(lock_holders(pair.primary.dsn(), *key)) == 1
            await eventually(lambda: is_untouched(pair.standby, key), message="the lock it had there is gone")


@pytest.mark.parametrize("fencing", [True, False], ids=["fencing", "no fencing"])
async def test_a_follower_whose_connection_answers_in_recovery_is_not_led_astray(
    pair: Pair, key: Key, fencing: bool
) -> None:
    """It asks a server that grants it the lock; there it cannot begin a term, with a token or without."""
    async with Elector(pair.primary.dsn(), key, **QUICK) as leader:
        term = await leader.leads()
        pair.caught_up()
        with SpliceableProxy(pair.primary) as proxy:
            async with Elector(proxy.dsn(), key, fencing=fencing, **QUICK) as a:
                await eventually(lambda: lock_waiters(pair.primary.dsn(), *key), message="it waits in the queue")
                proxy.upstream = pair.standby
                proxy.splice(RawSession(pair.standby))
                await a.hears(NotPrimaryError)
                assert a.terms == []
                await eventually(lambda: is_untouched(pair.standby, key), message="it was not let in there")
                await never_locks(pair.standby, key, a)
                assert a.looks.spans == []
        assert term.is_current


async def test_a_primary_that_comes_back_as_a_standby_is_led_no_more(any_pair: Pair, key: Key) -> None:
    """The address is the same, the server is the same, and its part is another."""
    pair, old = any_pair, any_pair.primary
    async with Elector(old.dsn(), key, reconnect_grace_s=60.0, **QUICK) as a:
        term = await a.leads()
        pair.caught_up()
        await asyncio.to_thread(pair.fail_over)
        await a.hears(SessionLostError, "refused")
        await asyncio.to_thread(pair.rejoin)
        await a.hears(NotPrimaryError, str(old.port))
        await never_locks(old, key, a)
        assert a.lock.state is LockState.RECONNECTING
        assert len(a.looks.spans) == 1
        await asyncio.to_thread(pair.fail_over)
        assert pair.primary is old
        successor = await a.leads(above=term.token)
        assert successor.token // TIMELINE == term.token // TIMELINE + 2
        assert a.terms == [("acquired", term.token), ("lost", term.token), ("acquired", successor.token)]


async def test_a_leader_with_both_hosts_moves_to_the_new_primary_and_back(pair: Pair, key: Key) -> None:
    first, second = pair.primary, pair.standby
    async with Elector(hosts(first, second), key, **QUICK) as a:
        token = (await a.leads()).token
        for leads_on, other in [(second, first), (first, second)]:
            pair.caught_up()
            await asyncio.to_thread(pair.fail_over)
            before, token = token, (await a.leads(above=token)).token
            await asyncio.to_thread(pair.rejoin)
            await a.proved(2)
            await is_alone(leads_on.dsn(), key)
            assert is_untouched(other, key)
            assert a.terms[-2:] == [("lost", before), ("acquired", token)]
        assert query(first.dsn(), "SELECT token FROM pgelect.token") == [(token,)]
        a.check_pairs()


@pytest.mark.parametrize("demoted", [True, False], ids=["in recovery", "another session"])
async def test_a_group_whose_connection_answers_as_another_server_or_session_ends_all_terms(
    pair: Pair, key: Key, demoted: bool
) -> None:
    """Everything but the role of the server, or the nonce of the session, is as the proof wants it."""
    errors: list[Exception] = []
    with SpliceableProxy(pair.primary) as proxy:
        group = LeaderGroup(proxy.dsn(), keys=[key], retry_strategy=FixedInterval(60.0), **QUICK)
        group.on_error(errors.append)
        async with group:
            await eventually(lambda: group.is_leader(key), message="it leads")
            pair.caught_up()
            (session,) = group._runner._performer._sessions.values()
            assert isinstance(session, PostgresGroupSession)
            other = (key[0], key[1] + 1)  # the primary knows that the first one is taken
            nonce = session._nonce if demoted else "another"
            words = [
                f"SELECT set_config('pgelect.nonce', '{nonce}', false), set_config('application_name', 'twin', false)"
            ]
            for one, two in ((session._ring.group, session._me + (not demoted)), key if demoted else other):
                words.append(f"SELECT pg_advisory_lock({one}, {two})")
            proxy.splice(RawSession(pair.standby if demoted else pair.primary, *words))
            await eventually(lambda: not group.is_leader(key), message="it leads no more")
            await eventually(lambda: errors, message="on_error says why")
            assert ("in recovery" if demoted else "not the one we set up") in str(errors[0])
