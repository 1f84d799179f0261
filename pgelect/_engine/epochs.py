"""The sessions of what performs the I/O of a lock or a group, each by its epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from pgelect._engine import events as ev
from pgelect.errors import SessionLostError

if TYPE_CHECKING:
    from collections.abc import Callable


class Abandonable(Protocol):
    """What is asked of a session here."""

    def abandon(self) -> None:
        """Drop the link at once."""


T = TypeVar("T", bound=Abandonable)


class Epochs(Generic[T]):
    """Makes sessions, and hands them over to be closed. Mostly there is one."""

    def __init__(self, new_session: Callable[[], T]) -> None:
        self._new_session = new_session
        self._sessions: dict[int, T] = {}

    def prepare(self, epoch: int) -> None:
        """Make the session of that epoch, unconnected, so that it can be closed from now on."""
        self._sessions[epoch] = self._new_session()

    def take(self, epoch: int) -> T | None:
        """Hand over the session of that epoch, to be closed."""
        return self._sessions.pop(epoch, None)

    def abandon(self) -> None:
        """Drop all links at once."""
        for session in self._sessions.values():
            session.abandon()
        self._sessions.clear()

    def cancelled(self, epoch: int) -> ev.Event:
        """Return the event for I/O that a stranger cancelled: what the server did is unknown."""
        return ev.Failed(epoch, SessionLostError("closed", "the I/O of the session was cancelled from outside"), 0.0)
