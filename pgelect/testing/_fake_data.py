"""What the fake server has written: its log of commits, the token rows and the sequence in it, and its standby.

Rules, as in PostgreSQL:

- A commit is one entry of the log. A snapshot is a position in the log; whoever reads, reads as of a position.
- A commit that did not wait for the disk is lost in a crash, unless a later one that did wait wrote it along.
- A standby has a prefix of the log. When it takes over, all after that prefix is gone: rows, writes, and what the
  sequence had given out, which no transaction protects.
- The timeline goes up with each promotion, and never back. A row remembers the one it was written on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgelect._engine.model import LeaderRecord, LockKey


@dataclass(frozen=True, slots=True)
class Written:
    """One entry of the ledger, a table that the users of a lock write to under its fence."""

    token: int
    value: int


@dataclass(frozen=True, slots=True)
class Commit:
    """One entry of the log: what a transaction wrote, or that the sequence moved."""

    row: LeaderRecord | None = None
    closed: tuple[LockKey, int] | None = None
    ledger: tuple[Written, ...] = ()
    sequence: int | None = None


@dataclass(frozen=True, slots=True)
class _Version:
    """One version of a row."""

    position: int
    record: LeaderRecord
    timeline: int


class Data:
    """The log of one server, and how much of it is safe."""

    def __init__(self) -> None:
        self.timeline = 1
        self._log: list[Commit] = []
        self._on_disk = 0  # so many entries survive a crash
        self._shipped: int | None = None  # so many entries the standby has; None: it has all
        self._versions: dict[tuple[int, int], list[_Version]] = {}
        self._closed: dict[tuple[int, int], list[tuple[int, int]]] = {}  # position and token
        self._sequence = 0
        self.on_commit: Callable[[Commit], None] | None = None

    @property
    def position(self) -> int:
        """The end of the log: a snapshot taken now."""
        return len(self._log)

    def row(self, key: LockKey, as_of: int | None = None) -> LeaderRecord | None:
        """Return the token row that a snapshot sees; without one, the latest."""
        version = self._version(key, as_of)
        return version.record if version is not None else None

    def is_of_this_timeline(self, key: LockKey, as_of: int | None = None) -> bool:
        """Whether the row that a snapshot sees was written since the last promotion."""
        version = self._version(key, as_of)
        return version is not None and version.timeline == self.timeline

    def timeline_of(self, key: LockKey) -> int | None:
        """Return the timeline that the latest row was written on; None without one."""
        version = self._version(key, None)
        return version.timeline if version is not None else None

    def closed(self, key: LockKey, as_of: int | None = None) -> int | None:
        """Return the token that a snapshot sees closed: no more transactions are let in under it."""
        for position, token in reversed(self._closed.get((key.key1, key.key2), ())):
            if as_of is None or position < as_of:
                return token
        return None

    def ledger(self) -> list[Written]:
        """Return all that was written under fences, in the order of the commits."""
        return [written for commit in self._log for written in commit.ledger]

    def next_value(self) -> int:
        """Draw from the sequence. Not undone when the transaction fails."""
        self._sequence += 1
        self.commit(Commit(sequence=self._sequence), durable=False)
        return self._sequence

    def commit(self, commit: Commit, *, durable: bool = True) -> None:
        """Append to the log. ``durable``: with everything before it, it survives a crash from now on."""
        if commit.row is not None:
            pair = commit.row.key1, commit.row.key2
            self._versions.setdefault(pair, []).append(_Version(self.position, commit.row, self.timeline))
        if commit.closed is not None:
            key, token = commit.closed
            self._closed.setdefault((key.key1, key.key2), []).append((self.position, token))
        self._log.append(commit)
        if durable:
            self.flush()
        if self.on_commit is not None:
            self.on_commit(commit)

    def flush(self) -> None:
        """Write to disk what is not there yet."""
        self._on_disk = self.position

    def hold_back(self) -> None:
        """Let the standby receive no more from here on."""
        if self._shipped is None:
            self._shipped = self.position

    def catch_up(self) -> None:
        """Let the standby receive what it lacks, and all that comes."""
        self._shipped = None

    def crash(self) -> None:
        """Lose what is not on disk."""
        self._cut_back(self._on_disk)

    def fail_over(self) -> None:
        """Go on from what the standby has, on a new timeline."""
        if self._shipped is not None:
            self._cut_back(self._shipped)
        self._shipped = None
        self.timeline += 1

    def _version(self, key: LockKey, as_of: int | None) -> _Version | None:
        for version in reversed(self._versions.get((key.key1, key.key2), ())):
            if as_of is None or version.position < as_of:
                return version
        return None

    def _cut_back(self, position: int) -> None:
        del self._log[position:]
        for versions in self._versions.values():
            while versions and versions[-1].position >= position:
                versions.pop()
        for closings in self._closed.values():
            while closings and closings[-1][0] >= position:
                closings.pop()
        self._sequence = max((commit.sequence for commit in self._log if commit.sequence is not None), default=0)
        self._on_disk = min(self._on_disk, position)
        if self._shipped is not None:
            self._shipped = min(self._shipped, position)
