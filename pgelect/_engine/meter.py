"""What a lock tells of itself to whoever measures: the protocol of metrics, which every adapter implements.

The lock calls these from its own event loop, between two steps of the election: they must return at once and wait for
nothing. An error that one raises is logged once and otherwise ignored; it never disturbs the election.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgelect._engine.model import LockKey, LockState, Term

log = logging.getLogger("pgelect")

FenceOutcome = Literal["ok", "stale", "failed"]


class LockView(Protocol):
    """What can be read of a lock at any instant, from any thread; ``LeaderLock`` is one."""

    @property
    def key(self) -> LockKey:
        """The key of the lock."""

    @property
    def identity(self) -> str:
        """The identity of this process."""

    @property
    def state(self) -> LockState:
        """What the lock is doing."""

    @property
    def is_leader(self) -> bool:
        """Whether this process leads at this very instant."""

    @property
    def token(self) -> int | None:
        """The fencing token of the present term; None while not leading."""

    @property
    def trust_left_s(self) -> float:
        """For how many seconds the last proof can still be trusted; 0 while not leading."""


class LockMetrics(Protocol):
    """Receives what happens to one lock. Durations are seconds."""

    def transition(self, before: LockState, after: LockState, cause: str) -> None:
        """Count a change of state. ``cause`` is one of a few dozen words: ``minted``, ``step_down``, ``expired`` ..."""

    def attempt_failed(self, cause: str) -> None:
        """Count an attempt without success; ``cause`` is ``held`` when another process leads."""

    def term_began(self, term: Term, takeover_s: float | None, *, after_release: bool) -> None:
        """Hear that a term has begun.

        ``takeover_s``: how long nobody led. After a clean release from the moment of that, by the server's clock; after
        any other end from the moment the lock was granted here, for nobody knows when the last leader stopped. None:
        there was no term before.
        """

    def term_ended(self, term: Term, length_s: float, *, released: bool, cause: str) -> None:
        """Hear that a term is over: given up cleanly (``released``), or lost."""

    def proof(self, duration_s: float, *, succeeded: bool) -> None:
        """Hear that a proof of leadership was answered, or failed, after that time."""

    def reconnected(self) -> None:
        """Count a lost session after which the same term went on."""

    def followers(self, waiting: int) -> None:
        """Hear how many others wait for the lock that this process holds, in the server's queue or aside."""

    def fence_check(self, duration_s: float, outcome: FenceOutcome) -> None:
        """Hear of a check of the token: passed, refused because the term is over, or failed in another way."""

    def callback_failed(self, hook: str) -> None:
        """Count a callback that raised; ``hook`` is its name without ``on_``, such as ``acquired``."""

    def loop_lag(self, lag_s: float) -> None:
        """Hear how much later than asked the event loop ran this lock's timer; about once a second."""


class Meter:
    """Tells the metrics of one lock, if there are any. What they raise is logged once, and disturbs nothing."""

    def __init__(self) -> None:
        self._to: LockMetrics | None = None
        self._complained = False

    @property
    def bound(self) -> bool:
        """Whether anybody measures."""
        return self._to is not None

    def bind(self, to: LockMetrics) -> None:
        """Tell these from now on."""
        self._to = to

    def tell(self, word: Callable[[LockMetrics], None]) -> None:
        """Call the metrics; never raises."""
        if self._to is None:
            return
        try:
            word(self._to)
        except Exception:
            if not self._complained:
                self._complained = True
                log.exception("the metrics of a lock failed; it goes on, and says so only this once")


class Metrics(Protocol):
    """What is given to ``LeaderLock(..., metrics=...)``. One object may serve any number of locks."""

    def for_lock(self, lock: LockView) -> LockMetrics:
        """Make the metrics of one lock, with all their series at once. Called by the constructor of the lock."""
