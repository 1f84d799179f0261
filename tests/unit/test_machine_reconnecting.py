"""What each rule does within the grace after a session was lost."""

from dataclasses import replace
from math import inf

import pytest

from pgelect._engine.events import (
    Abort,
    Changed,
    Close,
    Do,
    Failed,
    Halt,
    Io,
    Opened,
    Report,
    Resumed,
    ResumeRefused,
    Shutdown,
    StepDown,
    TermEnded,
    Tick,
)
from pgelect._engine.transitions import GRACE_RETRY_S, RESUME_AGAIN_S
from pgelect.errors import SessionLostError
from tests.support.machines import (
    BACKEND,
    BETWEEN_TRIES,
    DROPPED,
    EPOCH,
    FOLLOWER,
    GRANT,
    INTERVAL_S,
    LEADER,
    NOW,
    OTHER_BACKEND,
    RECONNECTING,
    REOPENING,
    RESUMING,
    STOPPED,
    TRUST_S,
    Case,
    Lost,
    cases,
    gone,
    ruled,
    without_term,
)

KILLED = SessionLostError("closed", "the backend was terminated")
MOVED_ON = SessionLostError("disproved", "another term has begun")
BUG = RuntimeError("a bug")

OVER = "the session could not be resumed within reconnect_grace_s"
STEPPED_DOWN = "stepped down while the session was lost"
SHUT_DOWN = "shut down while the session was lost"

ON_ANOTHER = replace(GRANT, backend=OTHER_BACKEND)


CASES = [
    Case(
        "on a new session, the term is to be taken up again",
        REOPENING,
        Opened(EPOCH),
        {"connected": True, "io": Io.RESUME},
        (Do(Io.RESUME, EPOCH),),
    ),
    Case(
        "a term that goes on is the same term, on another session: nothing begins anew",
        RESUMING,
        Resumed(EPOCH, NOW - 1, OTHER_BACKEND),
        {
            "state": LEADER,
            "grant": ON_ANOTHER,
            "io": Io.WATCH,
            "until": inf,
            "trusted_until": NOW - 1 + TRUST_S,
            "proof_at": NOW - 1 + INTERVAL_S,
        },
        (Changed(RECONNECTING, LEADER, "resumed"), Do(Io.WATCH, EPOCH)),
    ),
    Case(
        "an answer too old to be trusted is no leadership: its session becomes the ghost, and another is tried",
        RESUMING,
        Resumed(EPOCH, NOW - TRUST_S, OTHER_BACKEND),
        {
            **DROPPED,
            "grant": ON_ANOTHER,
            "wake_at": NOW,
            "trusted_until": NOW,
            "proof_at": NOW - TRUST_S + INTERVAL_S,
        },
        (Close(EPOCH, orderly=False), Report(Lost("expired"))),
    ),
    Case(
        "a lock that our own lost session still holds is left alone for a moment",
        RESUMING,
        ResumeRefused(EPOCH, final=False, error=MOVED_ON),
        {"io": None, "wake_at": NOW + RESUME_AGAIN_S},
        (),
    ),
    Case(
        "after that moment it is asked for again, on the same session",
        replace(RESUMING, io=None, wake_at=NOW),
        Tick(),
        {"io": Io.RESUME, "wake_at": inf},
        (Do(Io.RESUME, EPOCH),),
    ),
    Case(
        "a term that somebody else's has followed is lost",
        RESUMING,
        ResumeRefused(EPOCH, final=True, error=MOVED_ON),
        without_term(state=FOLLOWER, wake_at=NOW, ghost=BACKEND),
        gone(str(MOVED_ON), before=RECONNECTING, after=FOLLOWER, error=MOVED_ON),
    ),
    Case(
        "a delay that was asked for when the session was lost is kept after a term that cannot go on",
        replace(RESUMING, cooldown_s=3.0),
        ResumeRefused(EPOCH, final=True, error=MOVED_ON),
        without_term(state=FOLLOWER, wake_at=NOW + 3, ghost=BACKEND),
        gone(str(MOVED_ON), before=RECONNECTING, after=FOLLOWER, error=MOVED_ON),
    ),
    Case(
        "it is forgotten when the term goes on",
        replace(RESUMING, cooldown_s=3.0),
        Resumed(EPOCH, NOW - 1, OTHER_BACKEND),
        {
            "state": LEADER,
            "grant": ON_ANOTHER,
            "io": Io.WATCH,
            "until": inf,
            "trusted_until": NOW - 1 + TRUST_S,
            "proof_at": NOW - 1 + INTERVAL_S,
            "cooldown_s": 0.0,
        },
        (Changed(RECONNECTING, LEADER, "resumed"), Do(Io.WATCH, EPOCH)),
    ),
    Case(
        "it is kept when the grace is over",
        replace(BETWEEN_TRIES, until=NOW, cooldown_s=3.0),
        Tick(),
        {**without_term(state=FOLLOWER, wake_at=NOW + 3, ghost=BACKEND), "epoch": EPOCH},
        (
            Changed(RECONNECTING, FOLLOWER, OVER),
            TermEnded(GRANT, released=False, error=Lost("expired")),
            Report(Lost("expired")),
        ),
    ),
    Case(
        "it is kept by a step-down that would be shorter",
        replace(BETWEEN_TRIES, cooldown_s=3.0),
        StepDown(6.0, 1.5),
        {**without_term(state=FOLLOWER, wake_at=NOW + 3, ghost=BACKEND), "epoch": EPOCH},
        (
            Changed(RECONNECTING, FOLLOWER, STEPPED_DOWN),
            TermEnded(GRANT, released=False, error=Lost("closed")),
            Report(Lost("closed")),
        ),
    ),
    Case(
        "without auto_reacquire, a term that cannot go on stops the lock",
        ruled(RESUMING, auto_reacquire=False),
        ResumeRefused(EPOCH, final=True, error=MOVED_ON),
        without_term(state=STOPPED, ghost=BACKEND),
        gone(str(MOVED_ON), before=RECONNECTING, after=STOPPED, error=MOVED_ON, halt=True),
    ),
    Case(
        "within the grace, a failed connect is tried again soon, whatever the retry strategy says",
        REOPENING,
        Failed(EPOCH, KILLED, 30.0),
        {**DROPPED, "wake_at": NOW + GRACE_RETRY_S},
        (Close(EPOCH, orderly=False), Report(KILLED)),
    ),
    Case(
        "within the grace, a retry strategy that is quicker is followed",
        REOPENING,
        Failed(EPOCH, KILLED, 0.1),
        {**DROPPED, "wake_at": NOW + 0.1},
        (Close(EPOCH, orderly=False), Report(KILLED)),
    ),
    Case(
        "within the grace, a retry strategy that gives up does not end the term",
        REOPENING,
        Failed(EPOCH, KILLED, None),
        {**DROPPED, "wake_at": NOW + GRACE_RETRY_S},
        (Close(EPOCH, orderly=False), Report(KILLED)),
    ),
    Case(
        "when it is time to try again, a new session is opened",
        BETWEEN_TRIES,
        Tick(),
        {"epoch": EPOCH + 1, "io": Io.OPEN, "wake_at": inf},
        (Do(Io.OPEN, EPOCH + 1),),
        at=NOW + 0.25,
    ),
    Case("a tick before that does nothing", BETWEEN_TRIES, Tick()),
    Case(
        "when the grace is over, the term is lost",
        REOPENING,
        Tick(),
        without_term(state=FOLLOWER, wake_at=NOW + 5, ghost=BACKEND),
        gone(OVER, before=RECONNECTING, after=FOLLOWER, error=Lost("expired")),
        at=NOW + 5,
    ),
    Case(
        "without auto_reacquire, the end of the grace stops the lock",
        ruled(REOPENING, auto_reacquire=False),
        Tick(),
        without_term(state=STOPPED, ghost=BACKEND),
        gone(OVER, before=RECONNECTING, after=STOPPED, error=Lost("expired"), halt=True),
        at=NOW + 5,
    ),
    Case(
        "stepping down during the grace gives the term up as lost, and keeps out",
        REOPENING,
        StepDown(6.0, 1.5),
        without_term(state=FOLLOWER, wake_at=NOW + 1.5, ghost=BACKEND),
        gone(STEPPED_DOWN, before=RECONNECTING, after=FOLLOWER, error=Lost("closed")),
    ),
    Case(
        "without auto_reacquire, stepping down during the grace stops the lock",
        ruled(RESUMING, auto_reacquire=False),
        StepDown(6.0, 1.5),
        without_term(state=STOPPED, ghost=BACKEND),
        gone(STEPPED_DOWN, before=RECONNECTING, after=STOPPED, error=Lost("closed"), halt=True),
    ),
    Case(
        "a shutdown during the grace gives the term up as lost, and stops",
        RESUMING,
        Shutdown(6.0),
        without_term(state=STOPPED, ghost=BACKEND),
        gone(SHUT_DOWN, before=RECONNECTING, after=STOPPED, error=Lost("closed")),
    ),
    Case(
        "an abort during the grace ends the term",
        RESUMING,
        Abort(BUG),
        without_term(state=STOPPED, ghost=BACKEND),
        gone("a bug", before=RECONNECTING, after=STOPPED, error=BUG, halt=True),
    ),
    Case(
        "an abort between two tries ends the term, with no session to close",
        BETWEEN_TRIES,
        Abort(None),
        without_term(state=STOPPED, ghost=BACKEND, epoch=EPOCH),
        (
            Changed(RECONNECTING, STOPPED, "abort"),
            TermEnded(GRANT, released=False, error=None),
            Halt(None, exhausted=False),
        ),
    ),
]


@pytest.mark.parametrize("case", cases(*CASES))
def test_within_the_grace(case: Case) -> None:
    after, effects = case.run()
    assert after == case.then
    assert effects == case.effects
