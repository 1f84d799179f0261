"""A client's end of one connection to the fake server: one question at a time, each with a deadline.

Whatever cuts a question short drops the link. The lock's sessions and the writers' connections are built on it.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, overload

from pgelect.errors import NotPrimaryError, SessionLostError
from pgelect.testing._fake_cluster import Outcome
from pgelect.testing._fake_statements import SERVER_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pgelect._engine.model import Backend
    from pgelect.testing._fake_cluster import Cluster, FakeBackend, Statement
    from pgelect.testing._fake_wire import Wire

T = TypeVar("T")


class ClientEnd:
    """One connection, from its opening to its end."""

    def __init__(self, cluster: Cluster, new_wire: Callable[[], Wire], *, lease_s: float | None) -> None:
        self._cluster = cluster
        self._new_wire = new_wire
        self._lease_s = lease_s
        self._wire: Wire | None = None
        self._backend: FakeBackend | None = None
        self._accepted: FakeBackend | None = None  # the same, as soon as the server has it
        self._pending: asyncio.Future[Any] | None = None
        self._agreed: asyncio.Future[None] | None = None  # a goodbye that the server has not answered yet
        self._ended_by: str | None = None  # as far as this side has heard
        self._called = False  # somebody has called, and nobody has listened yet
        self._listening: asyncio.Future[Any] | None = None
        self.dropped = False

    @property
    def pid(self) -> int | None:
        """The pid of the server process; None before the connection is open."""
        return self._backend.id.pid if self._backend else None

    @property
    def backend_id(self) -> Backend | None:
        """The server process; None before the connection is open."""
        return self._backend.id if self._backend else None

    async def open(self, within_s: float, check: Callable[[], None]) -> None:
        """Connect, and have the server ``check`` that it is the right one.

        Raises:
            SessionLostError: refused, or no answer in time.
        """
        if self._wire is not None:
            raise RuntimeError("a session is opened once")
        with self._call() as answer:
            self._wire = wire = self._new_wire()
            wire.hang_up = partial(self._cluster.reached, self._left)
            wire.ask(partial(self._cluster.reached, partial(self._arrived, wire, answer, check)))
            try:
                self._backend = await self._answered(answer, within_s)
            except SessionLostError as error:
                if error.reason != "timeout":
                    raise
                raise SessionLostError("connect", f"no connection to the {SERVER_NAME} within {within_s:g} s") from None

    @overload
    async def ask(self, within_s: float, work: Callable[[FakeBackend], Statement[T]]) -> T: ...
    @overload
    async def ask(self, within_s: float, work: Callable[[FakeBackend], T]) -> T: ...
    async def ask(self, within_s: float, work: Callable[[FakeBackend], Any]) -> Any:
        """Have the server do something, and return its answer."""
        with self._call() as answer:
            self._raise_if_lost()
            wire, backend = self._wire, self._backend
            if wire is None or backend is None:
                raise SessionLostError("closed", "the session is not open")
            execute = partial(self._cluster.execute, backend, partial(work, backend), partial(self._finish, answer))
            wire.ask(partial(self._cluster.reached, execute))
            return await self._answered(answer, within_s)

    def was_called(self) -> bool:
        """Whether somebody has called since the last time."""
        called, self._called = self._called, False
        return called

    async def listen(self, for_s: float, *, keep: bool = False) -> bool:
        """Idle for that long. May be cancelled; the connection stays usable. ``keep``: a call is not forgotten by that.

        Returns:
            True, and early, when somebody has called since the last time.

        Raises:
            SessionLostError: the connection ended.
        """
        self._claim()
        try:
            self._raise_if_lost()
            self._pending = self._listening = asyncio.get_running_loop().create_future()
            if self._called:
                _settle(self._pending)
            timer = asyncio.get_running_loop().call_later(for_s, _settle, self._pending)
            try:
                await self._pending
            finally:
                timer.cancel()
            heard, self._called = self._called, self._called and keep
            return heard
        except SessionLostError:
            self.abandon()
            raise
        finally:
            self._pending = self._listening = None

    def interrupt(self) -> None:
        """Have the server cancel what is executed, and nothing else. Never raises."""
        wire, backend = self._wire, self._backend
        if wire is not None and backend is not None and not self.dropped:
            cancel = partial(self._cluster.cancel, backend, hits_next=False)
            wire.ask(partial(self._cluster.reached, cancel), at_once=True)

    async def close(self, within_s: float) -> None:
        """Say goodbye, cancelling what is executed, and wait for the server to agree."""
        try:
            wire, backend = self._wire, self._backend
            if wire is not None and backend is not None and not self.dropped and self._ended_by is None:
                self._agreed = agreed = asyncio.get_running_loop().create_future()
                wire.ask(partial(self._cluster.reached, partial(self._cluster.goodbye, backend)), at_once=True)
                await asyncio.wait({agreed}, timeout=within_s)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Drop the link. The server notices at once, unless nothing reaches it."""
        if self.dropped:
            return
        self.dropped = True
        if self._wire is not None and self._wire.hang_up is not None:
            self._wire.ask(self._wire.hang_up, at_once=True)
        self._fail_pending("the session has been closed")

    # What arrives

    def _arrived(self, wire: Wire, answer: asyncio.Future[Any], check: Callable[[], None]) -> None:
        """At the server: a connection is asked for."""
        if not self._cluster.up:
            detail = f"connection refused: the {SERVER_NAME} is not running"
            outcome = Outcome(error=SessionLostError("connect", detail))
        else:
            try:
                check()
            except NotPrimaryError as error:
                outcome = Outcome(error=error)
            else:
                self._accepted = self._cluster.connect(wire, self._heard_end, self._lease_s)
                self._accepted.heard_call = self._heard_call
                outcome = Outcome(self._accepted)
        wire.tell(partial(self._finish, answer, outcome))

    def _left(self) -> None:
        """At the server: the client has closed its end."""
        if self._accepted is not None:
            self._cluster.client_left(self._accepted)

    def _finish(self, answer: asyncio.Future[Any], outcome: Outcome) -> None:
        if answer.done():
            return
        if outcome.error is not None:
            answer.set_exception(outcome.error)
        else:
            answer.set_result(outcome.value)

    def _heard_end(self, why: str) -> None:
        if self._ended_by is None:
            self._ended_by = why
            self._fail_pending(why)
            if self._agreed is not None:
                _settle(self._agreed)

    def _heard_call(self) -> None:
        self._called = True
        if self._listening is not None:
            _settle(self._listening)

    def _fail_pending(self, why: str) -> None:
        if self._pending is not None and not self._pending.done():
            self._pending.set_exception(SessionLostError("closed", why))

    # One call

    def _claim(self) -> None:
        if self._pending is not None:
            raise RuntimeError("a call is in flight on this session: one at a time")

    @contextmanager
    def _call(self) -> Iterator[asyncio.Future[Any]]:
        """Begin a call; drop the link when it is cut short."""
        self._claim()
        self._pending = answer = asyncio.get_running_loop().create_future()
        try:
            yield answer
        except (asyncio.CancelledError, SessionLostError, NotPrimaryError):
            self.abandon()
            raise
        finally:
            if not answer.cancel() and not answer.cancelled():
                answer.exception()  # seen
            if self._pending is answer:
                self._pending = None

    async def _answered(self, answer: asyncio.Future[T], within_s: float) -> T:
        timer = asyncio.get_running_loop().call_later(within_s, _expire, answer)
        try:
            return await answer
        finally:
            timer.cancel()

    def _raise_if_lost(self) -> None:
        why = "the session has been closed" if self.dropped else self._ended_by
        if why is not None:
            raise SessionLostError("closed", why)


def _settle(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_result(None)


def _expire(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(SessionLostError("timeout", f"no answer from the {SERVER_NAME} in time"))
