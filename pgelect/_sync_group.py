"""LeaderGroup for programs that block: the asynchronous one in a loop thread, and a thread for each handler."""

# ruff: noqa: SLF001 -- what it works with is its own group

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from typing_extensions import Unpack, override

from pgelect import group as _asynchronous
from pgelect._engine.duty import is_async
from pgelect._group_status import P
from pgelect._handler_threads import HandlerThreads
from pgelect._sync_fences import check_token, fenced
from pgelect._sync_life import Life, refuse_event

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping

    import psycopg

    from pgelect._engine.model import LockKey
    from pgelect._group.state import GroupState
    from pgelect._group_settings import BlockingGroupSettings
    from pgelect._health import Health
    from pgelect._postgres.options import Dsn
    from pgelect._sync_term import Term

R = TypeVar("R")


class LeaderGroup(Life[_asynchronous.LeaderGroup[P]], Generic[P]):
    """Many partitions on one connection, shared by a fleet, for programs that block; see ``pgelect.LeaderGroup``.

    Its methods may be called from any thread, and from programs that run an event loop of their own, which they block.
    A group that was made before a fork and not started may be started in the child; one that runs is its parent's, and
    inert in the child. The end of the interpreter shuts it down.

    Its threads: one for the event loop, one for callbacks, and in ``lead`` one for each partition that is led.

    Callbacks are plain functions. All run in one thread: those of a partition in order, and a slow one delays those of
    other partitions, too. When a term ends, an ``on_acquired`` that still runs, or waits for its turn, is waited for as
    the handler is; let it look at ``term.ended``.

    Args:
        dsn, names, keys: as for ``pgelect.LeaderGroup``.
        settings: as for ``pgelect.LeaderGroup``, but ``shutdown_event``: call ``shutdown()`` instead.

    Raises:
        ValueError, TypeError: an argument is out of range, or two contradict each other; the message names them.
    """

    @overload
    def __init__(
        self: LeaderGroup[str], dsn: Dsn = "", *, names: Iterable[str], **settings: Unpack[BlockingGroupSettings]
    ) -> None: ...
    @overload
    def __init__(
        self: LeaderGroup[tuple[int, int]],
        dsn: Dsn = "",
        *,
        keys: Iterable[tuple[int, int]],
        **settings: Unpack[BlockingGroupSettings],
    ) -> None: ...
    def __init__(
        self,
        dsn: Dsn = "",
        *,
        names: Iterable[str] | None = None,
        keys: Iterable[tuple[int, int]] | None = None,
        **settings: Unpack[BlockingGroupSettings],
    ) -> None:
        refuse_event(settings)
        make: Callable[..., Any] = partial(_asynchronous.LeaderGroup, dsn, **settings)
        first = make(names=names, keys=keys)
        self._make = partial(make, **{"names" if keys is None else "keys": first.partitions})
        self._begin_with(first)

    # -- what it is ----------------------------------------------------------------------------------------------------

    @property
    def group(self) -> str:
        """The name of the group."""
        return self._inner.group

    @property
    def identity(self) -> str:
        """The identity of this process."""
        return self._inner.identity

    @property
    def partitions(self) -> tuple[P, ...]:
        """The partitions that this process campaigns for."""
        return self._inner.partitions

    @property
    def state(self) -> GroupState:
        """What this member is doing."""
        return self._inner.state

    @property
    def leading(self) -> Mapping[P, Term]:
        """The terms of the partitions that this process leads at this very instant."""
        return MappingProxyType({partition: self._own(term) for partition, term in self._inner.leading.items()})

    def is_leader(self, partition: P) -> bool:
        """Tell whether this process leads that partition at this very instant."""
        return self._inner.is_leader(partition)

    @property
    def members(self) -> int:
        """How many live members the group has, as last seen; 0 while this process is none."""
        return self._inner.members

    @property
    def share(self) -> int:
        """How many partitions this process is to lead, as last computed."""
        return self._inner.share

    @property
    def trust_left_s(self) -> float:
        """For how many seconds the last proof can still be trusted; 0 while this process leads nothing."""
        return self._inner.trust_left_s

    def health(self) -> Health:
        """Tell whether this member is well; see ``pgelect.LeaderGroup.health()``."""
        return self._inner.health()

    def __repr__(self) -> str:
        led = len(self._inner.leading)
        return f"<pgelect.sync.LeaderGroup {self.group!r} {self.identity!r} {self.state.value} {led} led>"

    # -- leading -------------------------------------------------------------------------------------------------------

    def lead(self, handler: Callable[[P, Term], object], *, max_workers: int | None = None) -> None:
        """Run ``handler(partition, term)`` in a thread for each partition while it is led, until the group stops.

        There is a thread for each partition that is led, and all of them share one interpreter with the thread that
        proves: a thousand that mostly wait are no burden, hundreds that never do may starve it, and the lease ends. Set
        ``max_share`` then. Threads are begun by the calling thread, and end with their handlers.

        When a partition goes, ``term.ended`` is set (a ``threading.Event``), and its handler is to return; a clean
        release waits for it, at most ``drain_timeout_s``. There are never two handlers for one partition: after a lost
        term, the handler of the next one begins when that of the last has returned. One that returns is not called
        again in this term. One that raises gives its partition up: ``on_error`` is told, and this process stays out of
        it for as long as the retry strategy says.

        An exception that comes to the calling thread, such as KeyboardInterrupt, sets ``term.ended`` for all handlers,
        and is raised when they have returned, or after ``drain_timeout_s``.

        Args:
            handler: a plain function.
            max_workers: at most so many handlers at once; default None: no limit. For handlers that do their work and
                return: beyond it, a partition is led and its handler waits until another one has returned. To lead
                fewer partitions, set ``max_share`` instead.

        Raises:
            NotLeaderError: the group was never started.
            PgElectError: the group stopped by itself, for this reason.
            ValueError, TypeError: an argument is out of range, or the handler is async.
        """
        if is_async(handler):
            raise TypeError("lead() of pgelect.sync takes a plain function; async ones are for pgelect.LeaderGroup")
        threads = HandlerThreads(handler, _checked(max_workers))
        job = self._begin_unless_over(lambda: self._inner.lead(threads.work))
        if job is None:
            return
        job.when_done(threads.end)
        try:
            threads.serve()
        except BaseException:
            job.give_up(self._inner._settings.drain_timeout_s)
            raise
        job.result()

    def step_down(
        self, partition: P | None = None, *, drain_timeout_s: float | None = None, cooldown_s: float | None = None
    ) -> bool:
        """Give a partition up, or with None all of them; see ``pgelect.LeaderGroup.step_down()``.

        Called by a handler or a callback, it returns once the handlers of what is given up are asked to end.

        Args:
            partition: which; None: all.
            drain_timeout_s: how long to wait for the handler; None: the group's own setting.
            cooldown_s: how long to stay out afterwards; None: 1 second.

        Returns:
            True when something was given up; False when there was nothing.

        Raises:
            KeyError: it is none of the group's partitions.
        """
        work = partial(self._inner.step_down, partition, drain_timeout_s=drain_timeout_s, cooldown_s=cooldown_s)
        return self._end(work, None if partition is None else {self._inner._own(partition)})

    def add(self, *partitions: P) -> None:
        """Campaign for more partitions, from now on; those that are there already are left as they are.

        Raises:
            ValueError, TypeError: one is not of the kind that the group was made with, or two have the same keys.
        """

        async def add() -> None:
            self._inner.add(*partitions)

        self._check_process()
        if self._thread is None:
            self._inner.add(*partitions)
        else:
            self._call(add)

    def remove(self, *partitions: P) -> None:
        """Campaign for these no longer; returns when those that were led have drained and are unlocked.

        Called by a handler or a callback, it returns once their handlers are asked to end.

        Raises:
            KeyError: one is none of the group's partitions; nothing is changed.
        """

        async def remove() -> bool:
            await self._inner.remove(*partitions)
            return True

        self._check_process()
        if self._thread is None:
            self._inner._dropped(partitions)
        else:
            self._end(remove, {self._inner._own(partition) for partition in partitions})

    # -- fencing -------------------------------------------------------------------------------------------------------

    @contextmanager
    def fence(self, conn: psycopg.Connection[Any], partition: P) -> Iterator[Term]:
        """Open a transaction on ``conn`` (a savepoint inside an open one) under the token of this partition's term.

        Raises:
            NotLeaderError: this process does not lead that partition; nothing was sent.
            StaleTokenError: a newer term has begun; the transaction is rolled back.
            SessionLostError: ``conn`` ended during the check.
        """
        term = self._own(self._inner._term(partition))
        with fenced(conn, term.key, term.token):
            yield term

    def check_fence(self, conn: psycopg.Connection[Any], partition: P) -> None:
        """Check the token of this partition's term in the open transaction of ``conn``, and bind it to that.

        Raises:
            NotLeaderError: this process does not lead that partition; nothing was sent.
            StaleTokenError: a newer term has begun; roll back.
            SessionLostError: ``conn`` ended during the check.
        """
        term = self._inner._term(partition)
        check_token(conn, term.key, term.token)

    # -- small parts ---------------------------------------------------------------------------------------------------

    @override
    def _made_anew(self) -> _asynchronous.LeaderGroup[P]:
        new: _asynchronous.LeaderGroup[P] = self._make()
        new._repartition(self._inner._partitions)  # some may have been added or removed
        return new

    @override
    async def _under_way(
        self, work: Callable[[], Coroutine[Any, Any, R]], keys: Collection[LockKey] | None = None
    ) -> R | bool:
        """Begin what waits for the caller; return when all handlers that it ends are asked to end, or it is done."""
        thread, runner = self._thread, self._inner._runner
        if thread is None:
            return await work()
        going = thread.keep(work())
        going.add_done_callback(self._heard)
        while not going.done():
            lives = [life for term, life in runner.terms.each() if keys is None or term.key in keys]
            left: list[Coroutine[Any, Any, object]] = [life.over.wait() for life in lives if not life.over.is_set()]
            if lives and not left:
                return True
            await _first_of(going, [*left, runner.change()])
        result: R = going.result()
        return result

    @property
    @override
    def _most_seen(self) -> int:
        return super()._most_seen + 2 * len(self._inner._partitions)


def _checked(most: object) -> int | None:
    if most is None:
        return None
    if not isinstance(most, int) or isinstance(most, bool):
        raise TypeError(f"max_workers must be a number of threads, not {type(most).__name__}")
    if most < 1:
        raise ValueError(f"max_workers={most} must be 1 or more")
    return most


async def _first_of(going: asyncio.Task[Any], others: list[Coroutine[Any, Any, object]]) -> None:
    tasks = [asyncio.ensure_future(other) for other in others]
    try:
        await asyncio.wait({going, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
