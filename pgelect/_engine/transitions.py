"""What each rule of the table does: given the machine, an event and the time, the machine after it and the effects.

Pure functions, grouped by the state they act in. Which of them runs when is said by TABLE in ``machine.py``.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import TypeAlias

from pgelect._engine.events import (
    Abort,
    AttemptFailed,
    Close,
    Do,
    Drain,
    Drained,
    DrainTimedOut,
    Effect,
    Failed,
    Halt,
    Interrupt,
    Io,
    LockGranted,
    LockRefused,
    Minted,
    Opened,
    ProofFailed,
    Proved,
    Report,
    Resumed,
    ResumeRefused,
    Shutdown,
    Start,
    StepDown,
    TermBegan,
    TermEnded,
    Tick,
    Unlocked,
    WatchEnded,
)
from pgelect._engine.model import LockState
from pgelect._engine.state import Machine
from pgelect.errors import ConfigurationError, LockError, SessionLostError

STOPPED, FOLLOWER, ACQUIRING = LockState.STOPPED, LockState.FOLLOWER, LockState.ACQUIRING
LEADER, RECONNECTING, RELEASING = LockState.LEADER, LockState.RECONNECTING, LockState.RELEASING

GRACE_RETRY_S = 0.25
"""Within the grace, try to reconnect at least this often: the grace is short and the term is at stake."""

RESUME_AGAIN_S = 0.05
"""Between two questions whether the term goes on, while our own lost session still holds the lock."""

Step: TypeAlias = tuple[Machine, tuple[Effect, ...]]


# -- parts that several rules share ------------------------------------------------------------------------------------


def _open(m: Machine) -> Step:
    m = replace(m, epoch=m.epoch + 1, connected=False, io=Io.OPEN, wake_at=inf)
    return m, (Do(Io.OPEN, m.epoch),)


def _begin(m: Machine, io: Io) -> Step:
    return replace(m, io=io), (Do(io, m.epoch),)


def _drop(m: Machine, *, orderly: bool = False) -> Step:
    """Part with the session, if there is one: what is still in flight on it becomes stale."""
    if not m.connected and m.io is None:
        return m, ()
    after = replace(m, epoch=m.epoch + 1, connected=False, io=None)
    return after, (Close(m.epoch, orderly=orderly),)


def _forget_term(m: Machine) -> Machine:
    return replace(
        m,
        grant=None,
        trusted_until=-inf,
        proof_at=inf,
        lead_at=inf,
        until=inf,
        wake_at=inf,
        drained=False,
        cooldown_s=0.0,
        stopping=False,
    )


def _stop(m: Machine) -> Machine:
    return replace(_forget_term(m), state=STOPPED)


def _idle(m: Machine, now: float) -> Step:
    """Nothing is in flight on a session that holds the lock: choose what comes next."""
    if m.state is RELEASING and m.drained:
        return _begin(m, Io.UNLOCK)
    return _begin(m, Io.PROVE if now >= m.proof_at else Io.WATCH)


def _trust(m: Machine, sent_at: float) -> Machine:
    return replace(
        m,
        trusted_until=max(m.trusted_until, sent_at + m.rules.trust_s),
        proof_at=sent_at + m.rules.health_interval_s,
        io=None,
    )


def _too_late() -> SessionLostError:
    return SessionLostError("expired", "the server's answer came when the lease it spoke of was already over")


def _end_term(
    m: Machine, now: float, error: Exception | None, cooldown_s: float, *, released: bool, stop: bool
) -> Step:
    """End the term, then go on as a follower, or stop."""
    assert m.grant is not None  # noqa: S101 -- every caller is in a state with a term
    over: list[Effect] = [TermEnded(m.grant, released=released, error=error)]
    ghost = None if released else m.grant.backend
    m, closing = _drop(m, orderly=released)
    over += [*closing] if error is None else [*closing, Report(error)]
    m = replace(m, ghost=ghost)
    if stop or not m.rules.auto_reacquire:
        halt = () if stop else (Halt(error, exhausted=False),)
        return _stop(m), (*over, *halt)
    return replace(_forget_term(m), state=FOLLOWER, wake_at=now + cooldown_s), tuple(over)


def retry(m: Machine, event: Failed, now: float) -> Step:
    """After a failed attempt: try again on a new session, or give up."""
    m, closing = _drop(m)
    ghost = m.grant.backend if m.grant else m.ghost
    m = replace(_forget_term(m), ghost=ghost)
    final = not m.settled and isinstance(event.error, ConfigurationError)
    if final or event.retry_in_s is None:
        return _stop(m), (*closing, AttemptFailed(event.error), Halt(event.error, exhausted=not final))
    return replace(m, state=FOLLOWER, wake_at=now + event.retry_in_s), (*closing, AttemptFailed(event.error))


# -- STOPPED -----------------------------------------------------------------------------------------------------------


def start(m: Machine, _: Start, __: float) -> Step:
    fresh = Machine(m.rules, state=FOLLOWER, epoch=m.epoch, number=m.number)
    return _open(fresh)


# -- FOLLOWER and ACQUIRING --------------------------------------------------------------------------------------------


def try_lock(m: Machine, _: Opened, __: float) -> Step:
    return _begin(replace(m, state=ACQUIRING, connected=True, wake_at=inf), Io.TRY)


def follower_tick(m: Machine, _: Tick, now: float) -> Step:
    if now < m.wake_at:
        return m, ()
    return try_lock(m, Opened(m.epoch), now) if m.connected else _open(m)


def tried_refused(m: Machine, event: LockRefused, now: float) -> Step:
    m = replace(m, state=FOLLOWER, settled=True, io=None, ghost=None)
    if m.rules.queue:
        m, effects = _begin(m, Io.WAIT)
        return m, (AttemptFailed(None), *effects)
    if event.retry_in_s is None:
        m, closing = _drop(m, orderly=True)
        return _stop(m), (*closing, AttemptFailed(None), Halt(None, exhausted=True))
    return replace(m, wake_at=now + event.retry_in_s), (AttemptFailed(None),)


def waited_refused(m: Machine, _: LockRefused, __: float) -> Step:
    return _begin(m, Io.WAIT)


def granted(m: Machine, event: LockGranted, _: float) -> Step:
    return _begin(replace(m, state=ACQUIRING, settled=True, ghost=event.backend), Io.MINT)  # should the mint not end


def minted(m: Machine, event: Minted, now: float) -> Step:
    m = replace(_trust(m, event.sent_at), grant=event.grant)
    if now >= m.trusted_until:
        return retry(m, Failed(m.epoch, _too_late(), 0.0), now)
    if not event.grant.predecessor_clean and m.rules.takeover_delay_s > 0:
        return _idle(replace(m, lead_at=now + m.rules.takeover_delay_s), now)
    return _lead(m, now)


def _lead(m: Machine, now: float) -> Step:
    assert m.grant is not None  # noqa: S101 -- only called with a token
    began = TermBegan(m.grant)
    m = replace(m, state=LEADER, lead_at=inf, number=m.number + 1)
    m, idling = _idle(m, now) if m.io is None else (m, ())
    return m, (began, *idling)


def acquiring_tick(m: Machine, _: Tick, now: float) -> Step:
    return _lead(m, now) if now >= m.lead_at else (m, ())


def leave(m: Machine, _: Shutdown, __: float) -> Step:
    """Stop from a state without leadership. What the server may be waiting for is cancelled in an orderly way."""
    m, closing = _drop(m, orderly=m.io in {Io.WAIT, Io.MINT})
    return _stop(m), closing


# -- with the lock held: LEADER, RELEASING, and ACQUIRING under a takeover delay ---------------------------------------


def proved(m: Machine, event: Proved, now: float) -> Step:
    return _idle(_trust(m, event.sent_at), now)


def proof_failed(m: Machine, event: ProofFailed, now: float) -> Step:
    soon = min(m.rules.health_interval_s, max(0.0, m.trusted_until - now) / 4)
    m, effects = _idle(replace(m, io=None, proof_at=now + soon), now)
    return m, (Report(event.error), *effects)


def watch_ended(m: Machine, _: WatchEnded, now: float) -> Step:
    return _idle(replace(m, io=None), now)


def lost(m: Machine, event: Failed, now: float) -> Step:
    if m.rules.reconnect_grace_s <= 0:
        return _end_term(m, now, event.error, event.retry_in_s or 0.0, released=False, stop=False)
    cooldown_s = event.retry_in_s or 0.0  # for when the grace is over
    m = replace(m, state=RECONNECTING, until=now + m.rules.reconnect_grace_s, trusted_until=-inf, cooldown_s=cooldown_s)
    m, effects = grace_retry(m, event, now)
    if m.wake_at > now:
        return m, effects
    m, opening = _open(m)
    return m, (*effects, *opening)


def step_down(m: Machine, event: StepDown, now: float) -> Step:
    return _release(replace(m, cooldown_s=event.cooldown_s), now + event.drain_s)


def leader_shutdown(m: Machine, event: Shutdown, now: float) -> Step:
    return _release(replace(m, stopping=True), now + event.drain_s)


def _release(m: Machine, until: float) -> Step:
    return replace(m, state=RELEASING, until=until, drained=False), (Drain(m.number),)


# -- RELEASING ---------------------------------------------------------------------------------------------------------


def drained(m: Machine, event: Drained, now: float) -> Step:
    if event.number != m.number or m.drained:  # of another term; or its time was over before
        return m, ()
    m = replace(m, drained=True, until=inf)
    if m.io is None:
        return _idle(m, now)
    return m, (Interrupt(),) if m.io is Io.WATCH else ()


def releasing_tick(m: Machine, _: Tick, now: float) -> Step:
    if now < m.until:
        return m, ()
    m, effects = drained(m, Drained(m.number), now)
    return m, (DrainTimedOut(), *effects)


def releasing_shutdown(m: Machine, event: Shutdown, now: float) -> Step:
    return replace(m, stopping=True, until=m.until if m.drained else min(m.until, now + event.drain_s)), ()


def released(m: Machine, event: Unlocked, now: float) -> Step:
    error = None if event.was_held else LockError(m.rules.key)
    return _end_term(m, now, error, m.cooldown_s, released=event.was_held, stop=m.stopping)


def releasing_lost(m: Machine, event: Failed, now: float) -> Step:
    cooldown_s = max(m.cooldown_s, event.retry_in_s or 0.0)
    return _end_term(m, now, event.error, cooldown_s, released=False, stop=m.stopping)


# -- RECONNECTING ------------------------------------------------------------------------------------------------------


def reopened(m: Machine, _: Opened, __: float) -> Step:
    return _begin(replace(m, connected=True), Io.RESUME)


def resumed(m: Machine, event: Resumed, now: float) -> Step:
    assert m.grant is not None  # noqa: S101 -- RECONNECTING has a term
    m = replace(_trust(m, event.sent_at), grant=replace(m.grant, backend=event.backend))  # now the possible ghost
    if now >= m.trusted_until:
        return grace_retry(m, Failed(m.epoch, _too_late(), 0.0), now)
    return _idle(replace(m, state=LEADER, until=inf, wake_at=inf, cooldown_s=0.0), now)


def resume_refused(m: Machine, event: ResumeRefused, now: float) -> Step:
    if not event.final:
        return replace(m, io=None, wake_at=now + RESUME_AGAIN_S), ()
    return _end_term(m, now, event.error, m.cooldown_s, released=False, stop=False)


def grace_retry(m: Machine, event: Failed, now: float) -> Step:
    m, closing = _drop(m)
    in_s = GRACE_RETRY_S if event.retry_in_s is None else min(event.retry_in_s, GRACE_RETRY_S)
    return replace(m, wake_at=now + in_s), (*closing, Report(event.error))


def reconnecting_tick(m: Machine, _: Tick, now: float) -> Step:
    if now >= m.until:
        error = SessionLostError("expired", "the session could not be resumed within reconnect_grace_s")
        return _end_term(m, now, error, m.cooldown_s, released=False, stop=False)
    if now < m.wake_at:
        return m, ()
    return _begin(replace(m, wake_at=inf), Io.RESUME) if m.connected else _open(m)


def reconnecting_step_down(m: Machine, event: StepDown, now: float) -> Step:
    error = SessionLostError("closed", "stepped down while the session was lost")
    return _end_term(m, now, error, max(m.cooldown_s, event.cooldown_s), released=False, stop=False)


def reconnecting_shutdown(m: Machine, _: Shutdown, now: float) -> Step:
    error = SessionLostError("closed", "shut down while the session was lost")
    return _end_term(m, now, error, 0.0, released=False, stop=True)


# -- going down --------------------------------------------------------------------------------------------------------


def abort(m: Machine, event: Abort, now: float) -> Step:
    if m.grant is not None and m.state is not ACQUIRING:
        m, effects = _end_term(m, now, event.error, 0.0, released=False, stop=True)
    else:
        m, effects = _drop(m)
        m = _stop(m)
    return m, (*effects, Halt(event.error, exhausted=False))
