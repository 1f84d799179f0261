"""The promise in numbers: each worst case follows from the settings, and says from which."""

import math
from typing import Any

import pytest
from tenacity import wait_fixed

from pgelect import DecorrelatedJitter, ExponentialBackoff, FixedInterval, LeaderLock
from pgelect._engine.bounds import FENCE_WAIT_S, RELEASE_WAIT_S, Bounds, bounds_of
from pgelect._engine.model import LockKey
from pgelect._engine.settings import Settings


def bounds(poll_max_s: float | None = 30.0, **settings: Any) -> Bounds:
    return bounds_of(Settings(LockKey(1, 1), "test", **settings), poll_max_s)


def test_an_open_transaction_of_the_old_term_may_come_on_top_where_there_is_a_fence() -> None:
    fenced, bare = bounds(), bounds(fencing=False)
    assert fenced.failover_crash.seconds == FENCE_WAIT_S
    assert fenced.failover_silent.seconds == bare.failover_silent.seconds + FENCE_WAIT_S
    assert fenced.failover_clean.seconds == bare.failover_clean.seconds + FENCE_WAIT_S + RELEASE_WAIT_S
    assert "1.7 s for an open transaction that the old term fenced" in fenced.failover_crash.reason
    assert "transaction" not in bare.failover_crash.reason


def test_with_the_queue_others_follow_at_once_and_silence_lasts_a_lease() -> None:
    found = bounds(fencing=False)
    assert found.failover_clean.seconds == 10.0
    assert found.failover_crash.seconds == 0.0
    assert found.failover_silent.seconds == 15.0


def test_with_polling_the_longest_sleep_between_two_polls_comes_on_top() -> None:
    found = bounds(30.0, acquire="poll", fencing=False)
    assert found.failover_clean.seconds == 10.0 + 30.0
    assert found.failover_crash.seconds == 30.0
    assert found.failover_silent.seconds == 15.0 + 30.0


def test_a_strategy_without_a_known_longest_sleep_has_no_bound() -> None:
    found = bounds(None, acquire="poll")
    assert found.failover_crash.seconds == math.inf
    assert bounds(None, fencing=False).failover_crash.seconds == 0.0


def test_a_takeover_delay_comes_after_an_unclean_end() -> None:
    """A clean one counts as unclean where an open fenced transaction kept the release from marking the row."""
    with_delay, without = bounds(takeover_delay_s=3.0), bounds()
    assert with_delay.failover_clean.seconds == without.failover_clean.seconds + 3.0
    assert "takeover_delay_s (3) if that kept the release from being marked" in with_delay.failover_clean.reason
    assert with_delay.failover_crash.seconds == without.failover_crash.seconds + 3.0
    assert with_delay.failover_silent.seconds == without.failover_silent.seconds + 3.0


def test_when_the_lease_runs_out_nobody_overlaps() -> None:
    found = bounds()
    assert found.overlap_lease.seconds == 0.0
    assert "0.75 s before the server frees the lock" in found.overlap_lease.reason


def test_when_the_server_ends_the_session_early_the_rest_of_the_trust_may_overlap() -> None:
    assert bounds().overlap_session.seconds == 14.25
    assert bounds(takeover_delay_s=10.0).overlap_session.seconds == pytest.approx(4.25)
    assert bounds(takeover_delay_s=20.0).overlap_session.seconds == 0.0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("failover_clean", ["drain_timeout_s (10)", "at most 30 s apart"]),
        ("failover_crash", ["with the session", "at most 30 s apart", "takeover_delay_s (3)"]),
        ("failover_silent", ["lease_s (15)", "at most 30 s apart", "takeover_delay_s (3)"]),
        ("overlap_session", ["14.25", "takeover_delay_s (3)", "only the fence protects"]),
    ],
)
def test_each_bound_names_the_settings_that_it_comes_from(name: str, words: list[str]) -> None:
    reason = getattr(bounds(30.0, acquire="poll", takeover_delay_s=3.0), name).reason
    assert [word for word in words if word not in reason] == []


def test_with_the_queue_the_reason_is_the_queue() -> None:
    found = bounds()
    assert "followers wait in the server's queue" in found.failover_crash.reason
    assert "poll" not in found.failover_silent.reason
    assert "takeover_delay_s" not in found.failover_crash.reason


@pytest.mark.parametrize(
    ("strategy", "longest_s"),
    [
        (ExponentialBackoff(max_s=20.0), 20.0),
        (DecorrelatedJitter(max_s=7.0), 7.0),
        (FixedInterval(2.0), 2.0),
        (wait_fixed(2.0), math.inf),
    ],
    ids=["exponential", "decorrelated", "fixed", "tenacity"],
)
def test_a_lock_knows_the_longest_sleep_of_its_strategy(strategy: Any, longest_s: float) -> None:
    lock = LeaderLock(key1=1, key2=2, acquire="poll", retry_strategy=strategy, fencing=False)
    assert lock.bounds().failover_crash.seconds == longest_s
