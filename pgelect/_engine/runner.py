"""The single task that owns the machine and the session: wait for an event, step, publish, start the effects.

Deciding is the machine's; this file only carries out. Its rules:

- Nobody else touches the machine or a session. ``step_down`` and ``shutdown`` post an event and await its completion.
- One I/O at a time runs as a task of its own; its result comes back as an event. Nothing is awaited in the loop but
  the next event, so no server can hold up a deadline.
- The new snapshot is published before any callback is told.
- However the task ends, by cancel and by bug too, the link is dropped and the state is STOPPED.
- In a fork's child, which may leave through the loop of its parent, it does nothing and tells nobody.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from pgelect._engine import events as ev
from pgelect._engine.answers import Answers
from pgelect._engine.causes import cause_of
from pgelect._engine.ending import ended_from_outside
from pgelect._engine.futures import settle
from pgelect._engine.hooks import Hook
from pgelect._engine.journal import Journal
from pgelect._engine.lag import measure_lag
from pgelect._engine.machine import step
from pgelect._engine.meter import Meter
from pgelect._engine.model import LockState
from pgelect._engine.performer import Performer
from pgelect._engine.state import Machine, Snapshot
from pgelect._engine.tenure import Tenure
from pgelect.errors import ConnectionError, SessionLostError  # noqa: A004 -- ours on purpose

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from pgelect._engine.clock import Clock
    from pgelect._engine.dispatch import Dispatcher
    from pgelect._engine.model import Backend, LeaderRecord
    from pgelect._engine.session import Session
    from pgelect._engine.settings import Settings
    from pgelect._engine.term import TermLife
    from pgelect.retry import RetryStrategy

CLOSE_WITHIN_S = 1.0
"""An orderly close may cancel a wait on the server; after this long the link is dropped instead."""


class Runner(Answers):
    """Runs one lock from start to stop, any number of times."""

    def __init__(
        self,
        settings: Settings,
        sessions: Callable[[], Session],
        strategy: RetryStrategy,
        clock: Clock,
        meter: Meter | None = None,
    ) -> None:
        self.settings = settings
        self.snapshot = Snapshot()
        self.record: LeaderRecord | None = None
        self.stop_reason: Exception | None = None
        self.pid = os.getpid()
        self.killed = asyncio.Event()  # whoever waits for work to end is to wait no longer
        self._clock = clock
        self._meter = meter if meter is not None else Meter()
        self._journal = Journal(settings.key, clock)
        self._performer = Performer(settings, sessions, strategy, clock, meter=self._meter, seen=self._seen)
        self._tenure = Tenure(
            strategy, clock, self._meter, post=self.post, step_down=self._step_down_spurned, spawn=self._spawn
        )
        self._machine = Machine(settings.rules)
        self._inbox: deque[ev.Event] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._finished = True
        self._first: asyncio.Future[None] | None = None
        self._io: asyncio.Task[ev.Event] | None = None
        self._background: dict[asyncio.Task[Any], None] = {}  # in order
        self._changed: list[asyncio.Future[None]] = []
        self._close_within_s = CLOSE_WITHIN_S

    # -- what the lock calls -------------------------------------------------------------------------------------------

    @property
    def failure(self) -> Exception | None:
        """Why the lock stopped by itself, when that is for the caller to know: retries exhausted, a mistake, a bug."""
        return None if isinstance(self.stop_reason, SessionLostError) else self.stop_reason

    @property
    def running(self) -> bool:
        """Started, and not stopped since."""
        return not self._finished

    def claim(self) -> None:
        """Count as running from now on; ``start`` follows."""
        self._finished = False

    async def start(self) -> None:
        """After ``claim``: wait until the first attempt was answered, failed, or was a permanent mistake."""
        loop = asyncio.get_running_loop()
        self._inbox.clear()
        self._performer.reset()
        self._tenure.reset()
        self.stop_reason = None
        self.pid = os.getpid()
        self.killed = asyncio.Event()
        self._close_within_s = CLOSE_WITHIN_S
        if self._task is not None:  # of an earlier run: a callback may still hang, a session may still be closing
            self.dispatcher.kill()
            await self.stopped(with_callbacks=True)
        self._journal.started(self.settings.health_interval_s)
        self._first = loop.create_future()
        self.dispatcher.start()
        self._task = loop.create_task(self._run(), name=f"pgelect-runner {self.settings.key}")
        await asyncio.wait({self._first})
        if self.failure is not None:
            await self.stopped(with_callbacks=True)
            raise self.failure

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
        self._close_within_s = close_s
        self._tenure.excuse_caller()
        self.post(ev.Shutdown(drain_s))

    async def stopped(self, *, with_callbacks: bool) -> None:
        """Wait until the task has ended, and the callbacks have run (a callback must not wait for itself)."""
        if self._task is not None and self.is_ending:
            await asyncio.wait({self._task})
        if with_callbacks:
            await self.dispatcher.close()

    @property
    def is_ending(self) -> bool:
        """The task has not ended yet: there is a session to be closed."""
        return self._task is not None and not self._task.done()

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

    def reconfigure(self, settings: Settings, strategy: RetryStrategy) -> None:
        """Go by these from now on; a leader tells the server of a new lease at once."""
        self.settings = settings
        self._performer.reconfigure(settings, strategy)
        self._tenure.use(strategy)
        if self.running:
            self.post(ev.Reconfigure(settings.rules))
        else:
            self._machine, _ = step(self._machine, ev.Reconfigure(settings.rules), self._clock.now())

    def kill(self) -> None:
        """Drop the link and stop at once, awaiting nothing. The callbacks have a last moment to hear of it."""
        self.killed.set()
        self._apply(ev.Abort(None))
        self.dispatcher.hurry()
        for task in (self._task, self._tenure.draining, *self._background):
            if task is not None:
                task.cancel()

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

    def post(self, event: ev.Event) -> None:
        """Hand an event to the task."""
        self._inbox.append(event)
        settle(self._wake)

    async def change(self) -> None:
        """Wait until the next snapshot is published."""
        waiter = asyncio.get_running_loop().create_future()
        self._changed.append(waiter)
        await waiter

    # -- the task ------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        lag = self._spawn(measure_lag(self._clock, self._meter)) if self._meter.bound else None
        try:
            self._apply(ev.Start())
            while self._machine.state is not LockState.STOPPED and self._is_ours:
                self._apply(await self._next())
        except Exception as error:  # noqa: BLE001 -- a bug: say so, and leave nothing behind
            self._journal.bug(error)
            self._apply(ev.Abort(error))
        except GeneratorExit:  # the loop was closed long ago
            raise
        except BaseException as error:  # a stranger: kill() stops the machine before it cancels us
            self._apply(ev.Abort(ended_from_outside(error)))
            raise
        finally:
            settle(self._first)
            if lag is not None:
                lag.cancel()
            self.dispatcher.finish()
            if self._background and not loop.is_closed():
                await asyncio.wait(self._background, timeout=CLOSE_WITHIN_S + 1.0)

    async def _next(self) -> ev.Event:
        while not self._inbox:
            left_s = self._machine.deadline - self._clock.now()
            if left_s <= 0:
                return ev.Tick()
            loop = asyncio.get_running_loop()
            self._wake = wake = loop.create_future()
            timer = loop.call_later(left_s, settle, wake) if left_s < inf else None
            try:
                await wake
            finally:
                if timer is not None:
                    timer.cancel()
        return self._inbox.popleft()

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
        if isinstance(event, ev.Failed | ev.LockRefused | ev.LockGranted | ev.Abort):
            settle(self._first)
        changed, self._changed = self._changed, []
        for waiter in changed:
            settle(waiter)

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
                self._io = self._spawn(self._performer.perform(io, epoch, self._machine))
                self._io.add_done_callback(partial(self._io_done, io, epoch))
            case ev.Interrupt():
                if self._io is not None:
                    self._io.cancel()
            case ev.Close(epoch, orderly):
                if session := self._performer.take(epoch):
                    if orderly and not self._task_is_ending():
                        closing = self._spawn(session.close(self._close_within_s))
                        closing.add_done_callback(lambda _: session.abandon())  # it may be cancelled before it began
                    else:
                        session.abandon()
                        if self._io is not None:  # of this session, which is the present one; it may use a second
                            self._io.cancel()
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
                self.stop_reason = ConnectionError(self._performer.attempts, error) if exhausted else error
                self._journal.halted(self.stop_reason)

    def _io_done(self, io: ev.Io, epoch: int, task: asyncio.Task[ev.Event]) -> None:
        if self._io is task:  # cancelled, it keeps its error, and with it the frames and their connection
            self._io = None
        if not task.cancelled():
            self.post(task.result())
        elif io is ev.Io.WATCH:
            self.post(ev.WatchEnded(epoch))
        else:
            self.post(self._performer.cancelled(epoch))

    def _step_down_spurned(self, delay_s: float | None) -> None:
        cooldown_s = self._performer.cooldown_s() if delay_s is None else delay_s
        self.post(ev.StepDown(self.settings.drain_timeout_s, cooldown_s))

    # -- small parts ---------------------------------------------------------------------------------------------------

    def _seen(self, record: LeaderRecord | None) -> None:
        if record is not None:
            self.record = record

    def _task_is_ending(self) -> bool:
        return self._task is None or self._task.cancelling() > 0

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._background[task] = None
        task.add_done_callback(self._background.pop)
        return task
