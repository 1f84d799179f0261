"""The log: one line per transition, nothing at INFO in steady state, and a bounded rate while the server is away."""

from __future__ import annotations

import logging
from math import inf
from typing import TYPE_CHECKING

from pgelect._engine.model import LockState

if TYPE_CHECKING:
    from pgelect._engine.clock import Clock
    from pgelect._engine.model import LockKey

log = logging.getLogger("pgelect")

REPEAT_AFTER_S = 60.0
"""A kind of failure is logged once until there is a leader here, then at most this often, with the number left out."""

FORGOTTEN_AFTER_S = 200.0
"""Azure's load balancers forget a flow that was idle for 240 s, Amazon's after 350 s; many a NAT is quicker."""

_QUIET = frozenset({LockState.FOLLOWER, LockState.ACQUIRING})
_AT_STAKE = frozenset({LockState.LEADER, LockState.RECONNECTING})
_GOOD = frozenset({LockState.LEADER, LockState.RELEASING})


class Journal:
    """Writes the log lines of one lock."""

    def __init__(self, key: LockKey | str, clock: Clock) -> None:
        """``key``: of the lock, or what else to call it."""
        self._key = key
        self._clock = clock
        self._warned_of = ""  # the reason of the last transition, if that was a warning
        self.trouble: Exception | None = None  # the last error, while nothing has gone well since
        self.trouble_since = inf
        self._told: dict[str, tuple[float, int]] = {}  # by kind of failure: when it was logged, how often it was not

    def started(self, health_interval_s: float) -> None:
        """Begin anew; warn of an interval that does not keep a connection in the memory of what is on its way."""
        self.went_well()
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
            self._told.clear()

    def went_well(self) -> None:
        """Note that the server has answered as it should."""
        self.trouble, self.trouble_since = None, inf

    def attempt_failed(self, error: Exception | None) -> None:
        """Log a failed attempt (None: it was refused, no failure), or a lost term, at a bounded rate and once."""
        if error is not None:
            self.trouble_since = min(self.trouble_since, self._clock.now())
            self.trouble = error
        if error is None or str(error) == self._warned_of:
            return
        now, kind = self._clock.now(), type(error).__name__
        logged_at, left_out = self._told.get(kind, (-inf, 0))
        if now - logged_at < REPEAT_AFTER_S:
            self._told[kind] = (logged_at, left_out + 1)
            return
        more = f" ({left_out} more like it were not logged)" if left_out else ""
        log.warning("%s: %s%s", self._key, error, more)
        self._told[kind] = (now, 0)

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
