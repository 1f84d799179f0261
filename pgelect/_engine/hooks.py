"""The kinds of callbacks, and what each is called with."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import Enum

Callback = Callable[..., object]


class Hook(Enum):
    """The kinds of callbacks, and how many arguments each can have."""

    ACQUIRED = ("on_acquired", 1)
    RELEASED = ("on_released", 1)
    LOST = ("on_lost", 1)
    ACQUIRE_FAILED = ("on_acquire_failed", 1)
    STATE_CHANGE = ("on_state_change", 2)
    ERROR = ("on_error", 1)

    @property
    def label(self) -> str:
        """The name of the public decorator."""
        return self.value[0]

    @property
    def arity(self) -> int:
        """How many arguments a callback of this kind is offered."""
        return self.value[1]


def wanted_arguments(callback: Callback, offered: int, label: str) -> int:
    """Count how many of the offered arguments a callable requires; with ``*args``, or no signature, it gets all.

    Raises:
        TypeError: it is not callable, or requires more than there are.
    """
    if not callable(callback):
        raise TypeError(f"{label} needs a callable, not {type(callback).__name__}")
    try:
        parameters = inspect.signature(callback).parameters.values()
    except ValueError:  # some callables in C have none
        return offered
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return offered
    positional = sum(
        p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD} and p.default is p.empty for p in parameters
    )
    keyword_only = any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters)
    if positional > offered or keyword_only:
        raise TypeError(f"{label} offers {offered} positional argument(s); {callback!r} requires more or others")
    return positional
