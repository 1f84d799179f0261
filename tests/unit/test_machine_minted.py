"""What each rule does when the token is minted: the term begins, or a takeover delay does."""

from dataclasses import replace
from math import inf

import pytest

from pgelect._engine.events import (
    Abort,
    AttemptFailed,
    Changed,
    Close,
    Do,
    Failed,
    Halt,
    Io,
    Minted,
    ProofFailed,
    Proved,
    Report,
    Shutdown,
    TermBegan,
    Tick,
    WatchEnded,
)
from pgelect.errors import SessionLostError
from tests.support.machines import (
    ACQUIRING,
    AFTER_A_CRASH,
    BACKEND,
    DELAYED,
    DROPPED,
    EPOCH,
    FOLLOWER,
    GRANT,
    INTERVAL_S,
    LEADER,
    MINTING,
    NOW,
    NUMBER,
    STOPPED,
    TRUST_S,
    Case,
    Lost,
    cases,
    ruled,
    without_term,
)

DOWN = SessionLostError("connect", "connection refused")
STRANGE = ValueError("something else")
PATIENT = ruled(MINTING, takeover_delay_s=2.0)
SENT_AT = NOW - 1
TRUSTED = {"trusted_until": SENT_AT + TRUST_S, "proof_at": SENT_AT + INTERVAL_S}


MINTED = [
    Case(
        "a confirmed token begins the term, trusted from when its minting was asked for",
        MINTING,
        Minted(EPOCH, SENT_AT, GRANT),
        {"state": LEADER, "grant": GRANT, "number": NUMBER + 1, "io": Io.WATCH, **TRUSTED},
        (Changed(ACQUIRING, LEADER, "minted"), TermBegan(GRANT), Do(Io.WATCH, EPOCH)),
    ),
    Case(
        "a token that came late is followed by a proof at once",
        MINTING,
        Minted(EPOCH, NOW - 5, GRANT),
        {
            "state": LEADER,
            "grant": GRANT,
            "number": NUMBER + 1,
            "io": Io.PROVE,
            "trusted_until": NOW + 5,
            "proof_at": NOW - 1,
        },
        (Changed(ACQUIRING, LEADER, "minted"), TermBegan(GRANT), Do(Io.PROVE, EPOCH)),
    ),
    Case(
        "a token that came too late to be trusted begins no term, and its session is remembered as a ghost",
        MINTING,
        Minted(EPOCH, NOW - TRUST_S, GRANT),
        {**DROPPED, "state": FOLLOWER, "wake_at": NOW, "ghost": BACKEND},
        (Changed(ACQUIRING, FOLLOWER, "minted"), Close(EPOCH, orderly=False), AttemptFailed(Lost("expired"))),
    ),
    Case(
        "after a crash of the last leader, a takeover delay is kept before the term begins",
        PATIENT,
        Minted(EPOCH, SENT_AT, AFTER_A_CRASH),
        {"grant": AFTER_A_CRASH, "lead_at": NOW + 2, "io": Io.WATCH, **TRUSTED},
        (Do(Io.WATCH, EPOCH),),
    ),
    Case(
        "a takeover delay of half a second is one",
        ruled(MINTING, takeover_delay_s=0.5),
        Minted(EPOCH, SENT_AT, AFTER_A_CRASH),
        {"grant": AFTER_A_CRASH, "lead_at": NOW + 0.5, "io": Io.WATCH, **TRUSTED},
        (Do(Io.WATCH, EPOCH),),
    ),
    Case(
        "after a clean release there is no takeover delay",
        PATIENT,
        Minted(EPOCH, SENT_AT, GRANT),
        {"state": LEADER, "grant": GRANT, "number": NUMBER + 1, "io": Io.WATCH, **TRUSTED},
        (Changed(ACQUIRING, LEADER, "minted"), TermBegan(GRANT), Do(Io.WATCH, EPOCH)),
    ),
    Case(
        "after a crash, without a takeover delay, the term begins at once",
        MINTING,
        Minted(EPOCH, SENT_AT, AFTER_A_CRASH),
        {"state": LEADER, "grant": AFTER_A_CRASH, "number": NUMBER + 1, "io": Io.WATCH, **TRUSTED},
        (Changed(ACQUIRING, LEADER, "minted"), TermBegan(AFTER_A_CRASH), Do(Io.WATCH, EPOCH)),
    ),
]

WITH_A_DELAY = [
    Case("before the takeover delay is over, a tick does nothing", DELAYED, Tick(), at=NOW + 1.9),
    Case(
        "when the takeover delay is over, the term begins, and the watch that is in flight goes on",
        DELAYED,
        Tick(),
        {"state": LEADER, "lead_at": inf, "number": NUMBER + 1},
        (Changed(ACQUIRING, LEADER, "tick"), TermBegan(AFTER_A_CRASH)),
        at=NOW + 2,
    ),
    Case(
        "during the takeover delay, proofs go on",
        DELAYED,
        WatchEnded(EPOCH),
        {"io": Io.PROVE},
        (Do(Io.PROVE, EPOCH),),
        at=NOW + 3,
    ),
    Case(
        "during the takeover delay, a proof extends the trust",
        replace(DELAYED, io=Io.PROVE),
        Proved(EPOCH, NOW),
        {"io": Io.WATCH, "trusted_until": NOW + TRUST_S, "proof_at": NOW + INTERVAL_S},
        (Do(Io.WATCH, EPOCH),),
    ),
    Case(
        "during the takeover delay, a failed proof is no loss",
        replace(DELAYED, io=Io.PROVE),
        ProofFailed(EPOCH, STRANGE),
        {"io": Io.WATCH, "proof_at": NOW + 9 / 4},
        (Report(STRANGE), Do(Io.WATCH, EPOCH)),
    ),
    Case(
        "a session lost during the takeover delay is a failed attempt: no term had begun",
        DELAYED,
        Failed(EPOCH, DOWN, 0.0),
        without_term(state=FOLLOWER, wake_at=NOW, ghost=BACKEND),
        (Changed(ACQUIRING, FOLLOWER, "connection refused"), Close(EPOCH, orderly=False), AttemptFailed(DOWN)),
    ),
    Case(
        "a shutdown during the takeover delay ends no term",
        DELAYED,
        Shutdown(5.0),
        without_term(state=STOPPED),
        (Changed(ACQUIRING, STOPPED, "shutdown"), Close(EPOCH, orderly=False)),
    ),
    Case(
        "an abort during the takeover delay ends no term",
        DELAYED,
        Abort(None),
        without_term(state=STOPPED),
        (Changed(ACQUIRING, STOPPED, "abort"), Close(EPOCH, orderly=False), Halt(None, exhausted=False)),
    ),
]

CASES = [*MINTED, *WITH_A_DELAY]


@pytest.mark.parametrize("case", cases(*CASES))
def test_with_a_token(case: Case) -> None:
    after, effects = case.run()
    assert after == case.then
    assert effects == case.effects
