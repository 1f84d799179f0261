"""What a blocking lock knows of itself: what the asynchronous one in it knows, safe from any thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgelect._engine.bounds import Bounds
    from pgelect._engine.model import LeaderRecord, LockKey, LockState
    from pgelect._health import Health
    from pgelect.lock import LeaderLock


class Status:
    """The read-only half of a blocking lock."""

    _inner: LeaderLock

    @property
    def key(self) -> LockKey:
        """The key of the lock."""
        return self._inner.key

    @property
    def identity(self) -> str:
        """The identity of this process."""
        return self._inner.identity

    @property
    def state(self) -> LockState:
        """What the lock is doing. Whether this process leads is said by ``is_leader``."""
        return self._inner.state

    @property
    def is_leader(self) -> bool:
        """True while this process leads, as far as the last proof can be trusted at this very instant."""
        return self._inner.is_leader

    def is_leader_confirmed_within(self, seconds: float) -> bool:
        """Tell whether this process leads and the last proof was sent no longer than ``seconds`` ago."""
        return self._inner.is_leader_confirmed_within(seconds)

    @property
    def token(self) -> int | None:
        """The fencing token of the present term; None while not leading."""
        return self._inner.token

    @property
    def record(self) -> LeaderRecord | None:
        """The token row as last seen by this lock: who leads, or led; None before it was seen, or without fencing."""
        return self._inner.record

    @property
    def trust_left_s(self) -> float:
        """For how many seconds the last proof can still be trusted; 0 while this process does not lead."""
        return self._inner.trust_left_s

    def health(self) -> Health:
        """Tell whether this lock is well; see ``pgelect.LeaderLock.health()``."""
        return self._inner.health()

    def bounds(self) -> Bounds:
        """Return the worst-case failover and overlap in seconds that follow from the settings, each with its reason."""
        return self._inner.bounds()

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__name__} {self.key} {self.identity!r} {self.state.value}>"
