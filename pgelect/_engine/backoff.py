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

    def reset(self) -> None:
        """Start a new count: the last attempt succeeded."""
        self.attempts = 0
        self._previous_s = None
