"""Marks inside a replica: when its library sent, was answered, and decided.

This looks inside the library, for one purpose: to say which part of a takeover to make faster. It costs microseconds.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from pgelect._engine.runner import Runner
from pgelect._postgres.link import Link

if TYPE_CHECKING:
    from pgelect._engine.events import Event

_seen: dict[str, float] = {}


def take() -> None:
    """Begin to take marks in this process."""
    run, apply = Link.run, Runner._apply  # noqa: SLF001 -- the purpose of this file

    async def marked_run(self: Link, work: Any, deadline: Any, doing: str) -> Any:
        _seen[f"{doing.split(maxsplit=1)[0]} sent"] = time.monotonic()
        try:
            return await run(self, work, deadline, doing)
        finally:
            _seen[f"{doing.split(maxsplit=1)[0]} answered"] = time.monotonic()

    def marked_apply(self: Runner, event: Event) -> None:
        _seen[type(event).__name__] = time.monotonic()
        apply(self, event)

    patch.object(Link, "run", marked_run).start()
    patch.object(Runner, "_apply", marked_apply).start()


def taken() -> dict[str, Any]:
    """Give the marks so far, for a report; empty where none are taken."""
    return {"stages": dict(_seen)} if _seen else {}
