"""What each statement of a lock's session does in the fake server: the server's side of one session."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pgelect._engine.model import Grant
from pgelect._engine.session import LockAnswer, Proof
from pgelect.errors import FenceBusyError, KeyCollisionError, NotPrimaryError, PgElectError, SessionLostError
from pgelect.testing._fake_cluster import Statement, Wait

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pgelect._engine.model import Backend, LeaderRecord, LockKey, LostTerm
    from pgelect.testing._fake_cluster import Cluster, FakeBackend
    from pgelect.testing._fake_news import News
    from pgelect.testing._fake_transactions import Tables

SERVER_NAME = "fake server"
LAST_CHANCE_S = 0.1
"""How long fenced transactions are let alone when no more can come; at most a quarter of the wait before."""
FINDING_BLOCKERS_S = 0.02
"""About what it takes to find and end, over a second connection, who holds off a mint."""


@dataclass(frozen=True, slots=True)
class Statements:
    """The statements of one session, with what they carry."""

    cluster: Cluster
    tables: Tables
    news: News
    key: LockKey
    identity: str
    metadata: Mapping[str, Any] = field(repr=False)
    lease_s: float
    fencing: bool

    # Parts

    def check_primary(self) -> None:
        """Raise NotPrimaryError on a server in recovery."""
        if self.cluster.in_recovery:
            raise NotPrimaryError(SERVER_NAME)

    def holds(self, backend: FakeBackend) -> bool:
        """Return whether this session holds its lock."""
        return self.cluster.locks.holder(self.key) is backend

    def _waiting(self) -> list[FakeBackend]:
        return self.cluster.locks.waiters(self.key)

    def _aside(self) -> int:
        return sum(backend.aside == self.key for backend in self.cluster.backends.values())

    def _row(self) -> LeaderRecord | None:
        """Return the token row, as far as this session looks at it."""
        return self.tables.row(self.key) if self.fencing else None

    def _check_name(self, backend: FakeBackend) -> None:
        """Raise KeyCollisionError if the row carries another name; the lock is not held then."""
        if not self.fencing:
            return
        try:
            self.tables.check_name(self.key)
        except KeyCollisionError:
            self.cluster.locks.unlock(self.key, backend)
            raise

    def _row_free(self, for_s: float) -> Statement[bool]:
        """Wait a little until the token row can be changed; whether it can. A cancel ends the wait."""
        try:
            return (yield Wait(lambda: self.tables.is_free(self.key), for_s))
        except PgElectError:
            return False

    # Statements

    def try_lock(self, backend: FakeBackend, ghost: Backend | None) -> LockAnswer:
        """Try for the lock; end the ghost first if it is what holds it."""
        self.check_primary()
        self._check_name(backend)
        if ghost is not None:
            self._end_ghost(backend, ghost)
        backend.lease_s = self.lease_s
        backend.held_to_lease = granted = self.cluster.locks.try_lock(self.key, backend)
        backend.aside = None
        places, others = self.cluster.places, self._aside()
        full = not granted and ghost is None and places is not None and len(self._waiting()) >= places
        if full:
            backend.aside = self.key
        return LockAnswer(granted, self._row(), backend.id, is_full=full, aside=others)

    def wait_lock(self, backend: FakeBackend) -> Statement[LockAnswer]:
        """Wait in the queue for one slice. After it, the place in the queue is gone."""
        self.check_primary()
        self._check_name(backend)
        backend.lease_s, backend.held_to_lease = self.lease_s, True
        locks = self.cluster.locks
        waiter = locks.queue(self.key, backend, self.cluster.changed)
        try:
            yield Wait(lambda: waiter.done, self.cluster.wait_slice_s)
        except PgElectError:  # a cancel: trapped, and nothing is held
            if waiter.granted:
                locks.unlock(self.key, backend)
                waiter.granted = False
        finally:
            locks.leave(waiter)
        self._check_name(backend)
        before = [other for other in self._waiting() if other.id.pid < backend.id.pid]
        full = not waiter.granted and self.cluster.places is not None and len(before) >= self.cluster.places
        return LockAnswer(waiter.granted, self._row(), backend.id, is_full=full)

    def mint(self, backend: FakeBackend, within_s: float) -> Statement[Grant]:
        """Begin a term: wait for fenced transactions of earlier ones, let no more in, then end them."""
        self.check_primary()
        if not self.holds(backend):
            raise SessionLostError("disproved", "this session does not hold the lock: no token was minted")
        cluster = self.cluster
        if not self.fencing:
            return Grant(0, cluster.wall(), backend.id, cluster.data.timeline, predecessor_clean=True, record=None)
        wait_s = min(cluster.fence_wait_s, within_s / 4)  # twice, and time left for the answers
        grant = yield from self._write_token(backend, wait_s)
        if grant is None:
            if self.holds(backend):
                self.tables.close(self.key)
            if not (yield from self._row_free(min(LAST_CHANCE_S, wait_s / 4) + FINDING_BLOCKERS_S)):
                self._end_fenced()
            grant = yield from self._write_token(backend, wait_s)
        if grant is None:
            raise FenceBusyError(self.key, self._blockers())
        return grant

    def _write_token(self, backend: FakeBackend, wait_s: float) -> Statement[Grant | None]:
        """Try once to write the row of a new term; None when it stayed locked, or a cancel struck."""
        cluster = self.cluster
        sequence = cluster.data.next_value()  # drawn before the row is waited for, and not given back
        if not (yield from self._row_free(wait_s)):
            return None
        last, of_this_timeline = self._row(), cluster.data.is_of_this_timeline(self.key)
        row = self.tables.next_row(
            self.key, sequence, holder=self.identity, metadata=self.metadata, lease_s=self.lease_s, backend=backend.id
        )
        try:
            yield from self.tables.write_row(backend, row)
        except PgElectError:
            return None
        # After a promotion an older row, or none, may be what is left: nobody knows how the last term ended.
        timeline = cluster.data.timeline
        clean = timeline == 1 if last is None else last.released_at is not None and of_this_timeline
        return Grant(row.token, row.acquired_at, backend.id, timeline, predecessor_clean=clean, record=row, prior=last)

    def why_over(self, grant: Grant) -> str:
        """Say why a term cannot go on; empty while it can."""
        self.check_primary()
        if self.cluster.data.timeline != grant.timeline:
            return "the server was promoted"
        row = self._row()
        if row is None or row.token != grant.token or row.released_at is not None:
            return "the token row has moved on"
        closed = self.cluster.data.closed(self.key) == grant.token
        return "another session has begun to end this term" if closed else ""

    def other_holder(self, backend: FakeBackend, ghost: Backend) -> str:
        """Say who holds the lock, if it is neither this session nor the ghost."""
        holder = self.cluster.locks.holder(self.key)
        if holder is None or holder is backend or holder.id == ghost:
            return ""
        return f"another session holds the lock (pid {holder.id.pid})"

    def adopt(self, backend: FakeBackend, grant: Grant) -> None:
        """Name this session in the row of the term that it took up."""
        self.check_primary()
        self.tables.adopt(self.key, grant.token, backend.id, self.lease_s)

    def prove(self, backend: FakeBackend) -> Proof:
        """Say whether this session holds its lock. A proof on a standby is none: the session is given up."""
        if self.cluster.in_recovery:
            raise SessionLostError("disproved", f"the {SERVER_NAME} is in recovery: it has been demoted")
        backend.lease_s = self.lease_s
        return Proof(self.holds(backend), len(self._waiting()) + self._aside())

    def announce(self, backend: FakeBackend, grant: Grant | None, lost: LostTerm | None) -> None:
        """Write down what has begun and what was lost; hear calls from now on."""
        self.check_primary()
        if lost is not None:
            if lost.untold is not None:
                self.news.write_down(self.key, lost.untold)
            self.news.report_lost(self.key, lost)
        if grant is not None:
            self.tables.adopt(self.key, grant.token, backend.id, self.lease_s)
            self.news.announce(backend, self.key, grant)

    def heed(self, token: int) -> str | None:
        """Say who has asked the term of that token to end."""
        return self.news.asked(self.key, token)

    def unlock(self, backend: FakeBackend, token: int, within_s: float) -> Statement[bool]:
        """Mark the term as released, unless the row stays locked, and free the lock; whether it had been held."""
        self.check_primary()
        if self.fencing and (yield from self._free_for_release(token, within_s)):
            marked = self.tables.released(self.key, token)
            if marked is not None:
                yield from self.tables.write_row(backend, marked, durable=False)
        freed = self.cluster.locks.unlock(self.key, backend)
        if freed and self.cluster.on_unlock is not None:
            self.cluster.on_unlock(backend)
        return freed

    def _free_for_release(self, token: int, within_s: float) -> Statement[bool]:
        """Wait for the row in two halves, and let no more transactions in after the first; whether it is free."""
        half_s = min(self.cluster.release_wait_s, within_s / 2) / 2
        if (yield from self._row_free(half_s)):
            return True
        self.tables.close(self.key, token)
        return (yield from self._row_free(half_s))

    def _end_fenced(self) -> None:
        for transaction in self.tables.fenced(self.key):
            if transaction.killable:
                transaction.kill()

    def _blockers(self) -> tuple[int, ...]:
        return tuple(sorted(transaction.pid for transaction in self.tables.fenced(self.key)))

    def _end_ghost(self, backend: FakeBackend, ghost: Backend) -> None:
        holder = self.cluster.locks.holder(self.key)
        if holder is not None and holder is not backend and holder.id == ghost and self.cluster.may_terminate:
            self.cluster.end(holder, "terminated by a later session of the same process")
