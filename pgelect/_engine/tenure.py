"""The present term inside the process: what it consists of, its drain, and its end, told to callbacks and metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pgelect._engine import events as ev
from pgelect._engine.backoff import Backoff
from pgelect._engine.causes import cause_of
from pgelect._engine.dispatch import Dispatcher
from pgelect._engine.hooks import Hook
from pgelect._engine.term import TermLife

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine

    from pgelect._engine.clock import Clock
    from pgelect._engine.meter import Meter
    from pgelect._engine.model import Grant, Term
    from pgelect._engine.settings import Settings
    from pgelect.retry import RetryStrategy


class Tenure:
    """Keeps the term of one runner: made when it begins, and kept when it is over until the next one."""

    def __init__(
        self,
        strategy: RetryStrategy,
        clock: Clock,
        meter: Meter,
        *,
        post: Callable[[ev.Event], None],
        step_down: Callable[[float | None], None],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        """``step_down``: ends the term because nobody does its work, and stays out for that long, None: as usual."""
        self.dispatcher = Dispatcher(self._acquired_failed, meter)
        self.term: Term | None = None  # the present one, or the last
        self.life: TermLife | None = None
        self.draining: asyncio.Task[None] | None = None
        self._clock = clock
        self._meter = meter
        self._post = post
        self._step_down = step_down
        self._spawn = spawn
        self._spurned = Backoff(strategy, clock)  # on_acquired failed, in a row
        self._has_ended = True
        self._spurning = False  # the present term ends because on_acquired raised
        self._ending_inside = False  # whoever asks for its end is a callback
        self._given_up_because = ""
        self._granted_at = 0.0
        self._began_at = 0.0

    def reset(self) -> None:
        """Forget the failures: a new start."""
        self._spurned.reset()

    def use(self, strategy: RetryStrategy) -> None:
        """Ask that strategy from now on."""
        self._spurned.use(strategy)

    def given_up(self, cause: str) -> None:
        """Note why the term is being given up."""
        self._given_up_because = cause

    def granted(self) -> None:
        """Note that the lock has been granted."""
        self._granted_at = self._clock.now()

    def begin(self, grant: Grant, settings: Settings, is_current: Callable[[], bool]) -> None:
        """Make the term of that grant."""
        self.life = TermLife()
        self.term = self.life.term(grant, settings, is_current)
        self._has_ended = self._ending_inside = False
        self._given_up_because = "abort"  # unless it is given up for another reason
        self._began_at = self._clock.now()

    def tell_begun(self, grant: Grant) -> None:
        """Tell callbacks and metrics that it has begun."""
        self.dispatcher.post(Hook.ACQUIRED, self.term, life=self.life)
        term, prior = self.term, grant.prior
        if term is None:
            return
        takeover_s: float | None = None
        after_release = grant.predecessor_clean and prior is not None
        if prior is not None and prior.released_at is not None and after_release:
            takeover_s = max(0.0, (grant.acquired_at - prior.released_at).total_seconds())
        elif prior is not None or not grant.predecessor_clean:
            takeover_s = self._clock.now() - self._granted_at
        self._meter.tell(lambda to: to.term_began(term, takeover_s, after_release=after_release))

    def excuse_caller(self) -> None:
        """Do not have the drain wait for whoever asks for it: a callback, or the body of a terms() loop."""
        self._ending_inside = self.dispatcher.inside()
        if self.life is not None:
            self.life.excuse_caller()

    def drain(self, number: int) -> None:
        """Ask the work for the term of that number to stop; post ``Drained`` when it has."""
        life = self.life
        if life is None:
            return
        life.end()
        wait_for_callbacks = not self._ending_inside and not self.dispatcher.idle
        if wait_for_callbacks or life.busy:
            self.draining = self._spawn(self._drained(number, life, wait_for_callbacks=wait_for_callbacks))
        else:
            self._post(ev.Drained(number))

    async def _drained(self, number: int, life: TermLife, *, wait_for_callbacks: bool) -> None:
        if wait_for_callbacks:  # on_state_change may be where the user stops the work
            await self.dispatcher.flush()
        await life.drained()
        self._post(ev.Drained(number))

    def end(self, error: Exception | None, *, released: bool) -> None:
        """End the term, and tell of it."""
        life, term, self._has_ended = self.life, self.term, True
        if self.draining is not None:
            self.draining.cancel()
        if life is not None and term is not None:
            life.end()
            self.dispatcher.post(Hook.RELEASED if released else Hook.LOST, term, life=life)
            length_s = self._clock.now() - self._began_at
            cause = self._given_up_because if error is None else cause_of(error)
            self._meter.tell(lambda to: to.term_ended(term, length_s, released=released, cause=cause))
        if not self._spurning:
            self._spurned.reset()
        self._spurning = False

    def _acquired_failed(self, life: TermLife, error: BaseException) -> None:
        """Step down after an on_acquired that raised: nobody does the work, so somebody else should lead."""
        if life is not self.life or self._has_ended:
            return
        delay_s = self._spurned.next_s(error if isinstance(error, Exception) else None)
        self._ending_inside = self._spurning = True
        self._step_down(delay_s)
