"""From what a lock tells to the series it belongs to: the part that all adapters share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pgelect.metrics import _series as series
from pgelect.metrics import _words as words

if TYPE_CHECKING:
    from pgelect._engine.meter import FenceOutcome
    from pgelect._engine.model import LockState, Term
    from pgelect.metrics._locks import Present
    from pgelect.metrics._series import Series


class Sink(Protocol):
    """Where values go. ``labels`` are the values of the labels of the series, ``lock`` first."""

    def prepare(self, of: Series, labels: tuple[str, ...]) -> None:
        """Have the series exist from now on."""

    def count(self, of: Series, labels: tuple[str, ...]) -> None:
        """Add one to a counter."""

    def observe(self, of: Series, labels: tuple[str, ...], value: float) -> None:
        """Add a value to a histogram."""


class Recorder:
    """The metrics of one lock; a ``LockMetrics``."""

    def __init__(self, sink: Sink, label: str, present: Present) -> None:
        self.label = label
        self._sink = sink
        self._present = present
        for of in series.EVENTS:
            for values in of.foreseen:
                sink.prepare(of, (label, *values))

    def transition(self, before: LockState, after: LockState, cause: str) -> None:
        """Count a change of state."""
        self._count(series.TRANSITIONS, before.value, after.value, words.bounded(cause, words.CAUSES))

    def attempt_failed(self, cause: str) -> None:
        """Count an attempt without success."""
        self._count(series.ATTEMPTS_FAILED, words.bounded(cause, words.ATTEMPT_CAUSES))

    def term_began(self, term: Term, takeover_s: float | None, *, after_release: bool) -> None:
        """Count a term, and take down how long nobody led before it."""
        self._present.began_at = term.acquired_at.timestamp()
        self._count(series.TERMS)
        if takeover_s is not None:
            self._observe(series.TAKEOVER, takeover_s, "release" if after_release else "loss")

    def term_ended(self, term: Term, length_s: float, *, released: bool, cause: str) -> None:  # noqa: ARG002 -- protocol
        """Count the end of a term, and its length."""
        self._present.followers, self._present.began_at = 0, 0.0
        ending = "released" if released else "lost"
        self._count(series.TERMS_ENDED, ending, words.bounded(cause, words.CAUSES))
        self._observe(series.TERM, length_s)

    def proof(self, duration_s: float, *, succeeded: bool) -> None:
        """Take down how long a proof took."""
        self._observe(series.PROOF, duration_s, "ok" if succeeded else "failed")
        if not succeeded:
            self._count(series.PROOFS_FAILED)

    def reconnected(self) -> None:
        """Count a lost session after which the term went on."""
        self._count(series.RECONNECTS)

    def followers(self, waiting: int) -> None:
        """Keep how many others wait, for whoever looks."""
        self._present.followers = waiting

    def fence_check(self, duration_s: float, outcome: FenceOutcome) -> None:
        """Count a check of the token, and take down how long it took."""
        self._count(series.FENCE_CHECKS, words.bounded(outcome, words.FENCE_OUTCOMES))
        self._observe(series.FENCE_CHECK, duration_s)

    def callback_failed(self, hook: str) -> None:
        """Count a callback that raised."""
        self._count(series.CALLBACK_FAILURES, words.bounded(hook, words.CALLBACKS))

    def loop_lag(self, lag_s: float) -> None:
        """Take down how late the event loop was."""
        self._observe(series.LOOP_LAG, lag_s)

    def _count(self, of: Series, *values: str) -> None:
        self._sink.count(of, (self.label, *values))

    def _observe(self, of: Series, value: float, *values: str) -> None:
        self._sink.observe(of, (self.label, *values), max(0.0, value))  # two clocks may differ by a hair
