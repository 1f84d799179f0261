"""Token rows, who locks them, and the transactions that are fenced by them: the fake server's tables. Synchronous.

Rules, as in PostgreSQL:

- A transaction that reads committed data takes a snapshot for each statement; one of a higher isolation keeps the one
  of its first statement. (Nothing here would fail under SERIALIZABLE but not under REPEATABLE READ.)
- The fence locks the row for share: it waits for whoever is changing the row, any number share it, and whoever wants to
  change it waits for all of them. If the row has changed since the snapshot, a higher isolation fails; the lower one
  looks at the new row.
- Who waits to change the row can close its token: transactions whose snapshot sees that are let in no more.
- A plain read locks nothing and waits for nobody.
- A change of the row is seen by nobody until it is committed.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pgelect._engine.model import Backend, LeaderRecord, LockKey
from pgelect.errors import KeyCollisionError, NotPrimaryError, PgElectError, SessionLostError, StaleTokenError
from pgelect.testing._fake_cluster import Cluster, FakeBackend, Statement, Wait
from pgelect.testing._fake_data import Commit, Written

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

Isolation: TypeAlias = Literal["read committed", "repeatable read", "serializable"]
ISOLATIONS: tuple[Isolation, ...] = ("read committed", "repeatable read", "serializable")

_FOR_EVER_S = 1e9


class FakeSerializationError(PgElectError):
    """The row that a transaction wants to lock was changed after its snapshot (SQLSTATE 40001)."""


class FakeTransaction:
    """A transaction of a writer. Once it was checked against a token it holds off every newer one.

    Made by ``FakeServer.begin_fenced`` and by ``FakeClient.begin``.

    Attributes:
        key: the lock.
        token: the token it was checked against; 0 before.
        pid: of its server process.
        killable: whether a mint may end it; otherwise the mint reports ``FenceBusyError``.
    """

    __slots__ = (
        "_ledger",
        "_on_kill",
        "_snapshot",
        "_state",
        "_tables",
        "isolation",
        "key",
        "killable",
        "pid",
        "token",
    )

    def __init__(
        self,
        tables: Tables,
        key: LockKey,
        pid: int,
        *,
        isolation: Isolation = "read committed",
        killable: bool = True,
        on_kill: Callable[[], None] | None = None,
    ) -> None:
        self.key = key
        self.token = 0
        self.pid = pid
        self.isolation = isolation
        self.killable = killable
        self._tables = tables
        self._state: Literal["open", "failed", "finished", "killed"] = "open"
        self._snapshot: int | None = None
        self._ledger: list[Written] = []
        self._on_kill = on_kill

    @property
    def is_open(self) -> bool:
        """Whether it still holds off a mint."""
        return self._state == "open"

    def snapshot(self) -> int:
        """Return the snapshot that the next statement reads by."""
        if self._snapshot is None or self.isolation == "read committed":
            self._snapshot = self._tables.cluster.data.position
        return self._snapshot

    def check(self, token: int) -> Statement[None]:
        """Lock the token row for share where the token is that of a current term, as ``pgelect.check_token`` does."""
        self._raise_if_over()
        self._raise_in_recovery()
        try:
            while True:
                seen = self._tables.current(self.key, token, self.snapshot())
                yield Wait(lambda: not self._tables.is_being_written(self.key), _FOR_EVER_S)
                latest = self._tables.cluster.data.row(self.key)
                if latest is seen:
                    break
                if self.isolation != "read committed":
                    raise FakeSerializationError("could not serialize access due to concurrent update")
        except PgElectError:
            self._end("failed")
            raise
        self.token = token
        self._tables.share(self)

    def peek(self) -> int | None:
        """Read the token by a plain SELECT, in the transaction's snapshot."""
        self._raise_if_over()
        row = self._tables.cluster.data.row(self.key, self.snapshot())
        return row.token if row is not None else None

    def write(self, token: int, value: int) -> None:
        """Insert a line into the ledger, seen by nobody until the commit."""
        self._raise_if_over()
        self._raise_in_recovery()
        self.snapshot()
        self._ledger.append(Written(token, value))

    def commit(self) -> None:
        """Commit; a transaction in which something failed is rolled back instead, as PostgreSQL does.

        Raises:
            SessionLostError: the server had ended it; nothing was written.
            RuntimeError: it had been committed or rolled back before.
        """
        if self._state == "failed":
            self._state = "finished"
            return
        self._raise_if_over()
        if self._ledger:
            self._tables.cluster.data.commit(Commit(ledger=tuple(self._ledger)))
        self._end("finished")

    def rollback(self) -> None:
        """Roll back. Harmless when it is over."""
        if self.is_open:
            self._end("finished")

    def kill(self) -> None:
        """End it from the server's side, with its session."""
        if self.is_open:
            self._end("killed")
            if self._on_kill is not None:
                self._on_kill()

    def _raise_if_over(self) -> None:
        if self._state == "killed":
            raise SessionLostError(
                "closed", "the server ended this transaction: a newer term has begun, or it went down"
            )
        if self._state == "failed":
            raise PgElectError("current transaction is aborted, commands ignored until end of transaction block")
        if self._state == "finished":
            raise RuntimeError("this transaction is over")

    def _raise_in_recovery(self) -> None:
        if self._tables.cluster.in_recovery:
            raise NotPrimaryError("fake server")

    def _end(self, state: Literal["failed", "finished", "killed"]) -> None:
        self._state = state
        self._tables.unshare(self)
        self._tables.cluster.changed()


class Tables:
    """The token table with its row locks, and the ledger."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._sharers: dict[FakeTransaction, None] = {}  # in order
        self._writers: dict[LockKey, FakeBackend] = {}

    def row(self, key: LockKey) -> LeaderRecord | None:
        """Return the committed row of a lock."""
        return self.cluster.data.row(key)

    def fenced(self, key: LockKey | None = None) -> list[FakeTransaction]:
        """Return the open transactions fenced by the lock, or by any."""
        return [transaction for transaction in self._sharers if key is None or transaction.key == key]

    def current(self, key: LockKey, token: int, as_of: int) -> LeaderRecord:
        """Return the row that a snapshot sees, if the token is that of a current term.

        Raises:
            StaleTokenError: it is not: another term has begun or is about to, it was released, or the server was
                promoted since.
        """
        row = self.cluster.data.row(key, as_of)
        of_this_timeline = self.cluster.data.is_of_this_timeline(key, as_of)
        is_closed = self.cluster.data.closed(key, as_of) == token
        if row is None or row.token != token or row.released_at is not None or not of_this_timeline or is_closed:
            raise StaleTokenError(key, token)
        return row

    def begin_fenced(self, key: LockKey, token: int, *, killable: bool) -> FakeTransaction:
        """Begin a transaction and check the token, without a client and without waiting.

        Raises:
            StaleTokenError: the token is not that of a current term, or a newer one is just being minted.
        """
        transaction = FakeTransaction(self, key, self.cluster.new_pid(), killable=killable)
        for wait in transaction.check(token):
            if not wait.until():
                raise StaleTokenError(key, token)
        return transaction

    def kill_all(self) -> None:
        """End the transactions that have no client: the server goes down."""
        for transaction in self.fenced():
            transaction.kill()

    # Locks on the row

    def share(self, transaction: FakeTransaction) -> None:
        """Lock the row for share."""
        self._sharers[transaction] = None

    def unshare(self, transaction: FakeTransaction) -> None:
        """Let go of it."""
        self._sharers.pop(transaction, None)

    def is_being_written(self, key: LockKey) -> bool:
        """Whether a change of the row is under way, not yet committed."""
        return key in self._writers

    def is_free(self, key: LockKey) -> bool:
        """Whether the row can be changed."""
        return key not in self._writers and not self.fenced(key)

    def write_row(self, backend: FakeBackend, record: LeaderRecord, *, durable: bool = True) -> Statement[None]:
        """Change the row, which must be free, and commit."""
        yield from self.write_rows(backend, (record,), durable=durable)

    def write_rows(
        self, backend: FakeBackend, records: Collection[LeaderRecord], *, durable: bool = True
    ) -> Statement[None]:
        """Change several rows, which must be free, in one transaction."""
        keys = [LockKey(record.key1, record.key2) for record in records]
        self._writers.update(dict.fromkeys(keys, backend))
        try:
            takes_s = self.cluster.commit_s() if durable and records else 0.0
            if takes_s > 0:
                yield Wait(lambda: False, takes_s)
            for record in records:
                self.cluster.data.commit(Commit(row=record), durable=durable)
        finally:
            for key in keys:
                del self._writers[key]
        self.cluster.changed()

    # Rows

    def close(self, key: LockKey, token: int | None = None) -> None:
        """Let no more transactions in under the token of the row, if it is that one; a crash may undo it."""
        row = self.row(key)
        if row is not None and token in (None, row.token) and self.cluster.data.closed(key) != row.token:
            self.cluster.data.commit(Commit(closed=(key, row.token)), durable=False)

    def check_name(self, key: LockKey) -> None:
        """Raise KeyCollisionError if the row carries another name. Keys given as numbers go with any name."""
        row = self.row(key)
        if row is not None and row.name is not None and key.name is not None and row.name != key.name:
            raise KeyCollisionError(key, key.name, row.name)

    def next_row(
        self, key: LockKey, sequence: int, *, holder: str, metadata: Mapping[str, Any], lease_s: float, backend: Backend
    ) -> LeaderRecord:
        """Make the row of a new term: its token is greater than the row's and than any of an older timeline."""
        self.check_name(key)
        last, data = self.row(key), self.cluster.data
        floor = ((data.timeline - 1) << 40) + sequence
        if last is not None:  # the timeline may have been set back, by pg_upgrade
            before = data.timeline_of(key) or 0
            promotions = data.timeline - (before if before <= data.timeline else 0)
            floor = max(floor, (((last.token >> 40) + promotions) << 40) + sequence)
        return LeaderRecord(
            key1=key.key1,
            key2=key.key2,
            name=key.name or (last.name if last else None),
            token=max(last.token + 1, floor) if last else floor,
            holder=holder,
            metadata=json.loads(json.dumps(dict(metadata))),  # as it comes back from a jsonb column
            acquired_at=self.cluster.wall(),
            released_at=None,
            terms=last.terms + 1 if last else 1,
            lease_s=lease_s,
            backend=backend,
        )

    def adopt(self, key: LockKey, token: int, backend: Backend, lease_s: float) -> None:
        """Name the session and the lease of a term in its row; skipped while the row is locked. A crash may lose it."""
        row = self.row(key)
        if row is None or row.token != token or row.released_at is not None or not self.is_free(key):
            return
        named = replace(row, backend=backend, lease_s=lease_s)
        if named != row:
            self.cluster.data.commit(Commit(row=named), durable=False)

    def released(self, key: LockKey, token: int) -> LeaderRecord | None:
        """Return the row with its term marked as given up cleanly, if it is still that of the token."""
        row = self.row(key)
        return replace(row, released_at=self.cluster.wall()) if row is not None and row.token == token else None
