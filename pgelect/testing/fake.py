"""FakeServer: PostgreSQL as a leader election sees it, in memory. For tests of this project and of its users.

It has advisory locks with their queue, the token table with fenced transactions, and sessions whose lease is enforced.
It breaks on request: sessions are terminated, links fall silent, the server stops, freezes, is demoted and promoted.
One event loop, no threads. The contract suite of the project runs on it and on real servers alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pgelect.testing._fake_cluster import Cluster, FakeBackend, Link
from pgelect.testing._fake_statements import Statements
from pgelect.testing._fake_tokens import FakeTransaction
from pgelect.testing.fake_session import FakeSession

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pgelect._engine.clock import Clock
    from pgelect._engine.model import LeaderRecord, LockKey

__all__ = ["FakeServer", "FakeSession", "FakeTransaction"]


class FakeServer:
    """One server in memory.

    Args:
        clock: measures leases and the server's time, such as a ``FakeClock``; leases are then enforced whenever
            something reaches the server, and by ``enforce_leases()``. Default None: the event loop's timers.
        wait_slice_s: how long ``wait_lock`` waits in the queue, in seconds of the event loop. Default 0.05.
        fence_wait_s: how long a mint waits for fenced transactions before it ends them, in seconds. Default 0.05.
        latency_s: one way of each link, in seconds. Default 0.0.
        may_terminate: whether sessions may end their ghosts. Default True.
    """

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        wait_slice_s: float = 0.05,
        fence_wait_s: float = 0.05,
        latency_s: float = 0.0,
        may_terminate: bool = True,
    ) -> None:
        self._cluster = Cluster(clock)
        self._cluster.wait_slice_s = wait_slice_s
        self._cluster.fence_wait_s = fence_wait_s
        self._cluster.latency_s = latency_s
        self._cluster.may_terminate = may_terminate
        self._silent: dict[int, FakeBackend] = {}

    def session(
        self,
        *,
        key: LockKey,
        identity: str = "fake",
        metadata: Mapping[str, Any] | None = None,
        lease_s: float = 15.0,
        fencing: bool = True,
    ) -> FakeSession:
        """Return a new session, not yet open."""
        return FakeSession(Statements(self._cluster, key, identity, metadata or {}, lease_s, fencing))

    def begin_fenced(self, key: LockKey, token: int, *, killable: bool = True) -> FakeTransaction:
        """Begin a transaction fenced by a token, as ``lock.fence()`` does.

        Args:
            key: the lock.
            token: of the term that writes.
            killable: False makes a transaction that a mint may not end, so that it reports ``FenceBusyError``.

        Raises:
            StaleTokenError: the token is not that of a current term.
        """
        cluster = self._cluster
        return cluster.tokens.begin(key, token, cluster.new_pid(), cluster.changed, killable=killable)

    # What there is to see

    @property
    def statements(self) -> int:
        """How many statements sessions have run so far."""
        return self._cluster.statements

    @property
    def timeline(self) -> int:
        """The timeline; 1 at first, one more with each promotion."""
        return self._cluster.timeline

    def sessions(self) -> tuple[int, ...]:
        """Return the pids of all sessions, the oldest first."""
        self._cluster.enforce_leases()
        return tuple(self._cluster.backends)

    def holders(self, key: LockKey) -> tuple[int, ...]:
        """Return the pid that holds the lock, if any."""
        self._cluster.enforce_leases()
        holder = self._cluster.locks.holder(key)
        return () if holder is None else (holder.id.pid,)

    def waiters(self, key: LockKey) -> tuple[int, ...]:
        """Return the pids that wait for the lock, the first in the queue first."""
        self._cluster.enforce_leases()
        return tuple(waiter.id.pid for waiter in self._cluster.locks.waiters(key))

    def row(self, key: LockKey) -> LeaderRecord | None:
        """Return the token row of a lock."""
        return self._cluster.tokens.row(key)

    # What can go wrong with one session

    def terminate(self, pid: int) -> bool:
        """End a session, as ``pg_terminate_backend`` does. False: there is none with this pid."""
        backend = self._cluster.backends.get(pid)
        if backend is not None:
            self._cluster.end(backend, "terminated by an administrator")
        return backend is not None

    def unlock_all(self, pid: int) -> None:
        """Free all locks of a session behind its back, as ``DISCARD ALL`` or a pooler does. KeyError: no session."""
        self._cluster.locks.unlock_all(self._cluster.backends[pid])
        self._cluster.changed()

    def partition(self, pid: int) -> None:
        """Let the link of a session fall silent: neither side is told. The lease goes on. KeyError: no session."""
        backend = self._silent[pid] = self._cluster.backends[pid]
        self._cluster.set_link(backend, Link.SILENT)

    def heal(self, pid: int) -> None:
        """Undo ``partition``: each side hears what became of the other. Harmless for any other pid."""
        backend = self._silent.pop(pid, None)
        if backend is not None:
            self._cluster.set_link(backend, Link.UP)

    def cut(self, pid: int) -> None:
        """Break the link of a session: the client hears it, the server does not and keeps a ghost. KeyError: none."""
        self._cluster.set_link(self._cluster.backends[pid], Link.CUT)

    # What can go wrong with the server

    def enforce_leases(self) -> None:
        """With an injected clock: end the holders whose lease is over now."""
        self._cluster.enforce_leases()

    def stop(self) -> None:
        """Stop: all sessions and fenced transactions end, connecting fails. Token rows stay."""
        self._cluster.up = False
        self._cluster.end_all("the server is shutting down")

    def start(self) -> None:
        """Start again after ``stop``."""
        self._cluster.up = True

    def restart(self) -> None:
        """Stop and start."""
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Stand still: nothing is answered and no lease runs, until ``thaw``."""
        self._cluster.freeze()

    def thaw(self) -> None:
        """Go on after ``freeze``. Leases run anew; sessions whose clients left in the meantime end."""
        self._cluster.thaw()

    def demote(self) -> None:
        """Go into recovery, as a standby: opening and locking raise ``NotPrimaryError``, no proof succeeds."""
        self._cluster.in_recovery = True
        self._cluster.changed()

    def promote(self) -> None:
        """Become a primary on a new timeline, with all data."""
        self._cluster.in_recovery = False
        self._cluster.timeline += 1
