"""The life of what blocks: an asynchronous lock or group in an event loop on a thread of its own, from start to end."""

# ruff: noqa: SLF001 -- what it works with is its own: the asynchronous one, and the others of this module

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from abc import abstractmethod
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from typing_extensions import override

from pgelect._callback_thread import CallbackThread
from pgelect._callbacks import Callbacks
from pgelect._engine import duty as duties
from pgelect._engine import model
from pgelect._engine.hooks import Hook, wanted_arguments
from pgelect._engine.settings import check_argument_s
from pgelect._engine.term import working_for
from pgelect._loop_thread import LoopThread
from pgelect._sync_term import Term, Turns
from pgelect.errors import ForkedError, NotLeaderError, ShutdownError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Collection, Coroutine, Mapping
    from types import TracebackType

    from pgelect._engine.ending import Ending
    from pgelect._engine.model import LockKey
    from pgelect._engine.settings import Settings
    from pgelect._group.state import GroupState
    from pgelect._loop_thread import Job

    class Runs(Ending, Protocol):
        """The runner of a lock, or of a group."""

        @property
        def failure(self) -> Exception | None:
            """Why it stopped by itself."""

    class Elector(Protocol):
        """A lock, or a group."""

        @property
        def _settings(self) -> Settings: ...
        @property
        def _runner(self) -> Runs: ...
        @property
        def state(self) -> model.LockState | GroupState:
            """What it is doing."""

        async def start(self) -> None:
            """Begin to campaign."""

        async def shutdown(self, timeout_s: float) -> None:
            """Stop."""

        def _add_callback(self, hook: Hook, callback: Callable[..., object]) -> None: ...


E = TypeVar("E", bound="Elector")
R = TypeVar("R")
EXIT_WITHIN_S = 5.0
"""How long the end of the interpreter waits for what was not shut down."""
MOST_SEEN = 8
ANSWER_WITHIN_S = 1.0
"""How long to wait for a loop that does not answer. A signal handler may have interrupted what holds a lock of the
program's, as logging does, for which the loop waits: then neither would ever go on."""

log = logging.getLogger("pgelect")
_started: weakref.WeakSet[Life[Any]] = weakref.WeakSet()


def refuse_event(settings: Mapping[str, object]) -> None:
    """Raise TypeError if the setting that only asyncio has is among these."""
    if "shutdown_event" in settings:
        raise TypeError("shutdown_event is for asyncio; call shutdown(), from any thread or a signal handler")


class Life(Callbacks, Generic[E]):
    """What a blocking lock and a blocking group have in common: the threads, the end, the callbacks, the terms."""

    _inner: E

    def _begin_with(self, inner: E) -> None:
        self._callbacks: list[tuple[Hook, Callable[..., object]]] = []
        self._live_as(inner)

    def _live_as(self, inner: E) -> None:
        self._inner = inner
        self._owner_pid = os.getpid()
        self._was_started = False
        self._last_shutdown: object = None
        self._guard = threading.RLock()  # a signal handler may shut down what it has interrupted
        self._thread: LoopThread | None = None
        self._worker: CallbackThread | None = None
        self._turns: dict[int, Turns[Any]] = {}  # by thread
        self._seen: dict[int, tuple[model.Term, Term]] = {}  # by id(), in order
        for hook, callback in self._callbacks:
            inner._add_callback(hook, callback)

    @abstractmethod
    def _made_anew(self) -> E:
        """Make another one with the same settings: for a fork's child."""

    @abstractmethod
    async def _under_way(
        self, work: Callable[[], Coroutine[Any, Any, R]], keys: Collection[LockKey] | None = None
    ) -> R | bool:
        """Begin what waits for the caller, and return when the work that it ends is asked to end, or it is done.

        ``keys``: of what it ends; None: all.
        """

    # -- from start to end ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to campaign. Returns once the first attempt was answered or failed; does not wait for leadership.

        Where another thread or a signal handler calls ``shutdown()`` meanwhile, it returns, and nothing runs.

        Raises:
            RuntimeError: it runs already; nothing is changed.
            ConfigurationError, ConnectionError: as ``start()`` of the asynchronous one.
            ForkedError: it runs in a parent process.
        """
        self._check_process()
        last = self._last_shutdown
        self._was_started = True
        with self._guard:
            if self._thread is None:
                thread = LoopThread(f"pgelect {self._inner._settings.key}")
                worker = CallbackThread(f"pgelect callbacks {self._inner._settings.key}")
                self._thread, self._worker = thread, worker
            _started.add(self)
        try:
            if last is self._last_shutdown:
                self._call_unless_over(self._inner.start)
        finally:
            if not self._inner._runner.running:
                self._end_threads()

    def shutdown(self, timeout_s: float = 10.0) -> None:
        """Stop: the work for what is led drains, all is unlocked, the connection is closed. Then nothing is locked.

        Called by work for a term or by a callback, which it waits for, it returns once that is asked to end. In the
        main thread, where a signal handler may have interrupted anything, work waits a second for that, and not longer.

        Raises:
            ShutdownError: it took longer than ``timeout_s`` seconds; the socket was closed instead.
        """
        self._check_process()
        check_argument_s("timeout_s", timeout_s)
        self._last_shutdown = object()  # for a start that is under way
        work = partial(self._inner.shutdown, timeout_s)
        with suppress(NotLeaderError):  # it is stopped, or another thread stops it at this moment
            by_work = False
            try:
                _, by_work = self._ends(work, within_s=timeout_s + ANSWER_WITHIN_S)
            finally:
                if not by_work and not self._inner._runner.running:  # else it was interrupted, and can be called again
                    self._end_threads()

    def run(self) -> None:
        """Campaign until ``shutdown()`` is called, by a callback, another thread or a signal handler.

        Raises:
            ConfigurationError, ConnectionError: as ``start()``, and when retries are exhausted later.
        """
        with self:
            self._call_unless_over(partial(self._inner._runner.stopped, with_callbacks=True))

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
            log.error("%s: %s", self._inner._settings.key, late)  # noqa: TRY400 -- the error of the block is what goes on
        if error is None and self._inner._runner.failure is not None:
            raise self._inner._runner.failure

    # -- small parts ---------------------------------------------------------------------------------------------------

    @override
    def _add_callback(self, hook: Hook, callback: Callable[..., object]) -> None:
        wanted = wanted_arguments(callback, hook.arity, hook.label)
        if duties.is_async(callback):
            raise TypeError(f"{hook.label} of pgelect.sync takes a plain function; async ones are for pgelect itself")

        async def told(*arguments: Any) -> None:
            worker = self._worker
            if worker is not None:
                owned = (self._own(each) if isinstance(each, model.Term) else each for each in arguments[:wanted])
                await worker.call(callback, *owned)

        self._callbacks.append((hook, told))
        self._inner._add_callback(hook, told)

    def _check_process(self) -> None:
        if os.getpid() != self._owner_pid:
            if self._thread is not None:
                raise ForkedError(self._owner_pid)
            self._live_as(self._made_anew())

    def _begin(self, work: Callable[[], Coroutine[Any, Any, R]]) -> Job[R]:
        self._check_process()
        thread = self._thread
        if thread is not None:
            with suppress(RuntimeError):  # it was stopped at this moment
                return thread.begin(work)
        raise NotLeaderError(self._inner._settings.key, self._inner.state, "it is stopped; call start()")

    def _begin_unless_over(self, work: Callable[[], Coroutine[Any, Any, R]]) -> Job[R] | None:
        """Begin what lasts until a shutdown; None where that has come before, perhaps by a signal at this moment."""
        try:
            return self._begin(work)
        except NotLeaderError:
            if not self._was_started:
                raise
            return None

    def _call_unless_over(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        job = self._begin_unless_over(work)
        if job is not None:
            job.result()

    def _call(self, work: Callable[[], Coroutine[Any, Any, R]]) -> R:
        return self._begin(work).result()

    def _end(self, work: Callable[[], Coroutine[Any, Any, bool]], keys: Collection[LockKey] | None = None) -> bool:
        """Do what ends terms, and return what comes of it."""
        return self._ends(work, keys)[0] is not False

    def _ends(
        self,
        work: Callable[[], Coroutine[Any, Any, R]],
        keys: Collection[LockKey] | None = None,
        within_s: float | None = None,
    ) -> tuple[R | bool, bool]:
        """Do what ends terms. It waits for work and callbacks, so for those only until the end is under way.

        ``within_s``: no longer than that, even if the loop does not answer.

        Returns:
            What came of it (True: it is under way), and whether work or a callback has called.
        """
        by_work: bool | None = None  # unknown
        turns = self._turns.get(threading.get_ident())

        async def end() -> R | bool:
            nonlocal by_work
            by_work = self._inner._runner.is_called_by_work  # in the loop, where nothing changes meanwhile
            by_work = by_work or (turns is not None and turns.is_under_way)
            return await (self._under_way(work, keys) if by_work else work())

        job = self._begin(end)
        may_be_interrupted = threading.current_thread() is threading.main_thread()
        works = working_for() is not None or turns is not None
        if works and may_be_interrupted and not job.wait(ANSWER_WITHIN_S) and by_work is not False:
            return True, True
        if within_s is not None and not by_work and not job.wait(within_s):
            raise ShutdownError(within_s, "the thread of its event loop", is_closed=False)
        return job.result(), bool(by_work)

    def _heard(self, going: asyncio.Task[object]) -> None:
        if not going.cancelled() and (error := going.exception()) is not None:
            log.error("%s: %s", self._inner._settings.key, error)

    def _own(self, term: model.Term) -> Term:
        """Return that term as threads see it: always the same object.

        Without a guard, since the loop calls this, too: a signal handler that waits for the loop may have interrupted
        the thread that holds the guard.
        """
        seen = self._seen.get(id(term))
        if seen is None:
            ended = threading.Event()
            new = term, Term.of(term, ended)
            seen = self._seen.setdefault(id(term), new)
            if seen is new:
                self._watch(term, ended)
                self._forget()
        return seen[1]

    def _forget(self) -> None:
        too_many = len(self._seen) - self._most_seen
        for number, (_, own) in tuple(self._seen.items()):
            if too_many <= 0:
                break
            if own.ended.is_set():
                self._seen.pop(number, None)
                too_many -= 1

    @property
    def _most_seen(self) -> int:
        """How many terms to keep: the present ones, and some that callbacks are still told of."""
        return MOST_SEEN

    def _watch(self, term: model.Term, ended: threading.Event) -> None:
        async def watch() -> None:
            await term.ended()
            ended.set()

        thread = self._thread
        try:
            if thread is None:
                ended.set()
            else:
                thread.begin(watch)
        except RuntimeError:  # stopped meanwhile: so the term is over
            ended.set()

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
    for one in tuple(_started):
        if one._owner_pid == os.getpid():
            try:
                one.shutdown(EXIT_WITHIN_S)
            except Exception as error:  # noqa: BLE001 -- the program ends all the same
                log.error("%s: %s", one._inner._settings.key, error)  # noqa: TRY400
