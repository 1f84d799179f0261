"""The Session protocol on the fake server: the client's side of one session.

Rules, as on PostgreSQL:

- A call travels to the server, is executed there in one go, and its answer travels back. A cancel or a deadline may
  strike on either way: then the link is dropped, and what the server did is uncertain.
- Two calls at once are a mistake of the caller and raise RuntimeError.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from pgelect._engine.session import LockAnswer
from pgelect.errors import FenceBusyError, NotPrimaryError, SessionLostError
from pgelect.testing._fake_cluster import Link
from pgelect.testing._fake_statements import SERVER_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pgelect._engine.model import Backend, Grant
    from pgelect._engine.session import ResumeAnswer
    from pgelect.testing._fake_cluster import FakeBackend
    from pgelect.testing._fake_statements import Statements

T = TypeVar("T")


class FakeSession:
    """One session with a fake server. Made by ``FakeServer.session``; see ``pgelect._engine.session.Session``."""

    def __init__(self, statements: Statements) -> None:
        self._server = statements
        self._cluster = statements.cluster
        self._backend: FakeBackend | None = None
        self._dropped = False
        self._in_call = False

    def __repr__(self) -> str:
        return f"<FakeSession {self._server.key} backend={self.pid} {'closed' if self._dropped else 'live'}>"

    @property
    def pid(self) -> int | None:
        """The pid of the server process; None before ``open``."""
        return self._backend.id.pid if self._backend else None

    async def open(self, within_s: float) -> None:
        """Connect."""
        if self._backend is not None:
            raise RuntimeError("a session is opened once")
        with self._call(within_s) as deadline:
            if not await self._cluster.until(lambda: self._dropped or not self._cluster.frozen, deadline):
                raise SessionLostError("connect", f"no connection to the {SERVER_NAME} within {within_s:g} s")
            self._raise_if_lost()
            if not self._cluster.up:
                raise SessionLostError("connect", f"connection refused: the {SERVER_NAME} is not running")
            self._server.check_primary()
            self._backend = self._cluster.connect(self._server.lease_s)
            await self._travel(deadline)

    async def try_lock(self, ghost: Backend | None, within_s: float) -> LockAnswer:
        """Try for the lock without waiting."""
        return await self._ask(within_s, lambda backend: self._server.try_lock(backend, ghost))

    async def wait_lock(self, within_s: float) -> LockAnswer:
        """Wait in the queue for one slice. After it, the place in the queue is gone."""
        slice_s = self._cluster.wait_slice_s
        with self._call(slice_s + within_s) as deadline:
            backend = await self._travel(deadline)
            self._server.check_primary()
            self._server.check_name(backend)
            self._cluster.begin(backend)

            def over() -> None:
                self._cluster.finish(backend)
                self._cluster.changed()

            locks = self._cluster.locks
            waiter = locks.queue(self._server.key, backend, over)
            # Not tied to this coroutine: if the server does not hear that we left, it waits until the slice is over.
            asyncio.get_running_loop().call_later(slice_s, locks.leave, waiter)
            await self._cluster.until(lambda: waiter.done or self._loss() is not None, deadline)
            self._server.check_name(backend)
            await self._travel(deadline)
            return LockAnswer(waiter.granted, self._server.row())

    async def mint(self, within_s: float) -> Grant:
        """Mint a token; fenced transactions of earlier terms are waited for, then ended."""
        with self._writing(within_s) as deadline:
            backend = await self._travel(deadline)
            self._cluster.begin(backend)
            try:
                if not await self._fence_cleared(backend, deadline):
                    self._end_fenced()
                grant = self._server.mint(backend)
            finally:
                self._cluster.finish(backend)
            await self._travel(deadline)
            return grant

    async def resume(self, grant: Grant, within_s: float) -> ResumeAnswer:
        """Take the lock again if the term of ``grant`` can go on."""
        return await self._ask(within_s, lambda backend: self._server.resume(backend, grant))

    async def prove(self, within_s: float) -> bool:
        """Prove leadership."""
        return await self._ask(within_s, lambda backend: self._server.holds(backend) and not self._cluster.in_recovery)

    async def watch(self, for_s: float) -> None:
        """Idle; hear at once when the session ends."""
        with self._alone():
            await self._cluster.until(lambda: self._loss() is not None, asyncio.get_running_loop().time() + for_s)
            self._raise_if_lost()

    async def unlock(self, token: int, within_s: float) -> bool:
        """Mark the term as released, unless a fenced transaction holds the row for long, and unlock."""
        with self._writing(within_s) as deadline:
            backend = await self._travel(deadline)
            self._cluster.begin(backend)
            try:
                marked = await self._fence_cleared(backend, deadline)  # as a mint does, but ends nobody for it
                was_held = self._server.unlock(backend, token, marked=marked)
            finally:
                self._cluster.finish(backend)
            await self._travel(deadline)
            return was_held

    async def close(self, within_s: float) -> None:
        """End the session in an orderly way."""
        try:
            backend = self._backend
            if backend is not None and not self._dropped:
                deadline = asyncio.get_running_loop().time() + within_s
                await self._cluster.until(
                    lambda: self._loss() is not None or self._cluster.reachable(backend), deadline
                )
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Drop the link. The server notices at once, unless nothing reaches it."""
        if not self._dropped:
            self._dropped = True
            if self._backend is not None:
                self._cluster.client_left(self._backend)
            self._cluster.changed()

    # One call

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if self._in_call:
            raise RuntimeError("a call is in flight on this session: one at a time")
        self._in_call = True
        try:
            yield
        finally:
            self._in_call = False

    @contextmanager
    def _call(self, within_s: float) -> Iterator[float]:
        """Compute the deadline of one call; drop the link when the call is cut short."""
        with self._alone():
            try:
                yield asyncio.get_running_loop().time() + within_s
            except (asyncio.CancelledError, SessionLostError, NotPrimaryError):
                self.abandon()
                raise

    @contextmanager
    def _writing(self, within_s: float) -> Iterator[float]:
        """Begin one call that a standby refuses."""
        with self._call(within_s) as deadline:
            self._server.check_primary()
            yield deadline

    async def _ask(self, within_s: float, execute: Callable[[FakeBackend], T]) -> T:
        """Run one statement on the server."""
        with self._call(within_s) as deadline:
            backend = await self._travel(deadline)
            self._cluster.begin(backend)
            try:
                answer = execute(backend)
            finally:
                self._cluster.finish(backend)
            await self._travel(deadline)
            return answer

    async def _travel(self, deadline: float) -> FakeBackend:
        """Go one way over the link, or raise SessionLostError."""
        backend, loop = self._backend, asyncio.get_running_loop()
        if backend is None:
            raise SessionLostError("closed", "the session is not open")
        latency_s, left_s = self._cluster.latency_s, max(0.0, deadline - loop.time())
        await asyncio.sleep(min(latency_s, left_s))
        self._cluster.enforce_leases()
        arrived = await self._cluster.until(
            lambda: self._loss() is not None or self._cluster.reachable(backend), deadline
        )
        self._raise_if_lost()
        if not arrived or latency_s > left_s:
            raise SessionLostError("timeout", f"no answer from the {SERVER_NAME} in time")
        return backend

    def _loss(self) -> str | None:
        """Say why the session is gone, as far as this side can know."""
        backend = self._backend
        if self._dropped:
            return "the session has been closed"
        if backend is None:
            return None
        if backend.link is Link.CUT:
            return "connection reset by peer"
        if not backend.alive and self._cluster.reachable(backend):
            return f"terminating connection: {backend.ended_by}"
        return None

    def _raise_if_lost(self) -> None:
        why = self._loss()
        if why is not None:
            self.abandon()
            raise SessionLostError("closed", why)

    # Waiting for the token row

    async def _fence_cleared(self, backend: FakeBackend, deadline: float) -> bool:
        """Wait a little for fenced transactions to end; whether they have."""
        soon = min(deadline, asyncio.get_running_loop().time() + self._cluster.fence_wait_s)
        await self._cluster.until(lambda: self._loss() is not None or not self._server.fenced(), soon)
        self._raise_if_lost()
        if not backend.alive:  # and its client did not hear: no answer will come
            await self._travel(deadline)
        return not self._server.fenced()

    def _end_fenced(self) -> None:
        """End the fenced transactions that may be ended; FenceBusyError if some remain."""
        for transaction in self._server.fenced():
            if transaction.killable:
                transaction.kill()
        if left := self._server.fenced():
            raise FenceBusyError(self._server.key, tuple(sorted(transaction.pid for transaction in left)))
