"""A term as a thread sees it, and one turn of work for it in the thread that waits for leadership."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pgelect._engine.futures import outlast, settle
from pgelect._engine.term import working_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import datetime

    from pgelect._engine import model

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Term:
    """One unbroken leadership of one process, for threads.

    Attributes:
        token: fencing token, greater than that of every earlier term; 0 with ``fencing=False``.
        key: the lock.
        identity: of this process.
        acquired_at: when the token was minted, by the server's clock.
        metadata: as given to the lock.
        ended: set when this term is over: lost, or being given up. Work looks at ``ended.is_set()``, or waits with
            ``ended.wait(seconds)`` where it would sleep, and returns when it is.
    """

    token: int
    key: model.LockKey
    identity: str
    acquired_at: datetime
    metadata: Mapping[str, Any]
    ended: threading.Event = field(compare=False)
    _is_current: Callable[[], bool] = field(repr=False, compare=False)

    @classmethod
    def of(cls, term: model.Term, ended: threading.Event) -> Term:
        """Make that of an asynchronous one."""
        return cls(
            token=term.token,
            key=term.key,
            identity=term.identity,
            acquired_at=term.acquired_at,
            metadata=term.metadata,
            ended=ended,
            _is_current=lambda: term.is_current,
        )

    @property
    def is_current(self) -> bool:
        """True while this term is trusted at this very instant. Computed on each read; safe from any thread."""
        return self._is_current()


class Turn(Generic[T]):
    """Work for one term: done in a thread or, if the term ends before that has begun, by nobody; awaited in the loop.

    A thread cannot be cancelled, so neither can a turn that one has begun.
    """

    def __init__(self, term: model.Term) -> None:
        self.term = term
        self._life = working_for()
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[T | None] = self._loop.create_future()
        self._claim = threading.Lock()  # taken once, and kept

    def claim(self) -> bool:
        """Take it; False where another thread has, or it was passed by."""
        return self._claim.acquire(blocking=False)

    def pass_by(self, error: Exception | None = None) -> None:
        """Have done with it, unless a thread has taken it; safe from any thread."""
        if self.claim():
            self.finish(None, error)

    def run(self, work: Callable[[], T]) -> None:
        """Do it, in the calling thread; what it raises is for whoever awaits the turn, unless it ends the program."""
        value: T | None = None
        error: Exception | None = None
        try:
            with self.working():
                value = work()
        except Exception as raised:  # noqa: BLE001 -- it is raised where the turn is awaited
            error = raised
        finally:
            self.finish(value, error)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Mark what this thread does meanwhile as work for the term: it must not wait for its own end."""
        if self._life is None:
            yield
        else:
            with self._life.worked_for():
                yield

    @property
    def is_done(self) -> bool:
        """Whether the loop has heard that it is done; asked in the loop."""
        return self._done.done()

    def finish(self, value: T | None = None, error: Exception | None = None) -> None:
        """Tell the loop that it is done; safe from any thread. The first time counts."""
        self._loop.call_soon_threadsafe(settle, self._done, value, error)

    async def over(self, asked: Callable[[], object] = lambda: None) -> T | None:
        """Wait until it is done; return what it returned, or raise what it raised.

        A cancel is raised then, not before: the term is not drained while the thread works. ``asked`` is called for it.
        """
        return await outlast(self._done, asked)


class Turns(Generic[T]):
    """The turns of one thread, in order: handed over by the loop, taken by the thread."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Turn[T] | None] = SimpleQueue()
        self._last: Turn[T] | None = None
        self._closed = False

    @property
    def is_under_way(self) -> bool:
        """One is handed over, and not done: the thread works, or is about to; asked in the loop."""
        return self._last is not None and not self._last.is_done

    def __iter__(self) -> Iterator[Turn[T]]:
        """Wait for each, in the thread, and take it, until there will be no more."""
        while (turn := self._queue.get()) is not None:
            if turn.claim():
                yield turn

    async def hand_over(self, term: model.Term) -> T | None:
        """Have the thread work for that term; return what it returned, or raise what it raised.

        The thread may be kept from taking its turn by a signal handler that waits for the very end of the term: then it
        is passed by.
        """
        self._last = turn = Turn[T](term)
        self._queue.put(turn)
        if self._closed:
            turn.finish()
        return await turn.over(turn.pass_by)

    def end(self) -> None:
        """There will be no more; safe from any thread."""
        self._queue.put(None)

    def close(self) -> None:
        """Take no more, and have done with the last, which may be lost: an interrupt can strike anywhere."""
        self._closed = True
        if self._last is not None:
            self._last.finish()
