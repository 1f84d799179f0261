"""The single task that owns a machine and its session, of a lock or of a group: what is the same for both.

Deciding is the machine's; this only carries out. Its rules:

- Nobody else touches the machine or a session. ``step_down`` and ``shutdown`` post an event and await its completion.
- One I/O at a time runs as a task of its own; its result comes back as an event. Nothing is awaited in the loop but
  the next event, so no server can hold up a deadline.
- However the task ends, by cancel and by bug too, the link is dropped and the machine is stopped.
- In a fork's child, which may leave through the loop of its parent, it does nothing and tells nobody.
"""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections import deque
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from pgelect._engine import events as ev
from pgelect._engine.answers import Vitals
from pgelect._engine.ending import Ending, ended_from_outside
from pgelect._engine.futures import settle
from pgelect._engine.journal import Journal
from pgelect.errors import ConnectionError, SessionLostError  # noqa: A004 -- ours on purpose

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from enum import StrEnum

    from pgelect._engine.clock import Clock
    from pgelect._engine.model import LockKey
    from pgelect._engine.settings import Settings

CLOSE_WITHIN_S = 1.0
"""An orderly close may cancel a wait on the server; after this long the link is dropped instead."""


class Callbacks(Protocol):
    """What runs the callbacks: of a lock one dispatcher, of a group one for each partition."""

    def start(self) -> None:
        """Begin to run callbacks."""

    def finish(self) -> None:
        """End once everything was told."""

    async def close(self) -> None:
        """Run what is left, then end."""

    def hurry(self) -> None:
        """Cancel the callbacks that run, tell of the ends that are untold, and end within a moment."""

    def kill(self) -> None:
        """Cancel the callbacks that run and forget the rest."""


class Performing(Protocol):
    """What performs the I/O on sessions."""

    @property
    def attempts(self) -> int:
        """Failed attempts in a row."""

    def reset(self) -> None:
        """Forget the failures: a new start."""

    def take(self, epoch: int) -> Any:
        """Hand over the session of that epoch, to be closed."""

    def cancelled(self, epoch: int) -> ev.Event:
        """Return the event for I/O that a stranger cancelled."""

    def perform(self, io: Any, epoch: int, machine: Any) -> Coroutine[Any, Any, ev.Event]:
        """Run one call."""


class Driver(Vitals, Ending, ABC):
    """Drives one machine from start to stop, any number of times."""

    STOPPED: ClassVar[StrEnum]
    KIND: ClassVar[str]
    """Names the task."""

    settings: Settings
    _performer: Performing

    def __init__(self, label: LockKey | str, clock: Clock) -> None:
        self.stop_reason: Exception | None = None
        self.pid = os.getpid()
        self.killed = asyncio.Event()  # whoever waits for work to end is to wait no longer
        self._label = label
        self._clock = clock
        self._journal = Journal(label, clock)
        self._inbox: deque[ev.Event] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._finished = True
        self._first: asyncio.Future[None] | None = None
        self._io: asyncio.Task[ev.Event] | None = None
        self._background: dict[asyncio.Task[Any], None] = {}  # in order
        self._changed: list[asyncio.Future[None]] = []
        self._close_within_s = CLOSE_WITHIN_S

    # -- what differs --------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def callbacks(self) -> Callbacks:
        """What runs the callbacks."""

    @abstractmethod
    def _apply(self, event: ev.Event) -> None:
        """Step, publish the new snapshot, and only then carry out the effects; ``_applied`` follows."""

    @abstractmethod
    def succeed(self, old: Self) -> None:
        """Go on for one of another event loop, or of a closed one: its callbacks, what is untold, none of its trust."""

    def _renewed(self) -> None:
        """Do what a new start needs once nothing is left of the last one."""

    def _beside(self) -> list[asyncio.Task[Any]]:
        """Start what is to run for as long as the task does."""
        return []

    # -- starting and stopping -----------------------------------------------------------------------------------------

    @property
    def failure(self) -> Exception | None:
        """Why it stopped by itself, when that is for the caller to know: retries exhausted, a mistake, a bug."""
        return None if isinstance(self.stop_reason, SessionLostError) else self.stop_reason

    @property
    def running(self) -> bool:
        """Started, and not stopped since."""
        return not self._finished

    @property
    def is_ending(self) -> bool:
        """The task has not ended yet: there is a session to be closed."""
        return self._task is not None and not self._task.done()

    def claim(self) -> None:
        """Count as running from now on; ``start`` follows."""
        self._finished = False

    async def start(self) -> None:
        """After ``claim``: wait until the first attempt was answered, failed, or was a permanent mistake."""
        loop = asyncio.get_running_loop()
        self._inbox.clear()
        self._performer.reset()
        self.stop_reason = None
        self.pid = os.getpid()
        self.killed = asyncio.Event()
        self._close_within_s = CLOSE_WITHIN_S
        if self._task is not None:  # of an earlier run: a callback may still hang, a session may still be closing
            self.callbacks.kill()
            await self.stopped(with_callbacks=True)
        self._renewed()
        self._journal.started(self.settings.health_interval_s)
        self._first = loop.create_future()
        self.callbacks.start()
        self._task = loop.create_task(self._run(), name=f"pgelect-{self.KIND} {self._label}")
        await asyncio.wait({self._first})
        if self.failure is not None:
            await self.stopped(with_callbacks=True)
            raise self.failure

    def post_shutdown(self, drain_s: float, close_s: float = CLOSE_WITHIN_S) -> None:
        """Ask it to stop, with these bounds on the drain and on closing the session; ``stopped`` waits for it."""
        self._close_within_s = close_s
        self.post(ev.Shutdown(drain_s))

    async def stopped(self, *, with_callbacks: bool) -> None:
        """Wait until the task has ended, and the callbacks have run (a callback must not wait for itself)."""
        if self._task is not None and self.is_ending:
            await asyncio.wait({self._task})
        if with_callbacks:
            await self.callbacks.close()

    def kill(self) -> None:
        """Drop the link and stop at once, awaiting nothing. The callbacks have a last moment to hear of it."""
        self.killed.set()
        self._apply(ev.Abort(None))
        self.callbacks.hurry()
        for task in (self._task, *self._background):
            if task is not None:
                task.cancel()

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
        beside = self._beside()
        try:
            self._apply(ev.Start())
            while self._machine.state is not self.STOPPED and self._is_ours:
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
            for task in beside:
                task.cancel()
            self.callbacks.finish()
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

    def _applied(self, *, answered: bool) -> None:
        """Tell whoever waits: for the next snapshot, and if ``answered`` for the first attempt."""
        if answered:
            settle(self._first)
        changed, self._changed = self._changed, []
        for waiter in changed:
            settle(waiter)

    # -- the effects that are the same ---------------------------------------------------------------------------------

    def _perform(self, io: Any, epoch: int, cancelled: Callable[[int], ev.Event]) -> None:
        self._io = self._spawn(self._performer.perform(io, epoch, self._machine))
        self._io.add_done_callback(partial(self._io_done, epoch, cancelled))

    def _io_done(self, epoch: int, cancelled: Callable[[int], ev.Event], task: asyncio.Task[ev.Event]) -> None:
        if self._io is task:  # cancelled, it keeps its error, and with it the frames and their connection
            self._io = None
        # Asyncio has raised what ends the program, out of the loop: a second time, it would cut its clean-up short.
        ended_from_outside = task.cancelled() or task.exception() is not None
        self.post(cancelled(epoch) if ended_from_outside else task.result())

    def _close(self, epoch: int, *, orderly: bool) -> None:
        session = self._performer.take(epoch)
        if session is None:
            return
        if orderly and not self._task_is_ending():
            closing = self._spawn(session.close(self._close_within_s))
            closing.add_done_callback(lambda _: session.abandon())  # it may be cancelled before it began
        else:
            session.abandon()
            if self._io is not None:  # of this session, which is the present one; it may use a second
                self._io.cancel()

    def _halt(self, error: Exception | None, *, exhausted: bool) -> None:
        self.stop_reason = ConnectionError(self._performer.attempts, error) if exhausted else error
        self._journal.halted(self.stop_reason)

    def _task_is_ending(self) -> bool:
        return self._task is None or self._task.cancelling() > 0

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._background[task] = None
        task.add_done_callback(self._background.pop)
        return task
