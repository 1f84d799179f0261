"""How a lock comes by its settings, apart from its constructor: from the environment, and changed while it runs."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypedDict

from pgelect._environment import settings_from_env
from pgelect.retry import RetryLike, as_strategy

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pgelect._engine.runner import Runner
    from pgelect._engine.settings import Settings
    from pgelect.retry import RetryStrategy


class Changes(TypedDict, total=False):
    """The settings that can be changed while a lock runs, beside its strategy; each as in the constructor."""

    health_interval_s: float
    health_timeout_s: float | None
    lease_s: float
    reconnect_grace_s: float | None
    takeover_delay_s: float
    drain_timeout_s: float
    auto_reacquire: bool


class Configured:
    """The half of a lock that changes its settings."""

    _settings: Settings
    _strategy: RetryStrategy
    _runner: Runner

    @classmethod
    def from_env(cls, name: str, **overrides: Any) -> Self:
        """Make the lock of that name with the settings that the environment holds.

        ``PGELECT_LEASE_S`` is ``lease_s`` of every lock, ``PGELECT_<NAME>_LEASE_S`` that of one, where <NAME> is its
        name in capitals with everything but A-Z and 0-9 as ``_``; and so on for every setting that a text can hold.

        Args:
            name: of the lock.
            overrides: arguments of the constructor that go before the environment.

        Raises:
            ValueError: a variable cannot be read, is out of range, contradicts another, or looks like a misspelt
                setting; the message names it.
        """
        found = settings_from_env(name, os.environ, overrides)
        with found.naming_variables():
            return cls(**found.arguments)

    def reconfigure(self, *, retry_strategy: RetryLike | None = None, **changes: Unpack[Changes]) -> None:
        """Change settings of a lock that runs, or is stopped; what is not named stays as it is.

        They are in force at once: a leader tells the server of a new lease with a proof that it sends now. Until that
        is answered, it trusts itself for as long as the shorter of the two leases allows, so a lease can be made
        shorter or longer without a gap, and without losing the term.

        Args:
            retry_strategy: as in the constructor; None: as it is.
            changes: ``health_interval_s``, ``health_timeout_s``, ``lease_s``, ``reconnect_grace_s``,
                ``takeover_delay_s``, ``drain_timeout_s``, ``auto_reacquire``; each as in the constructor.

        Raises:
            ValueError: one is out of range, or they contradict each other; nothing is changed.
            TypeError: one is of a wrong type, or cannot be changed; nothing is changed.
            ForkedError: the lock belongs to a parent process.
            RuntimeError: called in another event loop than that of the lock, which runs.
        """
        self._check_caller()
        if unknown := sorted(changes.keys() - Changes.__annotations__.keys()):
            raise TypeError(
                f"{', '.join(unknown)} cannot be changed while a lock exists; make a new lock. "
                f"These can: {', '.join(Changes.__annotations__)}, retry_strategy"
            )
        strategy = self._strategy if retry_strategy is None else as_strategy(retry_strategy)
        settings = replace(self._settings, **changes)
        if not isinstance(settings.auto_reacquire, bool):
            raise TypeError(f"auto_reacquire must be a bool, not {type(settings.auto_reacquire).__name__}")
        self._settings, self._strategy = settings, strategy
        self._apply_settings()
        self._runner.reconfigure(settings, strategy)

    def _check_caller(self) -> None:
        """Raise where this process, or this event loop, may not act on the lock."""
        raise NotImplementedError

    def _apply_settings(self) -> None:
        """Have sessions that are made from now on use the settings."""
        raise NotImplementedError
