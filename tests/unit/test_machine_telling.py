"""The machine: telling of terms, heeding requests to step down, and other rules while it runs."""

from dataclasses import replace

import pytest

from pgelect._engine.events import (
    Announced,
    Changed,
    Close,
    Do,
    Drain,
    Failed,
    Heeded,
    Interrupt,
    Io,
    Minted,
    Opened,
    Proved,
    Reconfigure,
    Report,
    Resumed,
    Start,
    StepDownRequested,
    TermBegan,
    Tick,
    Unlocked,
    WatchEnded,
)
from pgelect._engine.machine import step
from pgelect._engine.model import LostTerm
from pgelect.errors import PgElectError, SessionLostError
from tests.support.machines import (
    ACQUIRING,
    BACKING_OFF,
    BETWEEN_TRIES,
    CONNECTING,
    DELAYED,
    DRAINING,
    EPOCH,
    FOLLOWER,
    GRANT,
    IDLE,
    INTERVAL_S,
    LEADER,
    LEADING,
    MINTING,
    NOW,
    NUMBER,
    OTHER_BACKEND,
    RECONNECTING,
    RELEASING,
    RESUMING,
    RULES,
    TRUST_S,
    Case,
    cases,
    fenced,
)

REFUSED = PgElectError("canceling statement due to lock timeout")
KILLED = SessionLostError("closed", "the backend was terminated")
WITH_ROW = fenced(GRANT)
LOST = LostTerm(GRANT.token, str(KILLED), NOW - 3)

TOLD = replace(LEADING, grant=WITH_ROW)
ANNOUNCING = replace(TOLD, io=Io.ANNOUNCE)
HEEDING = replace(TOLD, io=Io.HEED, unheeded=True)
CONFESSING = replace(CONNECTING, connected=True, io=Io.ANNOUNCE, lost=LOST)

SHORT = replace(RULES, trust_s=2.0, health_interval_s=0.5)
LONG = replace(RULES, trust_s=60.0, health_interval_s=20.0)

TELLING = [
    Case(
        "a term that has begun is announced before the leader watches",
        MINTING,
        Minted(EPOCH, NOW, WITH_ROW),
        {
            "state": LEADER,
            "grant": WITH_ROW,
            "io": Io.ANNOUNCE,
            "trusted_until": NOW + TRUST_S,
            "proof_at": NOW + INTERVAL_S,
            "number": NUMBER + 1,
        },
        (Changed(ACQUIRING, LEADER, "minted"), TermBegan(WITH_ROW), Do(Io.ANNOUNCE, EPOCH)),
    ),
    Case(
        "a term whose takeover delay is over ends the watch, to be announced",
        replace(DELAYED, grant=WITH_ROW),
        Tick(),
        {"state": LEADER, "lead_at": float("inf"), "number": NUMBER + 1, "untold": True},
        (Changed(ACQUIRING, LEADER, "tick"), TermBegan(WITH_ROW), Interrupt()),
        at=NOW + 2,
    ),
    Case(
        "once announced, requests that came before are looked for",
        ANNOUNCING,
        Announced(EPOCH),
        {"io": Io.HEED, "unheeded": True},
        (Do(Io.HEED, EPOCH),),
    ),
    Case(
        "what has changed while a term was being announced is told once more",
        replace(ANNOUNCING, untold=True),
        Announced(EPOCH),
        {"untold": False, "unheeded": True},
        (Do(Io.ANNOUNCE, EPOCH),),
    ),
    Case(
        "what could not be announced is reported, and tried again after the next proof",
        ANNOUNCING,
        Announced(EPOCH, REFUSED),
        {"io": Io.WATCH, "untold": True, "tell_at": ANNOUNCING.proof_at},
        (Report(REFUSED), Do(Io.WATCH, EPOCH)),
    ),
    Case(
        "what still cannot be announced then is not reported again",
        replace(ANNOUNCING, tell_at=NOW - 1),
        Announced(EPOCH, REFUSED),
        {"io": Io.WATCH, "untold": True, "tell_at": ANNOUNCING.proof_at},
        (Do(Io.WATCH, EPOCH),),
    ),
    Case(
        "a proof that is due comes before what is to be told",
        replace(TOLD, untold=True),
        WatchEnded(EPOCH),
        {"io": Io.PROVE},
        (Do(Io.PROVE, EPOCH),),
        at=NOW + 3,
    ),
    Case(
        "what is to be told comes after the proof",
        replace(TOLD, io=Io.PROVE, untold=True),
        Proved(EPOCH, NOW),
        {"io": Io.ANNOUNCE, "untold": False, "trusted_until": NOW + TRUST_S, "proof_at": NOW + INTERVAL_S},
        (Do(Io.ANNOUNCE, EPOCH),),
    ),
    Case(
        "a term that goes on in another session is announced again: only that one listens",
        replace(RESUMING, grant=WITH_ROW),
        Resumed(EPOCH, NOW, OTHER_BACKEND),
        {
            "state": LEADER,
            "grant": replace(WITH_ROW, backend=OTHER_BACKEND),
            "io": Io.ANNOUNCE,
            "until": float("inf"),
            "trusted_until": NOW + TRUST_S,
            "proof_at": NOW + INTERVAL_S,
        },
        (Changed(RECONNECTING, LEADER, "resumed"), Do(Io.ANNOUNCE, EPOCH)),
    ),
    Case(
        "what is told when the leader is asked to step down ends before the unlock",
        replace(DRAINING, grant=WITH_ROW, io=Io.ANNOUNCE, drained=True),
        Announced(EPOCH),
        {"io": Io.UNLOCK, "unheeded": True},
        (Do(Io.UNLOCK, EPOCH),),
    ),
    Case(
        "before a process campaigns again, it says why it lost its term",
        replace(CONNECTING, lost=LOST),
        Opened(EPOCH),
        {"connected": True, "io": Io.ANNOUNCE},
        (Do(Io.ANNOUNCE, EPOCH),),
    ),
    Case(
        "then it tries for the lock",
        CONFESSING,
        Announced(EPOCH),
        {"state": ACQUIRING, "io": Io.TRY, "lost": None},
        (Changed(FOLLOWER, ACQUIRING, "announced"), Do(Io.TRY, EPOCH)),
    ),
    Case(
        "it tries for the lock also when nobody would hear why",
        CONFESSING,
        Announced(EPOCH, REFUSED),
        {"state": ACQUIRING, "io": Io.TRY, "lost": None},
        (Changed(FOLLOWER, ACQUIRING, str(REFUSED)), Report(REFUSED), Do(Io.TRY, EPOCH)),
    ),
]

HEARING = [
    Case(
        "a call ends the watch, and requests are looked for",
        TOLD,
        WatchEnded(EPOCH, heard=True),
        {"io": Io.HEED, "unheeded": True},
        (Do(Io.HEED, EPOCH),),
    ),
    Case(
        "a call that nobody who may has made changes nothing",
        HEEDING,
        Heeded(EPOCH),
        {"io": Io.WATCH, "unheeded": False},
        (Do(Io.WATCH, EPOCH),),
    ),
    Case(
        "requests that could not be looked for are reported",
        HEEDING,
        Heeded(EPOCH, REFUSED),
        {"io": Io.WATCH, "unheeded": False},
        (Report(REFUSED), Do(Io.WATCH, EPOCH)),
    ),
    Case(
        "a request to step down is a step-down, and the session is watched while the duty drains",
        HEEDING,
        StepDownRequested(EPOCH, "ops", 6.0, 1.5),
        {"state": RELEASING, "io": Io.WATCH, "unheeded": False, "until": NOW + 6, "cooldown_s": 1.5},
        (
            Changed(LEADER, RELEASING, "step down requested by 'ops'"),
            Drain(NUMBER + 1),
            Do(Io.WATCH, EPOCH),
        ),
    ),
    Case(
        "a request that comes while the term is given up is too late",
        replace(DRAINING, io=Io.HEED),
        StepDownRequested(EPOCH, "ops", 6.0, 1.5),
        {"io": Io.WATCH},
        (Do(Io.WATCH, EPOCH),),
    ),
    Case(
        "a look for requests that ends while the term is given up is followed by a watch",
        replace(DRAINING, io=Io.HEED, unheeded=True),
        Heeded(EPOCH),
        {"io": Io.WATCH, "unheeded": False},
        (Do(Io.WATCH, EPOCH),),
    ),
]

OTHER_RULES = [
    Case("a stopped lock takes other rules", IDLE, Reconfigure(LONG), {"rules": LONG}),
    Case("a follower takes other rules", BACKING_OFF, Reconfigure(LONG), {"rules": LONG}),
    Case("so does one whose attempt is in flight", MINTING, Reconfigure(LONG), {"rules": LONG}),
    Case(
        "a leader asks for a proof at once, which tells the server of the lease, and goes by a shorter one from now on",
        TOLD,
        Reconfigure(SHORT),
        {"rules": SHORT, "proof_at": NOW, "untold": True, "trusted_until": NOW + 2.0, "proved_at": NOW - 1},
        (Interrupt(),),
    ),
    Case(
        "a proof that was under way knows of the lease before, and is followed by another at once",
        replace(TOLD, rules=LONG, io=Io.PROVE, proof_at=NOW),
        Proved(EPOCH, NOW - 1, TRUST_S),
        {"io": Io.PROVE, "trusted_until": NOW - 1 + TRUST_S, "proved_at": NOW - 1, "proof_at": NOW - 1},
        (Do(Io.PROVE, EPOCH),),
    ),
    Case(
        "a longer lease is believed from the proof that told the server of it",
        replace(TOLD, rules=LONG, io=Io.PROVE, proof_at=NOW),
        Proved(EPOCH, NOW, 60.0),
        {"io": Io.WATCH, "trusted_until": NOW + 60, "proved_at": NOW, "proof_at": NOW + 20},
        (Do(Io.WATCH, EPOCH),),
    ),
    Case(
        "a term is trusted for the lease that was in force when its lock was waited for",
        replace(MINTING, rules=LONG),
        Minted(EPOCH, NOW, GRANT, TRUST_S),
        {
            "state": LEADER,
            "grant": GRANT,
            "io": Io.PROVE,
            "trusted_until": NOW + TRUST_S,
            "proved_at": NOW,
            "proof_at": NOW,
            "number": NUMBER + 1,
        },
        (Changed(ACQUIRING, LEADER, "minted"), TermBegan(GRANT), Do(Io.PROVE, EPOCH)),
    ),
    Case(
        "a takeover delay that is made longer lasts longer",
        DELAYED,
        Reconfigure(replace(RULES, takeover_delay_s=3.0)),
        {"rules": replace(RULES, takeover_delay_s=3.0), "lead_at": NOW + 5, "proof_at": NOW},
        (Interrupt(),),
    ),
    Case(
        "a grace that is made shorter is over sooner",
        replace(BETWEEN_TRIES, rules=replace(RULES, reconnect_grace_s=5.0)),
        Reconfigure(replace(RULES, reconnect_grace_s=2.0)),
        {"rules": replace(RULES, reconnect_grace_s=2.0), "until": NOW + 2},
    ),
    Case(
        "a term that is being given up takes other rules",
        DRAINING,
        Reconfigure(SHORT),
        {"rules": SHORT, "proof_at": NOW, "trusted_until": NOW + 2.0, "proved_at": NOW - 1},
        (Interrupt(),),
    ),
]

CASES = [*TELLING, *HEARING, *OTHER_RULES]


@pytest.mark.parametrize("case", cases(*CASES))
def test_telling_hearing_and_other_rules(case: Case) -> None:
    assert case.run() == (case.then, case.effects)


def test_a_term_that_is_lost_is_kept_to_be_told_of() -> None:
    after, _ = step(TOLD, Failed(EPOCH, KILLED, 0.0), NOW)
    assert after.lost == LostTerm(GRANT.token, str(KILLED), NOW)


def test_a_term_that_was_not_even_announced_is_told_as_a_whole() -> None:
    after, _ = step(ANNOUNCING, Failed(EPOCH, KILLED, 0.0), NOW)
    assert after.lost == LostTerm(GRANT.token, str(KILLED), NOW, WITH_ROW)


def test_a_term_that_was_released_is_not() -> None:
    unlocking = replace(TOLD, state=RELEASING, drained=True, io=Io.UNLOCK)
    after, effects = step(unlocking, Unlocked(EPOCH, was_held=True), NOW)
    assert after.lost is None
    assert Close(EPOCH, orderly=True) in effects


def test_a_term_without_a_row_is_told_to_nobody() -> None:
    after, effects = step(MINTING, Minted(EPOCH, NOW, GRANT), NOW)
    assert (after.untold, after.io) == (False, Io.WATCH)
    lost, _ = step(after, Failed(EPOCH, KILLED, 0.0), NOW)
    assert lost.lost is None
    assert Do(Io.WATCH, EPOCH) in effects


def test_what_was_lost_is_told_after_a_restart_of_the_lock_too() -> None:
    started, _ = step(replace(IDLE, lost=LOST), Start(), NOW)
    assert started.lost == LOST
