"""Token rows of the fake server, the minting of tokens, and the fenced transactions that hold it off. Synchronous."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from pgelect._engine.model import Backend, LeaderRecord, LockKey
from pgelect.errors import KeyCollisionError, SessionLostError, StaleTokenError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime


class FakeTransaction:
    """An open transaction that was fenced by a token: while it is open, no newer token is minted.

    Made by ``FakeServer.begin_fenced``.

    Attributes:
        key: the lock.
        token: the token it was checked against.
        pid: of its server process.
        killable: whether a mint may end it; otherwise the mint reports ``FenceBusyError``.
    """

    __slots__ = ("_on_end", "_state", "key", "killable", "pid", "token")

    def __init__(
        self, key: LockKey, token: int, pid: int, on_end: Callable[[FakeTransaction], None], *, killable: bool
    ) -> None:
        self.key = key
        self.token = token
        self.pid = pid
        self.killable = killable
        self._state: Literal["open", "finished", "killed"] = "open"
        self._on_end = on_end

    @property
    def is_open(self) -> bool:
        """Whether it still holds off a mint."""
        return self._state == "open"

    def commit(self) -> None:
        """Commit.

        Raises:
            SessionLostError: the server had ended it; nothing was written.
            RuntimeError: it had been committed or rolled back before.
        """
        if self._state == "killed":
            raise SessionLostError("closed", "the server ended this transaction: a newer term has begun")
        if self._state == "finished":
            raise RuntimeError("this transaction is over")
        self._end("finished")

    def rollback(self) -> None:
        """Roll back. Harmless when it is over."""
        if self.is_open:
            self._end("finished")

    def kill(self) -> None:
        """End it from the server's side."""
        if self.is_open:
            self._end("killed")

    def _end(self, state: Literal["finished", "killed"]) -> None:
        self._state = state
        self._on_end(self)


class Tokens:
    """The token table, its sequence, and its fenced transactions."""

    def __init__(self) -> None:
        self._rows: dict[LockKey, LeaderRecord] = {}
        self._sequence = 0
        self._fenced: set[FakeTransaction] = set()

    def row(self, key: LockKey) -> LeaderRecord | None:
        """Return the row of a lock."""
        return self._rows.get(key)

    def fenced(self, key: LockKey | None = None) -> list[FakeTransaction]:
        """Return the open transactions fenced by the lock, or by any."""
        return [transaction for transaction in self._fenced if key is None or transaction.key == key]

    def begin(
        self, key: LockKey, token: int, pid: int, on_end: Callable[[], None], *, killable: bool
    ) -> FakeTransaction:
        """Check the token and begin a transaction fenced by it. StaleTokenError if it is not that of a current term."""
        row = self._rows.get(key)
        if row is None or row.token != token or row.released_at is not None:
            raise StaleTokenError(key, token)

        def ended(transaction: FakeTransaction) -> None:
            self._fenced.discard(transaction)
            on_end()

        transaction = FakeTransaction(key, token, pid, ended, killable=killable)
        self._fenced.add(transaction)
        return transaction

    def check_name(self, key: LockKey) -> None:
        """Raise KeyCollisionError if the row carries another name. Keys given as numbers go with any name."""
        row = self._rows.get(key)
        if row is not None and row.name is not None and key.name is not None and row.name != key.name:
            raise KeyCollisionError(key, key.name, row.name)

    def mint(
        self,
        key: LockKey,
        *,
        holder: str,
        metadata: Mapping[str, Any],
        lease_s: float,
        backend: Backend,
        timeline: int,
        now: datetime,
    ) -> LeaderRecord:
        """Write the row of a new term: its token is greater than the row's and than any of an older timeline."""
        self.check_name(key)
        last = self._rows.get(key)
        self._sequence += 1
        floor = ((timeline - 1) << 40) + self._sequence
        row = LeaderRecord(
            key1=key.key1,
            key2=key.key2,
            name=key.name or (last.name if last else None),
            token=max(last.token + 1, floor) if last else floor,
            holder=holder,
            metadata=json.loads(json.dumps(dict(metadata))),  # as it comes back from a jsonb column
            acquired_at=now,
            released_at=None,
            terms=last.terms + 1 if last else 1,
            lease_s=lease_s,
            backend=backend,
        )
        self._rows[key] = row
        return row

    def adopt(self, key: LockKey, token: int, backend: Backend) -> None:
        """Name the new session of a resumed term in its row; not while a fenced transaction holds the row."""
        row = self._rows.get(key)
        if row is not None and row.token == token and not self.fenced(key):
            self._rows[key] = replace(row, backend=backend)

    def release(self, key: LockKey, token: int, now: datetime) -> None:
        """Mark the term of the token as given up cleanly, if it is still the row's."""
        row = self._rows.get(key)
        if row is not None and row.token == token:
            self._rows[key] = replace(row, released_at=now)
