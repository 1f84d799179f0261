"""Blocking work beside an event loop, for which nothing waits that does not want its result.

``asyncio.to_thread`` takes a thread of the loop's own few: work that hangs there holds up the resolution of names, and
with it an election that connects, as well as the end of the loop and of the program.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


async def aside(work: Callable[[], T], name: str, *, then: Callable[[], object] = lambda: None) -> T:
    """Run ``work`` in a thread of its own, and return what it returns. How many there are at once is up to the caller.

    A cancel is raised at once; the work goes on without anybody, and ends with the program at the latest. ``then`` is
    called, in any thread, when it has ended or could not begin.

    Raises:
        Exception: whatever ``work`` raises.
        RuntimeError: the system has no more threads.
    """
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # from here on a cancel leaves it alone

    def run() -> None:
        try:
            try:
                result = work()
            finally:
                then()
        except BaseException as error:  # noqa: BLE001 -- raised where it is waited for
            future.set_exception(error)
        else:
            future.set_result(result)

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except BaseException:
        then()
        raise
    return await asyncio.wrap_future(future)
