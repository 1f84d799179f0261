"""What each rule does while leadership is being given up: drain, then unlock."""

from dataclasses import replace
from math import inf

import pytest

from pgelect._engine.events import (
    Abort,
    Changed,
    Close,
    Do,
    Drained,
    DrainTimedOut,
    Failed,
    Halt,
    Interrupt,
    Io,
    ProofFailed,
    Proved,
    Report,
    Shutdown,
    TermEnded,
    Tick,
    Unlocked,
    WatchEnded,
)
from pgelect.errors import PgElectError, SessionLostError
from tests.support.machines import (
    BACKEND,
    DRAINING,
    EPOCH,
    FOLLOWER,
    GRANT,
    INTERVAL_S,
    NOW,
    NUMBER,
    RELEASING,
    RULES,
    STOPPED,
    TRUST_S,
    UNLOCKING,
    Case,
    NotHeld,
    cases,
    gone,
    ruled,
    without_term,
)

KILLED = SessionLostError("closed", "the backend was terminated")
BUSY = PgElectError("canceling statement due to user request")

GRACE = {"reconnect_grace_s": 5.0}
DRAINED = replace(DRAINING, drained=True, until=inf)


CASES = [
    Case(
        "when the duty has stopped, the watch is interrupted for the unlock",
        DRAINING,
        Drained(NUMBER + 1),
        {"drained": True, "until": inf},
        (Interrupt(),),
    ),
    Case(
        "when the duty has stopped during a proof, the unlock waits for the answer",
        replace(DRAINING, io=Io.PROVE),
        Drained(NUMBER + 1),
        {"drained": True, "until": inf},
    ),
    Case("the duty of another term that stops does not count", DRAINING, Drained(NUMBER)),
    Case("a tick before the drain is over does nothing", DRAINING, Tick(), at=NOW + 5.9),
    Case(
        "when the drain takes too long, the lock is freed all the same",
        DRAINING,
        Tick(),
        {"drained": True, "until": inf},
        (DrainTimedOut(), Interrupt()),
        at=NOW + 6,
    ),
    Case("a duty that stops twice does not unlock twice", UNLOCKING, Drained(NUMBER + 1)),
    Case("nor does it interrupt the watch twice, when its time was over before", DRAINED, Drained(NUMBER + 1)),
    Case(
        "once drained, the end of the watch is followed by the unlock",
        DRAINED,
        WatchEnded(EPOCH),
        {"io": Io.UNLOCK},
        (Do(Io.UNLOCK, EPOCH),),
    ),
    Case(
        "once drained, a proof is followed by the unlock",
        replace(DRAINED, io=Io.PROVE),
        Proved(EPOCH, NOW),
        {"io": Io.UNLOCK, "trusted_until": NOW + TRUST_S, "proof_at": NOW + INTERVAL_S},
        (Do(Io.UNLOCK, EPOCH),),
    ),
    Case(
        "once drained, a failed proof is followed by the unlock",
        replace(DRAINED, io=Io.PROVE),
        ProofFailed(EPOCH, BUSY),
        {"io": Io.UNLOCK, "proof_at": NOW + 9 / 4},
        (Report(BUSY), Do(Io.UNLOCK, EPOCH)),
    ),
    Case(
        "while the duty drains, proofs go on",
        DRAINING,
        WatchEnded(EPOCH),
        {"io": Io.PROVE},
        (Do(Io.PROVE, EPOCH),),
        at=NOW + 3,
    ),
    Case(
        "while the duty drains, a proof extends the trust",
        replace(DRAINING, io=Io.PROVE),
        Proved(EPOCH, NOW),
        {"io": Io.WATCH, "trusted_until": NOW + TRUST_S, "proof_at": NOW + INTERVAL_S},
        (Do(Io.WATCH, EPOCH),),
    ),
    Case(
        "an unlock that is confirmed ends the term cleanly, and the cool-down keeps this process out",
        replace(UNLOCKING, cooldown_s=1.5),
        Unlocked(EPOCH, was_held=True),
        without_term(state=FOLLOWER, wake_at=NOW + 1.5),
        (
            Changed(RELEASING, FOLLOWER, "unlocked"),
            TermEnded(GRANT, released=True, error=None),
            Close(EPOCH, orderly=True),
        ),
    ),
    Case(
        "after a shutdown, the confirmed unlock stops the lock",
        replace(UNLOCKING, stopping=True),
        Unlocked(EPOCH, was_held=True),
        without_term(state=STOPPED),
        (
            Changed(RELEASING, STOPPED, "unlocked"),
            TermEnded(GRANT, released=True, error=None),
            Close(EPOCH, orderly=True),
        ),
    ),
    Case(
        "without auto_reacquire, stepping down stops the lock",
        ruled(UNLOCKING, auto_reacquire=False),
        Unlocked(EPOCH, was_held=True),
        without_term(state=STOPPED),
        (
            Changed(RELEASING, STOPPED, "unlocked"),
            TermEnded(GRANT, released=True, error=None),
            Close(EPOCH, orderly=True),
            Halt(None, exhausted=False),
        ),
    ),
    Case(
        "an unlock of a lock that was not held is a lost term, reported, and its session is dropped",
        replace(UNLOCKING, cooldown_s=1.5),
        Unlocked(EPOCH, was_held=False),
        without_term(state=FOLLOWER, wake_at=NOW + 1.5, ghost=BACKEND),
        (
            Changed(RELEASING, FOLLOWER, str(NotHeld(RULES.key))),
            TermEnded(GRANT, released=False, error=NotHeld(RULES.key)),
            Close(EPOCH, orderly=False),
            Report(NotHeld(RULES.key)),
        ),
    ),
    Case(
        "a session that is lost while the duty drains is a lost term",
        replace(DRAINING, cooldown_s=1.5),
        Failed(EPOCH, KILLED, 0.0),
        without_term(state=FOLLOWER, wake_at=NOW + 1.5, ghost=BACKEND),
        gone(str(KILLED), before=RELEASING, after=FOLLOWER, error=KILLED),
    ),
    Case(
        "the longer one of the cooldown and the delay after losses in a row is kept",
        replace(DRAINING, cooldown_s=1.5),
        Failed(EPOCH, KILLED, 3.0),
        without_term(state=FOLLOWER, wake_at=NOW + 3, ghost=BACKEND),
        gone(str(KILLED), before=RELEASING, after=FOLLOWER, error=KILLED),
    ),
    Case(
        "a session that is lost while unlocking for a shutdown is a lost term, and the lock stops",
        replace(UNLOCKING, stopping=True),
        Failed(EPOCH, KILLED, 0.0),
        without_term(state=STOPPED, ghost=BACKEND),
        gone(str(KILLED), before=RELEASING, after=STOPPED, error=KILLED),
    ),
    Case(
        "there is no grace for a term that is being given up",
        ruled(DRAINING, **GRACE),
        Failed(EPOCH, KILLED, 0.0),
        without_term(state=FOLLOWER, wake_at=NOW, ghost=BACKEND),
        gone(str(KILLED), before=RELEASING, after=FOLLOWER, error=KILLED),
    ),
    Case(
        "a shutdown during a step-down shortens the drain and stops afterwards",
        DRAINING,
        Shutdown(2.0),
        {"stopping": True, "until": NOW + 2},
    ),
    Case("a shutdown never makes the drain longer", DRAINING, Shutdown(60.0), {"stopping": True}),
    Case("a shutdown during the unlock starts no drain anew", UNLOCKING, Shutdown(2.0), {"stopping": True}),
    Case(
        "an abort while releasing ends the term and drops the link",
        UNLOCKING,
        Abort(None),
        without_term(state=STOPPED, ghost=BACKEND),
        gone("abort", before=RELEASING, after=STOPPED, error=None, halt=True),
    ),
]


@pytest.mark.parametrize("case", cases(*CASES))
def test_while_releasing(case: Case) -> None:
    after, effects = case.run()
    assert after == case.then
    assert effects == case.effects
