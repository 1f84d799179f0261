"""What a runner answers at once, from any thread: whether it leads, for how long yet, and how it is."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from pgelect._engine.model import LockState
from pgelect._engine.state import Pulse

if TYPE_CHECKING:
    from enum import StrEnum

    from pgelect._engine.clock import Clock
    from pgelect._engine.journal import Journal
    from pgelect._engine.state import Snapshot


class Driven(Protocol):
    """What is asked of a machine."""

    @property
    def state(self) -> StrEnum:
        """What it is doing."""

    @property
    def connected(self) -> bool:
        """Its session is open."""

    @property
    def deadline(self) -> float:
        """When the next Tick is due."""


class Vitals:
    """What is the same for a lock and for a group."""

    pid: int
    _clock: Clock
    _journal: Journal
    _machine: Driven

    def pulse(self) -> Pulse:
        """Tell what its health is judged by."""
        return Pulse(
            now=self._clock.now(),
            due_at=self._machine.deadline,
            connected=self._machine.connected,
            trouble=self._journal.trouble,
            trouble_since=self._journal.trouble_since,
        )

    @property
    def _is_ours(self) -> bool:
        return os.getpid() == self.pid


class Answers(Vitals):
    """The read-only half of a runner."""

    snapshot: Snapshot

    def is_trusted(self, number: int | None = None) -> bool:
        """Tell whether this process leads at this instant (and in the term of that number)."""
        seen = self.snapshot
        return (
            seen.state is LockState.LEADER
            and (number is None or number == seen.number)
            and self._clock.now() < seen.trusted_until
            and self._is_ours
        )

    def is_trusted_within(self, seconds: float) -> bool:
        """Tell whether this process leads and the last proof was sent no longer ago than that."""
        proved_at = self.snapshot.proved_at
        return self._clock.now() - proved_at <= seconds and self.is_trusted()

    def trust_left_s(self) -> float:
        """Say for how many seconds the last proof can still be trusted; 0 while this process does not lead."""
        return max(0.0, self.snapshot.trusted_until - self._clock.now()) if self.is_trusted() else 0.0
