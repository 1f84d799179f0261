"""An event loop on a thread of its own, for programs that block: hand it a coroutine, and wait for what it returns.

A busy, blocked or sleeping caller holds nothing up in there. The thread is a daemon: it keeps no program alive.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import sys
import threading
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pgelect._engine.futures import settle

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")
JOIN_WITHIN_S = 1.0
"""A thread that has nothing left to do ends within a moment; nobody waits longer than this to see it."""


class Job(Generic[T]):
    """One coroutine on its way: it sees the context variables of the thread that handed it over."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]], loop: asyncio.AbstractEventLoop) -> None:
        self._work = work
        self._loop = loop
        self._context = contextvars.copy_context()
        self._task: asyncio.Task[T] | None = None
        self._is_cancelled = False
        self._outcome: concurrent.futures.Future[T] = concurrent.futures.Future()

    def begin(self) -> asyncio.Task[T]:
        """Make the task; called in the loop."""
        self._task = self._loop.create_task(self._work(), context=self._context)
        self._task.add_done_callback(self._ended)
        if self._is_cancelled:
            self._task.cancel()
        return self._task

    def when_done(self, then: Callable[[], object]) -> None:
        """Call that, in the loop's thread, when it has ended."""
        self._outcome.add_done_callback(lambda _: then())

    def result(self) -> T:
        """Wait for the end; return what it returned, or raise what it raised.

        An exception that comes to the waiting thread from elsewhere, such as KeyboardInterrupt, cancels the work,
        and is raised once that has ended.
        """
        try:
            return self._outcome.result()
        except BaseException:
            self.give_up()
            raise

    def wait(self, within_s: float) -> bool:
        """Wait for the end, but no longer; return whether it has ended. As in ``result``, an interrupt cancels."""
        try:
            return bool(concurrent.futures.wait([self._outcome], within_s).done)
        except BaseException:
            self.give_up()
            raise

    def give_up(self, within_s: float | None = None) -> None:
        """Cancel it, unless it has ended, and wait for the end (no longer than that)."""
        if not self._outcome.done():
            self._loop.call_soon_threadsafe(self._cancel)
            concurrent.futures.wait([self._outcome], within_s)

    def _cancel(self) -> None:
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()

    def _ended(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self._outcome.set_exception(asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            self._outcome.set_exception(error)
        else:
            self._outcome.set_result(task.result())


class LoopThread:
    """A thread that runs an event loop until it is told to stop, and what it was handed has ended."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.SelectorEventLoop() if sys.platform == "win32" else asyncio.new_event_loop()
        self._jobs: dict[asyncio.Task[Any], None] = {}  # in order
        self._wake: asyncio.Future[None] | None = None
        self._stopping = False
        # Nothing is handed to a loop that is about to be closed. It may be a signal handler that hands over.
        self._guard = threading.RLock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_here(self) -> bool:
        """The calling thread is this one: it must not wait for itself."""
        return threading.current_thread() is self._thread

    def begin(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Job[T]:
        """Hand over a coroutine function.

        Raises:
            RuntimeError: the thread has been stopped.
        """
        job = Job(work, self._loop)
        if self.is_here:  # without the guard: a signal handler that waits for us may have interrupted who holds it
            self._check_goes_on()
            self._begin(job)
            return job
        with self._guard:
            self._check_goes_on()
            self._loop.call_soon_threadsafe(self._begin, job)
        return job

    def call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine function there; return what it returned, or raise what it raised."""
        return self.begin(work).result()

    def keep(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Make a task of that, in the loop's thread; a stop waits for it, too."""
        task = self._loop.create_task(work)
        self._jobs[task] = None
        task.add_done_callback(self._end)
        return task

    def stop(self) -> None:
        """End once everything that was handed over has ended; wait for that for a moment."""
        with self._guard:
            if self._stopping:
                return
            self._stopping = True
            self._loop.call_soon_threadsafe(self._stir)
        if not self.is_here:
            self._thread.join(JOIN_WITHIN_S)

    def _check_goes_on(self) -> None:
        if self._stopping:
            raise RuntimeError("the thread of this lock or group has been stopped")

    def _begin(self, job: Job[Any]) -> None:
        task = job.begin()
        self._jobs[task] = None
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[Any]) -> None:
        del self._jobs[task]
        self._stir()

    def _stir(self) -> None:
        settle(self._wake)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._until_stopped())

    async def _until_stopped(self) -> None:
        while not self._stopping or self._jobs:
            self._wake = self._loop.create_future()
            await self._wake
