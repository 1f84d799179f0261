"""The inside of the fake server: its sessions, their links, and what ends them. FakeServer and FakeSession share it.

Rules:

- What happens in the server is synchronous; only travelling and waiting are not. Each change is announced, and whoever
  waits for a condition looks again.
- A session that holds a lock and is not busy ends when the server has not heard from it for its lease
  (``idle_session_timeout``). A follower is not held to it: it may wait longer before it tries again.
- A link is up, silent (nothing travels and nobody is told: a partition) or cut (the client is told, the server is not).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING

from pgelect._engine.model import Backend
from pgelect.testing._fake_locks import Locks
from pgelect.testing._fake_tokens import Tokens

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgelect._engine.clock import Clock

_FIRST_PID = 1000
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)  # PostgreSQL's; where an injected clock begins


class Link(Enum):
    """What travels between a client and its server process."""

    UP = "up"
    SILENT = "silent"
    CUT = "cut"


@dataclass(slots=True, eq=False)
class FakeBackend:
    """One server process."""

    id: Backend
    lease_s: float
    alive: bool = True
    ended_by: str = ""
    busy: bool = False  # executing a statement: the idle timeout rests
    idle_since: float = 0.0  # by the injected clock
    timer: asyncio.TimerHandle | None = None  # without one
    link: Link = Link.UP
    client_gone: bool = False


class Cluster:
    """The state of one fake server."""

    def __init__(self, clock: Clock | None) -> None:
        self.locks: Locks[FakeBackend] = Locks()
        self.tokens = Tokens()
        self.backends: dict[int, FakeBackend] = {}  # alive, by pid
        self.statements = 0
        self.timeline = 1
        self.up = True
        self.frozen = False
        self.in_recovery = False
        self.may_terminate = True
        self.wait_slice_s = 0.05
        self.fence_wait_s = 0.05
        self.latency_s = 0.0
        self._clock = clock
        self._last_pid = _FIRST_PID
        self._watchers: set[asyncio.Future[None]] = set()

    # Time and change

    def wall(self) -> datetime:
        """Return the server's wall-clock time."""
        return datetime.now(UTC) if self._clock is None else _EPOCH + timedelta(seconds=self._clock.now())

    def changed(self) -> None:
        """Let everybody who waits look again."""
        for watcher in self._watchers:
            if not watcher.done():
                watcher.set_result(None)

    async def until(self, condition: Callable[[], bool], deadline: float) -> bool:
        """Wait for a condition until an instant of the event loop's clock; whether it came true."""
        loop = asyncio.get_running_loop()
        while not condition():
            left_s = deadline - loop.time()
            if left_s <= 0:
                return False
            watcher = loop.create_future()
            self._watchers.add(watcher)
            try:
                await asyncio.wait({watcher}, timeout=left_s)
            finally:
                self._watchers.discard(watcher)
        return True

    # Sessions

    def new_pid(self) -> int:
        """Return a pid that was never used."""
        self._last_pid += 1
        return self._last_pid

    def connect(self, lease_s: float) -> FakeBackend:
        """Begin a session."""
        backend = FakeBackend(Backend(self.new_pid(), self.wall()), lease_s)
        self.backends[backend.id.pid] = backend
        self.finish(backend)
        return backend

    def reachable(self, backend: FakeBackend) -> bool:
        """Whether client and server hear each other."""
        return not self.frozen and backend.link is Link.UP

    def begin(self, backend: FakeBackend) -> None:
        """Begin a statement; the idle timeout rests."""
        self.statements += 1
        backend.busy = True
        _stop_timer(backend)

    def finish(self, backend: FakeBackend) -> None:
        """End a statement; from now on the idle timeout of a holder runs."""
        backend.busy = False
        if not backend.alive or not self.locks.holds(backend):
            return
        if self._clock is not None:
            backend.idle_since = self._clock.now()
        elif not self.frozen:
            loop = asyncio.get_running_loop()
            backend.timer = loop.call_later(backend.lease_s, self.end, backend, "idle-session timeout")

    def enforce_leases(self) -> None:
        """With an injected clock: end the holders whose lease is over. Without one, timers do."""
        if self._clock is None or self.frozen:
            return
        now = self._clock.now()
        for backend in list(self.backends.values()):
            if not backend.busy and self.locks.holds(backend) and now - backend.idle_since >= backend.lease_s:
                self.end(backend, "idle-session timeout")

    def end(self, backend: FakeBackend, why: str) -> None:
        """End a session: its locks pass on, its place in a queue is gone."""
        if not backend.alive:
            return
        backend.alive = False
        backend.ended_by = why
        _stop_timer(backend)
        del self.backends[backend.id.pid]
        self.locks.forget(backend)
        self.changed()

    def end_all(self, why: str) -> None:
        """End every session and every fenced transaction. Nobody inherits a lock on the way."""
        self.locks = Locks()
        for backend in list(self.backends.values()):
            self.end(backend, why)
        for transaction in self.tokens.fenced():
            transaction.kill()

    def client_left(self, backend: FakeBackend) -> None:
        """Drop the client's end of the link: the session ends as soon as the server can hear of it."""
        backend.client_gone = True
        if self.reachable(backend):
            self.end(backend, "client closed the connection")
        self.changed()

    def freeze(self) -> None:
        """Stand still, and the timers with it."""
        self.frozen = True
        for backend in self.backends.values():
            _stop_timer(backend)

    def thaw(self) -> None:
        """Go on. Leases run anew; sessions whose clients left in the meantime end."""
        self.frozen = False
        for backend in list(self.backends.values()):
            if not backend.busy:
                self.finish(backend)
            self.set_link(backend, backend.link)

    def set_link(self, backend: FakeBackend, link: Link) -> None:
        """Change a link, and let each side hear what it can hear now."""
        backend.link = link
        if backend.client_gone and self.reachable(backend):
            self.end(backend, "client closed the connection")
        self.changed()


def _stop_timer(backend: FakeBackend) -> None:
    if backend.timer is not None:
        backend.timer.cancel()
        backend.timer = None
