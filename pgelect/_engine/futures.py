"""Waking somebody who may have been woken, or may have gone, already."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


def settle(future: asyncio.Future[None] | None) -> None:
    """Finish a future that is there and still pending; otherwise do nothing."""
    if future is not None and not future.done():
        future.set_result(None)
