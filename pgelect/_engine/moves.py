"""What several rules of the table share: opening and dropping the session, choosing what comes next, ending a term.

Pure functions, as the rules in ``transitions.py`` that use them.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import TypeAlias

from pgelect._engine.events import Close, Do, Effect, Halt, Interrupt, Io, Report, TermEnded
from pgelect._engine.model import LockState, LostTerm
from pgelect._engine.state import Machine
from pgelect.errors import SessionLostError

STOPPED, FOLLOWER, LEADER, RELEASING = LockState.STOPPED, LockState.FOLLOWER, LockState.LEADER, LockState.RELEASING

Step: TypeAlias = tuple[Machine, tuple[Effect, ...]]


def open_session(m: Machine) -> Step:
    m = replace(m, epoch=m.epoch + 1, connected=False, io=Io.OPEN, wake_at=inf)
    return m, (Do(Io.OPEN, m.epoch),)


def begin(m: Machine, io: Io) -> Step:
    return replace(m, io=io), (Do(io, m.epoch),)


def drop(m: Machine, *, orderly: bool = False) -> Step:
    """Part with the session, if there is one: what is still in flight on it becomes stale."""
    if not m.connected and m.io is None:
        return m, ()
    after = replace(m, epoch=m.epoch + 1, connected=False, io=None)
    return after, (Close(m.epoch, orderly=orderly),)


def forget_term(m: Machine) -> Machine:
    return replace(
        m,
        grant=None,
        trusted_until=-inf,
        proved_at=-inf,
        proof_at=inf,
        lead_at=inf,
        until=inf,
        wake_at=inf,
        drained=False,
        cooldown_s=0.0,
        stopping=False,
        untold=False,
        tell_at=-inf,
        unheeded=False,
    )


def stopped(m: Machine) -> Machine:
    return replace(forget_term(m), state=STOPPED)


def idle(m: Machine, now: float) -> Step:
    """Nothing is in flight on a session that holds the lock: choose what comes next. Proofs come before words."""
    if m.state is RELEASING and m.drained:
        return begin(m, Io.UNLOCK)
    if now >= m.proof_at:
        return begin(m, Io.PROVE)
    if m.state is LEADER and m.untold and now >= m.tell_at:
        return begin(replace(m, untold=False), Io.ANNOUNCE)  # what changes from here on is told anew
    if m.state is LEADER and m.unheeded:
        return begin(m, Io.HEED)
    return begin(m, Io.WATCH)


def trust(m: Machine, sent_at: float, trust_s: float) -> Machine:
    """Trust what the server confirmed. ``trust_s``: what it was told of the lease when it was asked; inf: the rules."""
    outdated = trust_s not in {m.rules.trust_s, inf}  # then it is asked again at once
    return replace(
        m,
        trusted_until=max(m.trusted_until, sent_at + min(m.rules.trust_s, trust_s)),
        proved_at=max(m.proved_at, sent_at),
        proof_at=sent_at if outdated else sent_at + m.rules.health_interval_s,
        io=None,
    )


def too_late() -> SessionLostError:
    return SessionLostError("expired", "the server's answer came when the lease it spoke of was already over")


def end_term(m: Machine, now: float, error: Exception | None, cooldown_s: float, *, released: bool, stop: bool) -> Step:
    """End the term, then go on as a follower, or stop."""
    assert m.grant is not None  # noqa: S101 -- every caller is in a state with a term
    over: list[Effect] = [TermEnded(m.grant, released=released, error=error)]
    ghost = None if released else m.grant.backend
    lost = None
    if not released and announces(m):
        untold = m.untold or m.io is Io.ANNOUNCE
        lost = LostTerm(m.grant.token, str(error or "it was given up"), now, m.grant if untold else None)
    m, closing = drop(m, orderly=released)
    over += [*closing] if error is None else [*closing, Report(error)]
    m = replace(m, ghost=ghost, lost=lost)
    if stop or not m.rules.auto_reacquire:
        halt = () if stop else (Halt(error, exhausted=False),)
        return stopped(m), (*over, *halt)
    return replace(forget_term(m), state=FOLLOWER, wake_at=now + cooldown_s), tuple(over)


def announces(m: Machine) -> bool:
    return m.grant is not None and m.grant.record is not None  # without fencing nobody could read of it


def interrupt(m: Machine) -> tuple[Effect, ...]:
    return (Interrupt(),) if m.io is Io.WATCH else ()


def reported(error: Exception | None) -> tuple[Effect, ...]:
    return () if error is None else (Report(error),)
