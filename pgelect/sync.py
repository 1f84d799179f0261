"""The same for programs that block: Django, Celery, Flask, scripts and threads.

    from pgelect.sync import LeaderLock

    with LeaderLock("postgresql://localhost/app", name="billing") as lock:
        lock.lead(bill)         # bill(term), in this thread

It is the asynchronous lock, in an event loop on a thread of its own. However busy, blocked or asleep the program is,
its proofs go on. (While an extension keeps the interpreter's own lock, nothing goes on; then the lease ends, as it does
for a process that is stopped.) `LeaderGroup` is the same for a group, with a thread for each partition that is led.
"""

# ruff: noqa: SLF001 -- what it works with is its own lock

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

from typing_extensions import override

from pgelect import lock as _asynchronous
from pgelect._engine import duty as duties
from pgelect._sync_fences import Fences, check_token, fenced
from pgelect._sync_group import LeaderGroup
from pgelect._sync_life import Life, refuse_event
from pgelect._sync_status import Status
from pgelect._sync_term import Term, Turns

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterator

    from typing_extensions import Unpack

    from pgelect._configuring import Changes
    from pgelect._engine import model
    from pgelect._engine.model import LockKey
    from pgelect._postgres.options import Dsn
    from pgelect._sync_settings import LockSettings
    from pgelect.retry import RetryLike

__all__ = ["LeaderGroup", "LeaderLock", "Term", "check_token", "fenced"]

R = TypeVar("R")
P = ParamSpec("P")


class LeaderLock(Status, Life[_asynchronous.LeaderLock], Fences):
    """Leader election on PostgreSQL for programs that block; see ``pgelect.LeaderLock`` for what each thing does.

    Its methods may be called from any thread, and from programs that run an event loop of their own, which they block.
    A lock that was made before a fork and not started may be started in the child; one that runs is its parent's, and
    inert in the child. The end of the interpreter shuts it down.

    Callbacks are plain functions. They run in order, in one thread of their own: a slow one delays only other
    callbacks. When a term ends, an ``on_acquired`` that still runs is waited for as work for that term is; let it look
    at ``term.ended``.

    Args:
        dsn, key1, key2: as for ``pgelect.LeaderLock``.
        settings: as for ``pgelect.LeaderLock``, but ``shutdown_event``: call ``shutdown()`` instead.

    Raises:
        ValueError, TypeError: an argument is out of range, or two contradict each other; the message names them.
    """

    def __init__(
        self, dsn: Dsn = "", key1: int | None = None, key2: int | None = None, **settings: Unpack[LockSettings]
    ) -> None:
        refuse_event(settings)
        self._set_up(lambda: _asynchronous.LeaderLock(dsn, key1, key2, **settings))

    def _set_up(self, make: Callable[[], _asynchronous.LeaderLock]) -> None:
        self._make = make
        self._begin_with(make())

    @override
    def _made_anew(self) -> _asynchronous.LeaderLock:
        return self._make()

    @classmethod
    def from_env(cls, name: str, **overrides: Any) -> Self:
        """Make the lock of that name with the settings that the environment holds; see ``pgelect.LeaderLock``."""
        new = cls.__new__(cls)
        new._set_up(lambda: _asynchronous.LeaderLock.from_env(name, **overrides))
        return new

    # -- leading -------------------------------------------------------------------------------------------------------

    def wait_for_leadership(self, timeout_s: float | None = None) -> Term:
        """Wait until this process leads; return the term.

        Raises:
            TimeoutError: not within ``timeout_s`` seconds (None: no limit).
            NotLeaderError: the lock is not running, or stopped.
            PgElectError: the lock stopped by itself, for this reason.
        """
        return self._own(self._call(partial(self._inner.wait_for_leadership, timeout_s)))

    def step_down(self, *, drain_timeout_s: float | None = None, cooldown_s: float | None = None) -> bool:
        """Give up leadership: the duty drains, the lock is unlocked, ``on_released`` is told.

        Called by work for the term or by a callback, which it waits for, it returns once that is asked to end.

        Args:
            drain_timeout_s: how long to wait for the duty; None: the lock's own setting.
            cooldown_s: how long to stay out afterwards; None: long enough for those who wait to have their turn.

        Returns:
            True when leadership was given up; False when there was none.
        """
        work = partial(self._inner.step_down, drain_timeout_s=drain_timeout_s, cooldown_s=cooldown_s)
        return self._end(work)

    def lead(self, duty: Callable[[Term], R], *, repeat: bool = False) -> R | None:
        """Wait for leadership and run ``duty(term)`` in the calling thread, until it has returned once.

        When the term ends, ``term.ended`` is set; the duty is to return then, and a clean release waits for it, at most
        ``drain_timeout_s``. A term that ended meanwhile has it run anew in the next one. With ``repeat``: for ever.
        A duty that raises while its term lasts ends the term, and the error is raised here; one that raises after
        its term is over is only told to ``on_error``.

        Returns:
            What the duty returned; None when the lock was shut down before.

        Raises:
            NotLeaderError: the lock was never started.
            PgElectError: the lock stopped by itself, for this reason.
        """
        turns = self._turns[threading.get_ident()] = Turns[R]()
        job = self._begin_unless_over(lambda: self._inner.lead(turns.hand_over, repeat=repeat))
        if job is None:
            return None
        job.when_done(turns.end)
        try:
            for turn in turns:
                turn.run(partial(duty, self._own(turn.term)))
        except BaseException:
            turns.close()
            job.give_up()
            raise
        return job.result()

    def terms(self) -> Iterator[Term]:
        """Iterate over the terms of this process: ``for term in lock.terms()``; ends when the lock is shut down.

        A clean release waits, at most ``drain_timeout_s``, until the body asks for the next term. Let the body look at
        ``term.ended``.
        """
        turns = self._turns[threading.get_ident()] = Turns[None]()

        async def once(term: model.Term) -> None:
            await turns.hand_over(term)
            await term.ended()

        job = self._begin_unless_over(lambda: self._inner.lead(once, repeat=True))
        if job is None:
            return
        job.when_done(turns.end)
        try:
            for turn in turns:
                try:
                    with turn.working():
                        yield self._own(turn.term)
                finally:
                    turn.finish()
        except BaseException:
            turns.close()
            job.give_up()
            raise
        job.result()

    def leader_only(self, function: Callable[P, R]) -> Callable[P, R | None]:
        """Decorate a function: while this process does not lead, the call returns None instead.

        It is checked when the call begins; use ``lead`` for work that must stop when leadership ends.
        """
        return duties.leader_only(lambda: self.is_leader, function)

    def reconfigure(self, *, retry_strategy: RetryLike | None = None, **changes: Unpack[Changes]) -> None:
        """Change settings of a lock that runs, or is stopped; see ``pgelect.LeaderLock.reconfigure()``."""
        self._check_process()

        async def change() -> None:
            self._inner.reconfigure(retry_strategy=retry_strategy, **changes)

        if self._thread is None:
            self._inner.reconfigure(retry_strategy=retry_strategy, **changes)
        else:
            self._call(change)

    @property
    def term(self) -> Term | None:
        """The present term; None while this process does not lead."""
        term = self._inner.term
        return None if term is None else self._own(term)

    # -- small parts ---------------------------------------------------------------------------------------------------

    @override
    async def _under_way(
        self, work: Callable[[], Coroutine[Any, Any, R]], keys: Collection[LockKey] | None = None
    ) -> R | bool:
        """Begin what waits for the caller, and return when the work of the term is asked to end, or it is done."""
        life, thread = self._inner._runner.life, self._thread
        if life is None or thread is None:
            return await work()
        going = thread.keep(work())
        going.add_done_callback(self._heard)
        if not life.over.is_set():
            over = asyncio.ensure_future(life.over.wait())
            await asyncio.wait({going, over}, return_when=asyncio.FIRST_COMPLETED)
            over.cancel()
        elif not life.is_worked_for_here:  # a callback that hears of the end
            await asyncio.wait({going})
        return going.result() if going.done() else True
