"""The runner of a lock: publishes the snapshot, starts the effects of the machine, and tells of the term.

What it shares with that of a group, and the rules, are in ``driver.py``. The new snapshot is published before any
callback is told.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pgelect._engine import events as ev
from pgelect._engine.answers import Answers
from pgelect._engine.causes import cause_of
from pgelect._engine.driver import CLOSE_WITHIN_S, Driver
from pgelect._engine.futures import settle
from pgelect._engine.hooks import Hook
from pgelect._engine.lag import measure_lag
from pgelect._engine.machine import step
from pgelect._engine.meter import Meter
from pgelect._engine.model import LockState
from pgelect._engine.performer import Performer
from pgelect._engine.state import Machine, Snapshot
from pgelect._engine.tenure import Tenure

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from pgelect._engine.clock import Clock
    from pgelect._engine.dispatch import Dispatcher
    from pgelect._engine.model import Backend, LeaderRecord
    from pgelect._engine.session import Session
    from pgelect._engine.settings import Settings
    from pgelect._engine.term import TermLife
    from pgelect.retry import RetryStrategy


class Runner(Answers, Driver):
    """Runs one lock from start to stop, any number of times."""

    STOPPED = LockState.STOPPED
    KIND = "runner"
    _machine: Machine
    _performer: Performer

    def __init__(
        self,
        settings: Settings,
        sessions: Callable[[], Session],
        strategy: RetryStrategy,
        clock: Clock,
        meter: Meter | None = None,
    ) -> None:
        super().__init__(settings.key, clock)
        self.settings = settings
        self.snapshot = Snapshot()
        self.record: LeaderRecord | None = None
        self._meter = meter if meter is not None else Meter()
        self._performer = Performer(settings, sessions, strategy, clock, meter=self._meter, seen=self._seen)
        self._tenure = Tenure(
            strategy, clock, self._meter, post=self.post, step_down=self._step_down_spurned, spawn=self._spawn
        )
        self._machine = Machine(settings.rules)

    # -- what the lock calls -------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """After ``claim``: wait until the first attempt was answered, failed, or was a permanent mistake."""
        self._tenure.reset()
        await super().start()

    async def step_down(self, drain_s: float, cooldown_s: float | None) -> bool:
        """Give up leadership; return when that is done. False: there was none."""
        if self.snapshot.state not in {LockState.LEADER, LockState.RECONNECTING, LockState.RELEASING}:
            return False
        self._tenure.excuse_caller()
        number = self._machine.number
        cooldown_s = self._performer.cooldown_s() if cooldown_s is None else cooldown_s
        self.post(ev.StepDown(drain_s, cooldown_s))
        while self.running and self._machine.number == number and self._machine.grant is not None:
            await self.change()
        return True

    def post_shutdown(self, drain_s: float, close_s: float = CLOSE_WITHIN_S) -> None:
        """Ask the lock to stop, with these bounds on the drain and on closing the session; ``stopped`` waits for it."""
        self._tenure.excuse_caller()
        super().post_shutdown(drain_s, close_s)

    @property
    def duty_left(self) -> bool:
        """Work for the last term has still not stopped."""
        return self.life is not None and self.life.busy

    async def duty_ended(self) -> None:
        """Wait until nobody works for the last term any more."""
        if self.life is not None:
            await self.life.drained()

    @property
    def in_callback(self) -> bool:
        """The running task is a callback, or one that a callback made."""
        return self.dispatcher.inside()

    @property
    def is_called_by_work(self) -> bool:
        """The running task works for the term, or is a callback: what ends the term will cancel it, and wait for it."""
        return self.in_callback or (self.life is not None and self.life.is_worked_for_here)

    @property
    def life(self) -> TermLife | None:
        """The life of the present term, or of the last one."""
        return self._tenure.life

    @property
    def dispatcher(self) -> Dispatcher:
        """What runs the callbacks."""
        return self._tenure.dispatcher

    @property
    def callbacks(self) -> Dispatcher:
        """The same."""
        return self.dispatcher

    def reconfigure(self, settings: Settings, strategy: RetryStrategy) -> None:
        """Go by these from now on; a leader tells the server of a new lease at once."""
        self.settings = settings
        self._performer.reconfigure(settings, strategy)
        self._tenure.use(strategy)
        if self.running:
            self.post(ev.Reconfigure(settings.rules))
        else:
            self._machine, _ = step(self._machine, ev.Reconfigure(settings.rules), self._clock.now())

    def forsake(self) -> None:
        """End the trust, then drop the links; for a runner whose event loop is closed: nothing else can be done."""
        self.snapshot = Snapshot()
        self._performer.abandon()

    def succeed(self, old: Runner) -> None:
        """Go on for a runner that is forsaken: what was seen, the callbacks, and the untold end of its term."""
        if old.snapshot.term is not None:
            old.dispatcher.post(Hook.LOST, old.snapshot.term, life=old.life)
        old.forsake()
        self.record = old.record
        self.dispatcher.take_over(old.dispatcher)

    @property
    def backend(self) -> Backend | None:
        """The session of the present term, if there is one."""
        grant = self._machine.grant
        return grant.backend if grant is not None else None

    def clock_moved(self) -> None:
        """Look at the clock again: a test has moved it."""
        settle(self._wake)
        if self._machine.io is ev.Io.WATCH and self._io is not None:
            self._io.cancel()

    # -- the task ------------------------------------------------------------------------------------------------------

    def _beside(self) -> list[asyncio.Task[Any]]:
        return [self._spawn(measure_lag(self._clock, self._meter))] if self._meter.bound else []

    def _apply(self, event: ev.Event) -> None:
        if not self._is_ours:
            return
        self._machine, effects = step(self._machine, event, self._clock.now())
        for effect in effects:
            if isinstance(effect, ev.TermBegan):
                self._tenure.begin(effect.grant, self.settings, partial(self.is_trusted, self._machine.number))
        if isinstance(event, ev.LockGranted):
            self._tenure.granted()
        if isinstance(event, ev.LockRefused | ev.Minted | ev.Proved | ev.Resumed):
            self._journal.went_well()
        self._publish()
        self._finished = self._machine.state is LockState.STOPPED
        for effect in effects:
            self._carry_out(effect)
        self._applied(answered=isinstance(event, ev.Failed | ev.LockRefused | ev.LockGranted | ev.Abort))

    def _publish(self) -> None:
        m = self._machine
        self.snapshot = Snapshot(
            state=m.state,
            trusted_until=m.trusted_until,
            proved_at=m.proved_at,
            number=m.number,
            term=self._tenure.term if m.grant is not None and m.state is not LockState.ACQUIRING else None,
        )

    # -- effects -------------------------------------------------------------------------------------------------------

    def _carry_out(self, effect: ev.Effect) -> None:  # noqa: C901, PLR0912 -- one flat list of all effects
        match effect:
            case ev.Do(io, epoch):
                if io is ev.Io.OPEN:
                    self._performer.prepare(epoch)
                self._perform(io, epoch, ev.WatchEnded if io is ev.Io.WATCH else self._performer.cancelled)
            case ev.Interrupt():
                if self._io is not None:
                    self._io.cancel()
            case ev.Close(epoch, orderly):
                self._close(epoch, orderly=orderly)
            case ev.Changed(before, after, reason, cause):
                self._journal.changed(before, after, reason)
                if after is LockState.RELEASING:
                    self._tenure.given_up(cause)
                if before is LockState.RECONNECTING and after is LockState.LEADER:
                    self._meter.tell(lambda to: to.reconnected())
                self._meter.tell(lambda to: to.transition(before, after, cause))
                self.dispatcher.post(Hook.STATE_CHANGE, before, after)
            case ev.TermBegan(grant):
                self._tenure.tell_begun(grant)
            case ev.Drain(number):
                self._tenure.drain(number)
            case ev.DrainTimedOut():
                self._journal.drain_timed_out()
            case ev.TermEnded(_, released, error):
                self._tenure.end(error, released=released)
            case ev.AttemptFailed(error):
                self._meter.tell(lambda to: to.attempt_failed("held" if error is None else cause_of(error)))
                self._journal.attempt_failed(error)
                self.dispatcher.post(Hook.ACQUIRE_FAILED, error)
                if error is not None:
                    self.dispatcher.post(Hook.ERROR, error)
            case ev.Report(error):
                self._journal.attempt_failed(error)
                self.dispatcher.post(Hook.ERROR, error)
            case ev.Halt(error, exhausted):
                self._halt(error, exhausted=exhausted)

    def _step_down_spurned(self, delay_s: float | None) -> None:
        cooldown_s = self._performer.cooldown_s() if delay_s is None else delay_s
        self.post(ev.StepDown(self.settings.drain_timeout_s, cooldown_s))

    # -- small parts ---------------------------------------------------------------------------------------------------

    def _seen(self, record: LeaderRecord | None) -> None:
        if record is not None:
            self.record = record
