"""FakeServer: PostgreSQL as a leader election sees it, in memory. For tests of this project and of its users.

It has advisory locks with their queue, the token table with fenced transactions, and sessions whose lease is enforced.
It breaks on request: sessions are terminated, links fall silent, the server stops, freezes, is demoted and promoted.
One event loop, no threads. The contract suite of the project runs on it and on real servers alike.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pgelect.testing._fake_cluster import Cluster
from pgelect.testing._fake_group import GroupStatements
from pgelect.testing._fake_news import FakeTerm, News
from pgelect.testing._fake_statements import Statements
from pgelect.testing._fake_transactions import FakeSerializationError, FakeTransaction, Tables
from pgelect.testing._fake_wire import Wire
from pgelect.testing.fake_client import FakeClient
from pgelect.testing.fake_group_session import FakeGroupSession
from pgelect.testing.fake_session import FakeSession

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pgelect._engine.clock import Clock
    from pgelect._engine.model import LeaderRecord, LockKey
    from pgelect.testing._fake_data import Written
    from pgelect.testing._fake_wire import Timers

__all__ = ["FakeClient", "FakeSerializationError", "FakeServer", "FakeSession", "FakeTerm", "FakeTransaction"]


class FakeServer:
    """One server in memory.

    Args:
        clock: measures leases and the server's time, such as a ``FakeClock``; leases are then enforced whenever
            something reaches the server, and by ``enforce_leases()``. Default None: the event loop's timers.
        wait_slice_s: how long ``wait_lock`` waits in the queue, in seconds of the event loop. Default 0.05.
        fence_wait_s: how long a mint waits for fenced transactions before it ends them, in seconds. Default 0.05.
        latency_s: one way of each link, in seconds. Default 0.0.
        may_terminate: whether sessions may end their ghosts. Default True.
        release_wait_s: how long a release waits for fenced transactions. Default None: as ``fence_wait_s``.
        client_check_s: after so many seconds a busy session notices that its client has left. Default 0.0: at once.
        commit_s: asked for each token that is minted: how long its commit takes, in seconds. Default None: no time.
        connect_within_s: how long a session tries to connect at most, in seconds. Default 5.0.
        timers: the time that the server and its links live in. Default None: the running event loop's.
    """

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        wait_slice_s: float = 0.05,
        fence_wait_s: float = 0.05,
        latency_s: float = 0.0,
        may_terminate: bool = True,
        release_wait_s: float | None = None,
        client_check_s: float = 0.0,
        commit_s: Callable[[], float] | None = None,
        connect_within_s: float = 5.0,
        timers: Timers | None = None,
    ) -> None:
        self._cluster = cluster = Cluster(clock, timers)
        cluster.wait_slice_s = wait_slice_s
        cluster.fence_wait_s = fence_wait_s
        cluster.release_wait_s = fence_wait_s if release_wait_s is None else release_wait_s
        cluster.client_check_s = client_check_s
        cluster.may_terminate = may_terminate
        if commit_s is not None:
            cluster.commit_s = commit_s
        self._tables = Tables(cluster)
        self._news = News(cluster, self._tables)
        self._latency_s = latency_s
        self._connect_within_s = connect_within_s
        self._silent: dict[int, Wire] = {}

    def session(
        self,
        *,
        key: LockKey,
        identity: str = "fake",
        metadata: Mapping[str, Any] | None = None,
        lease_s: float = 15.0,
        fencing: bool = True,
        new_wire: Callable[[], Wire] | None = None,
    ) -> FakeSession:
        """Return a new session, not yet open. ``new_wire`` makes its link; by default one with the server's latency."""
        stored = self._cluster, self._tables, self._news
        statements = Statements(*stored, key, identity, metadata or {}, lease_s, fencing)
        return FakeSession(statements, new_wire or self.new_wire, self._connect_within_s)

    def group_session(
        self,
        *,
        group: LockKey,
        identity: str = "fake",
        metadata: Mapping[str, Any] | None = None,
        lease_s: float = 15.0,
        weight: float = 1.0,
        max_share: int | None = None,
        new_wire: Callable[[], Wire] | None = None,
    ) -> FakeGroupSession:
        """Return a new session of a member of a group, not yet open."""
        stored = self._cluster, self._tables, self._news
        server = GroupStatements(*stored, group, identity, metadata or {}, lease_s, weight, max_share)
        return FakeGroupSession(server, new_wire or self.new_wire, self._connect_within_s)

    def client(self, key: LockKey, *, killable: bool = True, new_wire: Callable[[], Wire] | None = None) -> FakeClient:
        """Return a writer's connection, not yet open. ``killable``: whether a mint may end its transactions."""
        return FakeClient(self._tables, key, new_wire or self.new_wire, killable=killable)

    def new_wire(self) -> Wire:
        """Make a link with the server's latency."""
        return Wire(self._cluster.timers, lambda: self._latency_s)

    def begin_fenced(self, key: LockKey, token: int, *, killable: bool = True) -> FakeTransaction:
        """Begin a transaction fenced by a token, as ``lock.fence()`` does.

        It has no client and no link: what is done with it happens at once, even on a server that stands still.

        Args:
            key: the lock.
            token: of the term that writes.
            killable: False makes a transaction that a mint may not end, so that it reports ``FenceBusyError``.

        Raises:
            StaleTokenError: the token is not that of a current term.
        """
        return self._tables.begin_fenced(key, token, killable=killable)

    # What there is to see

    @property
    def statements(self) -> int:
        """How many statements sessions have run so far."""
        return self._cluster.statements

    @property
    def timeline(self) -> int:
        """The timeline; 1 at first, one more with each promotion."""
        return self._cluster.data.timeline

    def sessions(self) -> tuple[int, ...]:
        """Return the pids of all sessions of locks, the oldest first."""
        self._cluster.enforce_leases()
        return tuple(pid for pid, backend in self._cluster.backends.items() if backend.lease_s is not None)

    def clients(self) -> tuple[int, ...]:
        """Return the pids of all writers' connections, the oldest first."""
        return tuple(pid for pid, backend in self._cluster.backends.items() if backend.lease_s is None)

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
        return self._tables.row(key)

    def history(self, key: LockKey) -> list[FakeTerm]:
        """Return the terms of a lock that were announced, the oldest first."""
        return self._news.history(key)

    def ledger(self) -> list[Written]:
        """Return what writers have committed, in the order of the commits."""
        return self._cluster.data.ledger()

    # What an operator does

    def request_step_down(self, key: LockKey, token: int | None = None) -> int | None:
        """Ask the leader to step down, as ``pgelect.request_step_down`` does: that of a token, or whoever leads.

        Returns:
            The token that was asked; None: that term is over, or nobody leads.
        """
        return self._news.request_step_down(key, token)

    def call(self, key: LockKey) -> None:
        """Notify the leader of nothing at all, as anybody may."""
        self._news.call(key)

    # What can go wrong with one session

    def terminate(self, pid: int) -> bool:
        """End a session, as ``pg_terminate_backend`` does. False: there is none with this pid."""
        backend = self._cluster.backends.get(pid)
        if backend is not None:
            self._cluster.reached(partial(self._cluster.end, backend, "terminated by an administrator"))
        return backend is not None

    def cancel(self, pid: int, *, hits_next: bool = True) -> bool:
        """Cancel the statement of a session, as ``pg_cancel_backend`` does. False: no such pid.

        Args:
            pid: of the session.
            hits_next: an idle session has its next statement cancelled. PostgreSQL does that only to a cancel that
                comes in the very instant in which that statement begins: nobody could test for it otherwise, so it is
                the default here. False: an idle session ignores it, as PostgreSQL does at any other time.
        """
        backend = self._cluster.backends.get(pid)
        if backend is not None:
            self._cluster.reached(partial(self._cluster.cancel, backend, hits_next=hits_next))
        return backend is not None

    def unlock_all(self, pid: int) -> None:
        """Free all locks of a session behind its back, as ``DISCARD ALL`` or a pooler does. KeyError: no session."""
        backend = self._cluster.backends[pid]

        def unlock() -> None:
            self._cluster.locks.unlock_all(backend)
            backend.aside = None
            self._cluster.changed()

        self._cluster.reached(unlock)

    def partition(self, pid: int) -> None:
        """Let the link of a session fall silent: neither side is told. The lease goes on. KeyError: no session."""
        wire = self._silent[pid] = self._cluster.backends[pid].wire
        wire.block()

    def heal(self, pid: int) -> None:
        """Undo ``partition``: each side hears what became of the other. Harmless for any other pid."""
        wire = self._silent.pop(pid, None)
        if wire is not None:
            wire.unblock()

    def cut(self, pid: int) -> None:
        """Break the link of a session: the client hears it, the server does not and keeps a ghost. KeyError: none."""
        backend = self._cluster.backends[pid]
        backend.wire.break_client(partial(backend.heard_end, "connection reset by peer"))

    def cut_off(self, pid: int) -> None:
        """Break it the other way: the server ends the session, the client hears when it next asks. KeyError: none.

        A session that is busy ends when it looks, as with a client that leaves. After ``cut``: the ghost is noticed.
        """
        backend = self._cluster.backends[pid]
        backend.wire.down.lose()
        self._cluster.reached(partial(self._cluster.client_left, backend, "connection reset by peer"))

    # What can go wrong with the server

    def enforce_leases(self) -> None:
        """With an injected clock: end the holders whose lease is over now."""
        self._cluster.enforce_leases()

    def stop(self, *, immediate: bool = False) -> None:
        """Stop: all sessions and transactions end, connecting fails. What is committed stays.

        Args:
            immediate: as in a crash, what was committed without waiting for the disk is lost. Default False.
        """
        if immediate:
            self._cluster.data.crash()
        self._cluster.data.flush()
        self._cluster.go_down("the server is shutting down")
        self._tables.kill_all()

    def start(self) -> None:
        """Start again after ``stop``."""
        self._cluster.up = True

    def restart(self, *, immediate: bool = False) -> None:
        """Stop and start."""
        self.stop(immediate=immediate)
        self.start()

    def freeze(self) -> None:
        """Stand still: nothing is answered and no lease runs, until ``thaw``."""
        self._cluster.freeze()

    def thaw(self) -> None:
        """Go on after ``freeze``. Leases run anew; sessions whose clients left in the meantime end."""
        self._cluster.thaw()

    def demote(self) -> None:
        """Go into recovery, as a standby: opening and locking raise ``NotPrimaryError``, no proof succeeds.

        What is under way and every transaction end, as by the restart that a demotion takes on a real server. Sessions
        that are idle find out by themselves: some proxies and poolers do not tell them.
        """
        self._cluster.demote("the server is being demoted")
        self._tables.kill_all()

    def promote(self) -> None:
        """Become a primary on a new timeline, with all data. Harmless on a primary.

        All sessions end here at the latest: on a real server none lives on through a demotion, which takes a restart.
        """
        if not self._cluster.in_recovery:
            return
        was_up = self._cluster.up
        self._cluster.data.catch_up()
        self.fail_over()
        self._cluster.up = was_up

    def hold_back(self) -> None:
        """From here on, let the standby that ``fail_over`` promotes receive nothing more."""
        self._cluster.data.hold_back()

    def catch_up(self) -> None:
        """Undo ``hold_back``."""
        self._cluster.data.catch_up()

    def fail_over(self) -> None:
        """Lose this server for good, and go on with its standby, at the same address, on a new timeline.

        All sessions end. What was committed after ``hold_back`` is lost, and with it what the sequence gave out.
        """
        self._cluster.go_down("the connection to the server was lost")
        self._tables.kill_all()
        self._cluster.data.fail_over()
        self._cluster.in_recovery = False
        self._cluster.up = True
