"""Handlers of partitions in threads: one for each, begun by the thread that leads, so that the loop waits for none."""

from __future__ import annotations

import logging
import threading
from asyncio import Semaphore
from contextlib import nullcontext
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pgelect._callback_thread import call_in_a_thread
from pgelect._sync_term import Term, Turn

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgelect._engine import model

P = TypeVar("P")
log = logging.getLogger("pgelect")


class HandlerThreads(Generic[P]):
    """The threads of one ``lead(handler)``."""

    def __init__(self, handler: Callable[[P, Term], object], most: int | None) -> None:
        self._handler = handler
        self._slots = Semaphore(most) if most is not None else None
        self._queue: SimpleQueue[_Call | None] = SimpleQueue()
        self._complained = False

    async def work(self, partition: P, term: model.Term) -> None:
        """Have a thread run the handler; called in the loop, by a task that works for the term.

        A cancel sets ``ended`` of the term that the handler sees, and is raised when the handler has returned.
        """
        if self._slots is not None and self._slots.locked() and not self._complained:
            self._complained = True
            log.warning("all threads of max_workers are busy: a partition is led, and waits for one")
        async with self._slots or nullcontext():
            ended = threading.Event()
            call = _Call(Turn[None](term), partial(self._handler, partition, Term.of(term, ended)), str(partition))

            def end() -> None:
                ended.set()
                call.turn.pass_by()

            self._queue.put(call)
            await call.turn.over(end)

    def serve(self) -> None:
        """Begin a thread for each call, until ``end()``."""
        while (call := self._queue.get()) is not None:
            try:
                threading.Thread(target=call.run, name=f"pgelect {call.label}", daemon=True).start()
            except RuntimeError as error:  # the system has no more threads
                call.turn.pass_by(error)

    def end(self) -> None:
        """There will be no more calls; safe from any thread."""
        self._queue.put(None)


class _Call:
    """One call of a handler."""

    def __init__(self, turn: Turn[None], work: Callable[[], Any], label: str) -> None:
        self.turn = turn
        self.label = label
        self._work = work
        self._context = copy_context()

    def run(self) -> None:
        """Do it, in the calling thread, unless the term ended before."""
        if self.turn.claim():
            self._context.run(self.turn.run, partial(call_in_a_thread, self._work))
