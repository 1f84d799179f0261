"""How long to wait after failures in a row: the user's strategy, asked with the right numbers and held in check."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pgelect.retry import RetryContext, RetryStrategy, next_delay_s

if TYPE_CHECKING:
    from pgelect._engine.clock import Clock

log = logging.getLogger("pgelect")

FALLBACK_DELAY_S = 5.0
"""Used when the strategy itself fails: an election must not end, nor spin, because of that."""
STABLE_AFTER_S = 5.0
"""A session that was lost after this long is lost by itself: no reason to wait before the next one."""


class Backoff:
    """One run of failures."""

    def __init__(self, strategy: RetryStrategy, clock: Clock) -> None:
        self._strategy = strategy
        self._clock = clock
        self.attempts = 0
        self._since = 0.0
        self._previous_s: float | None = None

    def next_s(self, error: Exception | None) -> float | None:
        """Count one more failure; return the seconds to wait, or None to give up."""
        now = self._clock.now()
        if self.attempts == 0:
            self._since = now
        self.attempts += 1
        context = RetryContext(
            attempt=self.attempts, elapsed_s=now - self._since, previous_delay_s=self._previous_s, error=error
        )
        try:
            self._previous_s = next_delay_s(self._strategy, context)
        except Exception:
            log.exception("the retry strategy failed; waiting %g s instead", FALLBACK_DELAY_S)
            self._previous_s = FALLBACK_DELAY_S
        return self._previous_s

    def use(self, strategy: RetryStrategy) -> None:
        """Ask that strategy from now on; the count goes on."""
        self._strategy = strategy

    def reset(self) -> None:
        """Start a new count: the last attempt succeeded."""
        self.attempts = 0
        self._previous_s = None


class ShortTerms:
    """One run of terms that were lost soon after they had begun: something ends the sessions of leaders.

    The first is made good at once, as any loss is. After each one more the strategy says how long to wait, or others
    to lead: else terms would follow each other as fast as the server mints tokens.
    """

    def __init__(self, strategy: RetryStrategy, clock: Clock) -> None:
        self._backoff = Backoff(strategy, clock)
        self._clock = clock
        self._began_at = 0.0
        self._is_first = True

    def began(self) -> None:
        """Note that a session has begun to hold a term."""
        self._began_at = self._clock.now()

    def lost_s(self, error: Exception) -> float:
        """Count the loss of that session, if it came soon; return the seconds to wait."""
        if self._clock.now() - self._began_at > STABLE_AFTER_S:
            self.reset()
            return 0.0
        if self._is_first:
            self._is_first = False
            return 0.0
        delay_s = self._backoff.next_s(error)
        return FALLBACK_DELAY_S if delay_s is None else delay_s  # it did lead: no reason to give up for good

    def use(self, strategy: RetryStrategy) -> None:
        """Ask that strategy from now on; the count goes on."""
        self._backoff.use(strategy)

    def reset(self) -> None:
        """Start a new count: a term has ended well."""
        self._backoff.reset()
        self._is_first = True
