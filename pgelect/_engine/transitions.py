"""What each rule of the table does: given the machine, an event and the time, the machine after it and the effects.

Pure functions, grouped by the state they act in. Which of them runs when is said by TABLE in ``machine.py``.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from pgelect._engine.events import (
    Abort,
    Announced,
    AttemptFailed,
    Drain,
    Drained,
    DrainTimedOut,
    Failed,
    Halt,
    Heeded,
    Io,
    LockGranted,
    LockRefused,
    Minted,
    Opened,
    ProofFailed,
    Proved,
    Reconfigure,
    Report,
    Resumed,
    ResumeRefused,
    Shutdown,
    Start,
    StepDown,
    StepDownRequested,
    TermBegan,
    Tick,
    Unlocked,
    WatchEnded,
)
from pgelect._engine.model import LockState
from pgelect._engine.moves import (
    Step,
    announces,
    begin,
    drop,
    end_term,
    forget_term,
    idle,
    interrupt,
    open_session,
    reported,
    stopped,
    too_late,
    trust,
)
from pgelect._engine.state import Machine
from pgelect.errors import ConfigurationError, LockError, SessionLostError

STOPPED, FOLLOWER, ACQUIRING = LockState.STOPPED, LockState.FOLLOWER, LockState.ACQUIRING
LEADER, RECONNECTING, RELEASING = LockState.LEADER, LockState.RECONNECTING, LockState.RELEASING

GRACE_RETRY_S = 0.25
"""Within the grace, try to reconnect at least this often: the grace is short and the term is at stake."""

RESUME_AGAIN_S = 0.05
"""Between two questions whether the term goes on, while our own lost session still holds the lock."""


def retry(m: Machine, event: Failed, now: float) -> Step:
    """After a failed attempt: try again on a new session, or give up."""
    m, closing = drop(m)
    ghost = m.grant.backend if m.grant else m.ghost
    m = replace(forget_term(m), ghost=ghost)
    final = not m.settled and isinstance(event.error, ConfigurationError)
    if final or event.retry_in_s is None:
        return stopped(m), (*closing, AttemptFailed(event.error), Halt(event.error, exhausted=not final))
    return replace(m, state=FOLLOWER, wake_at=now + event.retry_in_s), (*closing, AttemptFailed(event.error))


def reconfigure(m: Machine, event: Reconfigure, now: float) -> Step:
    """Play by other rules. What the server has promised under the old ones holds until a proof tells it of the new.

    A shorter lease counts from now on, for the server may go by it from the moment that the next proof is sent.
    """
    before, m = m.rules, replace(m, rules=event.rules)
    if m.state is RECONNECTING:
        return replace(m, until=m.until + m.rules.reconnect_grace_s - before.reconnect_grace_s), ()
    if not m.trusting:
        return m, ()
    m = replace(
        m,
        trusted_until=min(m.trusted_until, now + m.rules.trust_s),
        lead_at=m.lead_at + m.rules.takeover_delay_s - before.takeover_delay_s,
        proof_at=now,
        untold=m.untold or (m.state is LEADER and announces(m)),  # the row names the lease
    )
    return m, interrupt(m)


# -- STOPPED -----------------------------------------------------------------------------------------------------------


def start(m: Machine, _: Start, __: float) -> Step:
    fresh = Machine(m.rules, state=FOLLOWER, epoch=m.epoch, number=m.number, lost=m.lost)
    return open_session(fresh)


# -- FOLLOWER and ACQUIRING --------------------------------------------------------------------------------------------


def opened(m: Machine, event: Opened, now: float) -> Step:
    if m.lost is not None:  # nobody else knows why that term ended
        return begin(replace(m, connected=True), Io.ANNOUNCE)
    return try_lock(m, event, now)


def confessed(m: Machine, event: Announced, now: float) -> Step:
    m, effects = try_lock(replace(m, lost=None), Opened(m.epoch), now)
    return m, (*reported(event.error), *effects)


def try_lock(m: Machine, _: Opened, __: float) -> Step:
    return begin(replace(m, state=ACQUIRING, connected=True, wake_at=inf), Io.TRY)


def follower_tick(m: Machine, _: Tick, now: float) -> Step:
    if now < m.wake_at:
        return m, ()
    return try_lock(m, Opened(m.epoch), now) if m.connected else open_session(m)


def tried_refused(m: Machine, event: LockRefused, now: float) -> Step:
    m = replace(m, state=FOLLOWER, settled=True, io=None, ghost=None)
    if m.rules.queue:
        m, effects = _follow(m, event)
        return m, (AttemptFailed(None), *effects)
    if event.retry_in_s is None:
        m, closing = drop(m, orderly=True)
        return stopped(m), (*closing, AttemptFailed(None), Halt(None, exhausted=True))
    return replace(m, wake_at=now + event.retry_in_s), (AttemptFailed(None),)


def waited_refused(m: Machine, event: LockRefused, _: float) -> Step:
    return _follow(m, event)


def _follow(m: Machine, event: LockRefused) -> Step:
    """Wait in the queue, or aside where enough others do."""
    if event.aside_s is None:
        return begin(m, Io.WAIT)
    return begin(replace(m, aside_s=event.aside_s), Io.ASIDE)


def granted(m: Machine, event: LockGranted, _: float) -> Step:
    return begin(replace(m, state=ACQUIRING, settled=True, ghost=event.backend), Io.MINT)  # should the mint not end


def minted(m: Machine, event: Minted, now: float) -> Step:
    m = replace(trust(m, event.sent_at, event.trust_s), grant=event.grant)
    if now >= m.trusted_until:
        return retry(m, Failed(m.epoch, too_late(), 0.0), now)
    if not event.grant.predecessor_clean and m.rules.takeover_delay_s > 0:
        return idle(replace(m, lead_at=now + m.rules.takeover_delay_s), now)
    return _lead(m, now)


def _lead(m: Machine, now: float) -> Step:
    assert m.grant is not None  # noqa: S101 -- only called with a token
    began = TermBegan(m.grant)
    m = replace(m, state=LEADER, lead_at=inf, number=m.number + 1, untold=announces(m))
    m, idling = idle(m, now) if m.io is None else (m, interrupt(m) if m.untold else ())
    return m, (began, *idling)


def acquiring_tick(m: Machine, _: Tick, now: float) -> Step:
    return _lead(m, now) if now >= m.lead_at else (m, ())


def leave(m: Machine, _: Shutdown, __: float) -> Step:
    """Stop from a state without leadership. What the server may be waiting for is cancelled in an orderly way."""
    m, closing = drop(m, orderly=m.io in {Io.WAIT, Io.MINT})
    return stopped(m), closing


# -- with the lock held: LEADER, RELEASING, and ACQUIRING under a takeover delay ---------------------------------------


def proved(m: Machine, event: Proved, now: float) -> Step:
    return idle(trust(m, event.sent_at, event.trust_s), now)


def proof_failed(m: Machine, event: ProofFailed, now: float) -> Step:
    soon = min(m.rules.health_interval_s, max(0.0, m.trusted_until - now) / 4)
    m, effects = idle(replace(m, io=None, proof_at=now + soon), now)
    return m, (Report(event.error), *effects)


def watch_ended(m: Machine, event: WatchEnded, now: float) -> Step:
    return idle(replace(m, io=None, unheeded=m.unheeded or event.heard), now)


def announced(m: Machine, event: Announced, now: float) -> Step:
    if event.error is not None:  # tried again after the next proof, and said once
        first = m.tell_at == -inf
        m, effects = idle(replace(m, io=None, untold=True, tell_at=m.proof_at), now)
        return m, (*reported(event.error if first else None), *effects)
    # Somebody may have called before it was listened to.
    return idle(replace(m, io=None, tell_at=-inf, unheeded=True, lost=None), now)


def heeded(m: Machine, event: Heeded, now: float) -> Step:
    m, effects = idle(replace(m, io=None, unheeded=False), now)
    return m, (*reported(event.error), *effects)


def step_down_requested(m: Machine, event: StepDownRequested, now: float) -> Step:
    m, draining = step_down(replace(m, io=None, unheeded=False), StepDown(event.drain_s, event.cooldown_s), now)
    m, effects = idle(m, now)
    return m, (*draining, *effects)


def lost(m: Machine, event: Failed, now: float) -> Step:
    if m.rules.reconnect_grace_s <= 0:
        return end_term(m, now, event.error, event.retry_in_s or 0.0, released=False, stop=False)
    cooldown_s = event.retry_in_s or 0.0  # for when the grace is over
    until = now + m.rules.reconnect_grace_s
    m = replace(m, state=RECONNECTING, until=until, trusted_until=-inf, proved_at=-inf, cooldown_s=cooldown_s)
    m, effects = grace_retry(m, event, now)
    if m.wake_at > now:
        return m, effects
    m, opening = open_session(m)
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
    return idle(m, now) if m.io is None else (m, interrupt(m))


def releasing_tick(m: Machine, _: Tick, now: float) -> Step:
    if now < m.until:
        return m, ()
    m, effects = drained(m, Drained(m.number), now)
    return m, (DrainTimedOut(), *effects)


def requested_too_late(m: Machine, _: StepDownRequested, now: float) -> Step:
    return idle(replace(m, io=None), now)


def releasing_shutdown(m: Machine, event: Shutdown, now: float) -> Step:
    return replace(m, stopping=True, until=m.until if m.drained else min(m.until, now + event.drain_s)), ()


def released(m: Machine, event: Unlocked, now: float) -> Step:
    error = None if event.was_held else LockError(m.rules.key)
    return end_term(m, now, error, m.cooldown_s, released=event.was_held, stop=m.stopping)


def releasing_lost(m: Machine, event: Failed, now: float) -> Step:
    cooldown_s = max(m.cooldown_s, event.retry_in_s or 0.0)
    return end_term(m, now, event.error, cooldown_s, released=False, stop=m.stopping)


# -- RECONNECTING ------------------------------------------------------------------------------------------------------


def reopened(m: Machine, _: Opened, __: float) -> Step:
    return begin(replace(m, connected=True), Io.RESUME)


def resumed(m: Machine, event: Resumed, now: float) -> Step:
    assert m.grant is not None  # noqa: S101 -- RECONNECTING has a term
    grant = replace(m.grant, backend=event.backend)  # now the possible ghost
    m = replace(trust(m, event.sent_at, event.trust_s), grant=grant)
    if now >= m.trusted_until:
        return grace_retry(m, Failed(m.epoch, too_late(), 0.0), now)
    return idle(replace(m, state=LEADER, until=inf, wake_at=inf, cooldown_s=0.0, untold=announces(m)), now)


def resume_refused(m: Machine, event: ResumeRefused, now: float) -> Step:
    if not event.final:
        return replace(m, io=None, wake_at=now + RESUME_AGAIN_S), ()
    return end_term(m, now, event.error, m.cooldown_s, released=False, stop=False)


def grace_retry(m: Machine, event: Failed, now: float) -> Step:
    m, closing = drop(m)
    in_s = GRACE_RETRY_S if event.retry_in_s is None else min(event.retry_in_s, GRACE_RETRY_S)
    return replace(m, wake_at=now + in_s), (*closing, Report(event.error))


def reconnecting_tick(m: Machine, _: Tick, now: float) -> Step:
    if now >= m.until:
        error = SessionLostError("expired", "the session could not be resumed within reconnect_grace_s")
        return end_term(m, now, error, m.cooldown_s, released=False, stop=False)
    if now < m.wake_at:
        return m, ()
    return begin(replace(m, wake_at=inf), Io.RESUME) if m.connected else open_session(m)


def reconnecting_step_down(m: Machine, event: StepDown, now: float) -> Step:
    error = SessionLostError("closed", "stepped down while the session was lost")
    return end_term(m, now, error, max(m.cooldown_s, event.cooldown_s), released=False, stop=False)


def reconnecting_shutdown(m: Machine, _: Shutdown, now: float) -> Step:
    error = SessionLostError("closed", "shut down while the session was lost")
    return end_term(m, now, error, 0.0, released=False, stop=True)


# -- going down --------------------------------------------------------------------------------------------------------


def abort(m: Machine, event: Abort, now: float) -> Step:
    if m.grant is not None and m.state is not ACQUIRING:
        m, effects = end_term(m, now, event.error, 0.0, released=False, stop=True)
    else:
        m, effects = drop(m)
        m = stopped(m)
    return m, (*effects, Halt(event.error, exhausted=False))
