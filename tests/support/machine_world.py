"""The world around a state machine: every event it can send, and the promises that must hold at every step."""

from __future__ import annotations

from dataclasses import replace
from math import inf, isfinite
from typing import TYPE_CHECKING, TypeVar

from pgelect._engine import events as ev
from pgelect._engine.events import Effect, Event, Io
from pgelect._engine.machine import step
from pgelect._engine.model import LockState
from pgelect.errors import ConfigurationError, PgElectError, SessionLostError
from tests.support.machines import AFTER_A_CRASH, GRANT, OTHER_BACKEND, fenced

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgelect._engine.state import Machine

E = TypeVar("E", bound=Effect)

DRAIN_S, COOLDOWN_S, RETRY_S, ASIDE_S = 2.0, 1.0, 1.0, 3.0
LOST = SessionLostError("closed", "the session is gone")
MISTAKE = ConfigurationError("a mistake that time does not mend")
CANCELLED = PgElectError("canceling statement due to user request")

_IN_TERM = frozenset({LockState.LEADER, LockState.RECONNECTING, LockState.RELEASING})
_IO_OF_STATE: dict[LockState, set[Io | None]] = {
    LockState.STOPPED: {None},
    LockState.FOLLOWER: {None, Io.OPEN, Io.WAIT, Io.ASIDE, Io.ANNOUNCE},
    LockState.ACQUIRING: {Io.TRY, Io.MINT, Io.PROVE, Io.WATCH},
    LockState.LEADER: {Io.PROVE, Io.WATCH, Io.ANNOUNCE, Io.HEED},
    LockState.RECONNECTING: {None, Io.OPEN, Io.RESUME},
    LockState.RELEASING: {Io.PROVE, Io.WATCH, Io.ANNOUNCE, Io.HEED, Io.UNLOCK},
}


# -- what can happen ---------------------------------------------------------------------------------------------------


def events(m: Machine, sent_at: float) -> Iterator[Event]:
    """Everything that users, timers, duties, the session in flight and older sessions can say now.

    ``sent_at``: when the I/O in flight was begun.
    """
    yield ev.Tick()
    yield ev.StepDown(DRAIN_S, COOLDOWN_S)
    yield ev.Shutdown(DRAIN_S)
    yield ev.Abort(None)
    if m.rules.key.name or m.state is LockState.RECONNECTING:
        yield ev.Reconfigure(m.rules)
    yield ev.Drained(m.number)
    yield ev.Drained(m.number - 1)
    if m.state is LockState.STOPPED:
        yield ev.Start()
    yield from answers(m, sent_at)
    yield from (ev.Opened(m.epoch - 1), ev.LockGranted(m.epoch - 1), ev.Proved(m.epoch - 1, sent_at))


def answers(m: Machine, sent_at: float) -> Iterator[Event]:  # one flat list of all kinds of I/O
    """All answers to the I/O that is in flight."""
    match m.io:
        case None:
            return
        case Io.OPEN:
            yield ev.Opened(m.epoch)
        case Io.TRY | Io.WAIT | Io.ASIDE:
            yield ev.LockGranted(m.epoch)
            if m.rules.queue:
                yield ev.LockRefused(m.epoch, 0.0, ASIDE_S)
            yield ev.LockRefused(m.epoch, 0.0 if m.rules.queue else RETRY_S)
            if not m.rules.queue:
                yield ev.LockRefused(m.epoch, None)
        case Io.MINT:
            yield ev.Minted(m.epoch, sent_at, fenced(GRANT) if m.rules.key.name else GRANT)
            yield ev.Minted(m.epoch, sent_at, AFTER_A_CRASH)
        case Io.RESUME:
            yield ev.Resumed(m.epoch, sent_at, OTHER_BACKEND)
            yield ev.ResumeRefused(m.epoch, final=True, error=LOST)
            yield ev.ResumeRefused(m.epoch, final=False, error=LOST)
        case Io.PROVE:
            yield ev.Proved(m.epoch, sent_at)
            yield ev.ProofFailed(m.epoch, CANCELLED)
        case Io.WATCH:
            yield ev.WatchEnded(m.epoch)
            yield ev.WatchEnded(m.epoch, heard=True)
        case Io.ANNOUNCE:
            yield ev.Announced(m.epoch)
            yield ev.Announced(m.epoch, CANCELLED)
        case Io.HEED:
            yield ev.Heeded(m.epoch)
            yield ev.Heeded(m.epoch, CANCELLED)
            yield ev.StepDownRequested(m.epoch, "operator", DRAIN_S, COOLDOWN_S)
        case Io.UNLOCK:
            yield ev.Unlocked(m.epoch, was_held=True)
            yield ev.Unlocked(m.epoch, was_held=False)
    if m.io in {Io.PROVE, Io.WATCH, Io.UNLOCK, Io.HEED} or (m.io is Io.ANNOUNCE and m.grant is not None):
        yield ev.Failed(m.epoch, LOST, 0.0)
        yield ev.Failed(m.epoch, LOST, RETRY_S)
    else:
        yield ev.Failed(m.epoch, LOST, RETRY_S)
        yield ev.Failed(m.epoch, LOST, None)
        yield ev.Failed(m.epoch, MISTAKE, RETRY_S)


# -- what must hold ----------------------------------------------------------------------------------------------------


def faults_of(m: Machine) -> list[str]:
    """The promises about one machine that are broken."""
    promises = {
        "only I/O that belongs to the state is in flight": m.io in _IO_OF_STATE[m.state],
        "I/O other than opening runs on an open session": m.io in {None, Io.OPEN} or m.connected,
        "an open session is not opened again": not (m.connected and m.io is Io.OPEN),
        "leadership has a token": m.state not in _IN_TERM or m.grant is not None,
        "a follower or a stopped lock has none": m.grant is None or m.state in _IN_TERM | {LockState.ACQUIRING},
        "something will happen: I/O or a timer": m.state is LockState.STOPPED or bool(m.io) or isfinite(m.deadline),
        "leadership has an end of its trust": m.state is not LockState.LEADER or isfinite(m.trusted_until),
        "a release and a grace are bounded": isfinite(m.until)
        or m.drained
        or m.state not in {LockState.RECONNECTING, LockState.RELEASING},
        "a stopped lock holds nothing": m.state is not LockState.STOPPED
        or (not m.connected and not isfinite(m.deadline) and not m.stopping),
        "unlocking begins only after the drain": m.io is not Io.UNLOCK or m.drained,
    }
    return [promise for promise, holds in promises.items() if not holds]


def broken(before: Machine, event: Event, now: float, after: Machine, effects: tuple[Effect, ...]) -> list[str]:
    """The promises that a step broke."""
    if isinstance(event, ev.SessionEvent) and event.epoch != before.epoch:
        as_before = after == before and effects == (ev.Close(event.epoch, orderly=False),)
        return [] if as_before else ["a stale answer closes its session, and no more"]
    faults = [*_trust_faults(before, event, now, after)]
    if after is not before or effects:
        faults += [*faults_of(after), *_state_faults(before, after, effects)]
        faults += [*_session_faults(before, event, after, effects)]
    return faults


def is_stale(m: Machine, event: Event) -> bool:
    """Whether it is an answer from another session than the present one."""
    return isinstance(event, ev.SessionEvent) and event.epoch != m.epoch


def _only(effects: tuple[Effect, ...], kind: type[E]) -> list[E]:
    return [effect for effect in effects if isinstance(effect, kind)]


def _state_faults(before: Machine, after: Machine, effects: tuple[Effect, ...]) -> Iterator[str]:
    path = [before.state]
    for change in _only(effects, ev.Changed):
        if change.before is not path[-1] or change.after is change.before:
            yield "each change of state begins where the last one ended"
        path.append(change.after)
    if path[-1] is not after.state:
        yield "every change of state is told"

    leading = before.state in _IN_TERM
    for effect in effects:
        if isinstance(effect, ev.TermBegan | ev.TermEnded):
            if isinstance(effect, ev.TermEnded) is not leading:
                yield "terms begin and end in turn"
            leading = isinstance(effect, ev.TermBegan)
    if leading is not (after.state in _IN_TERM):
        yield "a term begins and ends exactly with the states that have one"
    if after.number - before.number != len(_only(effects, ev.TermBegan)):
        yield "every term has its number"

    enters_release = [change for change in _only(effects, ev.Changed) if change.after is LockState.RELEASING]
    if [drain.number for drain in _only(effects, ev.Drain)] != [after.number] * len(enters_release):
        yield "the duty is asked to stop exactly when a release begins"
    if _only(effects, ev.DrainTimedOut) and before.drained:
        yield "a drain that is over does not time out"
    if _only(effects, ev.Halt) and after.state is not LockState.STOPPED:
        yield "only a stop halts"


def _session_faults(before: Machine, event: Event, after: Machine, effects: tuple[Effect, ...]) -> Iterator[str]:
    live = {before.epoch} if before.connected or before.io else set()
    in_flight = None if isinstance(event, ev.SessionEvent) else before.io
    for effect in effects:
        match effect:
            case ev.Close(epoch, _) if epoch in live:
                live.discard(epoch)
                in_flight = None
            case ev.Close():
                yield "only a session that is open is closed, once"
            case ev.Do(Io.OPEN, epoch):
                if live or epoch <= before.epoch:
                    yield "a session is opened after the last one was closed, in an epoch of its own"
                live.add(epoch)
                in_flight = Io.OPEN
            case ev.Do(io, epoch):
                if in_flight or epoch not in live:
                    yield "one I/O at a time, on the open session"
                in_flight = io
            case ev.Interrupt() if in_flight is not Io.WATCH:
                yield "only a watch is interrupted"
            case _:
                pass
    if live != ({after.epoch} if after.connected or after.io else set()):
        yield "every session that was opened is kept or closed"
    if in_flight is not after.io:
        yield "the machine knows what is in flight"
    if after.epoch < before.epoch:
        yield "epochs only grow"


def _trust_faults(before: Machine, event: Event, now: float, after: Machine) -> Iterator[str]:
    sent_at = event.sent_at if isinstance(event, ev.Minted | ev.Proved | ev.Resumed) else None
    if after.trusted_until > before.trusted_until and (
        sent_at is None or after.trusted_until > sent_at + before.rules.trust_s
    ):
        yield "trust is extended by proofs alone, and never beyond their sending plus the lease"
    ran_out = before.trusting and now >= before.trusted_until
    if ran_out and after.state in {LockState.ACQUIRING, LockState.LEADER, LockState.RELEASING} and after.grant:
        yield "a trust that has run out never comes back on the same session"
    if after.state is LockState.LEADER and before.state is not LockState.LEADER and now >= after.trusted_until:
        yield "nobody becomes leader on a trust that is over"
    if isinstance(event, ev.Tick) and now >= after.deadline and now >= step(after, event, now)[0].deadline:
        yield "a second tick leaves no third one due"


# -- every machine there is --------------------------------------------------------------------------------------------


def normal(m: Machine, now: float, memory_s: float) -> Machine:
    """The same machine at the time 0: two that differ in nothing that a rule can see become equal.

    Instants in the past are all one instant; so are distant epochs and numbers.
    """
    shifted = {
        name: max(-memory_s, getattr(m, name) - now)
        for name in ("wake_at", "trusted_until", "proof_at", "lead_at", "until", "tell_at")
        if isfinite(getattr(m, name))
    }
    lost = replace(m.lost, at=0.0) if m.lost is not None else None
    return replace(m, epoch=0, number=min(m.number, 1), lost=lost, proved_at=-inf, **shifted)
