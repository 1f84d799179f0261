"""The same for programs that block: Django, Celery, Flask, scripts and threads.

    from pgelect.sync import LeaderLock

    with LeaderLock("postgresql://localhost/app", name="billing") as lock:
        lock.lead(bill)         # bill(term), in this thread

It is the asynchronous lock, in an event loop on a thread of its own. However busy, blocked or asleep the program is,
its proofs go on. (While an extension keeps the interpreter's own lock, nothing goes on; then the lease ends, as it does
for a process that is stopped.)
"""

# ruff: noqa: SLF001 -- what it works with is its own: the lock, and the other locks of this module

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

from typing_extensions import override

from pgelect import lock as _asynchronous
from pgelect._callback_thread import CallbackThread
from pgelect._callbacks import Callbacks
from pgelect._engine import duty as duties
from pgelect._engine import model
from pgelect._engine.hooks import Hook, wanted_arguments
from pgelect._loop_thread import LoopThread
from pgelect._sync_fences import Fences, check_token, fenced
from pgelect._sync_status import Status
from pgelect._sync_term import Term, Turns
from pgelect.errors import ForkedError, NotLeaderError, ShutdownError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from types import TracebackType

    from typing_extensions import Unpack

    from pgelect._configuring import Changes
    from pgelect._loop_thread import Job
    from pgelect._postgres.options import Dsn
    from pgelect._sync_settings import LockSettings
    from pgelect.retry import RetryLike

__all__ = ["LeaderLock", "Term", "check_token", "fenced"]

R = TypeVar("R")
P = ParamSpec("P")
EXIT_WITHIN_S = 5.0
"""How long the end of the interpreter waits for a lock that was not shut down."""

log = logging.getLogger("pgelect")
_started: weakref.WeakSet[LeaderLock] = weakref.WeakSet()


class LeaderLock(Status, Fences, Callbacks):
    """Leader election on PostgreSQL for programs that block; see ``pgelect.LeaderLock`` for what each thing does.

    Its methods may be called from any thread, and from programs that run an event loop of their own, which they block.
    A lock that was made before a fork and not started may be started in the child; one that runs is its parent's, and
    inert in the child. The end of the interpreter shuts it down.

    Callbacks are plain functions. They run in order, in one thread of their own: a slow one delays only other
    callbacks. When a term ends, an ``on_acquired`` that still runs is waited for as work for that term is; let it look
    at ``term.ended``.

    Args:
        dsn, key1, key2: as for ``pgelect.LeaderLock``.
        settings: as for ``pgelect.LeaderLock``, but ``shutdown_event``: call ``shutdown()`` instead.

    Raises:
        ValueError, TypeError: an argument is out of range, or two contradict each other; the message names them.
    """

    def __init__(
        self, dsn: Dsn = "", key1: int | None = None, key2: int | None = None, **settings: Unpack[LockSettings]
    ) -> None:
        if "shutdown_event" in settings:
            raise TypeError("shutdown_event is for asyncio; call shutdown(), from any thread or a signal handler")
        self._set_up(lambda: _asynchronous.LeaderLock(dsn, key1, key2, **settings))

    def _set_up(self, make: Callable[[], _asynchronous.LeaderLock]) -> None:
        self._make = make
        self._callbacks: list[tuple[Hook, Callable[..., object]]] = []
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._lock = self._make()
        self._owner_pid = os.getpid()
        self._guard = threading.RLock()  # a signal handler may shut down what it has interrupted
        self._thread: LoopThread | None = None
        self._worker: CallbackThread | None = None
        self._seen: tuple[model.Term, Term] | None = None
        for hook, callback in self._callbacks:
            self._lock._add_callback(hook, callback)

    @classmethod
    def from_env(cls, name: str, **overrides: Any) -> Self:
        """Make the lock of that name with the settings that the environment holds; see ``pgelect.LeaderLock``."""
        new = cls.__new__(cls)
        new._set_up(lambda: _asynchronous.LeaderLock.from_env(name, **overrides))
        return new

    # -- life ----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to campaign. Returns once the first attempt was answered or failed; does not wait for leadership.

        Raises:
            RuntimeError: the lock runs already; nothing is changed.
            ConfigurationError, ConnectionError: as ``pgelect.LeaderLock.start()``.
            ForkedError: the lock runs in a parent process.
        """
        self._check_process()
        with self._guard:
            if self._thread is None:
                self._thread = LoopThread(f"pgelect {self.key}")
                self._worker = CallbackThread(f"pgelect callbacks {self.key}")
            thread = self._thread
            _started.add(self)
        try:
            thread.call(self._lock.start)
        finally:
            if not self._lock._runner.running:
                self._end_threads()

    def shutdown(self, timeout_s: float = 10.0) -> None:
        """Stop: drain the duty, unlock, close the connection. When this returns, the lock is free.

        Called by work for the term or by a callback, which it waits for, it returns once that is asked to end.

        Raises:
            ShutdownError: it took longer than ``timeout_s`` seconds; the socket was closed instead.
        """
        self._check_process()
        thread = self._thread
        if thread is None:
            return
        if self._lock._runner.is_called_by_work:
            thread.call(partial(self._under_way, partial(self._lock.shutdown, timeout_s)))
            return
        try:
            thread.call(partial(self._lock.shutdown, timeout_s))
        finally:
            self._end_threads()

    def run(self) -> None:
        """Campaign until the lock is shut down, from a callback, another thread or a signal handler.

        Raises:
            ConfigurationError, ConnectionError: as ``start()``, and when retries are exhausted later.
        """
        with self:
            self._call(partial(self._lock._runner.stopped, with_callbacks=True))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and os.getpid() != self._owner_pid:
            return  # a fork's child on its way out
        try:
            self.shutdown()
        except ShutdownError as late:
            if error is None:
                raise
            log.error("%s: %s", self.key, late)  # noqa: TRY400 -- the error of the block is what goes on
        if error is None and self._lock._runner.failure is not None:
            raise self._lock._runner.failure

    # -- leading -------------------------------------------------------------------------------------------------------

    def wait_for_leadership(self, timeout_s: float | None = None) -> Term:
        """Wait until this process leads; return the term.

        Raises:
            TimeoutError: not within ``timeout_s`` seconds (None: no limit).
            NotLeaderError: the lock is not running, or stopped.
            PgElectError: the lock stopped by itself, for this reason.
        """
        return self._own(self._call(partial(self._lock.wait_for_leadership, timeout_s)))

    def step_down(self, *, drain_timeout_s: float | None = None, cooldown_s: float | None = None) -> bool:
        """Give up leadership: the duty drains, the lock is unlocked, ``on_released`` is told.

        Called by work for the term or by a callback, which it waits for, it returns once that is asked to end.

        Args:
            drain_timeout_s: how long to wait for the duty; None: the lock's own setting.
            cooldown_s: how long to stay out afterwards; None: long enough for those who wait to have their turn.

        Returns:
            True when leadership was given up; False when there was none.
        """
        work = partial(self._lock.step_down, drain_timeout_s=drain_timeout_s, cooldown_s=cooldown_s)
        if self._thread is not None and self._lock._runner.is_called_by_work:
            return self._call(partial(self._under_way, work))
        return self._call(work)

    def lead(self, duty: Callable[[Term], R], *, repeat: bool = False) -> R | None:
        """Wait for leadership and run ``duty(term)`` in the calling thread, until it has returned once.

        When the term ends, ``term.ended`` is set; the duty is to return then, and a clean release waits for it, at most
        ``drain_timeout_s``. A term that ended meanwhile has it run anew in the next one. With ``repeat``: for ever.
        A duty that raises while its term lasts ends the term, and the error is raised here; one that raises after
        its term is over is only told to ``on_error``.

        Returns:
            What the duty returned; None when the lock was shut down before.

        Raises:
            PgElectError: the lock stopped by itself, for this reason.
        """
        turns = Turns[R]()
        job = self._begin(lambda: self._lock.lead(turns.hand_over, repeat=repeat))
        job.when_done(turns.end)
        try:
            for turn in turns:
                turn.run(partial(duty, self._own(turn.term)))
        except BaseException:
            turns.close()
            job.give_up()
            raise
        return job.result()

    def terms(self) -> Iterator[Term]:
        """Iterate over the terms of this process: ``for term in lock.terms()``; ends when the lock is shut down.

        A clean release waits, at most ``drain_timeout_s``, until the body asks for the next term. Let the body look at
        ``term.ended``.
        """
        turns = Turns[None]()

        async def once(term: model.Term) -> None:
            await turns.hand_over(term)
            await term.ended()

        job = self._begin(lambda: self._lock.lead(once, repeat=True))
        job.when_done(turns.end)
        try:
            for turn in turns:
                try:
                    with turn.working():
                        yield self._own(turn.term)
                finally:
                    turn.finish()
        except BaseException:
            turns.close()
            job.give_up()
            raise
        job.result()

    def leader_only(self, function: Callable[P, R]) -> Callable[P, R | None]:
        """Decorate a function: while this process does not lead, the call returns None instead.

        It is checked when the call begins; use ``lead`` for work that must stop when leadership ends.
        """
        return duties.leader_only(lambda: self.is_leader, function)

    def reconfigure(self, *, retry_strategy: RetryLike | None = None, **changes: Unpack[Changes]) -> None:
        """Change settings of a lock that runs, or is stopped; see ``pgelect.LeaderLock.reconfigure()``."""
        self._check_process()

        async def change() -> None:
            self._lock.reconfigure(retry_strategy=retry_strategy, **changes)

        if self._thread is None:
            self._lock.reconfigure(retry_strategy=retry_strategy, **changes)
        else:
            self._call(change)

    @property
    def term(self) -> Term | None:
        """The present term; None while this process does not lead."""
        term = self._lock.term
        return None if term is None else self._own(term)

    # -- small parts ---------------------------------------------------------------------------------------------------

    @override
    def _add_callback(self, hook: Hook, callback: Callable[..., object]) -> None:
        wanted = wanted_arguments(callback, hook.arity, hook.label)
        if duties.is_async(callback):
            raise TypeError(
                f"{hook.label} of pgelect.sync takes a plain function; async ones are for pgelect.LeaderLock"
            )

        async def told(*arguments: Any) -> None:
            worker = self._worker
            if worker is not None:
                owned = (self._own(each) if isinstance(each, model.Term) else each for each in arguments[:wanted])
                await worker.call(callback, *owned)

        self._callbacks.append((hook, told))
        self._lock._add_callback(hook, told)

    def _check_process(self) -> None:
        if os.getpid() != self._owner_pid:
            if self._thread is not None:
                raise ForkedError(self._owner_pid)
            self._begin_anew()

    def _begin(self, work: Callable[[], Coroutine[Any, Any, R]]) -> Job[R]:
        self._check_process()
        thread = self._thread
        if thread is None:
            raise NotLeaderError(self.key, self.state, "the lock is stopped; call start()")
        return thread.begin(work)

    def _call(self, work: Callable[[], Coroutine[Any, Any, R]]) -> R:
        return self._begin(work).result()

    async def _under_way(self, work: Callable[[], Coroutine[Any, Any, R]]) -> R | bool:
        """Begin what waits for the caller, and return when the work of the term is asked to end, or it is done."""
        life, thread = self._lock._runner.life, self._thread
        if life is None or thread is None:
            return await work()
        going = thread.keep(work())
        going.add_done_callback(self._heard)
        if not life.over.is_set():
            over = asyncio.ensure_future(life.over.wait())
            await asyncio.wait({going, over}, return_when=asyncio.FIRST_COMPLETED)
            over.cancel()
        elif not life.is_worked_for_here:  # a callback that hears of the end
            await asyncio.wait({going})
        return going.result() if going.done() else True

    def _heard(self, going: asyncio.Task[object]) -> None:
        if not going.cancelled() and (error := going.exception()) is not None:
            log.error("%s: %s", self.key, error)

    def _own(self, term: model.Term) -> Term:
        """Return that term as threads see it: always the same object."""
        with self._guard:
            if self._seen is None or self._seen[0] is not term:
                ended, thread = threading.Event(), self._thread
                self._seen = term, Term.of(term, ended)

                async def watch() -> None:
                    await term.ended()
                    ended.set()

                try:
                    if thread is None:
                        ended.set()
                    else:
                        thread.begin(watch)
                except RuntimeError:  # stopped meanwhile: so the term is over
                    ended.set()
            return self._seen[1]

    def _end_threads(self) -> None:
        with self._guard:
            thread, self._thread = self._thread, None
            worker, self._worker = self._worker, None
            _started.discard(self)
        if worker is not None:
            worker.stop()
        if thread is not None:
            thread.stop()


@atexit.register
def _shut_down_all() -> None:
    """Free what a program that ends has not shut down; its daemon threads still run."""
    for lock in tuple(_started):
        if lock._owner_pid == os.getpid():
            try:
                lock.shutdown(EXIT_WITHIN_S)
            except Exception as error:  # noqa: BLE001 -- the program ends all the same
                log.error("%s: %s", lock.key, error)  # noqa: TRY400
