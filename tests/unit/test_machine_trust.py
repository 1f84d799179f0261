"""Trust comes first: it runs out by the clock alone, and nothing that arrives afterwards brings it back."""

from dataclasses import replace
from math import inf, nextafter

import pytest

from pgelect._engine.events import (
    Abort,
    Changed,
    Close,
    Do,
    Drained,
    Event,
    Failed,
    Interrupt,
    Io,
    Minted,
    ProofFailed,
    Proved,
    Report,
    Resumed,
    SessionEvent,
    Shutdown,
    StepDown,
    TermBegan,
    TermEnded,
    Tick,
    Unlocked,
    WatchEnded,
)
from pgelect._engine.machine import step
from pgelect._engine.state import Machine
from pgelect.errors import PgElectError, SessionLostError
from tests.support.machines import (
    ACQUIRING,
    AFTER_A_CRASH,
    BACKEND,
    DELAYED,
    DRAINING,
    EPOCH,
    FOLLOWER,
    GRANT,
    INTERVAL_S,
    LEADER,
    LEADING,
    MINTING,
    NOW,
    RECONNECTING,
    RELEASING,
    RESUMING,
    STOPPED,
    TRUST_S,
    UNLOCKING,
    Lost,
    ruled,
)

BUSY = PgElectError("canceling statement due to user request")
END = LEADING.trusted_until
JUST_BEFORE = nextafter(END, -inf)
PROVING = replace(LEADING, io=Io.PROVE)

GOOD_NEWS = [
    Proved(EPOCH, END - 0.1),  # sent in time, heard too late
    Proved(EPOCH, END + 1),
    WatchEnded(EPOCH),
    ProofFailed(EPOCH, BUSY),
    Tick(),
    Drained(3),
]


@pytest.mark.parametrize("event", GOOD_NEWS)
def test_when_trust_has_run_out_the_term_is_lost_whatever_the_event_says(event: Event) -> None:
    after, effects = step(PROVING, event, END)
    assert after.state is FOLLOWER
    assert after.grant is None
    assert effects[:3] == (
        Changed(LEADER, FOLLOWER, "the server has confirmed nothing for the length of the lease"),
        TermEnded(GRANT, released=False, error=Lost("expired")),
        Close(EPOCH, orderly=False),
    )


def test_a_proof_that_is_heard_just_in_time_extends_the_trust() -> None:
    after, effects = step(PROVING, Proved(EPOCH, NOW), JUST_BEFORE)
    assert (after.state, after.trusted_until) == (LEADER, NOW + TRUST_S)
    assert effects == (Do(Io.PROVE, EPOCH),)  # that one took long: the next is due


def test_a_late_proof_brings_no_trust_back_on_a_session_that_was_dropped() -> None:
    lost, _ = step(PROVING, Tick(), END)
    after, effects = step(lost, Proved(EPOCH, END - 0.1), END + 0.1)
    assert after == lost
    assert effects == (Close(EPOCH, orderly=False),)


def test_the_end_of_the_term_is_told_once_though_more_bad_news_follow() -> None:
    bad = [Failed(EPOCH, SessionLostError("closed", "gone"), 0.0), Unlocked(EPOCH, was_held=False), Tick()]
    m, told = PROVING, 0
    for event in bad:
        m, effects = step(m, event, END)
        told += sum(isinstance(effect, TermEnded) for effect in effects)
    assert told == 1


def test_the_tick_that_finds_the_trust_over_begins_the_next_attempt() -> None:
    after, effects = step(LEADING, Tick(), END)
    assert (after.state, after.io) == (FOLLOWER, Io.OPEN)
    assert effects[-1] == Do(Io.OPEN, after.epoch)
    assert after.ghost == BACKEND


def test_a_step_down_that_comes_after_the_trust_is_over_finds_a_follower_and_does_nothing() -> None:
    tick, _ = step(replace(LEADING, io=Io.WATCH), StepDown(5.0, 60.0), END)
    assert (tick.state, tick.wake_at) == (FOLLOWER, END)


def test_a_shutdown_that_comes_after_the_trust_is_over_stops() -> None:
    after, effects = step(LEADING, Shutdown(5.0), END)
    assert after.state is STOPPED
    assert [effect.after for effect in effects if isinstance(effect, Changed)] == [FOLLOWER, STOPPED]


def test_an_abort_ends_the_term_with_its_own_reason_even_then() -> None:
    bug = RuntimeError("a bug")
    _, effects = step(LEADING, Abort(bug), END + 100)
    assert effects[1] == TermEnded(GRANT, released=False, error=bug)


def test_with_a_grace_the_end_of_trust_opens_a_new_session_at_once() -> None:
    after, effects = step(ruled(LEADING, reconnect_grace_s=5.0), Proved(EPOCH, END - 0.1), END)
    assert (after.state, after.until, after.trusted_until) == (RECONNECTING, END + 5, -inf)
    assert after.grant == GRANT
    assert [type(effect) for effect in effects] == [Changed, Close, Report, Do]


@pytest.mark.parametrize("machine", [DRAINING, UNLOCKING], ids=["draining", "unlocking"])
@pytest.mark.parametrize("event", [Tick(), Drained(3), Unlocked(EPOCH, was_held=True), Proved(EPOCH, END - 0.1)])
def test_a_release_that_outlives_the_trust_is_a_loss(machine: Machine, event: Event) -> None:
    """Unlocked after our lease was over: the server may have given the lock away before."""
    after, effects = step(machine, event, END)
    assert after.state is FOLLOWER
    assert TermEnded(GRANT, released=False, error=Lost("expired")) in effects


def test_a_takeover_delay_that_outlives_the_trust_begins_no_term() -> None:
    waiting = replace(DELAYED, lead_at=END + 1)
    after, effects = step(waiting, Tick(), END)
    assert after.state is FOLLOWER
    assert not any(isinstance(effect, TermBegan | TermEnded) for effect in effects)


def test_a_takeover_delay_that_is_over_when_the_trust_is_begins_no_term() -> None:
    after, effects = step(replace(DELAYED, lead_at=END), Tick(), END)
    assert after.state is FOLLOWER
    assert not any(isinstance(effect, TermBegan) for effect in effects)


def test_without_a_term_there_is_no_trust_that_could_run_out() -> None:
    after, effects = step(MINTING, Tick(), NOW + 1e9)
    assert (after, effects) == (MINTING, ())


# How far trust reaches


@pytest.mark.parametrize(
    ("machine", "event"),
    [
        (MINTING, Minted(EPOCH, NOW - 2, GRANT)),
        (ruled(MINTING, takeover_delay_s=1.0), Minted(EPOCH, NOW - 2, AFTER_A_CRASH)),
        (replace(LEADING, io=Io.PROVE, trusted_until=NOW + 1), Proved(EPOCH, NOW - 2)),
        (replace(DRAINING, io=Io.PROVE, trusted_until=NOW + 1), Proved(EPOCH, NOW - 2)),
        (replace(DELAYED, io=Io.PROVE, trusted_until=NOW + 1), Proved(EPOCH, NOW - 2)),
        (RESUMING, Resumed(EPOCH, NOW - 2, BACKEND)),
    ],
    ids=["minted", "minted with a delay", "proved", "proved while draining", "proved during the delay", "resumed"],
)
def test_trust_reaches_from_the_sending_of_the_question_not_from_its_answer(
    machine: Machine, event: SessionEvent
) -> None:
    after, _ = step(machine, event, NOW)
    assert after.trusted_until == NOW - 2 + TRUST_S
    assert after.proof_at == NOW - 2 + INTERVAL_S


def test_an_older_proof_never_shortens_the_trust() -> None:
    after, _ = step(PROVING, Proved(EPOCH, NOW - 5), NOW)
    assert after.trusted_until == END


@pytest.mark.parametrize("event", [ProofFailed(EPOCH, BUSY), WatchEnded(EPOCH), Tick(), StepDown(5.0, 1.0)])
def test_nothing_but_a_proof_moves_the_end_of_trust(event: Event) -> None:
    after, _ = step(PROVING, event, NOW + 1)
    assert after.trusted_until == END


def test_a_failed_proof_is_asked_again_ever_sooner_and_at_last_the_term_is_lost() -> None:
    m, now, asked = PROVING, NOW, 0
    while m.state is LEADER:
        m, _ = step(m, ProofFailed(EPOCH, BUSY), now)
        asked += 1
        if m.state is LEADER:
            assert now < m.proof_at <= END
            now = max(m.proof_at, now + 0.001)  # a round trip takes a millisecond
            m, effects = step(m, WatchEnded(EPOCH), now)
            assert now >= END or effects == (Do(Io.PROVE, EPOCH),)
    assert now >= END
    assert 5 < asked < 60


# When the next tick is due


@pytest.mark.parametrize(
    ("machine", "deadline"),
    [
        (LEADING, END),
        (replace(LEADING, io=Io.PROVE, proof_at=NOW - 1), END),
        (DELAYED, NOW + 2),
        (replace(DELAYED, lead_at=END + 1), END),
        (DRAINING, NOW + 6),
        (replace(DRAINING, until=END + 1), END),
        (UNLOCKING, END),
        (RESUMING, NOW + 5),
        (MINTING, inf),
    ],
)
def test_the_next_tick_is_due_when_the_first_of_trust_and_timers_is_over(machine: Machine, deadline: float) -> None:
    assert machine.deadline == deadline


def test_an_end_of_trust_is_told_with_the_state_it_came_from() -> None:
    for machine in (LEADING, DRAINING):
        _, effects = step(machine, Tick(), END)
        assert isinstance(effects[0], Changed)
        assert (effects[0].before, effects[0].after) == (machine.state, FOLLOWER)
    _, effects = step(DELAYED, Tick(), END)
    assert isinstance(effects[0], Changed)
    assert effects[0].before is ACQUIRING


def test_a_drain_that_ends_in_time_still_unlocks() -> None:
    after, effects = step(DRAINING, Drained(3), JUST_BEFORE)
    assert (after.state, effects) == (RELEASING, (Interrupt(),))
