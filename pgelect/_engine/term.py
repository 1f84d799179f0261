"""The life of a term inside the process: that it is over, and who still works for it."""

from __future__ import annotations

import asyncio
from typing import Any


class TermLife:
    """Whether a term is over, and the tasks that have to stop before its lock is freed in a clean release."""

    def __init__(self) -> None:
        self.over = asyncio.Event()  # set once, when leadership ends or is being given up
        self.announced = False  # on_acquired has begun to run
        self._tasks: set[asyncio.Task[Any]] = set()  # cancelled when the term is over
        self._guests: set[asyncio.Future[None]] = set()  # waited for, not cancelled

    def join(self, task: asyncio.Task[Any]) -> None:
        """Have ``task`` cancelled when the term is over, and drain until it is done."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self.over.is_set():
            task.cancel()

    def host(self) -> asyncio.Future[None]:
        """Drain until the future that is returned is done: for work that ends by itself."""
        guest = asyncio.get_running_loop().create_future()
        self._guests.add(guest)
        guest.add_done_callback(self._guests.discard)
        return guest

    def end(self) -> None:
        """Mark the term as over; the work for it is asked to stop, once."""
        if self.over.is_set():
            return
        self.over.set()
        for task in tuple(self._tasks):
            task.cancel()

    @property
    def busy(self) -> bool:
        """Somebody still works for this term."""
        return bool(self._tasks or self._guests)

    async def drained(self) -> None:
        """Wait until nobody works for the term any more."""
        waiting: set[asyncio.Future[Any]]
        while waiting := {*self._tasks, *self._guests}:
            await asyncio.wait(waiting)
