"""The terms of a group inside the process: the life, the callbacks and the duty of each partition.

A partition has a dispatcher of its own, so that a callback that hangs holds up no other partition. It is made when a
term begins, and ends with it once everything has been told.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from pgelect._engine.backoff import FALLBACK_DELAY_S, Backoff
from pgelect._engine.dispatch import Dispatcher
from pgelect._engine.hooks import Hook
from pgelect._engine.term import TermLife
from pgelect.errors import NotLeaderError, StaleTokenError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping

    from pgelect._engine.clock import Clock
    from pgelect._engine.model import Grant, LockKey, Term
    from pgelect._engine.settings import Settings
    from pgelect.retry import RetryStrategy

log = logging.getLogger("pgelect")

_KEPT_MOST = 16  # of what is over, until it is looked what of it is still needed


class Terms:
    """Keeps the present terms, by partition."""

    def __init__(
        self,
        strategy: RetryStrategy,
        clock: Clock,
        *,
        drained: Callable[[LockKey, int], None],
        give_up: Callable[[LockKey, float], None],
        report: Callable[[Exception], None],
    ) -> None:
        """``drained``: told of a term whose work has stopped. ``give_up``: called for one that nobody works for."""
        self.general = Dispatcher(lambda _, __: None)  # for what is of no partition; has the callbacks
        self._led: dict[LockKey, tuple[int, Term]] = {}
        self._present: Mapping[LockKey, tuple[int, Term]] | None = {}  # a copy of that; None: out of date
        self._strategy = strategy
        self._clock = clock
        self._drained = drained
        self._give_up = give_up
        self.report = report
        self._lives: dict[LockKey, tuple[int, Term, TermLife]] = {}
        self._over: list[TermLife] = []  # for which somebody may still work
        self._over_most = _KEPT_MOST
        self._dispatchers: dict[LockKey, Dispatcher] = {}
        self._dispatchers_most = _KEPT_MOST
        self._failures: dict[LockKey, Backoff] = {}
        self._begun: dict[Callable[[Term, TermLife], None], None] = {}
        self._draining: dict[asyncio.Task[None], None] = {}

    def begin(
        self, key: LockKey, number: int, grant: Grant, settings: Settings, is_current: Callable[[], bool]
    ) -> None:
        """Make the term of that grant; ``tell_begun`` follows."""
        life = TermLife()
        term = life.term(grant, settings, is_current, key)
        self._lives[key] = number, term, life
        self._led[key], self._present = (number, term), None

    def present(self) -> Mapping[LockKey, tuple[int, Term]]:
        """Give the terms that are led, as they are now: many may begin or end between two calls, for one copy."""
        if self._present is None:
            self._present = dict(self._led)
        return self._present

    def tell_begun(self, key: LockKey) -> None:
        """Tell callbacks and duties that it has begun."""
        _, term, life = self._lives[key]
        self._dispatcher(key).post(Hook.ACQUIRED, term, life=life)
        for tell in tuple(self._begun):
            tell(term, life)

    def drain(self, key: LockKey, number: int) -> None:
        """Ask the work for that term to stop; say so when it has."""
        _, _, life = self._lives[key]
        life.end()
        if not life.busy:
            self._drained(key, number)
            return
        task = asyncio.get_running_loop().create_task(self._see_drained(key, number, life), name="pgelect-drain")
        self._draining[task] = None
        task.add_done_callback(self._draining.pop)

    async def _see_drained(self, key: LockKey, number: int, life: TermLife) -> None:
        await life.drained()
        self._drained(key, number)

    def end(self, key: LockKey, *, released: bool) -> None:
        """End that term, and tell of it."""
        _, term, life = self._lives.pop(key)
        life.end()
        self._over.append(life)
        if len(self._over) > self._over_most:
            self._over_most = max(_KEPT_MOST, 2 * len(self._working()))
        dispatcher = self._dispatcher(key)
        dispatcher.post(Hook.RELEASED if released else Hook.LOST, term, life=life)
        dispatcher.finish()

    def forget(self, key: LockKey) -> None:
        """Have that partition no longer count as led; ``drain`` or ``end`` follows."""
        if self._led.pop(key, None) is not None:
            self._present = None

    @property
    def busy(self) -> bool:
        """Somebody still works for a term, also for one that is over."""
        return any(life.busy for life in self._working())

    async def ended(self) -> None:
        """Wait until nobody works for a term any more."""
        for life in self._working():
            await life.drained()

    def _working(self) -> list[TermLife]:
        self._over = [life for life in self._over if life.busy]
        return [*self._over, *self.lives]

    @property
    def lives(self) -> list[TermLife]:
        """The lives of the terms that are not over yet."""
        return [life for _, _, life in self._lives.values()]

    def each(self) -> list[tuple[Term, TermLife]]:
        """Give the terms that are led, or draining."""
        return [(term, life) for _, term, life in self._lives.values()]

    def watch(self, begun: Callable[[Term, TermLife], None]) -> None:
        """Have every term that begins told to that, until ``unwatch``."""
        self._begun[begun] = None

    def unwatch(self, begun: Callable[[Term, TermLife], None]) -> None:
        """Tell it no more."""
        self._begun.pop(begun, None)

    def failed(self, life: TermLife, error: BaseException) -> None:
        """Give up the partition of that term: nobody does its work, so somebody else should. Later and later."""
        for key, (_, _, present) in self._lives.items():
            if present is life:
                counter = self._failures.setdefault(key, Backoff(self._strategy, self._clock))
                delay_s = counter.next_s(error if isinstance(error, Exception) else None)
                self._give_up(key, FALLBACK_DELAY_S if delay_s is None else delay_s)
                return

    def went_well(self, key: LockKey) -> None:
        """Forget the failures of that partition."""
        self._failures.pop(key, None)

    # -- callbacks -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to run callbacks."""
        self._failures.clear()
        self.general.start()

    def succeed(self, old: Terms) -> None:
        """Use the callbacks of one of another event loop, or of a closed one, and tell the untold ends of its terms."""
        for key, (_, term, life) in old._lives.items():
            old._dispatchers[key].post(Hook.LOST, term, life=life)
        for one in old._all():
            self.general.take_over(one)

    def inside(self) -> bool:
        """Tell whether the caller is a callback, or a task that one made."""
        return any(one.inside() for one in self._all())

    def is_called_by_work(self) -> bool:
        """Tell whether the running task works for a term, lost ones too, or is a callback: it must not await itself."""
        return self.inside() or any(life.is_worked_for_here for life in self._working())

    def finish(self) -> None:
        """End once everything was told."""
        for one in self._all():
            one.finish()

    async def close(self) -> None:
        """Run what is left, then end."""
        await _all_of([one.close() for one in self._all()])

    def hurry(self) -> None:
        """Cancel the callbacks that run, tell of the ends that are untold, and end within a moment."""
        for one in self._all():
            one.hurry()
        for task in tuple(self._draining):
            task.cancel()

    def kill(self) -> None:
        """Cancel the callbacks that run and forget the rest."""
        for one in self._all():
            one.kill()

    def _all(self) -> list[Dispatcher]:
        return [self.general, *self._dispatchers.values()]

    def _dispatcher(self, key: LockKey) -> Dispatcher:
        found = self._dispatchers.get(key)
        if found is None or not found.reopen():
            self._discard_dispatchers()
            found = self._dispatchers[key] = Dispatcher(self.failed)
            found.take_over(self.general)
            found.start()
        return found

    def _discard_dispatchers(self) -> None:
        """Forget those of partitions that are not led any more and have told everything: there may be ever new ones."""
        if len(self._dispatchers) >= self._dispatchers_most:
            self._dispatchers = {
                key: one for key, one in self._dispatchers.items() if key in self._lives or not one.idle
            }
            self._dispatchers_most = max(_KEPT_MOST, 2 * len(self._dispatchers))


async def _all_of(coroutines: list[Coroutine[Any, Any, None]]) -> None:
    tasks = [asyncio.get_running_loop().create_task(coroutine) for coroutine in coroutines]
    try:
        await asyncio.wait(tasks)
    finally:
        for task in tasks:
            task.cancel()


class Duty:
    """One ``lead(handler)``: a task for each partition, for as long as that is led, and never two for one partition."""

    def __init__(self, terms: Terms, work: Callable[[Term], Awaitable[object]]) -> None:
        self._terms = terms
        self._work = work
        self._tasks: dict[asyncio.Task[object], None] = {}
        self._turns: dict[LockKey, asyncio.Lock] = {}  # of each partition; held by who works for it
        self._ending = False

    async def run(self, stopped: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Work until ``stopped`` returns, or this call is cancelled; all tasks have ended then."""
        self._terms.watch(self._begin)
        try:
            for term, life in self._terms.each():
                self._begin(term, life)
            await stopped()
        finally:
            self._terms.unwatch(self._begin)
            await self._end()

    def _begin(self, term: Term, life: TermLife) -> None:
        if life.over.is_set():
            return
        task = asyncio.get_running_loop().create_task(self._turn(term, life), name=f"pgelect-duty {term.key}")
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        life.join(task)

    async def _turn(self, term: Term, life: TermLife) -> None:
        """Wait until nobody works for an earlier term of that partition, which was lost, any more."""
        async with self._turns.setdefault(term.key, asyncio.Lock()):
            await self._one(term, life)

    async def _one(self, term: Term, life: TermLife) -> None:
        life.enter()
        try:
            await self._work(term)
        except asyncio.CancelledError as error:
            if not life.over.is_set() and not self._ending:  # it cancelled itself: nobody works
                self._terms.failed(life, error)
            raise
        except Exception as error:
            if life.over.is_set() or isinstance(error, StaleTokenError | NotLeaderError):
                log.warning("the duty of %s ended with its term: %s", term.key, error)
            else:
                log.exception("the duty of %s raised; the partition is given up", term.key)
            self._terms.report(error)
            self._terms.failed(life, error)
        else:
            if not life.over.is_set():
                self._terms.went_well(term.key)

    async def _end(self) -> None:
        self._ending, cancelled = True, False
        while self._tasks:
            for task in tuple(self._tasks):
                task.cancel()
            try:
                await asyncio.wait(tuple(self._tasks))
            except asyncio.CancelledError:
                cancelled = True
        if cancelled:
            raise asyncio.CancelledError
