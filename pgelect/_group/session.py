"""What the runner of a group needs of a server: the GroupSession protocol.

The rules of ``pgelect._engine.session`` hold: one coroutine at a time, each bounded by ``within_s``, SessionLostError
when the session is gone. Here a session carries many terms, and any PgElectError but that leaves it usable.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pgelect._engine.model import Backend, Grant, LockKey
    from pgelect._group.shares import View


@dataclass(frozen=True, slots=True)
class Sight:
    """The answer to a look.

    Attributes:
        print: of the group as it is: another number for another membership, or other holders.
        view: the group; None when its print is the one that was known.
        orphaned: the member that was waited for has died.
        called: somebody has called, who may want a term to end: look with ``heed``.
    """

    print: int
    view: View | None = None
    orphaned: bool = False
    called: bool = False


@dataclass(frozen=True, slots=True)
class Catch:
    """What became of an attempt for many locks; those that are in none of these are held by others.

    Attributes:
        grants: locked, and their tokens minted.
        held_up: locked, but the rows of their tokens are held by fenced transactions: mint them singly.
        failed: not locked (any more), because of that error.
    """

    grants: tuple[tuple[LockKey, Grant], ...] = ()
    held_up: tuple[LockKey, ...] = ()
    failed: tuple[tuple[LockKey, Exception], ...] = field(default=())


class GroupSession(Protocol):
    """One dedicated server session, from connect to close."""

    @property
    def me(self) -> int:
        """The id of this member in the ring."""

    async def open(self, within_s: float) -> None:
        """Connect, set every setting relied on, and pass the guards; see ``Session.open`` for the errors."""

    async def join(self, ghost: Backend | None, within_s: float) -> Backend:
        """Become a member that others see; end ``ghost``, our own lost session, first."""

    async def look(self, known: int | None, wait_for: int | None, wait_s: float, within_s: float) -> Sight:
        """Wait for the end of a member for that long at most, then prove all locks and look at the group.

        Raises:
            SessionLostError: this session does not hold what it should, or it ended, or its server is a standby now.
        """

    async def take(self, keys: tuple[LockKey, ...], within_s: float) -> Catch:
        """Try for these locks without waiting, and mint the tokens of those that are granted."""

    async def mint(self, key: LockKey, within_s: float) -> Grant:
        """With the lock held: mint one token, waiting for the fenced transactions that hold it up, and ending them.

        After an error the lock is not held any more.
        """

    async def tell(self, grants: tuple[tuple[LockKey, Grant], ...], within_s: float) -> None:
        """Write down that these terms have begun, and hear calls to them from now on."""

    async def heed(self, tokens: tuple[tuple[LockKey, int], ...], within_s: float) -> tuple[tuple[LockKey, str], ...]:
        """Look which of these terms were asked to end, and by whom."""

    async def free(self, tokens: tuple[tuple[LockKey, int], ...], within_s: float) -> None:
        """Mark these terms as cleanly released, then unlock."""

    async def watch(self, for_s: float) -> None:
        """Idle for that long, or until somebody calls. May be cancelled at any time; the session stays usable."""

    def hurry(self) -> None:
        """Have the wait of a look that is in flight end soon. Never raises."""

    async def close(self, within_s: float) -> None:
        """End the session in an orderly way. Never raises but a cancel."""

    def abandon(self) -> None:
        """Drop the link at once, without awaiting anything. Never raises."""
