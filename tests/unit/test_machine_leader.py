"""What each rule does while leading."""

from dataclasses import replace
from math import inf

import pytest

from pgelect._engine.events import (
    Abort,
    Changed,
    Close,
    Do,
    Drain,
    Failed,
    Io,
    ProofFailed,
    Proved,
    Report,
    Shutdown,
    StepDown,
    WatchEnded,
)
from pgelect._engine.transitions import GRACE_RETRY_S
from pgelect.errors import PgElectError, SessionLostError
from tests.support.machines import (
    BACKEND,
    DROPPED,
    EPOCH,
    FOLLOWER,
    INTERVAL_S,
    LEADER,
    LEADING,
    NOW,
    NUMBER,
    RECONNECTING,
    RELEASING,
    STOPPED,
    TRUST_S,
    Case,
    cases,
    gone,
    ruled,
    without_term,
)

KILLED = SessionLostError("closed", "the backend was terminated")
BUSY = PgElectError("canceling statement due to user request")
BUG = RuntimeError("a bug")

PROVING = replace(LEADING, io=Io.PROVE)
GRACE = {"reconnect_grace_s": 5.0}


CASES = [
    Case(
        "a proof extends the trust from when it was sent, and the leader watches on",
        PROVING,
        Proved(EPOCH, NOW - 1),
        {"trusted_until": NOW - 1 + TRUST_S, "proof_at": NOW - 1 + INTERVAL_S, "io": Io.WATCH},
        (Do(Io.WATCH, EPOCH),),
    ),
    Case(
        "a proof that took longer than the interval is followed by the next at once",
        PROVING,
        Proved(EPOCH, NOW - INTERVAL_S),
        {"trusted_until": NOW + 9, "proof_at": NOW, "io": Io.PROVE},
        (Do(Io.PROVE, EPOCH),),
    ),
    Case(
        "a failed proof is no loss while trust lasts: it is reported, and asked again sooner",
        PROVING,
        ProofFailed(EPOCH, BUSY),
        {"proof_at": NOW + 9 / 4, "io": Io.WATCH},
        (Report(BUSY), Do(Io.WATCH, EPOCH)),
    ),
    Case(
        "a failed proof is never asked again later than by the interval",
        replace(PROVING, trusted_until=NOW + 100),
        ProofFailed(EPOCH, BUSY),
        {"proof_at": NOW + INTERVAL_S, "io": Io.WATCH},
        (Report(BUSY), Do(Io.WATCH, EPOCH)),
    ),
    Case("a watch that ends early is taken up again", LEADING, WatchEnded(EPOCH), {}, (Do(Io.WATCH, EPOCH),)),
    Case(
        "a watch that ends in time is followed by a proof",
        LEADING,
        WatchEnded(EPOCH),
        {"io": Io.PROVE},
        (Do(Io.PROVE, EPOCH),),
        at=NOW + 3,
    ),
    Case(
        "without a grace, a lost session is a lost term, and the next attempt is made at once",
        LEADING,
        Failed(EPOCH, KILLED, 0.0),
        without_term(state=FOLLOWER, wake_at=NOW, ghost=BACKEND),
        gone(str(KILLED), before=LEADER, after=FOLLOWER, error=KILLED),
    ),
    Case(
        "a lost term that followed others like it is made good after the delay of the strategy",
        LEADING,
        Failed(EPOCH, KILLED, 3.0),
        without_term(state=FOLLOWER, wake_at=NOW + 3, ghost=BACKEND),
        gone(str(KILLED), before=LEADER, after=FOLLOWER, error=KILLED),
    ),
    Case(
        "with a grace, a session that is lost soon again is made good after a moment; the delay is for after the grace",
        ruled(LEADING, **GRACE),
        Failed(EPOCH, KILLED, 3.0),
        {
            **DROPPED,
            "state": RECONNECTING,
            "wake_at": NOW + GRACE_RETRY_S,
            "until": NOW + 5,
            "trusted_until": -inf,
            "cooldown_s": 3.0,
        },
        (Changed(LEADER, RECONNECTING, str(KILLED)), Close(EPOCH, orderly=False), Report(KILLED)),
    ),
    Case(
        "without auto_reacquire, a lost term stops the lock",
        ruled(LEADING, auto_reacquire=False),
        Failed(EPOCH, KILLED, 0.0),
        without_term(state=STOPPED, ghost=BACKEND),
        gone(str(KILLED), before=LEADER, after=STOPPED, error=KILLED, halt=True),
    ),
    Case(
        "with a grace, a lost session ends the trust at once but not yet the term",
        ruled(LEADING, **GRACE),
        Failed(EPOCH, KILLED, 0.0),
        {
            "state": RECONNECTING,
            "epoch": EPOCH + 2,
            "connected": False,
            "io": Io.OPEN,
            "until": NOW + 5,
            "trusted_until": -inf,
        },
        (
            Changed(LEADER, RECONNECTING, str(KILLED)),
            Close(EPOCH, orderly=False),
            Report(KILLED),
            Do(Io.OPEN, EPOCH + 2),
        ),
    ),
    Case(
        "a grace of half a second is a grace",
        ruled(LEADING, reconnect_grace_s=0.5),
        Failed(EPOCH, KILLED, 0.0),
        {
            "state": RECONNECTING,
            "epoch": EPOCH + 2,
            "connected": False,
            "io": Io.OPEN,
            "until": NOW + 0.5,
            "trusted_until": -inf,
        },
        (
            Changed(LEADER, RECONNECTING, str(KILLED)),
            Close(EPOCH, orderly=False),
            Report(KILLED),
            Do(Io.OPEN, EPOCH + 2),
        ),
    ),
    Case(
        "an abort ends the term and drops the link",
        LEADING,
        Abort(BUG),
        without_term(state=STOPPED, ghost=BACKEND),
        gone("a bug", before=LEADER, after=STOPPED, error=BUG, halt=True),
    ),
    Case(
        "stepping down is not leading any more, and asks the duty to stop",
        LEADING,
        StepDown(6.0, 1.5),
        {"state": RELEASING, "until": NOW + 6, "cooldown_s": 1.5},
        (Changed(LEADER, RELEASING, "step down"), Drain(NUMBER + 1)),
    ),
    Case(
        "a shutdown drains, too, and stops afterwards",
        LEADING,
        Shutdown(6.0),
        {"state": RELEASING, "until": NOW + 6, "stopping": True},
        (Changed(LEADER, RELEASING, "shutdown"), Drain(NUMBER + 1)),
    ),
]


@pytest.mark.parametrize("case", cases(*CASES))
def test_while_leading(case: Case) -> None:
    after, effects = case.run()
    assert after == case.then
    assert effects == case.effects
