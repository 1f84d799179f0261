"""Callbacks: a queue and one task that runs them in order, apart from the runner.

A slow, hanging or raising callback delays only other callbacks: never a proof, a loss or a shutdown. Rules:

- Every ``on_acquired`` is followed by exactly one of ``on_lost`` / ``on_released``; neither comes without it. A term
  that is over before its ``on_acquired`` could begin is passed over (``on_state_change`` still tells of it); an async
  one has begun with its first step, and a task may be cancelled before that.
- An async ``on_acquired`` is cancelled, and awaited, when its term ends.
- An ``on_acquired`` that raises ends the term (``failed``). Any other callback that raises is logged and told to
  ``on_error``; an ``on_error`` that raises is logged.
- A callback gets as many of its arguments as it has required positional parameters; one with ``*args`` gets all.
- One that exits the program (SystemExit, KeyboardInterrupt) is the last, but for the end of the term: another that
  exits while the loop winds up would cut that short.
- A fork's child that leaves through the loop of its parent tells nobody anything.
- The queue is bounded: beyond QUEUE_MAX, state changes and errors are dropped with a warning, terms never.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from collections import deque
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pgelect._engine.futures import settle
from pgelect._engine.hooks import Callback, Hook, wanted_arguments
from pgelect._engine.meter import Meter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pgelect._engine.term import TermLife

log = logging.getLogger("pgelect")
QUEUE_MAX = 1000
LAST_WORDS_S = 1.0  # for the callbacks that are left when a stranger cancels the task of this dispatcher

_caller: ContextVar[object | None] = ContextVar("pgelect_callback", default=None)


@dataclass(frozen=True, slots=True)
class _Call:
    hook: Hook
    arguments: tuple[Any, ...]
    life: TermLife | None = None
    mark: asyncio.Future[None] | None = None  # instead of a callback: somebody waits for this place in the queue

    def pass_by(self) -> None:
        """Tell whoever waits for this place."""
        settle(self.mark)


class Dispatcher:
    """Runs callbacks in the order in which they were posted."""

    def __init__(self, failed: Callable[[TermLife, BaseException], None], meter: Meter | None = None) -> None:
        """``failed`` is told of an ``on_acquired`` that raised, ``meter`` of every callback that did."""
        self._failed = failed
        self._meter = meter if meter is not None else Meter()
        self._callbacks: dict[Hook, list[tuple[Callback, int]]] = {hook: [] for hook in Hook}
        self._queue: deque[_Call] = deque()
        self._owner_pid = os.getpid()
        self._wake: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._running: asyncio.Task[None] | None = None
        self._has_begun = False  # what runs has taken its first step
        self._last_words: asyncio.TimerHandle | None = None
        self._present: object | None = None  # stands for the callback that runs now
        self._busy = False
        self._closing = False
        self._killed = False
        self._exiting = False  # a callback exits the program
        self._overflowed = False

    def add(self, hook: Hook, callback: Callback) -> None:
        """Register a callback; see ``wanted_arguments`` for the errors."""
        self._callbacks[hook].append((callback, wanted_arguments(callback, hook.arity, hook.label)))

    def take_over(self, other: Dispatcher) -> None:
        """Use the callbacks that were registered there, and tell the end of a term that is still untold."""
        self._callbacks = other._callbacks
        self._queue.extend(other._untold_ends())

    def start(self) -> None:
        """Begin to run what is posted; an earlier run has ended."""
        self._closing = self._killed = self._exiting = False
        self._owner_pid = os.getpid()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="pgelect-callbacks")

    def reopen(self) -> bool:
        """Go on after ``finish()``, while what was posted before is being told; False: it has ended, or not begun."""
        if self._task is None or self._task.done() or self._killed:
            return False
        self._closing = False
        return True

    def post(self, hook: Hook, *arguments: object, life: TermLife | None = None) -> None:
        """Queue a callback."""
        if life is None and (self._exiting or not self._callbacks[hook]):
            return
        if len(self._queue) >= QUEUE_MAX and life is None:
            if not self._overflowed:
                log.warning("callbacks are too slow: state changes and errors are no longer told to them")
            self._overflowed = True
            return
        self._push(_Call(hook, arguments, life))

    def inside(self) -> bool:
        """Tell whether the caller is a callback that runs now, or a task that it made: it must not wait for itself."""
        return self._present is not None and _caller.get() is self._present

    @property
    def idle(self) -> bool:
        """Nothing runs, and nothing is left to run."""
        return self._task is None or self._task.done() or not (self._busy or self._queue)

    async def flush(self) -> None:
        """Wait until all that was posted before has run."""
        if self.idle:
            return
        mark = asyncio.get_running_loop().create_future()
        self._push(_Call(Hook.STATE_CHANGE, (), mark=mark))
        await mark

    def finish(self) -> None:
        """End once the queue is empty."""
        self._closing = True
        self._stir()

    async def close(self) -> None:
        """Run what is left in the queue, then end. A cancel ends it at once, with the callback that runs."""
        self.finish()
        task = self._task
        if task is None or task.done():
            return
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            self.kill()
            raise

    def hurry(self) -> None:
        """Cancel the callback that runs, tell of the term's end if that is still untold, and end within a moment."""
        self._keep_untold_ends()
        if self._running is not None and self._has_begun:  # else it may be the end of the term that would stay untold
            self._running.cancel()
        self.finish()
        if self._task is not None and not self._task.done() and self._last_words is None:
            self._last_words = self._task.get_loop().call_later(LAST_WORDS_S, self._fall_silent)

    def kill(self) -> None:
        """Cancel the callback that runs and forget the rest."""
        self._killed = True
        for call in self._queue:
            call.pass_by()
        self._queue.clear()
        for task in (self._running, self._task):
            if task is not None and not task.done():
                task.cancel()

    def _exit(self) -> None:
        self._exiting = True
        self._keep_untold_ends()

    def _keep_untold_ends(self) -> None:
        kept = self._untold_ends()
        for call in self._queue:
            call.pass_by()
        self._queue = deque(kept)

    def _untold_ends(self) -> list[_Call]:
        return [call for call in self._queue if call.hook in {Hook.LOST, Hook.RELEASED}]

    def _push(self, call: _Call) -> None:
        self._queue.append(call)
        self._stir()

    def _stir(self) -> None:
        settle(self._wake)

    async def _run(self) -> None:
        try:
            while (self._queue or not self._closing) and self._is_ours:
                try:
                    await self._turn()
                except asyncio.CancelledError:
                    if self._killed or not self._is_ours:
                        raise
                    self._bear_cancel()
        finally:
            self._busy = False
            if self._last_words is not None:
                self._last_words.cancel()
                self._last_words = None
            for call in self._queue:
                call.pass_by()

    @property
    def _is_ours(self) -> bool:
        return os.getpid() == self._owner_pid

    def _bear_cancel(self) -> None:
        """Go on: asyncio.run() cancels every task at its end, and the term's end is yet to be told.

        For a moment, if that was it: then the runner ends, too. While that goes on, it was a stranger's whim.
        """
        if self._task is not None:
            self._task.uncancel()
        if self._last_words is None:
            self._last_words = asyncio.get_running_loop().call_later(LAST_WORDS_S, self._fall_silent)

    def _fall_silent(self) -> None:
        self._last_words = None
        if self._closing:
            self.kill()

    async def _turn(self) -> None:
        self._busy = False
        if not self._queue:
            self._overflowed = False
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
            return
        self._busy = True
        call = self._queue.popleft()
        if call.mark is None:
            await self._run_call(call)
        call.pass_by()

    async def _run_call(self, call: _Call) -> None:
        life, acquired = call.life, None
        if life is not None and call.hook is Hook.ACQUIRED:
            if life.over.is_set() or self._exiting:
                return
            acquired, life.announced = life, not self._callbacks[call.hook]
        elif life is not None and not life.announced:
            return
        for callback, wanted in tuple(self._callbacks[call.hook]):
            if acquired is not None and acquired.over.is_set():
                return
            if not await self._run_guarded(call.hook, callback, call.arguments[:wanted], acquired):
                return

    async def _run_guarded(
        self, hook: Hook, callback: Callback, arguments: tuple[Any, ...], acquired: TermLife | None
    ) -> bool:
        """Run one callback; False when those after it are not to run."""
        self._present = object()
        caller = _caller.set(self._present)
        try:
            await self._run_one(callback, arguments, acquired)
        except (SystemExit, KeyboardInterrupt) as error:  # these end the program: see that the lock goes first
            self._exit()
            if acquired is not None:
                self._failed(acquired, error)
            raise
        except asyncio.CancelledError as error:
            if self._task is not None and self._task.cancelling():
                if acquired is not None and not self._killed:  # a stranger's: nobody works, and nobody asked it to stop
                    self._failed(acquired, error)
                raise
            if acquired is not None and acquired.over.is_set():
                return True
            log.warning("%s was cancelled from within", hook.label)
            if acquired is not None:  # nobody works, and nobody asked it to stop
                self._failed(acquired, error)
                return False
        except BaseException as error:  # noqa: BLE001 -- whatever user code raises, the pairing must hold
            return not self._heard(hook, error, acquired)
        finally:
            self._present = None
            _caller.reset(caller)
        return True

    def _heard(self, hook: Hook, error: BaseException, acquired: TermLife | None) -> bool:
        """Deal with a callback that raised; True when the callbacks after it are not to run."""
        log.error("%s raised %s", hook.label, type(error).__name__, exc_info=error)
        self._meter.tell(lambda to: to.callback_failed(hook.label.removeprefix("on_")))
        if hook is not Hook.ERROR:
            self.post(Hook.ERROR, error)
        if acquired is not None:
            self._failed(acquired, error)
        return acquired is not None

    async def _run_one(self, callback: Callback, arguments: tuple[Any, ...], acquired: TermLife | None) -> None:
        def begun() -> None:
            self._has_begun = True
            if acquired is not None:
                acquired.announced = True

        self._has_begun = False
        try:
            result = callback(*arguments)
        except BaseException:
            begun()
            raise
        if not inspect.isawaitable(result):
            begun()
            return
        task = asyncio.get_running_loop().create_task(_awaited(result, begun, self._exit), name="pgelect-callback")
        if inspect.iscoroutine(result):  # a task that is cancelled before it begins would leave it never awaited
            task.add_done_callback(lambda _: result.close())
        self._running = task
        if acquired is not None:
            acquired.join(task)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            raise
        finally:
            self._running = None
        task.result()


async def _awaited(result: Awaitable[object], begun: Callable[[], None], exiting: Callable[[], None]) -> None:
    begun()
    try:
        await result
    except (SystemExit, KeyboardInterrupt):  # leaves the loop at once: whoever awaits this may never hear of it
        exiting()
        raise
