"""Waking somebody who may have been woken, or may have gone, already."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


def settle(future: asyncio.Future[None] | None) -> None:
    """Finish a future that is there and still pending, in a loop that can hear of it; otherwise do nothing."""
    if future is not None and not future.done() and not future.get_loop().is_closed():
        future.set_result(None)
