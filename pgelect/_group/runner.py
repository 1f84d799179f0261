"""The single task of a group: owns its machine and its session. The rules are those of ``_engine/runner.py``."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from pgelect._engine.ending import ended_from_outside
from pgelect._engine.futures import settle
from pgelect._engine.hooks import Hook
from pgelect._engine.journal import Journal
from pgelect._group import events as ev
from pgelect._group.answers import Answers
from pgelect._group.machine import step
from pgelect._group.moves import interrupt
from pgelect._group.performer import Performer
from pgelect._group.state import GroupState, Machine, Rules, Snapshot
from pgelect._group.terms import Duty, Terms
from pgelect.errors import ConnectionError, SessionLostError  # noqa: A004 -- ours on purpose

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Coroutine

    from pgelect._engine.clock import Clock
    from pgelect._engine.model import Backend, LockKey, Term
    from pgelect._engine.settings import Settings
    from pgelect._group.session import GroupSession
    from pgelect.retry import RetryStrategy

log = logging.getLogger("pgelect")

CLOSE_WITHIN_S = 1.0
"""An orderly close may cancel a wait on the server; after this long the link is dropped instead."""


class Runner(Answers):
    """Runs one group from start to stop, any number of times."""

    def __init__(
        self,
        settings: Settings,
        rules: Rules,
        partitions: tuple[LockKey, ...],
        *,
        sessions: Callable[[], GroupSession],
        strategy: RetryStrategy,
        clock: Clock,
    ) -> None:
        self.settings = settings
        self.snapshot = Snapshot()
        self.stop_reason: Exception | None = None
        self.pid = os.getpid()
        self.killed = asyncio.Event()
        self.terms = Terms(strategy, clock, drained=self._drained, give_up=self._give_up, report=self._tell_error)
        self._clock = clock
        self._label = repr(settings.key.name)
        self._journal = Journal(self._label, clock)
        self._performer = Performer(settings, sessions, strategy, clock)
        self._machine = Machine(rules, partitions)
        self._wanted = partitions  # ahead of the machine's while that has yet to hear of a change
        self._inbox: deque[ev.Event] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._finished = True
        self._first: asyncio.Future[None] | None = None
        self._io: asyncio.Task[ev.Event] | None = None
        self._background: dict[asyncio.Task[Any], None] = {}
        self._changed: list[asyncio.Future[None]] = []
        self._close_within_s = CLOSE_WITHIN_S

    # -- what the group calls ------------------------------------------------------------------------------------------

    @property
    def failure(self) -> Exception | None:
        """Why the group stopped by itself, when that is for the caller to know."""
        return None if isinstance(self.stop_reason, SessionLostError) else self.stop_reason

    @property
    def running(self) -> bool:
        """Started, and not stopped since."""
        return not self._finished

    @property
    def is_ending(self) -> bool:
        """The task has not ended yet: there is a session to be closed."""
        return self._task is not None and not self._task.done()

    @property
    def in_callback(self) -> bool:
        """The running task is a callback, or one that a callback made."""
        return self.terms.inside()

    @property
    def is_called_by_work(self) -> bool:
        """The running task works for a term, or is a callback."""
        return self.terms.is_called_by_work()

    @property
    def duty_left(self) -> bool:
        """Work for a term has still not stopped."""
        return self.terms.busy

    async def duty_ended(self) -> None:
        """Wait until nobody works for a term any more."""
        await self.terms.ended()

    def claim(self) -> None:
        """Count as running from now on; ``start`` follows."""
        self._finished = False

    async def start(self) -> None:
        """After ``claim``: wait until this process is a member, or the first attempt failed."""
        loop = asyncio.get_running_loop()
        self._inbox.clear()
        self._performer.reset()
        self.stop_reason = None
        self.pid = os.getpid()
        self.killed = asyncio.Event()
        self._close_within_s = CLOSE_WITHIN_S
        if self._task is not None:  # of an earlier run: a callback may still hang, a session may still be closing
            self.terms.kill()
            await self.stopped(with_callbacks=True)
        self.repartition(self._wanted)  # what came when the last run was over already
        self._journal.started(self.settings.health_interval_s)
        self._first = loop.create_future()
        self.terms.start()
        self._task = loop.create_task(self._run(), name=f"pgelect-group {self._label}")
        await asyncio.wait({self._first})
        if self.failure is not None:
            await self.stopped(with_callbacks=True)
            raise self.failure

    async def step_down(self, keys: tuple[LockKey, ...] | None, drain_s: float, cooldown_s: float) -> bool:
        """Give partitions up (None: all, and leave for a while); False: there were none."""
        numbers = {
            key: held.number
            for key, held in self._machine.held.items()
            if held.number and (keys is None or key in keys)
        }
        if not numbers and (keys is not None or not self._machine.connected):
            return False
        self.post(ev.StepDown(keys, drain_s, cooldown_s))
        for key, number in numbers.items():
            while self.running and key in (held := self._machine.held) and held[key].number == number:
                await self.change()
        return bool(numbers)

    def repartition(self, keys: tuple[LockKey, ...]) -> None:
        """Campaign for these from now on."""
        self._wanted = keys
        if self.running:
            self.post(ev.Partitions(keys))
        else:
            self._machine, _ = step(self._machine, ev.Partitions(keys), self._clock.now())

    async def gone(self, keys: Collection[LockKey]) -> None:
        """After ``repartition``: wait until nothing of these partitions is held, but of those that are wanted again."""
        before = self._wanted
        while self.running and self._machine.partitions is not self._wanted:
            await self.change()
        for key in keys:
            while self.running and key in self._machine.held and (self._wanted is before or key not in self._wanted):
                await self.change()

    async def lead(self, work: Callable[[Term], Awaitable[object]]) -> None:
        """Run ``work(term)`` for each partition while it is led, until the group stops.

        Raises:
            PgElectError: the group stopped by itself, for this reason.
        """

        async def stopped() -> None:
            while self.running:
                await self.change()

        await Duty(self.terms, work).run(stopped)
        if self.failure is not None:
            raise self.failure

    def post_shutdown(self, drain_s: float, close_s: float = CLOSE_WITHIN_S) -> None:
        """Ask the group to stop, with these bounds on the drain and on closing the session."""
        self._close_within_s = close_s
        self.post(ev.Shutdown(drain_s))

    async def stopped(self, *, with_callbacks: bool) -> None:
        """Wait until the task has ended, and the callbacks have run (a callback must not wait for itself)."""
        if self._task is not None and self.is_ending:
            await asyncio.wait({self._task})
        if with_callbacks:
            await self.terms.close()

    def kill(self) -> None:
        """Drop the link and stop at once, awaiting nothing. The callbacks have a last moment to hear of it."""
        self.killed.set()
        self._apply(ev.Abort(None))
        self.terms.hurry()
        for task in (self._task, *self._background):
            if task is not None:
                task.cancel()

    def succeed(self, old: Runner) -> None:
        """Go on for a runner whose event loop is another one, or closed: its callbacks, and none of its trust."""
        old.snapshot = Snapshot()
        old._performer.abandon()
        self.terms.general.take_over(old.terms.general)

    @property
    def backend(self) -> Backend | None:
        """The present session, if this process is a member."""
        return self._machine.backend

    def clock_moved(self) -> None:
        """Look at the clock again: a test has moved it."""
        settle(self._wake)
        if interrupt(self._machine):
            self._interrupt()

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
        try:
            self._apply(ev.Start())
            while self._machine.state is not GroupState.STOPPED and self._is_ours:
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
            self.terms.finish()
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
                current = partial(self.is_trusted, effect.key, effect.number)
                self.terms.begin(effect.key, effect.number, effect.grant, self.settings, current)
            elif isinstance(effect, ev.Drain | ev.TermEnded):
                self.terms.forget(effect.key)
        if isinstance(event, ev.Looked | ev.Joined):
            self._journal.went_well()
        self._publish()
        self._finished = self._machine.state is GroupState.STOPPED
        for effect in effects:
            self._carry_out(effect)
        if isinstance(event, ev.Failed | ev.Joined | ev.Abort):
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
            terms=self.terms.present(),
            share=m.share,
            members=len(m.view.members),
        )

    def _carry_out(self, effect: ev.Effect) -> None:  # noqa: C901, PLR0912 -- one flat list of all effects
        match effect:
            case ev.Do(io, epoch):
                if isinstance(io, ev.Open):
                    self._performer.prepare(epoch)
                self._io = self._spawn(self._performer.perform(io, epoch, self._machine))
                self._io.add_done_callback(partial(self._io_done, io, epoch))
            case ev.Interrupt():
                self._interrupt()
            case ev.Close(epoch, orderly):
                if session := self._performer.take(epoch):
                    if orderly and not self._task_is_ending():
                        closing = self._spawn(session.close(self._close_within_s))
                        closing.add_done_callback(lambda _: session.abandon())
                    else:
                        session.abandon()
                        if self._io is not None:
                            self._io.cancel()
            case ev.Changed(before, after, reason):
                self._log_change(before, after, reason)
                self.terms.general.post(Hook.STATE_CHANGE, before, after)
            case ev.TermBegan(key, _, grant):
                log.info("%s: %s: leading (token %d)", self._label, key, grant.token)
                self.terms.tell_begun(key)
            case ev.Drain(key, number):
                self.terms.drain(key, number)
            case ev.Asked(key, by):
                log.info("%s: %s: %r has asked for a step-down", self._label, key, by)
            case ev.DrainTimedOut(key):
                log.warning(
                    "%s: the duty of %s did not stop in the time for its drain; the lock is freed while it still runs",
                    self._label,
                    key,
                )
            case ev.TermEnded(key, _, released, error):
                level = logging.INFO if released else logging.WARNING
                log.log(level, "%s: %s: %s", self._label, key, "released" if released else f"lost ({error})")
                self.terms.end(key, released=released)
            case ev.AttemptFailed(_, error):
                self._journal.attempt_failed(error)
                self.terms.general.post(Hook.ACQUIRE_FAILED, error)
                self.terms.general.post(Hook.ERROR, error)
            case ev.Report(error):
                self._report(error)
            case ev.Halt(error, exhausted):
                self.stop_reason = ConnectionError(self._performer.attempts, error) if exhausted else error
                self._journal.halted(self.stop_reason)

    def _interrupt(self) -> None:
        if isinstance(self._machine.io, ev.Watch) and self._io is not None:
            self._io.cancel()
        else:
            self._performer.hurry(self._machine.epoch)

    def _io_done(self, io: ev.Io, epoch: int, task: asyncio.Task[ev.Event]) -> None:
        if self._io is task:  # cancelled, it keeps its error, and with it the frames and their connection
            self._io = None
        if not task.cancelled():
            self.post(task.result())
        elif isinstance(io, ev.Watch):
            self.post(ev.WatchEnded(epoch))
        else:
            self.post(self._performer.cancelled(epoch))

    def _drained(self, key: LockKey, number: int) -> None:
        self.post(ev.Drained(key, number))

    def _give_up(self, key: LockKey, delay_s: float) -> None:
        self.post(ev.StepDown((key,), self.settings.drain_timeout_s, delay_s))

    def _report(self, error: Exception) -> None:
        self._journal.attempt_failed(error)
        self._tell_error(error)

    def _tell_error(self, error: Exception) -> None:
        self.terms.general.post(Hook.ERROR, error)

    def _log_change(self, before: GroupState, after: GroupState, reason: str) -> None:
        level = logging.INFO
        if before in {GroupState.MEMBER, GroupState.LEAVING} and after is GroupState.CONNECTING:
            level = logging.WARNING
        log.log(level, "%s: %s -> %s (%s)", self._label, before.value, after.value, reason)

    def _task_is_ending(self) -> bool:
        return self._task is None or self._task.cancelling() > 0

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._background[task] = None
        task.add_done_callback(self._background.pop)
        return task
