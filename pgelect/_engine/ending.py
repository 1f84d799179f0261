"""A shutdown from the outside: bounded, and carried through when the caller is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from pgelect.errors import PgElectError, ShutdownError

if TYPE_CHECKING:
    from pgelect._engine.settings import Settings

UNLOCK_RESERVE_S = 1.0
"""Of the timeout, this much (at most a quarter) is kept for unlocking after the drain."""


class Ending(Protocol):
    """What can be shut down: the runner of a lock, or of a group."""

    settings: Settings
    killed: asyncio.Event

    @property
    def in_callback(self) -> bool:
        """The running task is a callback, or one that a callback made."""

    @property
    def is_called_by_work(self) -> bool:
        """The running task works for a term, or is a callback."""

    @property
    def running(self) -> bool:
        """Started, and not stopped since."""

    @property
    def is_ending(self) -> bool:
        """Its task has not ended yet."""

    @property
    def duty_left(self) -> bool:
        """Work for a term has still not stopped."""

    def post_shutdown(self, drain_s: float, close_s: float) -> None:
        """Ask it to stop."""

    async def stopped(self, *, with_callbacks: bool) -> None:
        """Wait until it has."""

    async def duty_ended(self) -> None:
        """Wait until nobody works for a term any more."""

    def kill(self) -> None:
        """Stop at once."""


_endings: set[asyncio.Task[None]] = set()  # the event loop itself keeps only weak references


async def shut_down(runner: Ending, timeout_s: float) -> None:
    """Stop the runner. A cancel is raised after the clean-up; a second one has the link dropped at once.

    A cancel that the caller is already on its way out with, such as through ``async with``, is the first.

    Raises:
        ShutdownError: not within ``timeout_s``, or the duty has not stopped; the link was dropped.
    """
    in_callback, in_work, running = runner.in_callback, runner.is_called_by_work, runner.running
    reserve_s = min(UNLOCK_RESERVE_S, timeout_s / 4)
    drain_s = min(runner.settings.drain_timeout_s, timeout_s - reserve_s)
    runner.post_shutdown(drain_s, reserve_s)
    duty_s = drain_s if running and not in_work else None  # work that asks for the end cannot be waited for
    ending = asyncio.get_running_loop().create_task(
        _end(runner, timeout_s, duty_s, with_callbacks=not in_callback), name="pgelect-shutdown"
    )
    _endings.add(ending)
    ending.add_done_callback(_ended)
    caller = asyncio.current_task()
    already = caller is not None and caller.cancelling() > 0  # that is why we were called: the first one of two
    cancels = 0
    while not ending.done():
        try:
            await asyncio.wait({ending})
        except asyncio.CancelledError:
            if in_work:  # the shutdown itself cancels the work that asked for it, and waits for its end
                raise
            cancels += 1
            if already or cancels > 1:
                runner.kill()
    if cancels:
        raise asyncio.CancelledError
    ending.result()


def _ended(ending: asyncio.Task[None]) -> None:
    _endings.discard(ending)
    if not ending.cancelled():
        ending.exception()  # seen: whoever was cancelled hears of the cancel instead


async def _end(runner: Ending, timeout_s: float, duty_s: float | None, *, with_callbacks: bool) -> None:
    loop = asyncio.get_running_loop()
    begun_at = loop.time()
    stopped = loop.create_task(runner.stopped(with_callbacks=with_callbacks))
    await asyncio.wait({stopped}, timeout=timeout_s)
    if stopped.done() and duty_s is not None and runner.duty_left:
        await _see_duty_end(runner, begun_at + duty_s - loop.time())
    if not stopped.done() or (duty_s is not None and runner.duty_left):
        why = _waiting_for(runner)
        runner.kill()
        await asyncio.wait({stopped})
        raise ShutdownError(timeout_s, why)


async def _see_duty_end(runner: Ending, within_s: float) -> None:
    """Wait for what a stop without a release left: the session was lost, so the lock is free, but a duty cleans up."""
    if within_s <= 0:
        return
    loop = asyncio.get_running_loop()
    waiting = {loop.create_task(runner.duty_ended()), loop.create_task(runner.killed.wait())}
    try:
        await asyncio.wait(waiting, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()


def _waiting_for(runner: Ending) -> str:
    """Say what a shutdown that takes too long is waiting for."""
    if runner.duty_left:
        return "a duty or an on_acquired callback that has not stopped"
    return "the server" if runner.is_ending else "a callback that has not returned"


def ended_from_outside(by: BaseException) -> PgElectError:
    """Make the reason of a lock that did not stop by itself, and was not asked to."""
    return PgElectError(
        f"the task of the lock was ended from outside ({type(by).__name__}): by code that cancels all tasks, or by the "
        "end of an event loop in which the lock was not shut down. It has stopped; call start() to campaign again."
    )
