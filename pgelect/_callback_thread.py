"""One thread that runs plain functions in order, for an event loop that must not be held up by them."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING

from pgelect._engine.futures import outlast, settle

if TYPE_CHECKING:
    from collections.abc import Callable

JOIN_WITHIN_S = 1.0
"""An idle thread ends within a moment; nobody waits longer than this for one in which a function hangs."""


def call_in_a_thread(function: Callable[..., object], *arguments: object) -> None:
    """Call that; what would end the program is raised as an error, since it ends none from here."""
    try:
        function(*arguments)
    except Exception:
        raise
    except BaseException as raised:
        raise RuntimeError(f"{type(raised).__name__} ends a program in its main thread only") from raised


class CallbackThread:
    """Runs what it is handed, one after another. A daemon: a function that hangs keeps no program alive."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End after what was handed over; wait for that for a moment."""
        self._calls.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(JOIN_WITHIN_S)

    async def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Run that in the thread, with the context of the caller; raise what it raises.

        A thread cannot be cancelled: a cancel is raised when the function has returned.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        context = contextvars.copy_context()

        def run() -> None:
            error: Exception | None = None
            try:
                context.run(call_in_a_thread, function, *arguments)
            except Exception as raised:  # noqa: BLE001 -- it is raised in the loop
                error = raised
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, done, None, error)

        self._calls.put(run)
        await outlast(done)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
