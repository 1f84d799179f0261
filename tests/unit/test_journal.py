"""The log while things go wrong: each kind of failure at a bounded rate, whatever comes in between."""

import logging

import pytest

from pgelect import LockState, NotPrimaryError, SessionLostError
from pgelect._engine.journal import REPEAT_AFTER_S, Journal
from pgelect._engine.model import LockKey
from pgelect.testing import FakeClock

STEP_S = 0.1
AWAY, STANDBY = SessionLostError("connect", "cannot connect"), NotPrimaryError("b:5432")


@pytest.fixture
def clock(caplog: pytest.LogCaptureFixture) -> FakeClock:
    caplog.set_level(logging.INFO, "pgelect")
    return FakeClock()


@pytest.fixture
def journal(clock: FakeClock) -> Journal:
    return Journal(LockKey(1, 2), clock)


@pytest.mark.parametrize(
    "failures", [[AWAY], [AWAY, STANDBY], [AWAY, None]], ids=["one kind", "two kinds in turn", "refusals in between"]
)
def test_each_kind_of_failure_is_logged_once_a_minute(
    journal: Journal, clock: FakeClock, caplog: pytest.LogCaptureFixture, failures: list[Exception | None]
) -> None:
    """Holds off a log that fills up because a dead primary and a standby answer by turns."""
    kinds = len([one for one in failures if one])
    times = round(REPEAT_AFTER_S / STEP_S)
    for number in range(times):
        journal.attempt_failed(failures[number % len(failures)])
        clock.advance(STEP_S)
    assert len(caplog.messages) == kinds
    clock.advance(STEP_S)
    for one in failures:
        journal.attempt_failed(one)
    again = caplog.messages[kinds:]
    assert len(again) == kinds
    assert all(f"({times // len(failures) - 1} more like it were not logged)" in line for line in again)


def test_after_a_term_the_next_failure_is_logged_at_once(journal: Journal, caplog: pytest.LogCaptureFixture) -> None:
    journal.attempt_failed(AWAY)
    journal.changed(LockState.ACQUIRING, LockState.LEADER, "token 1")
    journal.attempt_failed(AWAY)
    assert [line for line in caplog.messages if "cannot connect" in line] == [f"(1, 2): {AWAY}"] * 2
