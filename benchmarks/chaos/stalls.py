"""Notices when this machine is too busy for failover times to mean anything.

Two threads: one sleeps a little, over and over, and writes down when it was woken far too late; the other connects to
the primary as an administrator and asks nothing of it, and writes down when that took far longer than it should. What
of it is answered by an error, as while the server is down, does not count.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self

import psycopg

from benchmarks.chaos.book import now

if TYPE_CHECKING:
    from types import TracebackType

    from benchmarks.chaos.book import Book
    from benchmarks.chaos.cluster import Cluster

_TICK_S = 0.02
_CONNECT_EVERY_S = 0.3
_STALL_S = 0.1  # a connection takes about 5 ms


class Stalls:
    """Watches while it is entered."""

    def __init__(self, cluster: Cluster, book: Book) -> None:
        self._cluster = cluster
        self._book = book
        self._end = threading.Event()
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._tick, self._connect)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()

    def _tick(self) -> None:
        before = now()
        while not self._end.wait(_TICK_S):
            self._note(before, _TICK_S)
            before = now()

    def _connect(self) -> None:
        while not self._end.wait(_CONNECT_EVERY_S):
            before = now()
            try:
                self._cluster.connect().close()
            except psycopg.Error:
                continue
            self._note(before, 0.0)

    def _note(self, before: float, expected_s: float) -> None:
        after = now()
        if after - before > expected_s + _STALL_S:
            self._book.write("stall", before, until=after)
