"""Advisory locks of the fake server, as PostgreSQL keeps them: they stack, have one holder, and queue in order.

Rules: a lock that is let go passes to the first waiter at that very instant, so a lock is never free while somebody
waits for it, and nobody overtakes. All is synchronous; who a holder is does not matter here.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgelect._engine.model import LockKey

Owner = TypeVar("Owner")


@dataclass(slots=True, eq=False)
class Waiter(Generic[Owner]):
    """A place in a queue."""

    key: LockKey
    owner: Owner
    on_done: Callable[[], None]
    granted: bool = False
    done: bool = False  # granted, or left the queue


@dataclass(slots=True, eq=False)
class _Lock(Generic[Owner]):
    holder: Owner
    count: int = 1
    queue: deque[Waiter[Owner]] = field(default_factory=deque)


class Locks(Generic[Owner]):
    """All locks of one server."""

    def __init__(self) -> None:
        self._held: dict[LockKey, _Lock[Owner]] = {}

    def holder(self, key: LockKey) -> Owner | None:
        """Return who holds the lock."""
        lock = self._held.get(key)
        return lock.holder if lock else None

    def holds(self, owner: Owner) -> bool:
        """Return whether the owner holds any lock."""
        return any(lock.holder is owner for lock in self._held.values())

    def held(self) -> list[tuple[LockKey, Owner]]:
        """Return all locks that are held, and by whom."""
        return [(key, lock.holder) for key, lock in self._held.items()]

    def is_queued(self, key: LockKey) -> bool:
        """Return whether anybody waits for the lock."""
        lock = self._held.get(key)
        return lock is not None and bool(lock.queue)

    def waiters(self, key: LockKey) -> list[Owner]:
        """Return who waits for the lock, the first in the queue first."""
        lock = self._held.get(key)
        return [waiter.owner for waiter in lock.queue] if lock else []

    def try_lock(self, key: LockKey, owner: Owner) -> bool:
        """Take the lock, or once more, unless another holds it."""
        lock = self._held.get(key)
        if lock is None:
            self._held[key] = _Lock(owner)
            return True
        if lock.holder is owner:
            lock.count += 1
            return True
        return False

    def queue(self, key: LockKey, owner: Owner, on_done: Callable[[], None]) -> Waiter[Owner]:
        """Take the lock, or a place at the end of its queue. ``on_done`` is called when the waiting is over."""
        waiter = Waiter(key, owner, on_done)
        if self.try_lock(key, owner):
            _grant(waiter)
        else:
            self._held[key].queue.append(waiter)
        return waiter

    def leave(self, waiter: Waiter[Owner]) -> None:
        """Give up a place in the queue. Does nothing when the waiting is over."""
        if not waiter.done:
            self._held[waiter.key].queue.remove(waiter)
            waiter.done = True
            waiter.on_done()

    def unlock(self, key: LockKey, owner: Owner) -> bool:
        """Undo one ``try_lock``. False: the owner did not hold the lock."""
        lock = self._held.get(key)
        if lock is None or lock.holder is not owner:
            return False
        lock.count -= 1
        if not lock.count:
            self._pass_on(key, lock)
        return True

    def unlock_all(self, owner: Owner) -> None:
        """Let go of all that the owner holds."""
        for key, lock in list(self._held.items()):
            if lock.holder is owner:
                self._pass_on(key, lock)

    def forget(self, owner: Owner) -> None:
        """Let go of all that the owner holds or waits for."""
        for lock in list(self._held.values()):
            for waiter in [waiter for waiter in lock.queue if waiter.owner is owner]:
                self.leave(waiter)
        self.unlock_all(owner)

    def _pass_on(self, key: LockKey, lock: _Lock[Owner]) -> None:
        if not lock.queue:
            del self._held[key]
            return
        waiter = lock.queue.popleft()
        lock.holder, lock.count = waiter.owner, 1
        _grant(waiter)


def _grant(waiter: Waiter[Owner]) -> None:
    waiter.granted = waiter.done = True
    waiter.on_done()
