"""What the runner of a group answers at once, from any thread: what it leads, and for how long yet."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgelect._engine.clock import Clock
    from pgelect._engine.model import LockKey
    from pgelect._group.state import Snapshot


class Answers:
    """The read-only half of a runner."""

    snapshot: Snapshot
    pid: int
    _clock: Clock

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

    @property
    def _is_ours(self) -> bool:
        return os.getpid() == self.pid
