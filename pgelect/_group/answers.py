"""What the runner of a group answers at once, from any thread: what it leads, for how long yet, and how it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgelect._engine.answers import Vitals

if TYPE_CHECKING:
    from pgelect._engine.model import LockKey
    from pgelect._group.state import Snapshot


class Answers(Vitals):
    """The read-only half of a runner."""

    snapshot: Snapshot

    def is_trusted(self, key: LockKey | None = None, number: int | None = None) -> bool:
        """Tell whether this process leads a partition (in the term of that number) at this instant.

        Without a key: whether it may lead anything now.
        """
        seen = self.snapshot
        if self._clock.now() >= seen.trusted_until or not self._is_ours:
            return False
        if key is None:
            return True
        found = seen.terms.get(key)
        return found is not None and number in {None, found[0]}

    def trust_left_s(self) -> float:
        """Say for how many seconds the last proof can still be trusted."""
        return max(0.0, self.snapshot.trusted_until - self._clock.now()) if self.is_trusted() else 0.0
