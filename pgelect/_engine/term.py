"""The life of a term inside the process: that it is over, and who still works for it."""

from __future__ import annotations

import asyncio
import os
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from pgelect._engine.home import check_loop, check_process
from pgelect._engine.model import Term

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pgelect._engine.model import Grant, LockKey
    from pgelect._engine.settings import Settings

_working_for: ContextVar[TermLife | None] = ContextVar("pgelect_term", default=None)


def working_for() -> TermLife | None:
    """Return the life of the term that the running task works for, if any."""
    return _working_for.get()


class TermLife:
    """Whether a term is over, and the tasks that have to stop before its lock is freed in a clean release."""

    def __init__(self) -> None:
        self.over = asyncio.Event()  # set once, when leadership ends or is being given up
        self._loop = asyncio.get_running_loop()
        self._owner_pid = os.getpid()
        self.announced = False  # on_acquired has begun to run
        self._tasks: dict[asyncio.Task[Any], None] = {}  # cancelled when the term is over, in order
        self._guests: dict[asyncio.Future[None], asyncio.Task[Any] | None] = {}  # waited for, not cancelled; by whom

    def term(
        self, grant: Grant, settings: Settings, is_current: Callable[[], bool], key: LockKey | None = None
    ) -> Term:
        """Make what the user sees of it. ``key``: the lock, if it is another one than that of the settings."""
        return Term(
            token=grant.token,
            key=settings.key if key is None else key,
            identity=settings.identity,
            acquired_at=grant.acquired_at,
            metadata=settings.metadata,
            _is_current=is_current,
            _ended=self.ended,
        )

    def join(self, task: asyncio.Task[Any]) -> None:
        """Have ``task`` cancelled when the term is over, and drain until it is done."""
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        if self.over.is_set():
            task.cancel()

    def host(self) -> asyncio.Future[None]:
        """Drain until the future that is returned is done: for work that ends by itself."""
        guest = asyncio.get_running_loop().create_future()
        self._guests[guest] = asyncio.current_task()
        guest.add_done_callback(self._guests.pop)
        return guest

    def enter(self) -> None:
        """Mark the running task, and those it makes, as work for this term."""
        _working_for.set(self)

    @contextmanager
    def worked_for(self) -> Iterator[None]:
        """Mark what the calling thread does meanwhile as work for this term."""
        before = _working_for.get()
        _working_for.set(self)
        try:
            yield
        finally:
            _working_for.set(before)  # no reset: a generator may be closed elsewhere

    @property
    def is_worked_for_here(self) -> bool:
        """The running task works for this term: it must not wait for its own end."""
        return _working_for.get() is self

    def excuse_caller(self) -> None:
        """Do not wait for a guest that the running task is: it asks for the end of its own term."""
        caller = asyncio.current_task()
        for guest, task in tuple(self._guests.items()):
            if task is caller:
                guest.cancel()

    def end(self) -> None:
        """Mark the term as over; the work for it is asked to stop, once."""
        if self.over.is_set():
            return
        self.over.set()
        for task in tuple(self._tasks):
            task.cancel()

    async def ended(self) -> None:
        """Wait until the term is over. When its event loop is closed, nobody keeps it up any more: it counts as over.

        Raises:
            RuntimeError: it is not over, and lives in another event loop, which alone can wait for its end.
            ForkedError: it belongs to a parent process.
        """
        check_process(self._owner_pid)
        if self.over.is_set() or self._loop.is_closed():
            return
        check_loop(self._loop)
        await self.over.wait()

    @property
    def busy(self) -> bool:
        """Somebody still works for this term."""
        return bool(self._tasks or self._guests)

    async def drained(self) -> None:
        """Wait until nobody works for the term any more."""
        waiting: set[asyncio.Future[Any]]
        while waiting := {*self._tasks, *self._guests}:
            await asyncio.wait(waiting)
