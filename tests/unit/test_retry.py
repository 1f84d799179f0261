"""Retry strategies: their bounds, what they refuse, and that tenacity's own strategies see what they expect."""

import math
import random
import statistics
from collections.abc import Callable
from dataclasses import FrozenInstanceError

import pytest
import tenacity
from tenacity import AsyncRetrying, RetryCallState, Retrying
from tenacity.stop import stop_after_attempt, stop_after_delay, stop_any, stop_never
from tenacity.wait import wait_chain, wait_exponential, wait_fixed, wait_incrementing, wait_none, wait_random

from pgelect.errors import PgElectError
from pgelect.retry import (
    DecorrelatedJitter,
    ExponentialBackoff,
    FixedInterval,
    RetryContext,
    RetryStrategy,
    as_strategy,
    next_delay_s,
)


def context(
    attempt: int = 1,
    elapsed_s: float = 0.0,
    previous_delay_s: float | None = None,
    error: Exception | None = None,
) -> RetryContext:
    return RetryContext(attempt, elapsed_s, previous_delay_s, error)


class Says:
    """A strategy that says one thing, of whatever type."""

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def next_delay_s(self, ctx: RetryContext) -> float | None:
        return self.answer  # type: ignore[return-value]  # the point: a strategy that breaks its promise


def test_a_context_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        context().attempt = 2  # type: ignore[misc]  # the point of the test
    assert not hasattr(context(), "__dict__")


# Exponential backoff


@pytest.mark.parametrize("attempt", [1, 2, 3, 5, 6, 7, 50, 5_000])
def test_exponential_backoff_stays_between_its_floor_and_the_growing_ceiling(attempt: int) -> None:
    strategy = ExponentialBackoff(base_s=1.0, max_s=30.0, multiplier=2.0)
    ceiling_s = min(30.0, 2.0 ** min(attempt - 1, 100))
    drawn = [strategy.next_delay_s(context(attempt)) for _ in range(500)]
    assert all(0.1 <= delay_s <= ceiling_s for delay_s in drawn)


def test_exponential_backoff_jitters_over_the_whole_range() -> None:
    drawn = [ExponentialBackoff(1.0, 16.0).next_delay_s(context(5)) for _ in range(4_000)]
    assert min(drawn) < 1.0
    assert max(drawn) > 14.0
    assert statistics.fmean(drawn) == pytest.approx((0.1 + 14.5) / 2, rel=0.1)


def test_exponential_backoff_with_multiplier_one_does_not_grow() -> None:
    strategy = ExponentialBackoff(base_s=2.0, max_s=30.0, multiplier=1.0)
    assert all(0.2 <= strategy.next_delay_s(context(9)) <= 2.0 for _ in range(200))


def test_exponential_backoff_with_base_equal_to_max_keeps_its_bounds() -> None:
    strategy = ExponentialBackoff(base_s=3.0, max_s=3.0)
    assert all(0.3 <= strategy.next_delay_s(context(attempt)) <= 3.0 for attempt in range(1, 200))


# Fixed interval and decorrelated jitter


def test_fixed_interval_never_changes() -> None:
    assert {FixedInterval(2.5).next_delay_s(context(n, n * 2.5, 2.5)) for n in range(1, 50)} == {2.5}


def test_the_first_decorrelated_delay_is_between_base_and_three_times_base() -> None:
    drawn = [DecorrelatedJitter(1.0, 30.0).next_delay_s(context()) for _ in range(1_000)]
    assert all(1.0 <= delay_s <= 3.0 for delay_s in drawn)
    assert max(drawn) - min(drawn) > 1.5


def test_a_decorrelated_delay_is_at_most_three_times_the_one_before_it() -> None:
    strategy = DecorrelatedJitter(1.0, 30.0)
    assert all(1.0 <= strategy.next_delay_s(context(4, 9.0, 5.0)) <= 15.0 for _ in range(500))


def test_decorrelated_delays_wander_up_to_max_and_no_further() -> None:
    strategy, previous_s, seen = DecorrelatedJitter(1.0, 30.0), None, []
    for attempt in range(1, 2_000):
        previous_s = strategy.next_delay_s(context(attempt, 0.0, previous_s))
        seen.append(previous_s)
    assert min(seen) >= 1.0
    assert max(seen) == 30.0


@pytest.mark.parametrize("previous_s", [0.0, 0.01])
def test_decorrelated_jitter_recovers_from_a_previous_delay_below_its_base(previous_s: float) -> None:
    assert 1.0 <= DecorrelatedJitter(1.0, 30.0).next_delay_s(context(2, 1.0, previous_s)) <= 3.0


def test_jitter_is_reproducible_from_the_seed_of_the_random_module() -> None:
    def draw(seed: int) -> list[float]:
        random.seed(seed)
        return [s.next_delay_s(context(3, 1.0, 2.0)) for s in (ExponentialBackoff(), DecorrelatedJitter())]

    assert draw(7) == draw(7)
    assert draw(7) != draw(8)


@pytest.mark.parametrize("bad", [0, 0.0, -1, -0.001, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda v: ExponentialBackoff(base_s=v), "base_s"),
        (lambda v: ExponentialBackoff(max_s=v), "max_s"),
        (lambda v: ExponentialBackoff(multiplier=v), "multiplier"),
        (FixedInterval, "interval_s"),
        (lambda v: DecorrelatedJitter(base_s=v), "base_s"),
        (lambda v: DecorrelatedJitter(max_s=v), "max_s"),
    ],
)
def test_a_constructor_refuses_a_bad_number_by_name(make: Callable[[float], object], argument: str, bad: float) -> None:
    with pytest.raises(ValueError, match=rf"^{argument}="):
        make(bad)


@pytest.mark.parametrize("strategy", [ExponentialBackoff, DecorrelatedJitter])
def test_a_constructor_refuses_max_below_base(strategy: Callable[[float, float], object]) -> None:
    with pytest.raises(ValueError, match=r"max_s=1\.0 must not be less than base_s=2\.0"):
        strategy(2.0, 1.0)


def test_a_constructor_refuses_a_shrinking_multiplier() -> None:
    with pytest.raises(ValueError, match=r"multiplier=0\.5"):
        ExponentialBackoff(multiplier=0.5)


@pytest.mark.parametrize("bad", ["1", None, True])
def test_a_constructor_refuses_what_is_no_number(bad: float) -> None:
    with pytest.raises(TypeError, match=r"^interval_s must be a number"):
        FixedInterval(bad)


# The bridge to tenacity


@pytest.mark.parametrize("strategy", [ExponentialBackoff(), FixedInterval(), DecorrelatedJitter(), Says(1.0)])
def test_a_strategy_is_taken_as_it_is(strategy: RetryStrategy) -> None:
    assert as_strategy(strategy) is strategy


def test_a_tenacity_wait_never_gives_up() -> None:
    strategy = as_strategy(wait_exponential(multiplier=0.5, max=4))
    assert [strategy.next_delay_s(context(n)) for n in (1, 2, 3, 4, 5, 10_000)] == [0.5, 1, 2, 4, 4, 4]


def test_waits_added_up_chained_and_incrementing_see_the_attempt() -> None:
    chain = as_strategy(wait_chain(wait_fixed(1), wait_fixed(2), wait_fixed(7)))
    assert [chain.next_delay_s(context(n)) for n in (1, 2, 3, 4)] == [1, 2, 7, 7]
    combined = as_strategy(wait_fixed(3) + wait_random(0, 2))
    assert 3 <= (combined.next_delay_s(context()) or 0) <= 5
    incrementing = as_strategy(wait_incrementing(start=1, increment=2, max=4))
    assert [incrementing.next_delay_s(context(n)) for n in (1, 2, 3)] == [1, 3, 4]


def test_a_function_of_the_call_state_is_a_wait() -> None:
    def wait(state: RetryCallState) -> float:
        return state.attempt_number * 0.25

    assert as_strategy(wait).next_delay_s(context(3)) == 0.75


def test_a_pair_gives_up_after_its_number_of_attempts() -> None:
    strategy = as_strategy((wait_fixed(1), stop_after_attempt(3)))
    assert [strategy.next_delay_s(context(n)) for n in (1, 2, 3, 4)] == [1, 1, None, None]


def test_a_pair_gives_up_after_its_delay() -> None:
    strategy = as_strategy((wait_fixed(4), stop_after_delay(10)))
    assert strategy.next_delay_s(context(1)) == 4
    assert strategy.next_delay_s(context(3, 9.9, 4)) == 4
    assert strategy.next_delay_s(context(4, 10.1, 4)) is None


@pytest.mark.skipif(not hasattr(tenacity.stop, "stop_before_delay"), reason="this tenacity has no stop_before_delay")
def test_a_stop_that_looks_ahead_sees_the_coming_delay() -> None:
    strategy = as_strategy((wait_fixed(4), tenacity.stop.stop_before_delay(10)))
    assert strategy.next_delay_s(context(2, 5.9, 4)) == 4
    assert strategy.next_delay_s(context(3, 6.1, 4)) is None


def test_stops_can_be_combined() -> None:
    strategy = as_strategy((wait_fixed(1), stop_any(stop_after_attempt(9), stop_after_delay(5))))
    assert strategy.next_delay_s(context(8, 1.0)) == 1
    assert strategy.next_delay_s(context(9, 1.0)) is None
    assert strategy.next_delay_s(context(2, 5.1)) is None


@pytest.mark.parametrize("kind", [Retrying, AsyncRetrying])
def test_a_retrying_object_lends_its_wait_and_stop(kind: type[Retrying | AsyncRetrying]) -> None:
    strategy = as_strategy(kind(wait=wait_fixed(2), stop=stop_after_attempt(2)))
    assert [strategy.next_delay_s(context(n)) for n in (1, 2)] == [2, None]


def test_tenacity_sees_the_error_of_the_attempt() -> None:
    seen: list[RetryCallState] = []

    def wait(state: RetryCallState) -> float:
        seen.append(state)
        return 1.0

    error = OSError("no route")
    as_strategy(wait).next_delay_s(context(3, 12.5, 5.0, error))
    (state,) = seen
    assert state.outcome is not None
    assert state.outcome.failed
    assert state.outcome.exception() is error
    assert state.outcome.attempt_number == state.attempt_number == 3
    assert state.seconds_since_start == pytest.approx(12.5)
    assert state.idle_for == 12.5


@pytest.mark.skipif(not hasattr(tenacity.wait, "wait_exception"), reason="this tenacity has no wait_exception")
def test_wait_exception_chooses_by_the_error_and_knows_a_lock_that_is_merely_held() -> None:
    strategy = as_strategy(tenacity.wait.wait_exception(lambda error: 60.0 if type(error) is PgElectError else 2.0))
    assert strategy.next_delay_s(context(error=OSError())) == 2.0
    assert strategy.next_delay_s(context(error=None)) == 60.0


async def never_awaited(state: RetryCallState) -> float:
    return 1.0


@pytest.mark.parametrize(
    "value",
    [
        None,
        5.0,
        "exponential",
        ExponentialBackoff,
        wait_none,
        never_awaited,
        (),
        (wait_fixed(1),),
        (wait_fixed(1), None),
        (wait_fixed(1), stop_after_attempt),
        (wait_fixed(1), stop_never, 3),
    ],
)
def test_anything_else_is_refused_with_what_is_accepted(value: object) -> None:
    with pytest.raises(TypeError, match=r"next_delay_s\(ctx\).*tenacity wait.*\(wait, stop\).*AsyncRetrying"):
        as_strategy(value)  # type: ignore[arg-type]  # the point of the test


# The guard


@pytest.mark.parametrize(("said", "heard"), [(0, 0.0), (2, 2.0), (0.5, 0.5), (None, None)])
def test_the_guard_lets_a_usable_answer_through(said: object, heard: float | None) -> None:
    assert next_delay_s(Says(said), context()) == heard


@pytest.mark.parametrize("said", [-1, -0.001, math.nan, math.inf])
def test_the_guard_refuses_a_delay_that_cannot_be_waited(said: float) -> None:
    with pytest.raises(ValueError, match=r"returned a delay of .* for attempt 4; it must return a finite number"):
        next_delay_s(Says(said), context(4))


def test_the_guard_refuses_an_answer_that_is_no_number() -> None:
    with pytest.raises(TypeError, match="must return seconds as a number, or None"):
        next_delay_s(Says("5"), context())


def test_the_guard_refuses_an_asynchronous_strategy_without_a_warning() -> None:
    class Asynchronous:
        async def next_delay_s(self, ctx: RetryContext) -> float:
            return 1.0

    with pytest.raises(TypeError, match="must return seconds as a number, or None"):
        next_delay_s(Asynchronous(), context())  # type: ignore[arg-type]  # the point of the test


def test_the_error_of_a_strategy_goes_through() -> None:
    def wait(state: RetryCallState) -> float:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        next_delay_s(as_strategy(wait), context())
