"""Futures that several may settle, and that are waited for to the end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def settle(future: asyncio.Future[T | None] | None, value: T | None = None, error: Exception | None = None) -> None:
    """Finish a future that is there and still pending, in a loop that can hear of it; otherwise do nothing."""
    if future is None or future.done() or future.get_loop().is_closed():
        return
    if isinstance(error, StopIteration):  # which no future takes; a coroutine that raises it does the same
        stopped = RuntimeError("raised StopIteration")
        stopped.__cause__ = error
        error = stopped
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)


async def outlast(future: asyncio.Future[T], asked: Callable[[], object] = lambda: None) -> T:
    """Wait for what cannot be cancelled, whatever cancels come; one is raised then, unless the future has an error.

    ``asked`` is called for each cancel: it may ask what is waited for to come to an end.
    """
    cancelled = False
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError:
            cancelled = True
            asked()
    result = future.result()
    if cancelled:
        raise asyncio.CancelledError
    return result
