"""The inside of the fake server: its sessions, what they execute, and what ends them.

Rules:

- All here is synchronous. What takes time in the server, a statement that waits, is a generator that yields a ``Wait``;
  after each change the cluster looks which of them can go on.
- A session of a lock that is not busy ends when the server has not heard from it for its lease
  (``idle_session_timeout``). One whose try was refused is not held to it until it tries again: it may wait for longer.
- A client that leaves is noticed at once by an idle session, by a busy one only when it looks
  (``client_connection_check_interval``) or when its statement is over.
- A frozen server executes nothing; what reaches it, and what is due, waits. When it goes on, leases that are over come
  first.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from pgelect._engine.crowd import PLACES
from pgelect._engine.model import Backend
from pgelect.errors import PgElectError
from pgelect.testing._fake_data import Data
from pgelect.testing._fake_locks import Locks
from pgelect.testing._fake_wire import LoopTimers, Timer, Timers

if TYPE_CHECKING:
    from pgelect._engine.clock import Clock
    from pgelect._engine.model import LockKey
    from pgelect._group.shares import Member
    from pgelect.testing._fake_wire import Wire

T = TypeVar("T")

_FIRST_PID = 1000
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)  # PostgreSQL's; where an injected clock begins


@dataclass(frozen=True, slots=True)
class Wait:
    """What a statement waits for: a condition, for at most so many seconds."""

    until: Callable[[], bool]
    for_s: float


Statement: TypeAlias = Generator[Wait, bool, T]
"""A statement in execution. Each Wait is answered with whether its condition came true."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a statement: a value, or an error."""

    value: Any = None
    error: Exception | None = None


@dataclass(slots=True, eq=False)
class FakeBackend:
    """One server process."""

    id: Backend
    wire: Wire
    heard_end: Callable[[str], None]
    """What the client does when it hears that this process ended."""
    lease_s: float | None = None
    """The idle timeout; None: this is no session of a lock."""
    held_to_lease: bool = True
    alive: bool = True
    client_gone: bool = False
    canceled: bool = False  # its next statement is
    idle_since: float = 0.0  # by the injected clock
    timer: Timer | None = None  # of the lease, without one
    statement: Statement[Any] | None = None
    answer: Callable[[Outcome], None] | None = None
    wait: Wait | None = None
    wait_timer: Timer | None = None
    on_end: list[Callable[[], None]] = field(default_factory=list)
    listens_to: set[LockKey] = field(default_factory=set)
    aside: LockKey | None = None
    """The lock from which it stands aside, and is counted there."""
    member: tuple[LockKey, Member] | None = None
    """Of a group: its name's key, and what its locks would tell."""
    heard_call: Callable[[], None] | None = None
    """What the client does when it hears a notification."""


class Cluster:
    """The state of one fake server."""

    def __init__(self, clock: Clock | None, timers: Timers | None) -> None:
        self.locks: Locks[FakeBackend] = Locks()
        self.data = Data()
        self.backends: dict[int, FakeBackend] = {}  # alive, by pid
        self.statements = 0
        self.up = True
        self.in_recovery = False
        self.may_terminate = True
        self.places: int | None = PLACES
        self.wait_slice_s = 0.05
        self.fence_wait_s = 0.05
        self.release_wait_s = 0.05
        self.client_check_s = 0.0
        self.commit_s: Callable[[], float] = lambda: 0.0
        self.on_end: Callable[[FakeBackend, str], None] | None = None
        self.on_unlock: Callable[[FakeBackend], None] | None = None
        self.timers: Timers = timers or LoopTimers()
        self._clock = clock
        self._own_time = timers is not None
        self._last_pid = _FIRST_PID
        self._frozen: list[Callable[[], None]] | None = None  # what waits for the thaw
        self._overdue: list[FakeBackend] = []  # whose lease ran out meanwhile
        self._looking = self._look_again = False

    # Time

    def wall(self) -> datetime:
        """Return the server's wall-clock time."""
        if self._clock is not None:
            return _EPOCH + timedelta(seconds=self._clock.now())
        return _EPOCH + timedelta(seconds=self.timers.now()) if self._own_time else datetime.now(UTC)

    def later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Have the server do something later; not while it is frozen."""
        return self.timers.call_later(delay_s, partial(self.reached, callback))

    def reached(self, callback: Callable[[], None]) -> None:
        """Do what has reached the server, unless it is frozen: then after the thaw."""
        if self._frozen is not None:
            self._frozen.append(callback)
        else:
            self.enforce_leases()
            callback()

    # Sessions

    def new_pid(self) -> int:
        """Return a pid that was never used."""
        self._last_pid += 1
        return self._last_pid

    def connect(self, wire: Wire, heard_end: Callable[[str], None], lease_s: float | None) -> FakeBackend:
        """Begin a session."""
        backend = FakeBackend(Backend(self.new_pid(), self.wall()), wire, heard_end, lease_s)
        self.backends[backend.id.pid] = backend
        self._idle(backend)
        return backend

    def end(self, backend: FakeBackend, why: str) -> None:
        """End a session: its statement and transaction are undone, its locks pass on. Its client is told."""
        if not backend.alive:
            return
        backend.alive = False
        del self.backends[backend.id.pid]
        for timer in (backend.timer, backend.wait_timer):
            if timer is not None:
                timer.cancel()
        backend.wait = None
        if backend.statement is not None:
            backend.statement.close()
            backend.statement = None
        for undo in backend.on_end:
            undo()
        self.locks.forget(backend)
        if self.on_end is not None:
            self.on_end(backend, why)
        backend.wire.tell(partial(backend.heard_end, f"terminating connection: {why}"), at_once=True)
        self.changed()

    def end_all(self, why: str) -> None:
        """End every session at one instant: nobody inherits a lock, no statement goes on because another was undone."""
        self.locks = Locks()
        self._end_at_once(list(self.backends.values()), why)

    def demote(self, why: str) -> None:
        """Go into recovery. Nothing that is under way comes to a good end."""
        self.in_recovery = True
        everybody = list(self.backends.values())
        self._end_at_once([one for one in everybody if one.lease_s is None or one.statement is not None], why)

    def _end_at_once(self, backends: list[FakeBackend], why: str) -> None:
        self._looking = True
        for backend in backends:
            self.end(backend, why)
        self._looking = False

    def client_left(self, backend: FakeBackend, why: str = "client closed the connection") -> None:
        """Hear that a client has closed its end, or that nobody is there any more."""
        backend.client_gone = True
        if backend.statement is None or self.client_check_s <= 0:
            self.end(backend, why)
        else:
            self.later(self.client_check_s, partial(self.end, backend, why))

    def goodbye(self, backend: FakeBackend) -> None:
        """End a session because its client says so. One that is gone resets its client."""
        if backend.alive:
            self.end(backend, "client closed the connection")
        else:
            self._reset(backend)

    def _reset(self, backend: FakeBackend) -> None:
        backend.wire.reset_client(partial(backend.heard_end, "server closed the connection unexpectedly"))

    # Statements

    def execute(self, backend: FakeBackend, work: Callable[[], Any], answer: Callable[[Outcome], None]) -> None:
        """Execute what a session asks for; meanwhile its idle timeout rests. A session that is gone resets its client.

        ``work`` returns a value, or a Statement when it may have to wait.
        """
        if not backend.alive:
            self._reset(backend)
            return
        if backend.canceled:
            backend.canceled = False
            work = _canceled
        self.statements += 1
        _stop(backend)
        backend.statement, backend.answer = _as_statement(work), answer
        self._go_on(backend)

    def changed(self) -> None:
        """Look which statements can go on now."""
        self._look_again = True
        if self._looking:
            return
        self._looking = True
        try:
            while self._look_again:
                self._look_again = False
                for backend in list(self.backends.values()):
                    if backend.wait is not None and backend.wait.until():
                        self._go_on(backend, came_true=True)
        finally:
            self._looking = False

    def _go_on(self, backend: FakeBackend, *, came_true: bool | None = None, error: Exception | None = None) -> None:
        if backend.wait_timer is not None:
            backend.wait_timer.cancel()
        backend.wait = backend.wait_timer = None
        statement, answer = backend.statement, backend.answer
        if statement is None or answer is None:
            raise RuntimeError("a session that waits executes something")
        found = _advance(statement, came_true, error)
        if isinstance(found, Wait):
            backend.wait = found
            backend.wait_timer = self.later(found.for_s, partial(self._waited, backend, found))
            return
        if backend.alive:  # it may have ended itself
            backend.statement = None
            self._idle(backend)
            backend.wire.tell(partial(answer, found))
            if backend.client_gone:
                self.end(backend, "client closed the connection")
        self.changed()

    def _waited(self, backend: FakeBackend, wait: Wait) -> None:
        if backend.wait is wait:
            self._go_on(backend, came_true=wait.until())

    def cancel(self, backend: FakeBackend, *, hits_next: bool) -> None:
        """Cancel the statement of a session; of an idle one, the next, or nothing."""
        if backend.wait is not None:
            self._go_on(backend, error=_cancel_error())
        elif backend.alive:
            backend.canceled = hits_next

    # Leases

    def _idle(self, backend: FakeBackend) -> None:
        """From now on the idle timeout runs."""
        if not backend.alive or backend.lease_s is None or not backend.held_to_lease:
            return
        if self._clock is not None:
            backend.idle_since = self._clock.now()
        else:
            backend.timer = self.timers.call_later(backend.lease_s, partial(self._lease_over, backend))

    def _lease_over(self, backend: FakeBackend) -> None:
        if self._frozen is not None:
            self._overdue.append(backend)
        else:
            self.end(backend, "idle-session timeout")

    def enforce_leases(self) -> None:
        """With an injected clock: end the sessions whose lease is over. Without one, timers do."""
        if self._clock is None or self._frozen is not None:
            return
        now = self._clock.now()
        for backend in list(self.backends.values()):
            idle = backend.lease_s is not None and backend.held_to_lease and backend.statement is None
            if idle and now - backend.idle_since >= (backend.lease_s or 0.0):
                self.end(backend, "idle-session timeout")

    # Standing still

    @property
    def is_frozen(self) -> bool:
        """Whether it stands still."""
        return self._frozen is not None

    def freeze(self) -> None:
        """Stand still; time goes on."""
        self._frozen = self._frozen or []

    def thaw(self) -> None:
        """Go on. Leases that are over come first, then what came or was due in the meantime, in order."""
        if self._frozen is None:
            return
        waiting, self._frozen = self._frozen, None
        overdue, self._overdue = self._overdue, []
        for backend in overdue:
            self.end(backend, "idle-session timeout")
        for callback in waiting:
            self.reached(callback)

    def go_down(self, why: str) -> None:
        """End all sessions, and what waited for a thaw; connecting is refused."""
        self._frozen = None
        self._overdue.clear()
        self.up = False
        self.end_all(why)


def _advance(statement: Statement[Any], came_true: bool | None, error: Exception | None) -> Wait | Outcome:  # noqa: FBT001 -- what its wait came to
    """Let a statement go on until it has to wait, or is over."""
    try:
        wait = statement.throw(error) if error else next(statement) if came_true is None else statement.send(came_true)
        while wait.until():
            wait = statement.send(True)  # noqa: FBT003 -- what its wait came to
    except StopIteration as stop:
        return Outcome(stop.value)
    except Exception as failure:  # noqa: BLE001 -- the client is told
        return Outcome(error=failure)
    return wait


def _cancel_error() -> PgElectError:
    return PgElectError("canceling statement due to user request")


def _canceled() -> None:
    raise _cancel_error()


def _as_statement(work: Callable[[], Any]) -> Statement[Any]:
    result = work()
    return (yield from result) if isinstance(result, Generator) else result


def _stop(backend: FakeBackend) -> None:
    if backend.timer is not None:
        backend.timer.cancel()
        backend.timer = None
