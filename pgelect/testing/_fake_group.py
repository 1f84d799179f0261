"""What each statement of a group's session does in the fake server: the server's side of one member."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from zlib import crc32

from pgelect._engine.model import Grant, LockKey
from pgelect._group.session import Catch, Sight
from pgelect._group.shares import Member, View
from pgelect.errors import KeyCollisionError, NotPrimaryError, PgElectError, SessionLostError
from pgelect.testing._fake_cluster import Wait
from pgelect.testing._fake_statements import SERVER_NAME, Statements

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pgelect._engine.model import Backend
    from pgelect.testing._fake_cluster import Cluster, FakeBackend, Statement
    from pgelect.testing._fake_news import News
    from pgelect.testing._fake_transactions import Tables


@dataclass(frozen=True, slots=True)
class GroupStatements:
    """The statements of one member's session, with what they carry."""

    cluster: Cluster
    tables: Tables
    news: News
    group: LockKey
    identity: str
    metadata: Mapping[str, Any] = field(repr=False)
    lease_s: float
    weight: float
    most: int | None

    def check_primary(self) -> None:
        """Raise NotPrimaryError on a server in recovery."""
        if self.cluster.in_recovery:
            raise NotPrimaryError(SERVER_NAME)

    def join(self, backend: FakeBackend, me: int, ghost: Backend | None) -> bool:
        """Become a member; end the ghost first. False: another member has that number."""
        self.check_primary()
        old = self.cluster.backends.get(ghost.pid) if ghost is not None else None
        if old is not None and old is not backend and old.id == ghost and self.cluster.may_terminate:
            self.cluster.end(old, "terminated by a later session of the same process")
        backend.lease_s = self.lease_s
        if not self.cluster.locks.try_lock(self._life(me), backend):
            return False
        backend.member = self.group, Member(me, backend.id.pid, self.weight, self.most)
        return True

    def look(
        self, backend: FakeBackend, held: Collection[LockKey], known: int | None, wait_for: int | None, wait_s: float
    ) -> Statement[Sight]:
        """Wait for the end of a member, prove the locks, and look at the group."""
        locks, orphaned = self.cluster.locks, False
        if wait_for is not None:
            waiter = locks.queue(self._life(wait_for), backend, self.cluster.changed)
            try:
                yield Wait(lambda: waiter.done, wait_s)
                orphaned = waiter.granted
            except PgElectError:  # a cancel: trapped
                pass
            finally:
                locks.leave(waiter)
                if waiter.granted:
                    locks.unlock(self._life(wait_for), backend)
        if self.cluster.in_recovery:
            raise SessionLostError("disproved", f"the {SERVER_NAME} is in recovery: it has been demoted")
        if not self._holds(backend, held):
            raise SessionLostError("disproved", "this session does not hold what it should")
        members = {owner for owner in self.cluster.backends.values() if self._is_member(owner)}
        rows = sorted((key.key1, key.key2, owner.id.pid) for key, owner in locks.held() if owner in members)
        number = crc32(repr(rows).encode())
        return Sight(number, self._view() if number != known else None, orphaned)

    def take(self, backend: FakeBackend, keys: Collection[LockKey]) -> Statement[Catch]:
        """Try for locks, and mint the tokens of those that are granted."""
        self.check_primary()
        granted = [key for key in keys if self.cluster.locks.try_lock(key, backend)]
        held_up: list[LockKey] = []
        failed: list[tuple[LockKey, Exception]] = []
        minted: list[tuple[LockKey, Grant]] = []
        for key in granted:
            try:
                self.tables.check_name(key)
            except KeyCollisionError as error:
                failed.append((key, error))
                continue
            if self.tables.is_free(key):
                minted.append((key, self._next(backend, key)))
            else:
                held_up.append(key)
        try:
            yield from self.tables.write_rows(backend, [grant.record for _, grant in minted if grant.record])
        except PgElectError as error:  # a cancel: the whole of it is undone
            failed = [(key, error) for key in granted]
            minted, held_up = [], []
        for key, _ in failed:
            self.cluster.locks.unlock(key, backend)
        self.cluster.changed()
        return Catch(tuple(minted), tuple(held_up), tuple(failed))

    def _next(self, backend: FakeBackend, key: LockKey) -> Grant:
        """Make the row of a new term, and what is told of it."""
        data = self.cluster.data
        last, of_this_timeline, timeline = self.tables.row(key), data.is_of_this_timeline(key), data.timeline
        row = self.tables.next_row(
            key,
            data.next_value(),
            holder=self.identity,
            metadata=self.metadata,
            lease_s=self.lease_s,
            backend=backend.id,
        )
        clean = timeline == 1 if last is None else last.released_at is not None and of_this_timeline
        return Grant(row.token, row.acquired_at, backend.id, timeline, predecessor_clean=clean, record=row, prior=last)

    def mint(self, backend: FakeBackend, key: LockKey, within_s: float) -> Statement[Grant]:
        """Mint one token, as a lock's session does; after an error the lock is not held any more."""
        stored = self.cluster, self.tables, self.news
        one = Statements(*stored, key, self.identity, self.metadata, self.lease_s, fencing=True)
        try:
            return (yield from one.mint(backend, within_s))
        except PgElectError:
            self.cluster.locks.unlock(key, backend)
            raise

    def tell(self, backend: FakeBackend, grants: Collection[tuple[LockKey, Grant]]) -> None:
        """Write down that terms have begun, and hear calls to them."""
        self.check_primary()
        for key, grant in grants:
            self.news.announce(backend, key, grant)

    def heed(self, tokens: Collection[tuple[LockKey, int]]) -> tuple[tuple[LockKey, str], ...]:
        """Say which of these terms were asked to end, and by whom."""
        return tuple((key, by) for key, token in tokens if (by := self.news.asked(key, token)) is not None)

    def free(self, backend: FakeBackend, tokens: Collection[tuple[LockKey, int]]) -> Statement[bool]:
        """Mark terms as released, but for those whose row is locked, and unlock; whether all had been held."""
        self.check_primary()
        marked = [self.tables.released(key, token) for key, token in tokens if self.tables.is_free(key)]
        yield from self.tables.write_rows(backend, [row for row in marked if row is not None], durable=False)
        freed = [self.cluster.locks.unlock(key, backend) for key, _ in tokens]
        self.cluster.changed()
        return all(freed)

    def _holds(self, backend: FakeBackend, held: Collection[LockKey]) -> bool:
        """Return whether a session holds what it should, and nothing else."""
        lives = self._lives()
        mine = {key for key, owner in self.cluster.locks.held() if owner is backend and key not in lives}
        life = self._life(backend.member[1].id) if backend.member is not None else None
        return mine == set(held) and life is not None and self.cluster.locks.holder(life) is backend

    def _view(self) -> View:
        members = [one.member[1] for one in self.cluster.backends.values() if self._is_member(one) and one.member]
        lives = self._lives()
        held = self.cluster.locks.held()
        return View(
            tuple(sorted(members, key=lambda member: member.pid)),
            {(key.key1, key.key2): owner.id.pid for key, owner in held if key not in lives},
        )

    def _is_member(self, backend: FakeBackend) -> bool:
        return backend.member is not None and backend.member[0] == self.group

    def _lives(self) -> set[LockKey]:
        return {self._life(one.member[1].id) for one in self.cluster.backends.values() if one.member is not None}

    def _life(self, me: int) -> LockKey:
        return LockKey(self.group.key1, me)
