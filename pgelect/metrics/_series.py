"""Every series there is: its name, what it says, its labels and those of their values that can be foreseen.

Both adapters make their instruments from this. Names are without the prefix and without the suffixes that each system
adds; each series has the label ``lock`` before its own. Durations are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pgelect._engine.model import LockState
from pgelect.metrics import _words as words


class Kind(Enum):
    """How a series behaves."""

    GAUGE = "gauge"
    """Read from the lock at the moment somebody looks."""
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One series, or rather one for each lock and each of its labels' values.

    Attributes:
        name: without prefix, unit and suffix.
        kind: how it behaves.
        text: what it says.
        labels: its own, beside ``lock``.
        foreseen: those values of ``labels`` that exist from the start.
        buckets: upper bounds of a histogram.
        in_seconds: its values are seconds.
    """

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()
    foreseen: tuple[tuple[str, ...], ...] = ((),)
    buckets: tuple[float, ...] = ()
    in_seconds: bool = False


def _each(*values: str) -> tuple[tuple[str, ...], ...]:
    return tuple((value,) for value in values)


# An answer of a server near by takes under a millisecond; a proof that takes as long as the lease is a failed one.
_ANSWERS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
# A follower takes over in milliseconds; nobody at all may lead for minutes, between two deploys.
_TAKEOVERS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_LAGS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0
_TERMS = (
    *(1.0, 10.0, _MINUTE, 5 * _MINUTE, 15 * _MINUTE),
    *(_HOUR, 4 * _HOUR, 12 * _HOUR, _DAY, 3 * _DAY, 7 * _DAY, 14 * _DAY, 28 * _DAY),
)

IS_LEADER = Series("is_leader", Kind.GAUGE, "1 while this process leads, 0 otherwise.")
STATE = Series("state", Kind.GAUGE, "1 for the state the lock is in, 0 for the others.", ("state",), _each(*LockState))
TOKEN = Series("token", Kind.GAUGE, "Fencing token of the present term; 0 while this process does not lead.")
TRUST_LEFT = Series(
    "trust_left",
    Kind.GAUGE,
    "For how long the last proof of leadership can still be trusted; 0 while this process does not lead.",
    in_seconds=True,
)
TERM_START = Series(
    "term_start_time",
    Kind.GAUGE,
    "When the present term began, in Unix time by the server's clock; 0 while this process does not lead.",
    in_seconds=True,
)
FOLLOWERS = Series("followers_waiting", Kind.GAUGE, "How many others wait for the lock that this process holds.")
TRANSITIONS = Series(
    "transitions",
    Kind.COUNTER,
    "Changes of state of the lock, and why.",
    ("from", "to", "reason"),
    tuple((before, after, why) for (before, after), reasons in words.USUAL.items() for why in reasons),
)
ATTEMPTS_FAILED = Series(
    "attempts_failed",
    Kind.COUNTER,
    "Attempts for leadership without success; cause held: another process leads.",
    ("cause",),
    _each("held", "connect", "closed", "timeout", "fence_busy", "not_primary"),
)
TERMS = Series("terms", Kind.COUNTER, "Terms of leadership that this process has begun.")
TERMS_ENDED = Series(
    "terms_ended",
    Kind.COUNTER,
    "Terms of leadership of this process that are over: released, or lost; and why.",
    ("ending", "cause"),
    words.ENDINGS,
)
TERM = Series("term", Kind.HISTOGRAM, "Length of the terms that are over.", buckets=_TERMS, in_seconds=True)
TAKEOVER = Series(
    "takeover",
    Kind.HISTOGRAM,
    "How long nobody led: since the release; or after an unclean end, since the lock was granted to this process.",
    ("after",),
    _each("release", "loss"),
    _TAKEOVERS,
    in_seconds=True,
)
PROOF = Series(
    "proof",
    Kind.HISTOGRAM,
    "How long a proof of leadership took.",
    ("outcome",),
    _each("ok", "failed"),
    _ANSWERS,
    in_seconds=True,
)
PROOFS_FAILED = Series("proofs_failed", Kind.COUNTER, "Proofs of leadership that failed.")
RECONNECTS = Series("reconnects", Kind.COUNTER, "Sessions that were lost and after which the same term went on.")
FENCE_CHECKS = Series(
    "fence_checks",
    Kind.COUNTER,
    "Checks of the fencing token; stale: refused, for the term was over.",
    ("outcome",),
    _each(*words.FENCE_OUTCOMES),
)
FENCE_CHECK = Series(
    "fence_check", Kind.HISTOGRAM, "How long a check of the fencing token took.", buckets=_ANSWERS, in_seconds=True
)
CALLBACK_FAILURES = Series(
    "callback_failures", Kind.COUNTER, "Callbacks that raised.", ("callback",), _each(*words.CALLBACKS)
)
LOOP_LAG = Series(
    "event_loop_lag",
    Kind.HISTOGRAM,
    "How much later than asked the event loop ran a timer, looked at about once a second.",
    buckets=_LAGS,
    in_seconds=True,
)

GAUGES = (IS_LEADER, STATE, TOKEN, TRUST_LEFT, TERM_START, FOLLOWERS)
EVENTS = (
    *(TRANSITIONS, ATTEMPTS_FAILED, TERMS, TERMS_ENDED, TERM, TAKEOVER, PROOF, PROOFS_FAILED),
    *(RECONNECTS, FENCE_CHECKS, FENCE_CHECK, CALLBACK_FAILURES, LOOP_LAG),
)
