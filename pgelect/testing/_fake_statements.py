"""What each statement of a session does in the fake server: the server's side of one session. Synchronous."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pgelect._engine.model import Grant
from pgelect._engine.session import LockAnswer, ResumeAnswer
from pgelect.errors import KeyCollisionError, NotPrimaryError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pgelect._engine.model import Backend, LeaderRecord, LockKey
    from pgelect.testing._fake_cluster import Cluster, FakeBackend
    from pgelect.testing._fake_tokens import FakeTransaction

SERVER_NAME = "fake server"


@dataclass(frozen=True, slots=True)
class Statements:
    """The statements of one session, with what they carry."""

    cluster: Cluster
    key: LockKey
    identity: str
    metadata: Mapping[str, Any] = field(repr=False)
    lease_s: float
    fencing: bool

    def check_primary(self) -> None:
        """Raise NotPrimaryError on a server in recovery."""
        if self.cluster.in_recovery:
            raise NotPrimaryError(SERVER_NAME)

    def check_name(self, backend: FakeBackend) -> None:
        """Raise KeyCollisionError if the row carries another name; the lock is not held then."""
        if not self.fencing:
            return
        try:
            self.cluster.tokens.check_name(self.key)
        except KeyCollisionError:
            self.cluster.locks.unlock(self.key, backend)
            raise

    def row(self) -> LeaderRecord | None:
        """Return the token row, as far as this session looks at it."""
        return self.cluster.tokens.row(self.key) if self.fencing else None

    def fenced(self) -> list[FakeTransaction]:
        """Return the open transactions that keep this session from writing the row."""
        return self.cluster.tokens.fenced(self.key) if self.fencing else []

    def holds(self, backend: FakeBackend) -> bool:
        """Return whether this session holds its lock."""
        return self.cluster.locks.holder(self.key) is backend

    def try_lock(self, backend: FakeBackend, ghost: Backend | None) -> LockAnswer:
        """Try for the lock; end the ghost first if it is what holds it."""
        self.check_primary()
        self.check_name(backend)
        if ghost is not None:
            self._end_ghost(backend, ghost)
        return LockAnswer(self.cluster.locks.try_lock(self.key, backend), self.row())

    def mint(self, backend: FakeBackend) -> Grant:
        """Begin a term."""
        if not self.holds(backend):
            raise RuntimeError("a token is minted with the lock held")
        cluster, now = self.cluster, self.cluster.wall()
        if not self.fencing:
            return Grant(0, now, backend.id, cluster.timeline, predecessor_clean=True, record=None)
        last = self.row()
        row = cluster.tokens.mint(
            self.key,
            holder=self.identity,
            metadata=self.metadata,
            lease_s=self.lease_s,
            backend=backend.id,
            timeline=cluster.timeline,
            now=now,
        )
        clean = last is None or last.released_at is not None
        return Grant(row.token, now, backend.id, cluster.timeline, predecessor_clean=clean, record=row)

    def resume(self, backend: FakeBackend, grant: Grant) -> ResumeAnswer:
        """Take up the term again, if nobody led in between."""
        self.check_primary()
        row = self.row()
        if row is None or row.token != grant.token or row.released_at is not None:
            return ResumeAnswer(resumed=False, final=True, why="the token row has moved on")
        if self.cluster.timeline != grant.timeline:
            return ResumeAnswer(resumed=False, final=True, why="the server was promoted")
        self._end_ghost(backend, grant.backend)
        holder = self.cluster.locks.holder(self.key)
        if holder is not None and holder.id == grant.backend:
            return ResumeAnswer(resumed=False, final=False, why="our own lost session still holds the lock")
        if not self.cluster.locks.try_lock(self.key, backend):
            return ResumeAnswer(resumed=False, final=True, why="another session holds the lock")
        self.cluster.tokens.adopt(self.key, grant.token, backend.id)
        return ResumeAnswer(resumed=True, backend=backend.id)

    def unlock(self, backend: FakeBackend, token: int, *, marked: bool) -> bool:
        """Mark the term as released (if ``marked``) and free the lock; whether it had been held."""
        if marked and self.fencing and self.holds(backend):
            self.cluster.tokens.release(self.key, token, self.cluster.wall())
        return self.cluster.locks.unlock(self.key, backend)

    def _end_ghost(self, backend: FakeBackend, ghost: Backend) -> None:
        holder = self.cluster.locks.holder(self.key)
        if holder is not None and holder is not backend and holder.id == ghost and self.cluster.may_terminate:
            self.cluster.end(holder, "terminated by a later session of the same process")
