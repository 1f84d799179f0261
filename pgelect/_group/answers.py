"""What the runner of a group answers at once, from any thread: what it leads, for how long yet, and how it is."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pgelect._engine.state import Pulse

if TYPE_CHECKING:
    from pgelect._engine.clock import Clock
    from pgelect._engine.journal import Journal
    from pgelect._engine.model import LockKey
    from pgelect._group.state import Machine, Snapshot


class Answers:
    """The read-only half of a runner."""

    snapshot: Snapshot
    pid: int
    _clock: Clock
    _machine: Machine
    _journal: Journal

    def is_trusted(self, key: LockKey | None = None, number: int | None = None) -> bool:
        """Tell whether this process leads a partition (in the term of that number) at this instant.

        Without a key: whether it may lead anything now.
        """
        seen = self.snapshot
        if self._clock.now() >= seen.trusted_until or os.getpid() != self.pid:
            return False
        if key is None:
            return True
        found = seen.terms.get(key)
        return found is not None and number in {None, found[0]}

    def trust_left_s(self) -> float:
        """Say for how many seconds the last proof can still be trusted."""
        return max(0.0, self.snapshot.trusted_until - self._clock.now()) if self.is_trusted() else 0.0

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
