"""How a lock or a group is started, stopped and used as a block, in its one process and event loop."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from pgelect._engine.driver import Driver
from pgelect._engine.ending import shut_down
from pgelect._engine.home import Owned, check_loop
from pgelect._engine.settings import check_argument_s
from pgelect.errors import ShutdownError

if TYPE_CHECKING:
    from types import TracebackType

    from pgelect._engine.settings import Settings

R = TypeVar("R", bound=Driver)

log = logging.getLogger("pgelect")


class Life(Owned, ABC, Generic[R]):
    """The part of a lock or a group that starts and stops it."""

    _KIND: str
    _settings: Settings
    _runner: R
    _loop: asyncio.AbstractEventLoop | None
    _shutdown_event: asyncio.Event | None

    def _be_born(self) -> None:
        self._runner = self._new_runner()
        self._loop = None
        self._event_watch: asyncio.Task[None] | None = None
        self._owner_pid = os.getpid()
        self._claiming = threading.Lock()

    @abstractmethod
    def _new_runner(self) -> R:
        """Make one that has not run yet."""

    @abstractmethod
    async def start(self) -> None:
        """Begin to campaign."""

    @abstractmethod
    async def shutdown(self, timeout_s: float = 10.0) -> None:
        """Stop."""

    async def _start(self) -> None:
        self._check_pid()
        with self._claiming:  # of several threads that start it at once, one does
            self._leave_closed_loop()
            if self._runner.running:
                raise RuntimeError(
                    f"start() was called on a {self._KIND} that runs already; call it once, or shut it down first"
                )
            if self._loop is not None and not self._is_at_home():
                self._rebuild()  # what may be left of an earlier run, such as a callback, is the other loop's
            self._loop = asyncio.get_running_loop()
            self._runner.claim()
        self._end_event_watch()  # of an earlier run that stopped by itself
        if self._shutdown_event is not None:
            self._event_watch = self._loop.create_task(self._watch_event(self._shutdown_event, self._runner))
        try:
            await self._runner.start()
        except BaseException:
            self._runner.kill()
            self._end_event_watch()
            raise

    async def _shut_down(self, timeout_s: float) -> None:
        self._check_caller()
        check_argument_s("timeout_s", timeout_s)
        if not self._is_at_home():  # stopped; for what is left of it, such as a callback, its own loop can wait
            return
        self._end_event_watch()
        await shut_down(self._runner, timeout_s)

    async def run(self) -> None:
        """Campaign until ``shutdown`` is called or this call is cancelled; for an ``asyncio.TaskGroup``.

        Raises:
            ConfigurationError, ConnectionError: as ``start()``, and when retries are exhausted later.
            PgElectError: a stranger cancelled the task that leads.
        """
        async with self:
            await self._runner.stopped(with_callbacks=True)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not self._owns():
            return  # a fork's child on its way out: nothing of ours replaces its error, or exit status
        try:
            await self.shutdown()
        except ShutdownError as late:
            if error is None:
                raise
            log.error("%s: %s", self._settings.key, late)  # noqa: TRY400 -- the error of the block is what goes on
        if error is None and self._runner.failure is not None:
            raise self._runner.failure

    # -- small parts ---------------------------------------------------------------------------------------------------

    def _rebuild(self) -> None:
        """Leave what is another loop's, or a closed one's, to it."""
        old, self._runner = self._runner, self._new_runner()
        self._runner.succeed(old)
        self._event_watch = None

    def _check_caller(self) -> None:
        """Refuse calls in a fork, and from another loop than it runs in. One that is stopped answers in any."""
        self._check_pid()
        self._leave_closed_loop()
        if self._loop is not None and self._runner.running:
            check_loop(self._loop)

    def _leave_closed_loop(self) -> None:
        if self._loop is not None and self._loop.is_closed() and self._runner.running:
            self._rebuild()  # the program ended its loop without a shutdown: nothing in it runs any more

    def _is_at_home(self) -> bool:
        return self._loop is asyncio.get_running_loop()

    async def _watch_event(self, event: asyncio.Event, runner: R) -> None:
        await event.wait()
        runner.post_shutdown(self._settings.drain_timeout_s)

    def _end_event_watch(self) -> None:
        if self._event_watch is not None:
            self._event_watch.cancel()
            self._event_watch = None
