"""A thread that looks at the lock all the time, and writes down when its process believed that it leads.

A thread, so that it looks even while the event loop is blocked. Whoever else looks writes that down, too: the writer
before and after each write, and the handler of SIGCONT, the first that runs when a stopped process goes on.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self

from benchmarks.chaos.book import Book, now

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from pgelect import LeaderLock

_EVERY_S = 0.005
_WRITE_EVERY_S = 0.05  # while nothing changes and it leads, so that a killed process has said until when


class Looking:
    """Looks at the term; ``look`` may also be called by others, and returns the token it saw."""

    def __init__(self, lock: LeaderLock, book: Book, also: Callable[[], None]) -> None:
        """``also``: to be called at each look."""
        self._lock = lock
        self._book = book
        self._also = also
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="looking", daemon=True)

    def look(self) -> int | None:
        """Look once, and write down what was seen: the token of the term, or None."""
        before = now()
        token = self._lock.token
        self._book.write("look", before, after=now(), token=token)
        self._also()
        return token

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        last: tuple[float, float, int | None] | None = None  # the last look: before it, after it, what it saw
        written_at = 0.0
        while not self._end.wait(_EVERY_S):
            before = now()
            token = self._lock.token
            after = now()
            changed = last is None or last[2] != token
            if changed and last is not None and last[1] > written_at:
                self._book.write("look", last[0], after=last[1], token=last[2])
            if changed or (token is not None and after - written_at > _WRITE_EVERY_S):
                self._book.write("look", before, after=after, token=token)
                written_at = after
            last = (before, after, token)
            self._also()
