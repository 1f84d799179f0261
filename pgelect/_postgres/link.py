"""One connection of the driver, and the one call that runs on it: bounded, and dropped when anything is uncertain.

Rules:

- A call is a task of its own, and only ``asyncio.wait`` waits for it: ``wait_for(conn.execute())`` makes psycopg ask
  the server to cancel and then wait for the server, which a frozen link never answers.
- On expiry and on a cancel from outside the link is dropped first and the task ends because of that.
- While a call is pending, dropping shuts the socket down and leaves its descriptor open until the call has ended. A
  descriptor closed earlier could be reused at once, and the call's last act, taking its reader off the event loop,
  would then hit a stranger.
- A fork's child lets go of its copies of the sockets and sends nothing.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
import weakref
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar

import psycopg
from psycopg import AsyncConnection

from pgelect._postgres.errors import empty_frames, mapped
from pgelect.errors import ForkedError, PgElectError, SessionLostError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

_DRIVER_S = 0.02  # for what is there to be read
_SETTLE_S = 1.0  # a call on a socket that was shut down ends within milliseconds; this only bounds surprises


@dataclass(frozen=True, slots=True)
class Deadline:
    """An instant of the monotonic clock, computed once and passed down."""

    at: float
    within_s: float

    @classmethod
    def after(cls, within_s: float) -> Self:
        """Give the instant that many seconds from now."""
        return cls(time.monotonic() + within_s, within_s)

    def left_s(self) -> float:
        """Seconds left; never negative."""
        return max(0.0, self.at - time.monotonic())


def check_owner(owner_pid: int) -> None:
    """Raise ForkedError in any process but the owner."""
    if os.getpid() != owner_pid:
        raise ForkedError(owner_pid)


class Link:
    """A connection that this process made, until it is dropped."""

    __slots__ = ("__weakref__", "_closing", "_dropped", "_fd", "_finished", "_owner_pid", "_pending", "_thread", "conn")

    def __init__(self, conn: AsyncConnection[Any]) -> None:
        self.conn = conn
        self._fd = conn.fileno()
        self._owner_pid = os.getpid()
        self._thread = threading.get_ident()
        self._pending: asyncio.Task[Any] | None = None  # the call that uses the socket now
        self._closing = False  # to be dropped soon: no further call
        self._dropped = False  # shut down
        self._finished = False  # descriptor closed
        _links.add(self)

    @property
    def dropped(self) -> bool:
        """Whether the link is gone."""
        return self._dropped

    @property
    def busy(self) -> bool:
        """Whether a call is in flight."""
        return self._pending is not None

    async def run(
        self,
        work: Callable[[AsyncConnection[Any]], Coroutine[Any, Any, T]],
        deadline: Deadline,
        doing: str,
    ) -> T:
        """Run one call; after the deadline, or when cancelled, drop the link.

        Raises:
            SessionLostError: the deadline passed, or the session ended.
            PgElectError: the server refused a statement; the session is usable.
        """
        task = self._start(work(self.conn))
        try:
            await asyncio.wait({task}, timeout=deadline.left_s())
        except asyncio.CancelledError:
            self.drop()
            await self._settle(task)
            raise
        if not task.done():
            self.drop()
            await self._settle(task)
            raise SessionLostError(
                "timeout", f"no answer from the server within {deadline.within_s:.3g} s while {doing}"
            )
        return self._result(task, doing)

    async def watch(self, for_s: float, deaf_s: float = 0.0) -> bool:
        """Idle on the socket. A cancel ends the wait and leaves the link as it was.

        Returns:
            True, and early, when a notification came; after ``deaf_s`` for those that came within that.
        """
        task = self._start(_listen(self.conn, for_s, min(deaf_s, for_s)))
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            await self._stop(task)
            raise
        return self._result(task, "it was idle")

    def drop(self) -> None:
        """End the connection without waiting for anything. Never raises; harmless when repeated or in a fork."""
        if self._dropped or os.getpid() != self._owner_pid:
            return
        self._dropped = True
        if self._pending is None or self._pending.get_loop().is_closed():  # there no call ends any more
            self._finish()
            return
        with suppress(OSError):
            sock = socket.socket(fileno=self._fd)
            try:
                sock.shutdown(socket.SHUT_RDWR)
            finally:
                sock.detach()

    async def cancel(self, deadline: Deadline) -> None:
        """Have the server cancel the call in flight, and wait for its end, until the deadline at most. None follows it.

        Only where libpq can do it without blocking (17 and newer); otherwise nothing happens: the server notices a dead
        client by itself.
        """
        pending, self._closing = self._pending, True
        if pending is None or self._dropped or not psycopg.capabilities.has_cancel_safe():
            return
        asking = asyncio.get_running_loop().create_task(self._ask_to_cancel(deadline.left_s()))
        try:
            await asyncio.wait({asking}, timeout=deadline.left_s())
            await asyncio.wait({pending}, timeout=deadline.left_s())
        finally:
            asking.cancel()

    async def interrupt(self, within_s: float) -> None:
        """Have the server cancel the call in flight, where libpq can do it. The call has to bear that."""
        if self._pending is not None and not self._dropped and psycopg.capabilities.has_cancel_safe():
            await self._ask_to_cancel(within_s)

    async def _ask_to_cancel(self, within_s: float) -> None:
        try:
            await self.conn.cancel_safe(timeout=max(0.01, within_s))
        except (psycopg.Error, OSError):
            return
        except asyncio.CancelledError as error:
            empty_frames(error)  # the request has a connection of its own
            raise

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        try:
            self._check_usable()
        except PgElectError:
            work.close()
            raise
        task = asyncio.get_running_loop().create_task(work)
        self._pending = task
        task.add_done_callback(self._ended)
        return task

    def _check_usable(self) -> None:
        check_owner(self._owner_pid)
        if self._dropped or self._closing:
            raise SessionLostError("closed", "the session has been closed")

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if self._pending is task:
            self._pending = None
        if not task.cancelled():
            task.exception()  # seen: a call nobody waits for any more must not be reported as never retrieved
        if self._dropped:
            self._finish()

    def _result(self, task: asyncio.Task[T], doing: str) -> T:
        try:
            return task.result()
        except psycopg.Error as error:
            if self._dropped:
                raise SessionLostError("closed", f"the session was closed while {doing}") from None
            told = mapped(error, self.conn, doing)
            if isinstance(told, SessionLostError):
                self.drop()
            raise told from error

    async def _settle(self, task: asyncio.Task[Any]) -> None:
        """After a drop: wait for the call to end. A second cancel does not leave it behind either."""
        try:
            await asyncio.wait({task}, timeout=_SETTLE_S)
        finally:
            if not task.done():
                self._finish()  # on a finished connection the driver does not wait for the server
                task.cancel()

    async def _stop(self, task: asyncio.Task[Any]) -> None:
        """Cancel an idle wait. Again until it heeds: before Python 3.12 a wait_for below may swallow a cancel."""
        deadline = Deadline.after(_SETTLE_S)
        while not task.done() and deadline.left_s() > 0:
            task.cancel()
            await asyncio.wait({task}, timeout=0.05)
        if not task.done():
            self.drop()

    def _finish(self) -> None:
        if self._finished or os.getpid() != self._owner_pid:
            return
        self._finished = True
        _links.discard(self)
        with suppress(psycopg.Error):
            self.conn.pgconn.finish()

    def _let_go(self) -> None:
        """In a fork's child: give up the inherited socket; nothing reaches the server.

        First the descriptor becomes one of /dev/null, so that whoever still closes or uses it hits no stranger. Then
        the driver is done with it, too: else a task that is cancelled here would have it ask the server to cancel what
        the parent runs. (That can only be in the thread of the link; libpq may have been at work in another one.)
        """
        if self._finished:
            return
        self._finished = self._dropped = True
        with suppress(OSError):
            os.close(self._fd)  # before: at its limit of descriptors the child can open nothing else
            nothing = os.open(os.devnull, os.O_RDWR)
            if nothing != self._fd:
                os.dup2(nothing, self._fd, inheritable=False)
                os.close(nothing)
        if self._thread == threading.get_ident():
            self.conn.pgconn.finish()


async def _listen(conn: AsyncConnection[Any], for_s: float, deaf_s: float) -> bool:
    """Wait for a notification; the wait itself is what surfaces a killed backend.

    The driver wakes ten times a second while it waits, so it is asked for a moment only: first, for what it has read
    already, and whenever the socket has something to read.
    """
    heard, begun = False, time.monotonic()

    def left_s() -> float:
        return max(0.0, begun + (deaf_s if heard else for_s) - time.monotonic())

    while True:
        async with aclosing(conn.notifies(timeout=min(left_s(), _DRIVER_S), stop_after=1)) as notes:
            async for _ in notes:
                heard = True
        if not left_s():
            return heard
        await _readable(conn.fileno(), left_s())


async def _readable(fd: int, within_s: float) -> None:
    """Wait until there is something to read, or the end of the connection."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(fd, ready.set)
    timer = loop.call_later(within_s, ready.set)
    try:
        await ready.wait()
    finally:
        timer.cancel()
        loop.remove_reader(fd)


_links: weakref.WeakSet[Link] = weakref.WeakSet()
_forks = 0  # that this process has begun
_forking: set[int] = set()  # threads that are about to, or have, and run other hooks meanwhile


def forks() -> int:
    """Count the forks so far: a connection being made across one is shared with a child that cannot close it."""
    return _forks


def is_forking() -> bool:
    """Whether some thread is in the middle of a fork; a connection that is begun now may be shared, too."""
    return bool(_forking)


def _before_fork() -> None:
    global _forks  # noqa: PLW0603 -- the fork hook has no other place
    _forking.add(threading.get_ident())  # first: who sees the new count, but no fork, may be sure that it is over
    _forks += 1


def _in_parent() -> None:
    _forking.discard(threading.get_ident())


def _in_child() -> None:
    _forking.clear()
    for link in list(_links):
        link._let_go()  # noqa: SLF001 -- the same module: the fork hook cannot be a method
    _links.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
