"""The health of a lock from plain facts. Holds off a leader that is wedged and called healthy (kubernetes#70971)."""

from dataclasses import FrozenInstanceError, replace
from math import inf

import pytest

from pgelect import ConnectionError as GaveUp
from pgelect import LockState, PgElectError, PoolerError, SchemaError, SessionLostError
from pgelect._engine.settings import Settings, key_of
from pgelect._health import LATE_S, LONGEST_REASON, Facts, Health, health_of

NOW = 1000.0
AWAY = SessionLostError("connect", "connection refused")

LEADER = Facts(
    state=LockState.LEADER,
    now=NOW,
    running=True,
    started=True,
    connected=True,
    proved_at=NOW - 1.0,
    trusted_until=NOW + 13.25,
    due_at=NOW + 13.25,
    health_interval_s=5.0,
    proof_timeout_s=9.25,
    margin_s=0.75,
)
FOLLOWER = Facts(LockState.FOLLOWER, NOW, running=True, started=True, connected=True)
STOPPED = Facts(LockState.STOPPED, NOW, running=False, started=True)


def test_health_is_a_value() -> None:
    health = Health(healthy=True, ready=False, reason="not started")
    assert health == Health(True, False, "not started")
    with pytest.raises(FrozenInstanceError):
        health.healthy = False  # type: ignore[misc] # frozen: that is the point
    assert not hasattr(health, "__dict__")


# What is well


def test_a_leader_with_a_fresh_proof_is_well_and_says_how_fresh() -> None:
    assert health_of(LEADER) == Health(healthy=True, ready=True, reason="leading, proved 1.0 s ago")


def test_a_follower_with_a_connection_is_well() -> None:
    assert health_of(FOLLOWER) == Health(healthy=True, ready=True, reason="following")
    between_polls = replace(FOLLOWER, due_at=NOW + 3.0)
    assert health_of(between_polls).ready


def test_an_attempt_in_flight_is_ready() -> None:
    acquiring = replace(FOLLOWER, state=LockState.ACQUIRING)
    assert health_of(acquiring) == Health(healthy=True, ready=True, reason="trying for the lock")


# What is healthy, and not ready


def test_a_follower_whose_server_is_away_lives_and_says_why_and_for_how_long() -> None:
    """To restart every replica while the database is down brings it back no sooner, and all of them at once later."""
    away = replace(FOLLOWER, connected=False, trouble=AWAY, trouble_since=NOW - 3600.0, due_at=NOW + 20.0)
    assert health_of(away) == Health(
        healthy=True, ready=False, reason="no connection to the server for 3600.0 s: connection refused"
    )


def test_a_follower_that_connects_for_the_first_time_is_not_ready_yet() -> None:
    connecting = replace(FOLLOWER, connected=False)
    assert health_of(connecting) == Health(healthy=True, ready=False, reason="connecting to the server")


def test_a_follower_that_stays_out_after_stepping_down_says_for_how_long() -> None:
    out = replace(FOLLOWER, connected=False, due_at=NOW + 0.75)
    assert health_of(out) == Health(healthy=True, ready=False, reason="stays out for 0.8 s")


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (replace(STOPPED, started=False), "not started"),
        (STOPPED, "stopped"),
        (replace(STOPPED, ended=AWAY), "stopped after its term: connection refused"),
        (replace(STOPPED, running=True), "starting"),
        (replace(LEADER, state=LockState.RELEASING, due_at=NOW + 9.0), "giving up leadership"),
        (
            replace(
                LEADER,
                state=LockState.RECONNECTING,
                connected=False,
                trusted_until=-inf,
                due_at=NOW + 0.2,
                trouble=AWAY,
                trouble_since=NOW - 2.0,
            ),
            "the session was lost; trying to go on with the term for 2.0 s: connection refused",
        ),
        (
            replace(STOPPED, forked=True, running=True),
            "the lock belongs to the process that this one was forked from; make one after the fork",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_restart_would_not_mend_is_healthy_and_not_ready(facts: Facts, reason: str) -> None:
    assert health_of(facts) == Health(healthy=True, ready=False, reason=reason)


# What is not well


def test_a_leader_whose_last_proof_is_older_than_interval_timeout_and_margin_is_ill() -> None:
    """With a health_timeout_s of its own, trust outlasts the proofs: a leader by belief, whom nobody answers."""
    facts = replace(LEADER, proof_timeout_s=2.0, trusted_until=NOW + 100.0)
    at_the_limit = replace(facts, proved_at=NOW - 7.75)
    assert health_of(at_the_limit).healthy
    late = replace(facts, proved_at=NOW - 7.8, trouble=AWAY, trouble_since=NOW - 2.0)
    assert health_of(late) == Health(
        healthy=False,
        ready=False,
        reason="the last proof of leadership is 7.8 s old: one is due every 5 s, and its answer within 2 s: "
        "connection refused",
    )


def test_a_state_that_says_leader_after_its_trust_ran_out_is_ill_from_that_moment() -> None:
    assert health_of(replace(LEADER, now=LEADER.trusted_until - 0.01)).healthy
    health = health_of(replace(LEADER, now=LEADER.trusted_until))
    assert not health.healthy
    assert not health.ready
    assert health.reason.startswith("leadership ran out 0.0 s ago and the lock has not noticed")


@pytest.mark.parametrize(
    "settings",
    [{}, {"health_timeout_s": 2.0}, {"lease_s": 1.0, "health_interval_s": 0.2}, {"lease_s": 600.0}],
    ids=str,
)
def test_whatever_the_settings_a_wedged_leader_is_ill_by_the_end_of_its_lease(settings: dict[str, float]) -> None:
    made = Settings(key=key_of(1, 2, None), identity="me", **settings)  # type: ignore[arg-type] # floats, by name
    proved = replace(
        LEADER,
        proved_at=NOW,
        trusted_until=NOW + made.trust_s,
        health_interval_s=made.health_interval_s,
        proof_timeout_s=made.proof_timeout_s,
        margin_s=made.margin_s,
    )
    in_time = made.health_interval_s + made.proof_timeout_s
    assert health_of(replace(proved, now=NOW + in_time - 0.001)).healthy, "a slow answer is still an answer"
    assert not health_of(replace(proved, now=NOW + made.lease_s)).healthy


@pytest.mark.parametrize(
    "state", [LockState.FOLLOWER, LockState.ACQUIRING, LockState.RECONNECTING, LockState.RELEASING]
)
def test_a_lock_for_which_nothing_ran_when_it_was_due_is_ill(state: LockState) -> None:
    """A blocked event loop, seen from another thread; so no grace and no drain can go on for ever."""
    facts = replace(FOLLOWER, state=state, due_at=NOW - LATE_S)
    assert health_of(facts).healthy
    health = health_of(replace(facts, due_at=NOW - LATE_S - 0.5))
    assert (health.healthy, health.ready) == (False, False)
    assert health.reason.startswith(f"{state.value}: nothing has run for 1.5 s")


@pytest.mark.parametrize("state", [state for state in LockState if state is not LockState.STOPPED])
def test_a_lock_whose_task_or_loop_ended_unnoticed_is_ill(state: LockState) -> None:
    health = health_of(replace(LEADER, state=state, dead=True))
    assert (health.healthy, health.ready) == (False, False)
    assert "nothing runs any more" in health.reason


@pytest.mark.parametrize(
    "failure",
    [
        GaveUp(3, AWAY),
        PoolerError("transaction"),
        ZeroDivisionError("a bug"),
        PgElectError("the task of the lock was ended from outside (CancelledError)"),
    ],
    ids=lambda failure: type(failure).__name__,
)
def test_a_lock_that_stopped_by_itself_is_ill_and_says_why(failure: Exception) -> None:
    health = health_of(replace(STOPPED, failure=failure))
    assert (health.healthy, health.ready) == (False, False)
    assert health.reason.startswith(f"stopped by itself: {failure}"[:100])


# The reason


def test_the_reason_is_one_line_of_bounded_length() -> None:
    """An error about the schema carries pages of SQL, which no probe is to print each time."""
    sql = "CREATE TABLE x (y int);\n" * 100
    schema = health_of(replace(STOPPED, failure=SchemaError("the schema is missing", sql))).reason
    assert schema.startswith("stopped by itself: the schema is missing. Let an administrator")
    assert "\n" not in schema
    endless = health_of(replace(STOPPED, failure=PgElectError("x" * 5000))).reason
    assert len(endless) < LONGEST_REASON + 50
    assert health_of(replace(STOPPED, failure=TimeoutError())).reason == "stopped by itself: TimeoutError"
