"""The synchronous standby is away: a commit that waits for it hangs, and nobody leads before it is confirmed."""

import asyncio

import pytest

from pgelect import LockState, SessionLostError
from tests.support.electors import Elector
from tests.support.replication import Pair, make_alter
from tests.support.server import lock_holders, query, sessions, terminate
from tests.support.waiting import eventually

Key = tuple[int, int]
WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name LIKE 'pgelect:%'"


async def first_token(pair: Pair, key: Key) -> int:
    """The schema is there, and a first term is over."""
    async with Elector(pair.primary.dsn(), key) as a:
        return (await a.leads()).token


async def require_standby(pair: Pair) -> None:
    """From now on commits wait for the standby, which is away."""
    await asyncio.to_thread(pair.hold_back)
    await change_requirement(pair, "*")


async def change_requirement(pair: Pair, names: str) -> None:
    await asyncio.to_thread(query, pair.primary.dsn(), make_alter("synchronous_standby_names", names))
    await asyncio.to_thread(pair.primary.reload)


def waiting_for_standby(pair: Pair) -> list[int]:
    return [pid for (pid,) in query(pair.primary.dsn(), WAITING)]


@pytest.mark.parametrize("mended_by", ["the standby", "an administrator"])
async def test_a_mint_that_waits_for_a_standby_is_given_up_and_repeated_until_it_is_confirmed(
    pair: Pair, key: Key, mended_by: str
) -> None:
    dsn, token = pair.primary.dsn(), await first_token(pair, key)
    await require_standby(pair)
    async with Elector(dsn, key) as a:
        await eventually(lambda: waiting_for_standby(pair) == lock_holders(dsn, *key) != [], message="the mint waits")
        assert a.lock.state is LockState.ACQUIRING
        error = await a.hears(SessionLostError, "minting a token")
        assert getattr(error, "reason", "") == "timeout"
        assert a.terms == []
        assert a.looks.spans == []
        if mended_by == "the standby":
            await asyncio.to_thread(pair.follow)
        else:
            await change_requirement(pair, "")
        term = await a.leads(above=token)
        assert query(dsn, "SELECT token FROM pgelect.token") == [(term.token,)]
        await eventually(
            lambda: lock_holders(dsn, *key) == [one.pid for one in sessions(dsn)], message="no other session is left"
        )
        assert a.terms == [("acquired", term.token)]


async def test_a_mint_that_waits_for_a_standby_is_given_up_and_the_lock_released(pair: Pair, key: Key) -> None:
    """A session that waits for a standby heeds no lease and no closed socket: it has to be ended."""
    dsn = pair.primary.dsn()
    await first_token(pair, key)
    await require_standby(pair)
    async with Elector(dsn, key) as a:
        (first,) = await eventually(lambda: waiting_for_standby(pair), message="the mint waits")
        await a.hears(SessionLostError, "minting a token")
        await eventually(lambda: first not in lock_holders(dsn, *key), message="the lock is released")
        await eventually(lambda: first not in [one.pid for one in sessions(dsn)], message="the session is gone")
        assert a.terms == []


async def test_a_shutdown_while_the_mint_waits_for_a_standby_frees_the_lock(pair: Pair, key: Key) -> None:
    dsn = pair.primary.dsn()
    await first_token(pair, key)
    await require_standby(pair)
    async with Elector(dsn, key, lease_s=30.0) as a:
        await eventually(lambda: waiting_for_standby(pair), message="the mint waits")
    assert a.lock.state is LockState.STOPPED
    assert a.terms == []
    await eventually(lambda: lock_holders(dsn, *key) == [], 1.0, "the lock is free")


async def test_a_leader_whose_standby_goes_away_leads_on_and_can_step_down(pair: Pair, key: Key) -> None:
    """Neither a proof nor a release has to be replicated before it counts."""
    dsn = pair.primary.dsn()
    async with Elector(dsn, key) as a:
        term = await a.leads()
        await require_standby(pair)
        await a.proved(3)
        assert term.is_current
        assert await a.lock.step_down(cooldown_s=60)
        assert a.terms == [("acquired", term.token), ("released", term.token)]
        assert lock_holders(dsn, *key) == []
        assert query(dsn, "SELECT released_at IS NOT NULL FROM pgelect.token") == [(True,)]


async def test_a_term_goes_on_after_a_lost_session_though_the_standby_is_away(pair: Pair, key: Key) -> None:
    """Nothing new is promised by it: the token was confirmed when the term began."""
    dsn = pair.primary.dsn()
    async with Elector(dsn, key, reconnect_grace_s=30.0) as a:
        term = await a.leads()
        await require_standby(pair)
        (before,) = lock_holders(dsn, *key)
        terminate(dsn, before)
        await eventually(lambda: before not in lock_holders(dsn, *key), message="the session is gone")
        await eventually(lambda: len(a.looks.spans) == 2, 10.0, "it leads again")
        assert a.lock.term is term
        assert a.terms == [("acquired", term.token)]
        assert waiting_for_standby(pair) == []


async def test_a_token_whose_wait_was_cancelled_by_hand_is_still_below_the_next_one(pair: Pair, key: Key) -> None:
    """The server then calls the commit done although the standby has not got it; it may be lost by a promotion."""
    dsn, token = pair.primary.dsn(), await first_token(pair, key)
    await require_standby(pair)
    async with Elector(dsn, key, lease_s=30.0) as a:
        (pid,) = await eventually(lambda: waiting_for_standby(pair), message="the mint waits")
        query(dsn, "SELECT pg_cancel_backend(%s)", pid)
        unconfirmed = await a.leads(above=token)
    await change_requirement(pair, "")
    await asyncio.to_thread(pair.fail_over)
    dsn = pair.primary.dsn()
    assert query(dsn, "SELECT token FROM pgelect.token") == [(token,)], "it was lost"
    async with Elector(dsn, key) as b:
        await b.leads(above=unconfirmed.token)
