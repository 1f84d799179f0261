"""I/O: carries out one call on a session and turns its result, or its error, into an event."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pgelect._engine import events as ev
from pgelect._engine.backoff import FALLBACK_DELAY_S, STABLE_AFTER_S, Backoff, ShortTerms
from pgelect._engine.crowd import aside_s
from pgelect._engine.epochs import Epochs
from pgelect._engine.session import Session
from pgelect._engine.settings import QUEUE_COOLDOWN_S
from pgelect.errors import PgElectError, SessionLostError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pgelect._engine.clock import Clock
    from pgelect._engine.meter import Meter
    from pgelect._engine.model import LeaderRecord
    from pgelect._engine.session import LockAnswer, Proof
    from pgelect._engine.settings import Settings
    from pgelect._engine.state import Machine
    from pgelect.retry import RetryStrategy

log = logging.getLogger("pgelect")

OPEN_WITHIN_S = 30.0
"""For connecting, whatever the number of hosts; each of them has its own connect_timeout (5 s by default)."""
ANSWER_WITHIN_S = 5.0
"""At least this long for an answer to an attempt: there is no lease yet that could run out."""


_USABLE_AFTER: Mapping[ev.Io, Callable[[int, Exception], ev.Event]] = {
    ev.Io.PROVE: ev.ProofFailed,
    ev.Io.ANNOUNCE: ev.Announced,
    ev.Io.HEED: ev.Heeded,
}
"""What an error of the server means where the session is usable after it, and the term goes on."""


class Performer(Epochs[Session]):
    """Owns the sessions by epoch, and counts failures in a row."""

    def __init__(
        self,
        settings: Settings,
        sessions: Callable[[], Session],
        strategy: RetryStrategy,
        clock: Clock,
        *,
        meter: Meter,
        seen: Callable[[LeaderRecord | None], None],
    ) -> None:
        super().__init__(sessions)
        self._settings = settings
        self._strategy = strategy
        self._clock = clock
        self._meter = meter
        self._seen = seen
        self._failures = Backoff(strategy, clock)  # in a row
        self._refusals = Backoff(strategy, clock)  # in a row; for polling
        self._short_terms = ShortTerms(strategy, clock)
        self._opened_at = 0.0
        self._pledged_s = 0.0  # trust in the lease of the attempt that may be granted

    @property
    def attempts(self) -> int:
        """Failed or refused attempts in a row."""
        return self._failures.attempts + self._refusals.attempts

    def reset(self) -> None:
        """Forget the failures: a new start."""
        self._failures.reset()
        self._refusals.reset()
        self._short_terms.reset()

    def reconfigure(self, settings: Settings, strategy: RetryStrategy) -> None:
        """Go by these from the next call on; what the server was told before is told anew."""
        self._settings, self._strategy = settings, strategy
        for counter in (self._failures, self._refusals, self._short_terms):
            counter.use(strategy)
        for session in self._sessions.values():
            session.adjust(settings.lease_s)

    def cooldown_s(self) -> float:
        """Return how long to stay out after a step-down, so that others have had their turn."""
        if self._settings.acquire == "queue":
            return QUEUE_COOLDOWN_S
        delay_s = Backoff(self._strategy, self._clock).next_s(None)
        return 2 * (FALLBACK_DELAY_S if delay_s is None else delay_s)

    async def perform(self, io: ev.Io, epoch: int, machine: Machine) -> ev.Event:
        """Run one call; never raises but when cancelled."""
        sent_at = self._clock.now()
        try:
            return await self._call(io, epoch, machine, sent_at)
        except Exception as error:
            if io is ev.Io.PROVE:
                duration_s = self._clock.now() - sent_at
                self._meter.tell(lambda to: to.proof(duration_s, succeeded=False))
            if isinstance(error, PgElectError) and not isinstance(error, SessionLostError) and io in _USABLE_AFTER:
                return _USABLE_AFTER[io](epoch, error)
            if not isinstance(error, PgElectError):
                log.debug("unexpected error in %s", io.value, exc_info=True)
            return self._failed(io, epoch, error, leading=machine.grant is not None)

    def _failed(self, io: ev.Io, epoch: int, error: Exception, *, leading: bool = False) -> ev.Event:
        if leading and io is not ev.Io.RESUME and io is not ev.Io.OPEN:
            return ev.Failed(epoch, error, self._short_terms.lost_s(error))
        if io is ev.Io.WAIT and self._clock.now() - self._opened_at > STABLE_AFTER_S:
            return ev.Failed(epoch, error, 0.0)
        return ev.Failed(epoch, error, self._failures.next_s(error))

    async def _call(  # noqa: C901, PLR0911 -- one per kind of I/O
        self, io: ev.Io, epoch: int, machine: Machine, sent_at: float
    ) -> ev.Event:
        answer_s = max(ANSWER_WITHIN_S, self._settings.proof_timeout_s)
        proof_s = min(self._settings.proof_timeout_s, machine.trusted_until - sent_at)
        trust_s = self._settings.trust_s
        session = self._sessions.get(epoch)
        if session is None:
            raise SessionLostError("closed", f"the session was closed before the {io.value} began")
        match io:
            case ev.Io.OPEN:
                await session.open(OPEN_WITHIN_S)
                self._opened_at = self._clock.now()
                return ev.Opened(epoch)
            case ev.Io.TRY | ev.Io.WAIT | ev.Io.ASIDE:
                self._pledged_s = trust_s
                return self._answered(io, epoch, await _attempt(io, session, machine, answer_s))
            case ev.Io.MINT:
                grant = await session.mint(trust_s)
                self._failures.reset()
                self._seen(grant.record)
                self._short_terms.began()
                return ev.Minted(epoch, sent_at, grant, self._pledged_s)
            case ev.Io.RESUME:
                return await self._resume(session, epoch, machine, sent_at)
            case ev.Io.PROVE:
                self._check(await session.prove(proof_s), self._clock.now() - sent_at)
                return ev.Proved(epoch, sent_at, trust_s)
            case ev.Io.WATCH:
                return ev.WatchEnded(epoch, await session.watch(max(0.0, machine.proof_at - sent_at)))
            case ev.Io.ANNOUNCE:
                ago_s = sent_at - machine.lost.at if machine.lost is not None else 0.0
                within_s = proof_s if machine.grant is not None else answer_s
                await session.announce(machine.grant, machine.lost, ago_s, within_s)
                return ev.Announced(epoch)
            case ev.Io.HEED:
                by = await session.heed(machine.grant.token if machine.grant is not None else 0, proof_s)
                if by is None:
                    return ev.Heeded(epoch)
                return ev.StepDownRequested(epoch, by, self._settings.drain_timeout_s, self.cooldown_s())
            case _:
                return await self._unlock(session, epoch, machine)

    def _check(self, proof: Proof, duration_s: float) -> None:
        if not proof.held:
            raise SessionLostError("disproved", "the server says that this session does not hold the lock")
        self._meter.tell(lambda to: to.proof(duration_s, succeeded=True))
        self._meter.tell(lambda to: to.followers(proof.followers))

    def _answered(self, io: ev.Io, epoch: int, answer: LockAnswer) -> ev.Event:
        self._seen(answer.record)
        if answer.granted:  # the token is yet to be minted, and may fail to be again and again
            self._refusals.reset()
            return ev.LockGranted(epoch, answer.backend)
        queues = self._settings.acquire == "queue"
        if io is not ev.Io.TRY or not queues:  # all that this attempt was to do has been done
            self._failures.reset()
        if not queues:
            return ev.LockRefused(epoch, self._refusals.next_s(None))
        if not answer.is_full:
            return ev.LockRefused(epoch, 0.0)
        # Who leaves the queue looks at once: only that tells how many stand aside, and counts it among them.
        return ev.LockRefused(epoch, 0.0, 0.0 if io is ev.Io.WAIT else aside_s(answer.aside))

    async def _resume(self, session: Session, epoch: int, machine: Machine, sent_at: float) -> ev.Event:
        if machine.grant is None:
            raise PgElectError("there is no term to resume")
        trust_s = self._settings.trust_s
        answer = await session.resume(machine.grant, trust_s)
        if answer.resumed:
            self._failures.reset()
            self._short_terms.began()
            return ev.Resumed(epoch, sent_at, answer.backend or machine.grant.backend, trust_s)
        error = SessionLostError("disproved", f"the term could not go on after the session was lost: {answer.why}")
        return ev.ResumeRefused(epoch, answer.final, error)

    async def _unlock(self, session: Session, epoch: int, machine: Machine) -> ev.Event:
        token = machine.grant.token if machine.grant is not None else 0
        was_held = await session.unlock(token, self._settings.proof_timeout_s)
        if was_held:
            self._short_terms.reset()
        return ev.Unlocked(epoch, was_held)


async def _attempt(io: ev.Io, session: Session, machine: Machine, answer_s: float) -> LockAnswer:
    if io is ev.Io.TRY:
        return await session.try_lock(machine.ghost, answer_s)
    return await (session.wait_lock(answer_s) if io is ev.Io.WAIT else session.look(machine.aside_s, answer_s))
