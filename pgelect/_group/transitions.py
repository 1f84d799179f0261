"""What each rule of a group's table does: given the machine, an event and the time, the machine after it and effects.

Pure functions. Which of them runs when is said by TABLE in ``machine.py``; what several share is in ``moves.py``.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

from pgelect._group.events import (
    Abort,
    Asked,
    AttemptFailed,
    Drained,
    DrainTimedOut,
    Failed,
    Freed,
    Halt,
    Heeded,
    Join,
    Joined,
    Look,
    Looked,
    Mint,
    Opened,
    Partitions,
    Refused,
    Report,
    Shutdown,
    Start,
    StepDown,
    Take,
    Taken,
    Tell,
    TermBegan,
    TermEnded,
    Tick,
    Told,
    WatchEnded,
)
from pgelect._group.moves import (
    CONNECTING,
    LEAVING,
    MEMBER,
    STOPPED,
    Step,
    begin,
    drain,
    drop,
    idle,
    interrupt,
    let_go,
    open_session,
    trust,
)
from pgelect._group.shares import plan
from pgelect._group.state import Held, Machine, Phase
from pgelect.errors import ConfigurationError, SessionLostError

if TYPE_CHECKING:
    from pgelect._engine.model import Grant, LockKey
    from pgelect._group.events import Effect

POLL_MIN_S, POLL_MAX_S, POLL_GROWTH = 0.05, 0.2, 1.5
"""When members have come or gone, more do soon, as in a deployment, and partitions move: look after this long, and then
less and less often. While others are about to give up partitions for which there is room here, every 0.2 s at least.
"""

STEP_DOWN_COOLDOWN_S = 1.0
"""After a step-down that somebody has asked for: others have looked at the group by then."""

HEIR_S = 0.3
"""For this long after the end of the next member whatever it had is looked for: a few looks. A server ends a session
with a thousand locks in a few milliseconds.
"""

# -- STOPPED and CONNECTING --------------------------------------------------------------------------------------------


def start(m: Machine, _: Start, __: float) -> Step:
    fresh = Machine(m.rules, m.partitions, state=CONNECTING, epoch=m.epoch, number=m.number)
    return open_session(fresh)


def opened(m: Machine, _: Opened, __: float) -> Step:
    return begin(replace(m, connected=True), Join(m.ghost))


def joined(m: Machine, event: Joined, now: float) -> Step:
    m = replace(m, state=MEMBER, me=event.me, backend=event.backend, ghost=event.backend, settled=True, wake_at=inf)
    m = trust(replace(m, look_at=now), event.sent_at, inf)
    if now >= m.trusted_until:
        return lost(m, Failed(m.epoch, _too_late(), 0.0), now)
    return idle(m, now)


def retry(m: Machine, event: Failed, now: float) -> Step:
    """After a failed attempt to become a member: try again on a new session, or give up."""
    m, closing = drop(m)
    final = not m.settled and isinstance(event.error, ConfigurationError)
    failed = AttemptFailed(None, event.error)
    if final or event.retry_in_s is None:
        return replace(m, state=STOPPED, wake_at=inf), (*closing, failed, Halt(event.error, exhausted=not final))
    return replace(m, wake_at=now + event.retry_in_s), (*closing, failed)


def connecting_tick(m: Machine, _: Tick, now: float) -> Step:
    return open_session(m) if now >= m.wake_at else (m, ())


def leave_unjoined(m: Machine, _: Shutdown, __: float) -> Step:
    m, closing = drop(m)
    return replace(m, state=STOPPED, wake_at=inf), closing


def repartition(m: Machine, event: Partitions, _: float) -> Step:
    return replace(m, partitions=event.keys), ()


# -- MEMBER ------------------------------------------------------------------------------------------------------------


def looked(m: Machine, event: Looked, now: float) -> Step:
    """All locks are held. Whatever has changed, see what there is to give and to take."""
    m = trust(replace(m, io=None), event.sent_at, event.trust_s)
    poll_s = 0.0 if m.poll_s * POLL_GROWTH >= m.rules.wait_s else m.poll_s * POLL_GROWTH
    if event.view is not None:
        changed = event.view.members != m.view.members
        poll_s = POLL_MIN_S if changed else poll_s
        known = None if changed else event.print  # whoever has gone may not have let go of everything yet
        m = replace(m, view=event.view, print=known, look_at=now + m.rules.rebalance_interval_s)
    if event.called:
        m = replace(m, called=True)
    if event.orphaned:
        m = replace(m, heir_until=now + HEIR_S)
    barred = {key: until for key, until in m.barred.items() if now < until}
    leading = [key for key, held in m.held.items() if held.phase in {Phase.LEADING, Phase.WAITING}]  # in that order
    going = [key for key, held in m.held.items() if held.phase in {Phase.DRAINING, Phase.DRAINED}]
    found = plan(
        m.view,
        m.me,
        m.partitions,
        leading=leading,
        going=[*going, *m.minting],
        barred=barred,
        orphaned=now < m.heir_until,
    )
    if found.expecting:
        poll_s = min(POLL_MAX_S, poll_s or POLL_MAX_S)
    m = replace(m, barred=barred, taking=found.take, share=found.share, poll_s=min(poll_s, m.rules.wait_s))
    m, giving = drain(m, found.give, now + m.rules.drain_timeout_s, 0.0)
    m, effects = idle(m, now)
    return m, (*giving, *effects)


def looked_leaving(m: Machine, event: Looked, now: float) -> Step:
    return idle(trust(replace(m, io=None), event.sent_at, event.trust_s), now)


def taken(m: Machine, event: Taken, now: float) -> Step:
    """Tokens were minted: those that are still wanted begin, or wait for the takeover delay."""
    asked = set(m.io.keys if isinstance(m.io, Take) else (m.io.key,) if isinstance(m.io, Mint) else ())
    m = replace(
        m,
        io=None,
        taking=tuple(key for key in m.taking if key not in asked),
        minting=(*(key for key in m.minting if key not in asked), *event.held_up),
        barred={**m.barred, **{key: now + event.retry_in_s for key, _ in event.failed}},
    )
    effects: list[Effect] = [AttemptFailed(key, error) for key, error in event.failed]
    held, wanted = dict(m.held), set(m.partitions)
    for key, grant in event.grants:
        delay_s = 0.0 if grant.predecessor_clean else m.rules.takeover_delay_s
        if m.state is not MEMBER or key not in wanted:
            held[key] = Held(grant, phase=Phase.DRAINED)
        elif delay_s > 0:
            held[key] = Held(grant, phase=Phase.WAITING, until=now + delay_s)
        else:
            m, held[key], began = _began(m, key, grant)
            effects.append(began)
    m, idling = idle(replace(m, held=held), now)
    return m, (*effects, *idling)


def _began(m: Machine, key: LockKey, grant: Grant) -> tuple[Machine, Held, TermBegan]:
    m = replace(m, number=m.number + 1, untold=(*m.untold, key))
    return m, Held(grant, m.number), TermBegan(key, m.number, grant)


def told(m: Machine, event: Told, now: float) -> Step:
    io = m.io
    done = {key for key, _ in io.grants} if isinstance(io, Tell) else set()
    m = replace(m, io=None, untold=tuple(key for key in m.untold if key not in done))
    m, effects = idle(m, now)
    return m, (*(() if event.error is None else (Report(event.error),)), *effects)


def heeded(m: Machine, event: Heeded, now: float) -> Step:
    """Give up the partitions whose terms were asked to end, and stay out of them as after any step-down."""
    m = replace(m, io=None, called=False)
    asked = tuple(key for key, _ in event.asked)
    m, draining = drain(m, asked, now + m.rules.drain_timeout_s, STEP_DOWN_COOLDOWN_S)
    m, effects = idle(m, now)
    words = tuple(Asked(key, by) for key, by in event.asked)
    return m, (*words, *(() if event.error is None else (Report(event.error),)), *draining, *effects)


def freed(m: Machine, event: Freed, now: float) -> Step:
    held, barred = dict(m.held), dict(m.barred)
    effects: list[Effect] = []
    for key in event.keys:
        was = held.pop(key)
        if was.number:
            effects.append(TermEnded(key, was.number, released=True))
        if was.cooldown_s > 0:
            barred[key] = now + was.cooldown_s
    untold = tuple(key for key in m.untold if key in held)
    m, idling = idle(replace(m, io=None, held=held, barred=barred, untold=untold), now)
    return m, (*effects, *idling)


def watch_ended(m: Machine, _: WatchEnded, now: float) -> Step:
    return idle(replace(m, io=None, proof_at=min(m.proof_at, now)), now)  # a proof is also a look for others


def refused(m: Machine, event: Refused, now: float) -> Step:
    """After a proof that the server refused, by a cancel for one: soon once more, while trust lasts.

    If it was to come after a wait, that may be what was refused: a server without room for locks has none for a wait
    either. The proofs come without waits then.
    """
    soon = min(m.rules.health_interval_s, max(0.0, m.trusted_until - now) / 4)
    if isinstance(m.io, Look) and m.io.wait_for is not None:
        m = replace(m, unwaited_until=now + soon)
    m, effects = idle(replace(m, io=None, proof_at=now + soon, look_at=max(m.look_at, now + soon)), now)
    return m, (Report(event.error), *effects)


def lost(m: Machine, event: Failed, now: float) -> Step:
    """Part with the session, which is gone, and with it every lock."""
    m, effects = let_go(m, event.error)
    m, closing = drop(m)
    effects += (*closing, Report(event.error))
    if m.stopping:
        return replace(m, state=STOPPED, stopping=False), effects
    in_s = max(m.away_s, event.retry_in_s or 0.0)
    return replace(m, state=CONNECTING, wake_at=now + in_s, away_s=0.0), effects


def drained(m: Machine, event: Drained, now: float) -> Step:
    held = m.held.get(event.key)
    if held is None or held.number != event.number or held.phase is not Phase.DRAINING:
        return m, ()  # its time was over before
    m = replace(m, held={**m.held, event.key: replace(held, phase=Phase.DRAINED, until=inf)})
    return idle(m, now) if m.io is None else (m, interrupt(m))


def tick(m: Machine, _: Tick, now: float) -> Step:
    held = dict(m.held)
    effects: list[Effect] = []
    for key, one in m.held.items():
        if now < one.until:
            continue
        if one.phase is Phase.DRAINING:
            effects.append(DrainTimedOut(key))
            held[key] = replace(one, phase=Phase.DRAINED, until=inf)
        elif one.phase is Phase.WAITING:
            m, held[key], began = _began(m, key, one.grant)
            effects.append(began)
    if not effects:
        return m, ()
    m = replace(m, held=held)
    m, more = idle(m, now) if m.io is None else (m, interrupt(m))
    return m, (*effects, *more)


def step_down(m: Machine, event: StepDown, now: float) -> Step:
    if event.keys is None:
        m = replace(m, away_s=event.cooldown_s)
        return _leave(m, now, event.drain_s)
    m, effects = drain(m, event.keys, now + event.drain_s, event.cooldown_s)
    m, more = idle(m, now) if m.io is None else (m, interrupt(m))
    return m, (*effects, *more)


def shutdown(m: Machine, event: Shutdown, now: float) -> Step:
    return _leave(replace(m, stopping=True), now, event.drain_s)


def _leave(m: Machine, now: float, drain_s: float) -> Step:
    m = replace(m, state=LEAVING, taking=(), minting=(), untold=(), poll_s=0.0)
    m, effects = drain(m, tuple(m.held), now + drain_s, 0.0)
    m, more = idle(m, now) if m.io is None else (m, interrupt(m))
    return m, (*effects, *more)


def leaving_shutdown(m: Machine, event: Shutdown, now: float) -> Step:
    until = now + event.drain_s
    held = {
        key: replace(one, until=min(one.until, until)) if one.phase is Phase.DRAINING else one
        for key, one in m.held.items()
    }
    return replace(m, stopping=True, held=held), ()


def member_repartition(m: Machine, event: Partitions, now: float) -> Step:
    """Give up what is no longer wanted, and look for what is new."""
    wanted = set(event.keys)
    gone = tuple(key for key in m.held if key not in wanted)
    m = replace(m, partitions=event.keys, taking=tuple(key for key in m.taking if key in wanted), look_at=now)
    m, effects = drain(m, gone, now + m.rules.drain_timeout_s, 0.0)
    m, more = idle(m, now) if m.io is None else (m, interrupt(m))
    return m, (*effects, *more)


def abort(m: Machine, event: Abort, _: float) -> Step:
    m, effects = let_go(m, event.error)
    m, closing = drop(m)
    return replace(m, state=STOPPED, wake_at=inf, stopping=False), (
        *effects,
        *closing,
        Halt(event.error, exhausted=False),
    )


def _too_late() -> SessionLostError:
    return SessionLostError("expired", "the server's answer came when the lease it spoke of was already over")
