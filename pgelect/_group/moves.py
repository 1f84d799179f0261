"""What several rules of a group's table share: choosing what comes next, opening and dropping the session.

Pure functions, as the rules in ``transitions.py`` that use them.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, TypeAlias

from pgelect._group.events import (
    Close,
    Do,
    Drain,
    Effect,
    Free,
    Heed,
    Interrupt,
    Io,
    Look,
    Mint,
    Open,
    Take,
    Tell,
    TermEnded,
    Watch,
)
from pgelect._group.shares import View, successor
from pgelect._group.state import GroupState, Machine, Phase

if TYPE_CHECKING:
    from pgelect._engine.model import LockKey

STOPPED, CONNECTING = GroupState.STOPPED, GroupState.CONNECTING
MEMBER, LEAVING = GroupState.MEMBER, GroupState.LEAVING

Step: TypeAlias = tuple[Machine, tuple[Effect, ...]]

BATCH = 250
"""Partitions in one statement: what is led already must not wait for long, and a proof must come through."""


def open_session(m: Machine) -> Step:
    m = replace(m, epoch=m.epoch + 1, connected=False, io=Open(), wake_at=inf)
    return m, (Do(Open(), m.epoch),)


def begin(m: Machine, io: Io) -> Step:
    return replace(m, io=io), (Do(io, m.epoch),)


def drop(m: Machine, *, orderly: bool = False) -> Step:
    """Part with the session, if there is one: what is still in flight on it becomes stale."""
    fresh = replace(
        m,
        connected=False,
        io=None,
        backend=None,
        trusted_until=-inf,
        proved_at=-inf,
        proof_at=inf,
        look_at=inf,
        heir_until=-inf,
        unwaited_until=-inf,
        poll_s=0.0,
        view=View(),
        print=None,
        share=0,
        taking=(),
        minting=(),
        untold=(),
        called=False,
        barred={},
    )
    if not m.connected and m.io is None:
        return fresh, ()
    return replace(fresh, epoch=m.epoch + 1), (Close(m.epoch, orderly=orderly),)


def trust(m: Machine, sent_at: float, trust_s: float) -> Machine:
    """Trust what the server confirmed. ``trust_s``: what it was told of the lease when it was asked; inf: the rules."""
    return replace(
        m,
        trusted_until=max(m.trusted_until, sent_at + min(m.rules.trust_s, trust_s)),
        proved_at=max(m.proved_at, sent_at),
        proof_at=sent_at + m.rules.health_interval_s,
    )


def idle(m: Machine, now: float) -> Step:
    """Nothing is in flight: choose what comes next."""
    if m.state is LEAVING and not m.held:
        return _left(m, now)
    return begin(m, _next(m, now))


def _next(m: Machine, now: float) -> Io:  # noqa: PLR0911 -- a flat list of priorities
    """Choose: first what is to be given up, then proofs, then what is to be taken, then words."""
    drained = tuple((key, held.grant.token) for key, held in m.held.items() if held.phase is Phase.DRAINED)
    if drained:
        return Free(drained[:BATCH])
    if now >= m.proof_at:
        return Look(m.print)
    if m.state is MEMBER and m.called:
        return Heed(tuple((key, held.grant.token) for key, held in m.held.items() if held.phase is Phase.LEADING))
    if m.state is MEMBER and m.taking:
        return Take(m.taking[:BATCH])
    if m.state is MEMBER and m.minting:
        return Mint(m.minting[0])
    if m.state is MEMBER and now >= m.look_at:
        return Look(None)
    if m.untold:
        return Tell(tuple((key, m.held[key].grant) for key in m.untold[:BATCH]))
    return _wait(m, now)


def _wait(m: Machine, now: float) -> Io:
    """Wait for the end of the next member in the ring; one that is alone, or leaves, or must not, idles."""
    until = min(m.proof_at, m.look_at) if m.state is MEMBER else m.proof_at
    wait_s = max(0.0, min(m.poll_s or m.rules.wait_s, until - now))
    may_wait = m.state is MEMBER and now >= m.unwaited_until
    next_one = successor(m.me, m.view.members) if may_wait else None
    return Watch(wait_s) if next_one is None else Look(m.print, next_one, wait_s)


def _left(m: Machine, now: float) -> Step:
    """Everything was given up: close the session, which takes this member out of the ring."""
    away_s, stopping = m.away_s, m.stopping
    m, closing = drop(replace(m, stopping=False, away_s=0.0, ghost=None), orderly=True)
    if stopping:
        return replace(m, state=STOPPED), closing
    return replace(m, state=CONNECTING, wake_at=now + away_s), closing


def drain(m: Machine, keys: tuple[LockKey, ...], until: float, cooldown_s: float) -> Step:
    """Begin to give up those that are led; what is not led yet is given up at once."""
    held, effects = dict(m.held), []
    for key in keys:
        one = held.get(key)
        if one is None or one.phase in {Phase.DRAINING, Phase.DRAINED}:
            continue
        if one.phase is Phase.WAITING:
            held[key] = replace(one, phase=Phase.DRAINED, until=inf, cooldown_s=cooldown_s)
            continue
        held[key] = replace(one, phase=Phase.DRAINING, until=until, cooldown_s=cooldown_s)
        effects.append(Drain(key, one.number))
    return replace(m, held=held), tuple(effects)


def let_go(m: Machine, error: Exception | None) -> Step:
    """End every term at once."""
    ended = [TermEnded(key, one.number, released=False, error=error) for key, one in m.held.items() if one.number]
    return replace(m, held={}), tuple(ended)


def interrupt(m: Machine) -> tuple[Effect, ...]:
    waits = isinstance(m.io, Watch) or (isinstance(m.io, Look) and m.io.wait_for is not None)
    return (Interrupt(),) if waits else ()
