"""The log: one line per transition, nothing at INFO in steady state, and a bounded rate while the server is away."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pgelect._engine.model import LockState

if TYPE_CHECKING:
    from pgelect._engine.clock import Clock
    from pgelect._engine.model import LockKey

log = logging.getLogger("pgelect")

REPEAT_AFTER_S = 60.0
"""The same kind of failure in a row is logged once, then at most this often, with the number left out."""

FORGOTTEN_AFTER_S = 200.0
"""Azure's load balancers forget a flow that was idle for 240 s, Amazon's after 350 s; many a NAT is quicker."""

_QUIET = frozenset({LockState.FOLLOWER, LockState.ACQUIRING})
_AT_STAKE = frozenset({LockState.LEADER, LockState.RECONNECTING})
_GOOD = frozenset({LockState.LEADER, LockState.RELEASING})


class Journal:
    """Writes the log lines of one lock."""

    def __init__(self, key: LockKey, clock: Clock) -> None:
        self._key = key
        self._clock = clock
        self._last: str | None = None
        self._warned_of = ""  # the reason of the last transition, if that was a warning
        self._logged_at = 0.0
        self._left_out = 0

    def started(self, health_interval_s: float) -> None:
        """Warn of an interval that does not keep a connection in the memory of what is on its way."""
        if health_interval_s >= FORGOTTEN_AFTER_S:
            log.warning(
                "%s: health_interval_s=%g is long: load balancers and NAT forget a connection that is idle for some "
                "minutes, and tell neither end. Choose less than %g, unless nothing of the kind is on the way",
                self._key,
                health_interval_s,
                FORGOTTEN_AFTER_S,
            )

    def changed(self, before: LockState, after: LockState, reason: str) -> None:
        """Log a transition: attempts (polls repeat them) at DEBUG, what was lost at WARNING, others at INFO."""
        level = logging.INFO
        if {before, after} <= _QUIET:
            level = logging.DEBUG
        elif before in _AT_STAKE and after not in _GOOD:
            level = logging.WARNING
        self._warned_of = reason if level == logging.WARNING else ""
        log.log(level, "%s: %s -> %s (%s)", self._key, before.value, after.value, reason)
        if after is LockState.LEADER:
            self._last = None

    def attempt_failed(self, error: Exception | None) -> None:
        """Log a failed attempt, or a lost term, at a bounded rate and once."""
        if error is None:
            self._last = None
            return
        if str(error) == self._warned_of:
            return
        now, kind = self._clock.now(), type(error).__name__
        if kind == self._last and now - self._logged_at < REPEAT_AFTER_S:
            self._left_out += 1
            return
        more = f" ({self._left_out} more like it were not logged)" if self._left_out else ""
        log.warning("%s: %s%s", self._key, error, more)
        self._last, self._logged_at, self._left_out = kind, now, 0

    def drain_timed_out(self) -> None:
        """Log that a duty outlived its drain."""
        log.warning(
            "%s: the duty did not stop in the time for its drain; the lock is freed while it still runs", self._key
        )

    def halted(self, reason: Exception | None) -> None:
        """Log that the lock stopped by itself."""
        if reason is not None:
            log.error("%s: stopped: %s", self._key, reason)

    def bug(self, error: Exception) -> None:
        """Log what must not happen."""
        log.critical("%s: the election failed by a bug in pgelect; it has stopped", self._key, exc_info=error)
