"""When to try again: the strategy protocol, three strategies, and the bridge to tenacity's.

A strategy answers one question, after each attempt for leadership that failed: how long until the next one? It never
sleeps, and those here keep nothing between calls: all they know is in the `RetryContext`, so locks may share them.
"""

from __future__ import annotations

import inspect
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from tenacity import BaseRetrying, Future, RetryCallState, Retrying
from tenacity.stop import stop_never
from tenacity.wait import wait_fixed, wait_random_exponential

from pgelect.errors import PgElectError

if TYPE_CHECKING:
    from typing import TypeGuard

__all__ = [
    "DecorrelatedJitter",
    "ExponentialBackoff",
    "FixedInterval",
    "RetryContext",
    "RetryLike",
    "RetryStrategy",
    "TenacityStop",
    "TenacityWait",
    "as_strategy",
    "next_delay_s",
]

TenacityWait: TypeAlias = Callable[[RetryCallState], float]
"""A wait of tenacity: any `tenacity.wait.wait_base`, or a function of a RetryCallState that returns seconds."""
TenacityStop: TypeAlias = Callable[[RetryCallState], bool]
"""A stop of tenacity: any `tenacity.stop.stop_base`, or a function of a RetryCallState that returns a bool."""


@dataclass(frozen=True, slots=True)
class RetryContext:
    """What a strategy is told.

    Attributes:
        attempt: failed attempts in a row; 1 for the first wait.
        elapsed_s: seconds since the first of them failed; 0.0 for the first wait.
        previous_delay_s: the delay before the attempt that failed; None for the first wait.
        error: why the attempt failed; None when the lock was merely held by another process.
    """

    attempt: int
    elapsed_s: float
    previous_delay_s: float | None
    error: Exception | None


@runtime_checkable
class RetryStrategy(Protocol):
    """Decides how long to wait between attempts for leadership."""

    def next_delay_s(self, ctx: RetryContext) -> float | None:
        """Return the seconds to wait before the next attempt, finite and not negative; None to give up.

        Called on the event loop: it must not block.
        """


RetryLike: TypeAlias = RetryStrategy | TenacityWait | tuple[TenacityWait, TenacityStop] | BaseRetrying
"""All that `as_strategy` accepts."""


@dataclass(frozen=True, slots=True)
class ExponentialBackoff:
    """Exponentially growing delays with full jitter above a small floor. Never gives up.

    The nth delay is drawn evenly from about ``base_s / 10`` to ``base_s * multiplier ** (n - 1)``, capped at ``max_s``;
    the first one thus from ``base_s / 10`` to ``base_s``. No delay is below ``base_s / 10`` or above ``max_s``: plain
    full jitter may draw almost 0 many times in a row, which is a hot loop. Processes that failed together come back
    spread out.

    Source: "Full Jitter" of the AWS architecture blog, "Exponential Backoff And Jitter" (2015), as tenacity's
    ``wait_random_exponential``; the floor is ours.

    Args:
        base_s: the greatest first delay, in seconds. Default 1.0.
        max_s: the greatest delay, in seconds. Default 30.0.
        multiplier: the growth per attempt, 1.0 or more. Default 2.0.

    Raises:
        ValueError: an argument is not finite or not positive, ``max_s < base_s``, or ``multiplier < 1``.
        TypeError: an argument is not a number.
    """

    base_s: float = 1.0
    max_s: float = 30.0
    multiplier: float = 2.0

    def __post_init__(self) -> None:
        _check_range(self.base_s, self.max_s)
        _check_positive("multiplier", self.multiplier)
        if self.multiplier < 1:
            raise ValueError(f"multiplier={self.multiplier!r} must be 1 or more: delays must not shrink")

    def next_delay_s(self, ctx: RetryContext) -> float:
        """Return the next delay in seconds, from ``base_s / 10`` to ``max_s``."""
        floor_s = self.base_s / 10
        jitter = wait_random_exponential(
            multiplier=self.base_s - floor_s, max=self.max_s - floor_s, exp_base=float(self.multiplier)
        )
        return min((wait_fixed(floor_s) + jitter)(_call_state(ctx)), self.max_s)


@dataclass(frozen=True, slots=True)
class FixedInterval:
    """The same delay each time, without jitter. Never gives up.

    Processes that failed together come back together; prefer a jittered strategy where there are many.

    Args:
        interval_s: the delay in seconds. Default 5.0.

    Raises:
        ValueError: ``interval_s`` is not finite or not positive.
        TypeError: it is not a number.
    """

    interval_s: float = 5.0

    def __post_init__(self) -> None:
        _check_positive("interval_s", self.interval_s)

    def next_delay_s(self, ctx: RetryContext) -> float:
        """Return ``interval_s``."""
        return wait_fixed(self.interval_s)(_call_state(ctx))


@dataclass(frozen=True, slots=True)
class DecorrelatedJitter:
    """Delays that wander between ``base_s`` and ``max_s``, each up to three times the one before. Never gives up.

    The delay is drawn evenly from ``base_s`` to ``3 * previous delay`` (the first: ``3 * base_s``), capped at
    ``max_s``. It is never below ``base_s``.

    Source: "Decorrelated Jitter" of the AWS architecture blog, "Exponential Backoff And Jitter" (2015).

    Args:
        base_s: the least delay, in seconds. Default 1.0.
        max_s: the greatest delay, in seconds. Default 30.0.

    Raises:
        ValueError: an argument is not finite or not positive, or ``max_s < base_s``.
        TypeError: an argument is not a number.
    """

    base_s: float = 1.0
    max_s: float = 30.0

    def __post_init__(self) -> None:
        _check_range(self.base_s, self.max_s)

    def next_delay_s(self, ctx: RetryContext) -> float:
        """Return the next delay in seconds, from ``base_s`` to ``max_s``."""
        previous_s = max(self.base_s, ctx.previous_delay_s or 0.0)
        return min(self.max_s, random.uniform(self.base_s, 3 * previous_s))  # noqa: S311 -- jitter, not a secret


def as_strategy(value: RetryLike) -> RetryStrategy:
    """Make a strategy of what a user may give.

    Args:
        value: a RetryStrategy; a wait of tenacity (then it never gives up); a pair ``(wait, stop)`` of tenacity's; or a
            ``Retrying`` / ``AsyncRetrying``, of which only ``.wait`` and ``.stop`` are used. A wait or stop sees a
            RetryCallState whose ``outcome`` failed: with the error of the attempt, or with a plain PgElectError when
            the lock was merely held by another process. Its ``idle_for`` is the time since the first failure.

    Raises:
        TypeError: it is none of these.
    """
    if isinstance(value, BaseRetrying):
        return _adapted(value.wait, value.stop, value)
    if isinstance(value, RetryStrategy) and not isinstance(value, type):
        return value
    if isinstance(value, tuple) and len(value) == 2:
        return _adapted(value[0], value[1], value)
    return _adapted(value, stop_never, value)


def next_delay_s(strategy: RetryStrategy, ctx: RetryContext) -> float | None:
    """Ask a strategy, and let no unusable answer through. An exception of the strategy goes through as it is.

    Returns:
        Seconds until the next attempt, finite and not negative; None to give up.

    Raises:
        ValueError: the delay is negative, NaN or infinite.
        TypeError: the delay is neither a number nor None.
    """
    delay_s: object = strategy.next_delay_s(ctx)  # its annotation is a promise, not a proof
    if delay_s is None:
        return None
    if inspect.iscoroutine(delay_s):
        delay_s.close()
    if not isinstance(delay_s, (int, float)):
        raise TypeError(
            f"the retry strategy {strategy!r} returned {delay_s!r}; "
            "it must return seconds as a number, or None to give up"
        )
    if not math.isfinite(delay_s) or delay_s < 0:
        raise ValueError(
            f"the retry strategy {strategy!r} returned a delay of {delay_s!r} s for attempt {ctx.attempt}; "
            "it must return a finite number of seconds, 0 or more, or None to give up"
        )
    return float(delay_s)


@dataclass(frozen=True, slots=True)
class _TenacityStrategy:
    """A wait and a stop of tenacity, asked in the order in which tenacity asks them."""

    wait: TenacityWait
    stop: TenacityStop

    def next_delay_s(self, ctx: RetryContext) -> float | None:
        state = _call_state(ctx, Retrying(wait=self.wait, stop=self.stop))
        state.upcoming_sleep = self.wait(state)  # before the stop, which may look at it: stop_before_delay
        return None if self.stop(state) else state.upcoming_sleep


def _adapted(wait: object, stop: object, given: object) -> RetryStrategy:
    if not _is_plain_callable(wait) or not _is_plain_callable(stop):
        raise TypeError(
            f"retry={given!r} is not a retry strategy. Give an object with next_delay_s(ctx) such as "
            "ExponentialBackoff() or FixedInterval(5.0), a tenacity wait (an instance, or a synchronous function of a "
            "RetryCallState), a pair (wait, stop) of tenacity's, or a tenacity Retrying or AsyncRetrying object"
        )
    return _TenacityStrategy(wait, stop)


def _is_plain_callable(value: object) -> TypeGuard[Callable[[RetryCallState], Any]]:
    # A class is callable too, but what was meant is an instance of it.
    return callable(value) and not isinstance(value, type) and not inspect.iscoroutinefunction(value)


def _call_state(ctx: RetryContext, retrying: Retrying | None = None) -> RetryCallState:
    """Build the state that tenacity would have had it run the attempts itself."""
    state = RetryCallState(retrying or Retrying(), fn=None, args=(), kwargs={})
    state.attempt_number = ctx.attempt
    error = ctx.error or PgElectError("the lock is held by another process")
    state.outcome = Future.construct(ctx.attempt, error, True)  # noqa: FBT003 -- tenacity's signature
    state.outcome_timestamp = time.monotonic()
    state.start_time = state.outcome_timestamp - ctx.elapsed_s  # what seconds_since_start is computed from
    state.idle_for = ctx.elapsed_s  # nearly all of that time was spent waiting
    return state


def _check_positive(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    if not math.isfinite(value) or value <= 0:
        raise ValueError(f"{name}={value!r} must be a finite number greater than 0")


def _check_range(base_s: float, max_s: float) -> None:
    _check_positive("base_s", base_s)
    _check_positive("max_s", max_s)
    if max_s < base_s:
        raise ValueError(f"max_s={max_s!r} must not be less than base_s={base_s!r}")
