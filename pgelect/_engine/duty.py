"""Work done only while leading: a duty as a child task of its term, and the terms one after another."""

from __future__ import annotations

import asyncio
import inspect
import logging
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar

from pgelect._engine.hooks import Hook
from pgelect.errors import NotLeaderError, StaleTokenError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from pgelect._engine.model import Term
    from pgelect._engine.runner import Runner
    from pgelect._engine.term import TermLife

log = logging.getLogger("pgelect")
T = TypeVar("T")


async def next_term(runner: Runner, after: int = 0) -> tuple[int, Term, TermLife] | None:
    """Wait for a term of a number above ``after`` that is trusted now; None when the lock has stopped.

    Raises:
        PgElectError: the lock stopped by itself, for this reason.
    """
    while True:
        seen, life = runner.snapshot, runner.life
        if seen.number > after and seen.term is not None and life is not None and runner.is_trusted(seen.number):
            return seen.number, seen.term, life
        if not runner.running:
            if runner.failure is not None:
                raise runner.failure
            return None
        await runner.change()


async def lead(runner: Runner, duty: Callable[[Term], Awaitable[T]], *, repeat: bool) -> T | None:
    """Run ``duty(term)`` whenever this process leads; see ``LeaderLock.lead``."""
    while (found := await next_term(runner)) is not None:
        _, term, life = found
        task = asyncio.get_running_loop().create_task(_awaited(duty, term, life), name="pgelect-duty")
        life.join(task)
        await _see_it_end(task, life)
        if task.cancelled():
            if not life.over.is_set():  # it cancelled itself: nobody works, and nobody asked it to stop
                await _give_up(runner, life)
                raise asyncio.CancelledError
        elif (error := task.exception()) is None:
            if not repeat and not life.over.is_set():  # else it may have returned because it was told to stop
                return task.result()
            await asyncio.sleep(0)  # a duty that never awaits must not starve the loop
        elif life.over.is_set() or isinstance(error, StaleTokenError | NotLeaderError):
            log.warning("the duty ended with its term: %s", error)
            runner.dispatcher.post(Hook.ERROR, error)
            await _give_up(runner, life)
        else:
            await _give_up(runner, life)
            raise error
    return None


async def terms(runner: Runner) -> AsyncIterator[Term]:
    """Yield each term once, as it begins; a release waits until the body asks for the next one."""
    number = 0
    while (found := await next_term(runner, number)) is not None:
        number, term, life = found
        guest = life.host()
        try:
            yield term
        finally:
            guest.cancel()


def leader_only(is_leader: Callable[[], bool], function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that it is not called while this process does not lead; see ``LeaderLock.leader_only``."""
    if is_async(function):

        @wraps(function, updated=())
        async def guarded_async(*args: Any, **kwargs: Any) -> Any:
            return await function(*args, **kwargs) if is_leader() else None

        return guarded_async

    @wraps(function, updated=())
    def guarded(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) if is_leader() else None

    return guarded


def is_async(function: Callable[..., Any]) -> bool:
    """Tell whether a call of that returns something to be awaited, however it is wrapped."""
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


async def _awaited(duty: Callable[[Term], Awaitable[T]], term: Term, life: TermLife) -> T:
    life.enter()
    return await duty(term)


async def _see_it_end(task: asyncio.Task[Any], life: TermLife) -> None:
    """Wait until the task is done. A cancel of ours is passed on to it, and raised once it has ended.

    One that comes while the task cleans up, because its term is over, must not cut that short; one more does.
    """
    cancels = 0
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cancels += 1
            if cancels > 1 or not life.over.is_set():
                task.cancel()
    if cancels:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the duty raised while it was being cancelled", exc_info=error)
        raise asyncio.CancelledError


async def _give_up(runner: Runner, life: TermLife) -> None:
    """End that term. Another one may have begun while the duty cleaned up: nothing is wrong with it."""
    if runner.life is life:
        await runner.step_down(runner.settings.drain_timeout_s, None)
