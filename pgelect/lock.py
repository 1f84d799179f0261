"""LeaderLock: the facade. It checks what it is given, and hands everything else on to the runner."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, overload

from typing_extensions import override

from pgelect._callbacks import Callbacks
from pgelect._configuring import Configured
from pgelect._engine import duty as duties
from pgelect._engine.clock import Clock, SystemClock
from pgelect._engine.crowd import PLACES
from pgelect._engine.meter import Meter
from pgelect._engine.runner import Runner
from pgelect._engine.settings import Settings, check_argument_s, default_identity, key_of
from pgelect._fences import Fences
from pgelect._life import Life
from pgelect._postgres.dsn import check_dsn
from pgelect._postgres.options import ConnectFn, Dsn, SessionOptions
from pgelect._postgres.session import PostgresSession
from pgelect._status import Status
from pgelect.errors import NotLeaderError
from pgelect.retry import ExponentialBackoff, RetryLike, as_strategy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping

    from pgelect._engine.hooks import Hook
    from pgelect._engine.meter import Metrics
    from pgelect._engine.model import Term
    from pgelect._engine.session import Session

__all__ = ["LeaderLock"]

log = logging.getLogger("pgelect")
P = ParamSpec("P")
T = TypeVar("T")


class LeaderLock(Life[Runner], Status, Callbacks, Fences, Configured):
    """Leader election on PostgreSQL: exactly one of the processes that use the same key leads.

    All durations are seconds.

    Args:
        dsn: libpq connection string or URI, or a callable (sync or async) that returns one and is asked for each
            attempt, for passwords that rotate. Empty: libpq's own environment (``PGHOST`` and so on).
        key1, key2: the two signed 32-bit keys of the advisory lock.
        name: instead of the keys: a name that is mapped to a pair by SHA-256 (see ``LockKey.from_name``).
        identity: of this process, as others see it; by default host name, pid and a random part.
        metadata: a mapping that JSON can carry, shown to observers; default empty.
        health_interval_s: time between two proofs of leadership; default 5.
        health_timeout_s: when a proof without an answer counts as failed and the session as lost. None: as long as the
            lease allows.
        lease_s: PostgreSQL ends the session of a leader that it has not heard from for this long; default 15.
        reconnect_grace_s: after a lost session, how long to try to go on with the same term before ``on_lost``.
            None or 0: lost at once. Needs ``fencing``. During the grace ``is_leader`` is False.
        acquire: ``"queue"``: wait in the server's queue, which takes over in milliseconds; of many followers four do,
            and the others look now and then. ``"poll"``: try, sleep by the retry strategy, try again.
        retry_strategy: how long to wait after a failed attempt; a ``RetryStrategy`` or anything of tenacity's.
        takeover_delay_s: after an unclean end of the last term, wait this long before leading; default 0. For duties
            whose effects cannot be fenced.
        drain_timeout_s: how long a clean release waits for the duty to stop; default 10.
        auto_reacquire: go on campaigning after a term; False: stop after the first.
        fencing: keep the token table; False: no schema is needed, and no token protects anything.
        shutdown_event: an event that stops the lock when it is set.
        connect_fn: an async callable that returns a dedicated psycopg ``AsyncConnection``, instead of ``dsn``.
        allow_pooler: skip the check that refuses transaction poolers.
        metrics: told what happens, such as a ``pgelect.metrics.PrometheusMetrics()``; default None.

    Raises:
        ValueError, TypeError: an argument is out of range, or two contradict each other; the message names them.
    """

    _KIND = "lock"

    def __init__(
        self,
        dsn: Dsn = "",
        key1: int | None = None,
        key2: int | None = None,
        *,
        name: str | None = None,
        identity: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        health_interval_s: float = 5.0,
        health_timeout_s: float | None = None,
        lease_s: float = 15.0,
        reconnect_grace_s: float | None = None,
        acquire: Literal["queue", "poll"] = "queue",
        retry_strategy: RetryLike = ExponentialBackoff(),  # noqa: B008 -- immutable
        takeover_delay_s: float = 0.0,
        drain_timeout_s: float = 10.0,
        auto_reacquire: bool = True,
        fencing: bool = True,
        shutdown_event: asyncio.Event | None = None,
        connect_fn: ConnectFn | None = None,
        allow_pooler: bool = False,
        metrics: Metrics | None = None,
    ) -> None:
        if metrics is not None and not callable(getattr(metrics, "for_lock", None)):
            raise TypeError("metrics must have a method for_lock(lock), as pgelect.metrics.PrometheusMetrics() has")
        if shutdown_event is not None and not isinstance(shutdown_event, asyncio.Event):
            raise TypeError(f"shutdown_event must be an asyncio.Event, not {type(shutdown_event).__name__}")
        if connect_fn is not None and not callable(connect_fn):
            raise TypeError("connect_fn must be an async callable that returns a psycopg AsyncConnection")
        check_dsn(dsn)
        settings = Settings(
            key=key_of(key1, key2, name),
            identity=identity if identity is not None else default_identity(),
            metadata=metadata if metadata is not None else {},
            health_interval_s=health_interval_s,
            health_timeout_s=health_timeout_s,
            lease_s=lease_s,
            reconnect_grace_s=reconnect_grace_s,
            acquire=acquire,
            takeover_delay_s=takeover_delay_s,
            drain_timeout_s=drain_timeout_s,
            auto_reacquire=auto_reacquire,
            fencing=fencing,
        )
        options = SessionOptions(
            key=settings.key,
            identity=settings.identity,
            metadata=settings.metadata,
            lease_s=lease_s,
            fencing=fencing,
            allow_pooler=allow_pooler,
            places=PLACES if acquire == "queue" else None,
            dsn=dsn,
            connect_fn=connect_fn,
        )
        self._options = options
        self._strategy = as_strategy(retry_strategy)
        self._shutdown_event = shutdown_event
        self._build(settings, lambda: PostgresSession(self._options), SystemClock())
        if metrics is not None:
            self._meter.bind(metrics.for_lock(self))

    def _build(self, settings: Settings, sessions: Callable[[], Session], clock: Clock) -> None:
        self._settings = settings
        self._meter = Meter()
        self._sessions = sessions
        self._clock = clock
        self._be_born()

    @override
    def _new_runner(self) -> Runner:
        return Runner(self._settings, self._sessions, self._strategy, self._clock, self._meter)

    # -- life ----------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to campaign. Returns once the first attempt was answered or failed; does not wait for leadership.

        A server that is down, starting, full or refusing is tried again with backoff, and ``on_error`` hears of it.

        Raises:
            RuntimeError: the lock runs already; nothing is changed.
            ConfigurationError: a mistake that time does not mend (a transaction pooler, a missing schema, a colliding
                name, a server that is too old).
            ConnectionError: the retry strategy gave up at once.
            ForkedError: the lock belongs to a parent process.
        """
        await self._start()

    async def shutdown(self, timeout_s: float = 10.0) -> None:
        """Stop: drain the duty, unlock, close the connection. When this returns, the lock is free.

        Does nothing when the lock is stopped. A cancel is honoured after the clean-up; a second one closes the socket
        at once.

        Raises:
            ShutdownError: it took longer than ``timeout_s`` (default 10 seconds); the socket was closed instead, and
                the server frees the lock when it sees that.
        """
        await self._shut_down(timeout_s)

    # -- leading -------------------------------------------------------------------------------------------------------

    async def wait_for_leadership(self, timeout_s: float | None = None) -> Term:
        """Wait until this process leads; return the term.

        Raises:
            TimeoutError: not within ``timeout_s`` seconds (None: no limit).
            NotLeaderError: the lock is not running, or stopped.
            PgElectError: the lock stopped by itself, for this reason, as ``run()`` would raise it.
        """
        self._check_caller()
        if timeout_s is not None:
            check_argument_s("timeout_s", timeout_s)
        async with asyncio.timeout(timeout_s):
            found = await duties.next_term(self._runner)
        if found is None:
            raise NotLeaderError(
                self.key, self.state, "the lock is stopped; call start()"
            ) from self._runner.stop_reason
        return found[1]

    async def step_down(self, *, drain_timeout_s: float | None = None, cooldown_s: float | None = None) -> bool:
        """Give up leadership: the duty drains, the lock is unlocked, ``on_released`` is told.

        Args:
            drain_timeout_s: how long to wait for the duty; None: the lock's own setting.
            cooldown_s: how long to stay out afterwards. None: long enough for those who wait to have their turn: 1 s
                with the queue. With polling, twice the first delay of the retry strategy; where delays grow, others may
                pause for longer than that, so give the longest.

        Returns:
            True when leadership was given up, also by a call at the same time. False when there was none; nothing is
            done then.
        """
        self._check_caller()
        drain_s = self._settings.drain_timeout_s if drain_timeout_s is None else drain_timeout_s
        check_argument_s("drain_timeout_s", drain_s)
        if cooldown_s is not None:
            check_argument_s("cooldown_s", cooldown_s)
        return await self._runner.step_down(drain_s, cooldown_s)

    async def lead(self, duty: Callable[[Term], Awaitable[T]], *, repeat: bool = False) -> T | None:
        """Wait for leadership and run ``duty(term)`` as a child task; cancel and await it when the term ends.

        Without ``repeat``: until the duty has returned once; a term that ends first has it run anew in the next term,
        also when it took the cancel and returned.
        With ``repeat``: for ever, again whenever it returns. A duty that raises while its term lasts ends the term, and
        the error is raised here; one that raises after its term is over is only told to ``on_error``.

        Returns:
            What the duty returned; None when the lock was shut down before.

        Raises:
            PgElectError: the lock stopped by itself, for this reason, as ``run()`` would raise it.
        """
        self._check_caller()
        return await duties.lead(self._runner, duty, repeat=repeat)

    def terms(self) -> AsyncIterator[Term]:
        """Iterate over the terms of this process: ``async for term in lock.terms()``; ends when the lock is shut down.

        A clean release waits, at most ``drain_timeout_s``, until the body asks for the next term. The body is not
        cancelled: let it look at ``term.is_current`` or await ``term.ended()``.
        """
        self._check_caller()
        return duties.terms(self._runner)

    @overload
    def leader_only(
        self, function: Callable[P, Coroutine[Any, Any, T]]
    ) -> Callable[P, Coroutine[Any, Any, T | None]]: ...
    @overload
    def leader_only(self, function: Callable[P, T]) -> Callable[P, T | None]: ...
    def leader_only(self, function: Callable[P, Any]) -> Callable[P, Any]:
        """Decorate a function, sync or async: while this process does not lead, the call returns None instead.

        It is checked when the call begins; use ``lead`` for work that must stop when leadership ends.
        """
        return duties.leader_only(lambda: self.is_leader, function)

    # -- small parts ---------------------------------------------------------------------------------------------------

    @override
    def _add_callback(self, hook: Hook, callback: Callable[..., object]) -> None:
        self._runner.dispatcher.add(hook, callback)

    @override
    def _apply_settings(self) -> None:
        self._options = replace(self._options, lease_s=self._settings.lease_s)
