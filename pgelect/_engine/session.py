"""What the runner needs of a server: the Session protocol. Implemented by ``_postgres`` and by the fake server.

Rules every implementation keeps, and the contract suite checks:

- At most one coroutine of a session runs at a time, except that ``abandon()`` may be called at any moment.
- Every coroutine ends within ``within_s`` seconds (plus scheduling), whatever the server does.
- ``SessionLostError`` means that the session is gone; its link is already dropped.
- After any other exception, and after a cancel of anything but ``watch``, the caller closes the session:
  what the server did is uncertain.
- A session carries at most one term. It never takes the lock twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pgelect._engine.model import Backend, Grant, LeaderRecord, LostTerm


@dataclass(frozen=True, slots=True)
class LockAnswer:
    """The answer to an attempt for the lock.

    Attributes:
        granted: the lock is ours.
        record: the token row as seen; None: no row, or no fencing.
        backend: the session that answered, where known.
        is_full: when refused: enough others wait in the server's queue.
        aside: how many others stand aside, where this session does now.
    """

    granted: bool
    record: LeaderRecord | None = None
    backend: Backend | None = None
    is_full: bool = False
    aside: int = 0


@dataclass(frozen=True, slots=True)
class ResumeAnswer:
    """The answer to the question whether a term goes on.

    Attributes:
        resumed: the lock is ours again and the row still carries our token: nobody led in between.
        final: when not resumed: the term is over for good. Otherwise the lock was merely still taken; ask again.
        why: a short reason when not resumed.
        backend: the session that holds the lock now, when resumed.
    """

    resumed: bool
    final: bool = False
    why: str = ""
    backend: Backend | None = None


@dataclass(frozen=True, slots=True)
class Proof:
    """The answer to the question whether this session holds the lock.

    Attributes:
        held: it does. False is definite.
        followers: how many others wait for it, in the server's queue or aside.
    """

    held: bool
    followers: int = 0


class Session(Protocol):
    """One dedicated server session, from connect to close."""

    def adjust(self, lease_s: float) -> None:
        """Have the server enforce that lease, from the next statement on that says so: an attempt, or a proof."""

    async def open(self, within_s: float) -> None:
        """Connect, set every setting relied on, and pass the guards.

        Raises:
            ConfigurationError: a mistake that time does not mend.
            NotPrimaryError: the server is a standby.
            SessionLostError: no connection, or lost on the way; may succeed later.
        """

    async def try_lock(self, ghost: Backend | None, within_s: float) -> LockAnswer:
        """Try for the lock without waiting. If ``ghost`` (our own lost session) holds it, end that session first.

        Where the answer is that the queue is full, this session stands aside now: the others count it.

        Raises:
            KeyCollisionError: the token row carries another name; the lock is not held.
        """

    async def wait_lock(self, within_s: float) -> LockAnswer:
        """Wait for the lock in the server's queue for one bounded slice (under a second).

        ``within_s`` is the time allowed beyond the slice. The queue is full for whoever has enough others before it, by
        an order that all agree on: so not all leave it at once.
        """

    async def look(self, after_s: float, within_s: float) -> LockAnswer:
        """Stand aside for ``after_s`` seconds, then try for the lock, as ``try_lock`` does.

        ``within_s`` is the time allowed beyond that. The end of the session is heard at once.
        """

    async def mint(self, within_s: float) -> Grant:
        """With the lock held: mint the term's token and have it confirmed (durable).

        Raises:
            FenceBusyError: a transaction of an earlier term holds the token row and could not be ended.
            SessionLostError: the session ended, or the server says that it does not hold the lock any more.
        """

    async def resume(self, grant: Grant, within_s: float) -> ResumeAnswer:
        """On a new session: take the lock again, if the term of ``grant`` can go on. Ends our own ghost."""

    async def prove(self, within_s: float) -> Proof:
        """Prove leadership.

        Raises:
            SessionLostError: no proof within the time, or the session ended, or its server is a standby now.
            PgElectError: the statement failed but the session is usable, such as a cancel by an administrator.
        """

    async def watch(self, for_s: float) -> bool:
        """Idle for that long, listening. May be cancelled at any time; the session stays usable.

        Returns:
            True, and early, when somebody has called who may want the term to end: look with ``heed``. Calls in quick
            succession count as one.

        Raises:
            SessionLostError: the session ended.
        """

    async def announce(self, grant: Grant | None, lost: LostTerm | None, ago_s: float, within_s: float) -> None:
        """Write down that the term of ``grant`` has begun, and that ``lost`` ended ``ago_s`` seconds ago.

        With a grant, calls are heard from now on. Where the server has no place for any of that, nothing is done.

        Raises:
            SessionLostError: the session ended.
            PgElectError: it could not be written down; the session is usable.
        """

    async def heed(self, token: int, within_s: float) -> str | None:
        """Look who has asked the term of that token to end; None: nobody.

        Raises:
            SessionLostError: the session ended.
            PgElectError: it could not be found out; the session is usable.
        """

    async def unlock(self, token: int, within_s: float) -> bool:
        """Mark the term as cleanly released, then unlock. False: the server says the lock was not held.

        The mark is left out when a fenced transaction holds the token row for longer than a moment.
        """

    async def close(self, within_s: float) -> None:
        """End the session in an orderly way, cancelling a wait that is in flight on the server. Never raises."""

    def abandon(self) -> None:
        """Drop the link at once, without awaiting anything. Pending calls end soon after. Never raises."""
