"""A shutdown from the outside: bounded, and carried through when the caller is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pgelect.errors import ShutdownError

if TYPE_CHECKING:
    from pgelect._engine.runner import Runner

UNLOCK_RESERVE_S = 1.0
"""Of the timeout, this much (at most a quarter) is kept for unlocking after the drain."""


_endings: set[asyncio.Task[None]] = set()  # the event loop itself keeps only weak references


async def shut_down(runner: Runner, timeout_s: float) -> None:
    """Stop the runner. A cancel is raised after the clean-up; a second one has the link dropped at once.

    Raises:
        ShutdownError: not within ``timeout_s``, or the duty has not stopped; the link was dropped.
    """
    in_callback, in_work, running = runner.dispatcher.inside(), runner.is_called_by_work, runner.running
    reserve_s = min(UNLOCK_RESERVE_S, timeout_s / 4)
    runner.post_shutdown(min(runner.settings.drain_timeout_s, timeout_s - reserve_s), reserve_s)
    ending = asyncio.get_running_loop().create_task(
        _end(runner, timeout_s, with_callbacks=not in_callback, by_us=running), name="pgelect-shutdown"
    )
    _endings.add(ending)
    ending.add_done_callback(_ended)
    cancels = 0
    while not ending.done():
        try:
            await asyncio.wait({ending})
        except asyncio.CancelledError:
            if in_work:  # the shutdown itself cancels the work that asked for it, and waits for its end
                raise
            cancels += 1
            if cancels > 1:
                runner.kill()
    if cancels:
        raise asyncio.CancelledError
    ending.result()


def _ended(ending: asyncio.Task[None]) -> None:
    _endings.discard(ending)
    if not ending.cancelled():
        ending.exception()  # seen: whoever was cancelled hears of the cancel instead


async def _end(runner: Runner, timeout_s: float, *, with_callbacks: bool, by_us: bool) -> None:
    stopped = asyncio.get_running_loop().create_task(runner.stopped(with_callbacks=with_callbacks))
    await asyncio.wait({stopped}, timeout=timeout_s)
    if not stopped.done() or (by_us and runner.duty_left):
        why = runner.waiting_for
        runner.kill()
        await asyncio.wait({stopped})
        raise ShutdownError(timeout_s, why)
