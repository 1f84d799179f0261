"""The six callback decorators, shared by everything that can lead."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TypeVar

from pgelect._engine.hooks import Hook

C = TypeVar("C", bound=Callable[..., object])


class Callbacks:
    """Registers callbacks: as a decorator or by a call; sync or async; several of a kind run in order.

    A callback gets as many arguments as it has positional parameters without a default; one with ``*args`` gets all.
    Registering raises TypeError for what is not callable or requires more than it can get.
    """

    __slots__ = ()

    @abstractmethod
    def _add_callback(self, hook: Hook, callback: Callable[..., object]) -> None:
        """Register it."""

    def _on(self, hook: Hook, callback: C) -> C:
        self._add_callback(hook, callback)
        return callback

    def on_acquired(self, callback: C) -> C:
        """Register a callback for the begin of a term: ``callback()`` or ``callback(term)``.

        Async ones are cancelled when the term ends. One that raises ends the term.
        """
        return self._on(Hook.ACQUIRED, callback)

    def on_released(self, callback: C) -> C:
        """Register a callback for the clean end of a term, after the unlock: ``callback()`` or ``callback(term)``."""
        return self._on(Hook.RELEASED, callback)

    def on_lost(self, callback: C) -> C:
        """Register a callback for the unwanted end of a term: ``callback()`` or ``callback(term)``."""
        return self._on(Hook.LOST, callback)

    def on_acquire_failed(self, callback: C) -> C:
        """Register a callback for an attempt without success: ``callback()`` or ``callback(error)``.

        ``error`` is None when another process leads. With the queue that is told once for each wait.
        """
        return self._on(Hook.ACQUIRE_FAILED, callback)

    def on_state_change(self, callback: C) -> C:
        """Register a callback for every change of state: ``callback()`` or ``callback(from_state, to_state)``.

        A clean release waits for the callbacks that hear of RELEASING: they may stop the work.
        """
        return self._on(Hook.STATE_CHANGE, callback)

    def on_error(self, callback: C) -> C:
        """Register a callback for errors that the lock lives through: ``callback()`` or ``callback(exc)``."""
        return self._on(Hook.ERROR, callback)
