"""Whether a lock is well, worked out from plain facts, for whoever restarts what hangs and waits for what starts.

The rules:

- *Healthy* means that a restart of the process would mend nothing. A follower is healthy, also while the server is
  away: to restart all replicas would not bring it back.
- A lock that has stopped by itself is not healthy (retries exhausted, a mistake of configuration, a bug, a stranger
  that cancelled its task), nor is one whose task or event loop has ended unnoticed, nor one for which nothing has run
  when something was due.
- A leader is healthy while its proofs are in time: not when the last one is older than the interval, the time for an
  answer and a margin together, and not when its trust ran out without its state having followed.
- *Ready* means that it can take part now: it leads, or stands by with a connection. One that reconnects within its
  grace, gives leadership up, is starting, or was stopped on purpose, is healthy and not ready. The first two last for a
  bounded time; past it they count as hanging.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from pgelect._engine.model import LockState

LATE_S = 1.0
"""What was due that long ago, and has not happened, is not merely late on a busy machine."""
LONGEST_REASON = 300
"""Characters of an error that are shown."""
STANDING_BY = frozenset({LockState.FOLLOWER, LockState.ACQUIRING})


@dataclass(frozen=True, slots=True)
class Health:
    """Whether a lock is well, as an orchestrator asks it. See ``LeaderLock.health``.

    Attributes:
        healthy: a restart of the process would mend nothing; False: it might.
        ready: it takes part now, as the leader or as a follower that is connected.
        reason: why, in one line of words for people; they may change.
    """

    healthy: bool
    ready: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Facts:
    """All that the health of a lock follows from, at one instant. Times are readings of the lock's own clock, seconds.

    Attributes:
        state: what the lock is doing.
        now: the present time.
        running: started, and not stopped since.
        started: it was started at least once.
        dead: the task of the lock, or the event loop that it runs in, has ended although the lock counts as running.
        forked: this process is a fork of the one that made the lock.
        failure: why it stopped by itself; None when it did not, or was asked to.
        ended: why its one term ended, for a lock that stops after it (``auto_reacquire=False``); None otherwise.
        connected: its session is open.
        proved_at: when the last proof was sent.
        trusted_until: when leadership is not believed any more.
        due_at: when the lock has to act next, whatever the server does.
        trouble: the last error, while nothing has gone well since.
        trouble_since: when the first error of that row came.
        health_interval_s, proof_timeout_s, margin_s: of its settings.
    """

    state: LockState
    now: float
    running: bool
    started: bool
    dead: bool = False
    forked: bool = False
    failure: Exception | None = None
    ended: Exception | None = None
    connected: bool = False
    proved_at: float = -inf
    trusted_until: float = -inf
    due_at: float = inf
    trouble: Exception | None = None
    trouble_since: float = inf
    health_interval_s: float = 5.0
    proof_timeout_s: float = 9.25
    margin_s: float = 0.75


def health_of(facts: Facts) -> Health:
    """Work out the health of a lock."""
    if facts.forked:
        return _idle("the lock belongs to the process that this one was forked from; make one after the fork")
    if facts.dead or not facts.running:
        return _stopped(facts)
    return _leader(facts) if facts.state is LockState.LEADER else _waiting(facts)


def _stopped(facts: Facts) -> Health:
    if facts.dead:
        return _ill("the task of the lock or its event loop has ended without a shutdown: nothing runs any more")
    if facts.failure is not None:
        return _ill(f"stopped by itself: {_said(facts.failure)}")
    if facts.ended is not None:
        return _idle(f"stopped after its term: {_said(facts.ended)}")
    return _idle("stopped" if facts.started else "not started")


def _waiting(facts: Facts) -> Health:
    late_s = facts.now - facts.due_at
    if late_s > LATE_S:
        return _ill(
            f"{facts.state.value}: nothing has run for {late_s:.1f} s: the event loop is blocked, or a task hangs"
        )
    return Health(healthy=True, ready=facts.connected and facts.state in STANDING_BY, reason=_what_it_does(facts))


def _leader(facts: Facts) -> Health:
    over_s, age_s = facts.now - facts.trusted_until, facts.now - facts.proved_at
    if over_s >= 0:
        return _ill(
            f"leadership ran out {over_s:.1f} s ago and the lock has not noticed: the event loop is blocked, "
            "or a task hangs"
        )
    if age_s > facts.health_interval_s + facts.proof_timeout_s + facts.margin_s:
        why = "" if facts.trouble is None else f": {_said(facts.trouble)}"
        return _ill(
            f"the last proof of leadership is {age_s:.1f} s old: one is due every {facts.health_interval_s:g} s, and "
            f"its answer within {facts.proof_timeout_s:g} s{why}"
        )
    return Health(healthy=True, ready=True, reason=f"leading, proved {max(0.0, age_s):.1f} s ago")


def _what_it_does(facts: Facts) -> str:
    left_s = facts.due_at - facts.now
    match facts.state:
        case LockState.STOPPED:
            return "starting"
        case LockState.RECONNECTING:
            return f"the session was lost; trying to go on with the term{_trouble(facts)}"
        case LockState.RELEASING:
            return "giving up leadership"
        case _ if facts.connected:
            return "following" if facts.state is LockState.FOLLOWER else "trying for the lock"
        case _ if facts.trouble is not None:
            return f"no connection to the server{_trouble(facts)}"
        case _:
            return f"stays out for {left_s:.1f} s" if 0 < left_s < inf else "connecting to the server"


def _trouble(facts: Facts) -> str:
    if facts.trouble is None:
        return ""
    return f" for {max(0.0, facts.now - facts.trouble_since):.1f} s: {_said(facts.trouble)}"


def _said(error: Exception) -> str:
    """Put an error into one line: its first, for what follows it is instructions."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0] if len(lines[0]) <= LONGEST_REASON else f"{lines[0][: LONGEST_REASON - 3]}..."


def _idle(reason: str) -> Health:
    return Health(healthy=True, ready=False, reason=reason)


def _ill(reason: str) -> Health:
    return Health(healthy=False, ready=False, reason=reason)
