"""I/O of a group: carries out one call on a session and turns its result, or its error, into an event."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pgelect._engine.backoff import FALLBACK_DELAY_S, Backoff, ShortTerms
from pgelect._engine.epochs import Epochs
from pgelect._engine.performer import ANSWER_WITHIN_S, OPEN_WITHIN_S
from pgelect._group import events as ev
from pgelect._group.session import GroupSession
from pgelect.errors import PgElectError, SessionLostError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgelect._engine.clock import Clock
    from pgelect._engine.settings import Settings
    from pgelect._group.state import Machine
    from pgelect.retry import RetryStrategy

log = logging.getLogger("pgelect")


class Performer(Epochs[GroupSession]):
    """Owns the sessions by epoch, and counts failures in a row."""

    def __init__(
        self, settings: Settings, sessions: Callable[[], GroupSession], strategy: RetryStrategy, clock: Clock
    ) -> None:
        super().__init__(sessions)
        self._settings = settings
        self._clock = clock
        self._strategy = strategy
        self._failures = Backoff(strategy, clock)  # to become a member, in a row
        self._short = ShortTerms(strategy, clock)
        self._refusals = Backoff(strategy, clock)  # of partitions, in a row

    @property
    def attempts(self) -> int:
        """Failed attempts in a row."""
        return self._failures.attempts

    def reset(self) -> None:
        """Forget the failures: a new start."""
        for counter in (self._failures, self._short, self._refusals):
            counter.reset()

    def hurry(self, epoch: int) -> None:
        """Have the wait of that session end soon."""
        if (session := self._sessions.get(epoch)) is not None:
            session.hurry()

    async def perform(self, io: ev.Io, epoch: int, machine: Machine) -> ev.Event:
        """Run one call; never raises but when cancelled."""
        sent_at = self._clock.now()
        try:
            return await self._call(io, epoch, machine, sent_at)
        except Exception as error:
            if not isinstance(error, PgElectError):
                log.debug("unexpected error in %s", type(io).__name__, exc_info=True)
            elif not isinstance(error, SessionLostError):
                if isinstance(io, ev.Look):
                    return ev.Refused(epoch, error)
                if isinstance(io, ev.Tell):
                    return ev.Told(epoch, error)
                if isinstance(io, ev.Heed):
                    return ev.Heeded(epoch, error=error)
                if isinstance(io, ev.Mint):
                    return ev.Taken(epoch, (), failed=((io.key, error),), retry_in_s=self._retry_s(error))
            return self._failed(io, epoch, error)

    def _failed(self, io: ev.Io, epoch: int, error: Exception) -> ev.Event:
        if isinstance(io, ev.Open | ev.Join):
            return ev.Failed(epoch, error, self._failures.next_s(error))
        return ev.Failed(epoch, error, self._short.lost_s(error))

    def _retry_s(self, error: Exception) -> float:
        delay_s = self._refusals.next_s(error)
        return FALLBACK_DELAY_S if delay_s is None else delay_s

    async def _call(  # noqa: C901, PLR0911 -- one per kind of I/O
        self, io: ev.Io, epoch: int, machine: Machine, sent_at: float
    ) -> ev.Event:
        answer_s = max(ANSWER_WITHIN_S, self._settings.proof_timeout_s)
        left_s = machine.trusted_until - sent_at
        proof_s = min(self._settings.proof_timeout_s, left_s)
        work_s = max(proof_s, left_s - min(self._settings.proof_timeout_s, self._settings.trust_s / 3))
        session = self._sessions.get(epoch)  # what is not a proof must leave time for the next one
        if session is None:
            raise SessionLostError("closed", "the session was closed before that began")
        match io:
            case ev.Open():
                await session.open(OPEN_WITHIN_S)
                return ev.Opened(epoch)
            case ev.Join(ghost):
                backend = await session.join(ghost, answer_s)
                self._failures.reset()
                self._short.began()
                return ev.Joined(epoch, sent_at, session.me, backend)
            case ev.Look(known, wait_for, wait_s):
                seen = await session.look(known, wait_for, wait_s, proof_s)
                trust_s = self._settings.trust_s
                return ev.Looked(epoch, sent_at, seen.print, seen.view, seen.orphaned, trust_s, seen.called)
            case ev.Take(keys):
                caught = await session.take(keys, work_s)
                retry_s = self._retry_s(caught.failed[0][1]) if caught.failed else 0.0
                if caught.grants and not caught.failed:
                    self._refusals.reset()
                return ev.Taken(epoch, caught.grants, caught.held_up, caught.failed, retry_s)
            case ev.Mint(key):
                grant = await session.mint(key, work_s)
                return ev.Taken(epoch, ((key, grant),))
            case ev.Tell(grants):
                await session.tell(grants, proof_s)
                return ev.Told(epoch)
            case ev.Heed(tokens):
                return ev.Heeded(epoch, await session.heed(tokens, proof_s) if tokens else ())
            case ev.Free(tokens):
                await session.free(tokens, work_s)
                return ev.Freed(epoch, tuple(key for key, _ in tokens))
            case ev.Watch(for_s):
                await session.watch(for_s)
                return ev.WatchEnded(epoch)
            case _:
                raise PgElectError(f"no such call: {io}")
