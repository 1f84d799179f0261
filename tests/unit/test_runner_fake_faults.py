"""The runner on a fake server that breaks: what it is told, who leads next, and that nobody leads without a token."""

import asyncio

import pytest

from pgelect import FenceBusyError, LockError, LockState, NotPrimaryError, SessionLostError
from pgelect.testing import FakeServer
from tests.support.fake_locks import KEY, SHORT_LEASE_S, Elector
from tests.support.waiting import eventually


async def test_a_terminated_backend_is_a_lost_term_and_the_follower_takes_over() -> None:
    server = FakeServer()
    a, b = Elector(server, "a"), Elector(server, "b")
    async with a.lock:
        await a.leads()
        async with b.lock:
            await b.waits()
            server.terminate(server.holders(KEY)[0])
            assert (await b.leads()).token == 2
            await a.is_told("lost", 1)
            await a.waits()
            assert not a.lock.is_leader
            assert a.terms == [("acquired", 1), ("lost", 1)]


async def test_it_campaigns_on_after_every_loss() -> None:
    """An elector that gave up after its first loss left a fleet without a leader."""
    server = FakeServer()
    a = Elector(server)
    async with a.lock:
        for token in range(1, 11):
            await a.leads(above=token - 1)
            server.terminate(server.holders(KEY)[0])
            await a.is_told("lost", token)
        await a.leads(above=10)
    assert a.terms[:-1] == [(what, token) for token in range(1, 12) for what in ("acquired", "lost")][:-1]


async def test_a_silent_link_ends_the_trust_before_the_server_gives_the_lock_away() -> None:
    server = FakeServer()
    a, b = Elector(server, "a", lease_s=SHORT_LEASE_S), Elector(server, "b", lease_s=SHORT_LEASE_S)
    async with a.lock:
        await a.leads()
        first, silent = a.lock.term, server.holders(KEY)[0]
        assert first is not None
        async with b.lock:
            await b.waits()
            server.partition(silent)
            while server.holders(KEY) == (silent,):
                await asyncio.sleep(0.005)
            assert not first.is_current  # whoever is the next to lead: b, or a itself on a new session
            await a.is_told("lost", 1)
            server.heal(silent)
        await a.leads(above=1)


async def test_a_frozen_server_means_nobody_leads_and_one_leads_after_it_thaws() -> None:
    server = FakeServer()
    a = Elector(server, lease_s=SHORT_LEASE_S)
    async with a.lock:
        await a.leads()
        server.freeze()
        await eventually(lambda: not a.lock.is_leader, SHORT_LEASE_S + 1.0, "a does not trust itself any more")
        await a.is_told("lost", 1)
        for _ in range(20):
            assert not a.lock.is_leader
            await asyncio.sleep(0.01)
        server.thaw()
        await a.leads(above=1)


async def test_nobody_leads_throughout_an_outage_and_the_token_goes_on_after_it() -> None:
    server = FakeServer()
    a, b = Elector(server, "a"), Elector(server, "b")
    async with a.lock, b.lock:
        await a.leads()
        server.stop()
        await a.is_told("lost", 1)
        for _ in range(20):
            assert (a.lock.is_leader, b.lock.is_leader) == (False, False)
            await asyncio.sleep(0.01)
        server.start()
        await eventually(lambda: a.lock.is_leader or b.lock.is_leader, message="one of them leads")
        leader = a if a.lock.is_leader else b
        assert leader.lock.token == 2


async def test_a_lock_that_was_freed_behind_its_back_is_disproved_by_the_next_proof() -> None:
    """DISCARD ALL, or a pooler: the session lives, the lock is gone, and SELECT 1 would still succeed."""
    server = FakeServer()
    a = Elector(server)
    async with a.lock:
        await a.leads()
        server.unlock_all(server.holders(KEY)[0])
        await a.is_told("lost", 1)
        await a.leads(above=1)


async def test_an_unlock_that_was_not_held_is_a_loss_and_a_lock_error() -> None:
    server = FakeServer()
    a = Elector(server, health_interval_s=0.9)
    async with a.lock:
        await a.leads()
        server.unlock_all(server.holders(KEY)[0])
        assert await a.lock.step_down(cooldown_s=5.0) is True
        await a.is_told("lost", 1)
        await eventually(lambda: a.heard(LockError), message="on_error hears of it")
    assert a.terms == [("acquired", 1), ("lost", 1)]
    assert server.sessions() == ()


async def test_a_demoted_server_is_no_place_to_lead_and_a_promoted_one_mints_greater_tokens() -> None:
    server = FakeServer()
    a = Elector(server)
    async with a.lock:
        await a.leads()
        server.demote()
        await a.is_told("lost", 1)
        await eventually(lambda: a.heard(NotPrimaryError), message="on_error hears that it is a standby")
        assert not a.lock.is_leader
        assert server.holders(KEY) == ()
        server.promote()
        term = await a.leads(above=1)
        assert term.token > 2**40


async def test_without_a_token_nobody_leads() -> None:
    """A fenced transaction of the last term that cannot be ended holds off the next token."""
    server = FakeServer()
    a, b = Elector(server, "a"), Elector(server, "b")
    async with a.lock:
        await a.leads()
        writing = server.begin_fenced(KEY, 1, killable=False)
        server.terminate(server.holders(KEY)[0])
        await a.is_told("lost", 1)
    async with b.lock:
        await eventually(lambda: len(b.heard(FenceBusyError)) >= 3, message="the minting is tried again and again")
        assert (b.terms, b.lock.is_leader, b.lock.token) == ([], False, None)
        assert "leader" not in b.states
        writing.commit()
        await b.leads(above=1)


async def test_after_a_crash_a_takeover_delay_is_kept_and_after_a_clean_end_it_is_not() -> None:
    server = FakeServer()
    a, b = Elector(server, "a"), Elector(server, "b", takeover_delay_s=0.3)
    loop = asyncio.get_running_loop()
    async with a.lock:
        await a.leads()
        async with b.lock:
            await b.waits()
            crashed_at = loop.time()
            server.terminate(server.holders(KEY)[0])
            await eventually(lambda: server.row(KEY).token == 2, message="b holds the lock and a token")  # type: ignore[union-attr]  # there is a row
            assert (b.lock.state, b.lock.is_leader, b.lock.term) == (LockState.ACQUIRING, False, None)
            await b.leads()
            assert loop.time() - crashed_at >= 0.3


# Grace


async def test_within_the_grace_the_same_term_goes_on_on_another_session() -> None:
    server = FakeServer()
    a = Elector(server, reconnect_grace_s=5.0)
    async with a.lock:
        term = await a.leads()
        first = server.holders(KEY)
        server.terminate(first[0])
        await eventually(lambda: "reconnecting" in a.states, message="the loss is noticed")
        await eventually(lambda: a.lock.is_leader, message="the term goes on")
        assert a.lock.term is term
        assert term.is_current
        assert server.holders(KEY) != first
        assert a.terms == [("acquired", 1)]
    assert a.terms == [("acquired", 1), ("released", 1)]


async def test_during_the_grace_nobody_is_leader() -> None:
    server = FakeServer()
    a = Elector(server, reconnect_grace_s=0.5)
    async with a.lock:
        term = await a.leads()
        server.stop()
        await eventually(lambda: a.lock.state is LockState.RECONNECTING, message="the loss is noticed")
        assert (a.lock.is_leader, a.lock.token, term.is_current) == (False, None, False)
        assert a.terms == [("acquired", 1)]
        await a.is_told("lost", 1)
        assert a.lock.state is LockState.FOLLOWER


async def test_who_else_led_during_the_grace_however_shortly_ends_the_old_term() -> None:
    server = FakeServer()
    a, b = Elector(server, "a", reconnect_grace_s=30.0), Elector(server, "b")
    async with a.lock:
        await a.leads()
        async with b.lock:
            await b.waits()
            server.terminate(server.holders(KEY)[0])
            await b.leads(above=1)
        await a.is_told("lost", 1)
        await a.leads(above=2)
    assert a.terms == [("acquired", 1), ("lost", 1), ("acquired", 3), ("released", 3)]


async def test_our_own_ghost_is_ended_and_the_term_goes_on_any_number_of_times() -> None:
    """The second time, the ghost is the session that had resumed the term, not the one that had begun it."""
    server = FakeServer()
    a = Elector(server, reconnect_grace_s=5.0, lease_s=30.0, health_interval_s=1.0)
    async with a.lock:
        await a.leads()
        for times in range(1, 4):
            holder = server.holders(KEY)[0]
            server.cut(holder)  # we hear of it, the server does not
            await eventually(lambda: a.states.count("reconnecting") == times, message="the loss is noticed")  # noqa: B023
            await eventually(lambda: a.lock.is_leader, message="the term goes on")
            assert a.lock.token == 1
            assert server.holders(KEY)[0] != holder
    assert a.terms == [("acquired", 1), ("released", 1)]


async def test_without_the_right_to_end_its_ghost_it_waits_for_the_lease_and_does_not_spin() -> None:
    server = FakeServer(may_terminate=False)
    a = Elector(server, reconnect_grace_s=5.0, lease_s=SHORT_LEASE_S)
    async with a.lock:
        await a.leads()
        server.cut(server.holders(KEY)[0])
        before = server.statements
        await eventually(lambda: a.lock.state is LockState.RECONNECTING, message="the loss is noticed")
        await eventually(lambda: a.lock.is_leader, message="the term goes on when the ghost's lease is over")
        assert a.lock.token == 1
        assert server.statements - before < 150  # one every 50 ms slice, and proofs; a hot loop: thousands


@pytest.mark.parametrize("end", ["step_down", "shutdown"])
async def test_giving_up_during_the_grace_is_a_loss_and_does_not_hang(end: str) -> None:
    server = FakeServer()
    a = Elector(server, reconnect_grace_s=60.0)
    async with a.lock:
        await a.leads()
        server.stop()
        await eventually(lambda: a.lock.state is LockState.RECONNECTING, message="the loss is noticed")
        answer = await asyncio.wait_for(getattr(a.lock, end)(), 5.0)
        assert answer is (True if end == "step_down" else None)
        await a.is_told("lost", 1)
        assert not a.lock.is_leader


# Steady state


async def test_a_leader_proves_once_an_interval_and_says_nothing_else() -> None:
    server = FakeServer()
    a = Elector(server)
    async with a.lock:
        await a.leads()
        before, at = server.statements, asyncio.get_running_loop().time()
        await eventually(lambda: server.statements >= before + 5, message="five proofs")
        lasted = asyncio.get_running_loop().time() - at
        assert lasted >= 4 * 0.1 * 0.9
        assert a.errors == []
        assert a.states == ["follower", "acquiring", "leader"]


async def test_failures_in_a_row_are_told_but_never_faster_than_the_strategy_says() -> None:
    server = FakeServer()
    a = Elector(server)
    async with a.lock:
        await a.leads()
        at = asyncio.get_running_loop().time()
        server.stop()
        await eventually(lambda: len(a.heard(SessionLostError)) >= 5, message="five failures are told")
        assert asyncio.get_running_loop().time() - at >= 3 * 0.05
