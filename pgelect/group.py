"""LeaderGroup: many partitions on one connection, shared by a fleet."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, overload

from typing_extensions import Unpack, override

from pgelect._callbacks import Callbacks
from pgelect._engine.clock import Clock, SystemClock
from pgelect._engine.model import LockKey
from pgelect._engine.settings import Settings, check_argument_s, default_identity
from pgelect._group.runner import Runner
from pgelect._group.shares import by_preference
from pgelect._group.state import GroupState, Rules
from pgelect._group_partitions import group_name, partitions_of
from pgelect._group_settings import GroupSettings, check_max_share, check_weight
from pgelect._group_status import GroupStatus, P
from pgelect._life import Life
from pgelect._postgres.dsn import check_dsn
from pgelect._postgres.group_session import PostgresGroupSession
from pgelect._postgres.group_sql import Ring
from pgelect._postgres.options import Dsn, SessionOptions
from pgelect.retry import ExponentialBackoff, as_strategy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from pgelect._engine.hooks import Hook
    from pgelect._engine.model import Term
    from pgelect._group.session import GroupSession

__all__ = ["GroupState", "LeaderGroup"]

log = logging.getLogger("pgelect")

WAIT_S = 0.9
"""One wait for the end of the next member: below PostgreSQL's default deadlock_timeout of 1 s, as every wait here."""
COOLDOWN_S = 1.0
"""After a step-down: others have looked at the group by then."""


class LeaderGroup(Life[Runner], GroupStatus[P], Callbacks):
    """Leads a fair share of many partitions, over one dedicated connection.

    Each process of the fleet makes one with the same partitions. At every moment each partition is led by at most one
    of them, with a term and a token of its own, exactly as if it were a ``LeaderLock``; and the processes share them
    evenly. All durations are seconds.

    Args:
        dsn: libpq connection string or URI, or a callable that returns one; as for ``LeaderLock``.
        names: the partitions by name: any number of strings. Or:
        keys: the partitions as pairs of signed 32-bit numbers.
        group: members with the same name share the partitions. None: a name made of the partitions. Give one if you
            add or remove partitions while the fleet runs, so that old and new processes still share.
        max_share: lead no more partitions than that; default None: no limit. If the limits of all members together
            are less than the number of partitions, some are not led.
        weight: how much this process is to lead in relation to others: with 2 twice as much as with 1; default 1.
        rebalance_interval_s: how often to look at the whole group at the latest; default 5. Changes of membership are
            usually seen within a second.
        identity: of this process, as others see it, and what its preference for partitions is made of; by default host
            name, pid and a random part.
        metadata: a mapping that JSON can carry, shown to observers; default empty.
        health_interval_s: at most this long between two proofs that all locks are held; default 5.
        health_timeout_s: when a proof without an answer counts as failed, and every term as lost. None: as long as the
            lease allows.
        lease_s: PostgreSQL ends the session of a member that it has not heard from for this long; default 15.
        takeover_delay_s: after an unclean end of a partition's last term, wait this long before leading; default 0.
        drain_timeout_s: how long handing a partition over waits for its duty to stop; default 10.
        retry_strategy: how long to wait after a failed attempt to become a member, and before a partition whose duty
            failed is tried again.
        shutdown_event: an event that stops the group when it is set.
        connect_fn: an async callable that returns a dedicated psycopg ``AsyncConnection``, instead of ``dsn``.
        allow_pooler: skip the check that refuses transaction poolers.

    Raises:
        ValueError, TypeError: an argument is out of range, or two contradict each other; the message names them.
    """

    _KIND = "group"

    @overload
    def __init__(
        self: LeaderGroup[str], dsn: Dsn = "", *, names: Iterable[str], **settings: Unpack[GroupSettings]
    ) -> None: ...
    @overload
    def __init__(
        self: LeaderGroup[tuple[int, int]],
        dsn: Dsn = "",
        *,
        keys: Iterable[tuple[int, int]],
        **settings: Unpack[GroupSettings],
    ) -> None: ...
    def __init__(
        self,
        dsn: Dsn = "",
        *,
        names: Iterable[str] | None = None,
        keys: Iterable[tuple[int, int]] | None = None,
        **settings: Unpack[GroupSettings],
    ) -> None:
        unknown = sorted(set(settings) - set(GroupSettings.__annotations__))
        if unknown:
            raise TypeError(f"LeaderGroup has no setting {unknown[0]!r}")
        check_dsn(dsn)
        self._partitions: dict[LockKey, Any] = partitions_of(names, keys)
        self._named = names is not None
        shutdown_event, connect_fn = settings.get("shutdown_event"), settings.get("connect_fn")
        if shutdown_event is not None and not isinstance(shutdown_event, asyncio.Event):
            raise TypeError(f"shutdown_event must be an asyncio.Event, not {type(shutdown_event).__name__}")
        if connect_fn is not None and not callable(connect_fn):
            raise TypeError("connect_fn must be an async callable that returns a psycopg AsyncConnection")
        self._group = group_name(settings.get("group"), self._partitions)
        identity = settings.get("identity")
        metadata = settings.get("metadata")
        self._settings = Settings(
            key=LockKey.from_name(self._group),
            identity=identity if identity is not None else default_identity(),
            metadata=metadata if metadata is not None else {},
            health_interval_s=settings.get("health_interval_s", 5.0),
            health_timeout_s=settings.get("health_timeout_s"),
            lease_s=settings.get("lease_s", 15.0),
            takeover_delay_s=settings.get("takeover_delay_s", 0.0),
            drain_timeout_s=settings.get("drain_timeout_s", 10.0),
        )
        self._rebalance_s = check_argument_s("rebalance_interval_s", settings.get("rebalance_interval_s", 5.0))
        if self._rebalance_s <= 0:
            raise ValueError("rebalance_interval_s must be greater than 0")
        weight, most = check_weight(settings.get("weight", 1.0)), check_max_share(settings.get("max_share"))
        options = SessionOptions(
            key=self._settings.key,
            identity=self._settings.identity,
            metadata=self._settings.metadata,
            lease_s=self._settings.lease_s,
            allow_pooler=settings.get("allow_pooler", False),
            dsn=dsn,
            connect_fn=connect_fn,
        )
        self._strategy = as_strategy(settings.get("retry_strategy", ExponentialBackoff()))
        self._shutdown_event = shutdown_event
        ring = Ring.of(self._group)
        self._build(lambda: PostgresGroupSession(options, ring, weight, most), SystemClock())

    def _build(self, sessions: Callable[[], GroupSession], clock: Clock) -> None:
        self._sessions = sessions
        self._clock = clock
        self._be_born()

    @override
    def _new_runner(self) -> Runner:
        s = self._settings
        rules = Rules(
            trust_s=s.trust_s,
            health_interval_s=s.health_interval_s,
            wait_s=min(WAIT_S, s.health_interval_s),
            rebalance_interval_s=self._rebalance_s,
            takeover_delay_s=s.takeover_delay_s,
            drain_timeout_s=s.drain_timeout_s,
        )
        return Runner(s, rules, self._in_order(), sessions=self._sessions, strategy=self._strategy, clock=self._clock)

    def _in_order(self) -> tuple[LockKey, ...]:
        return by_preference(self._settings.identity, self._partitions)

    # -- life ----------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to campaign. Returns once this process is a member, or the first attempt has failed.

        A server that is down, starting, full or refusing is tried again with backoff, and ``on_error`` hears of it.

        Raises:
            RuntimeError: the group runs already; nothing is changed.
            ConfigurationError: a mistake that time does not mend (a transaction pooler, a missing schema).
            ConnectionError: the retry strategy gave up at once.
            ForkedError: the group belongs to a parent process.
        """
        await self._start()

    async def shutdown(self, timeout_s: float = 10.0) -> None:
        """Stop: drain all duties, unlock, close the connection. When this returns, every lock is free.

        Raises:
            ShutdownError: it took longer than ``timeout_s`` (default 10 seconds); the socket was closed instead, and
                the server frees the locks when it sees that.
        """
        await self._shut_down(timeout_s)

    # -- leading -------------------------------------------------------------------------------------------------------

    async def lead(self, handler: Callable[[P, Term], Awaitable[object]]) -> None:
        """Run ``handler(partition, term)`` as a task for each partition while it is led, until the group stops.

        When a partition goes, its handler alone is cancelled, and awaited before the partition is unlocked. One that
        returns is not called again in this term. One that raises gives its partition up: ``on_error`` is told, and this
        process stays out of it for as long as the retry strategy says.

        Raises:
            PgElectError: the group stopped by itself, for this reason.
        """
        self._check_caller()

        async def work(term: Term) -> object:
            return await handler(self._shown(term.key), term)

        await self._runner.lead(work)

    async def step_down(
        self, partition: P | None = None, *, drain_timeout_s: float | None = None, cooldown_s: float | None = None
    ) -> bool:
        """Give a partition up, or with None all of them: duties drain, locks are freed, ``on_released`` is told.

        With None this process also leaves the ring, so that the others count without it, and joins again after the
        cooldown. A single partition is taken by another member that has less than its share; if none has, this one
        takes it again after the cooldown.

        Args:
            partition: which; None: all.
            drain_timeout_s: how long to wait for the duty; None: the group's own setting.
            cooldown_s: how long to stay out afterwards; None: 1 second.

        Returns:
            True when something was given up; False when there was nothing.

        Raises:
            KeyError: it is none of the group's partitions.
        """
        self._check_caller()
        drain_s = self._settings.drain_timeout_s if drain_timeout_s is None else drain_timeout_s
        check_argument_s("drain_timeout_s", drain_s)
        out_s = COOLDOWN_S if cooldown_s is None else cooldown_s
        check_argument_s("cooldown_s", out_s)
        keys = None if partition is None else (self._own(partition),)
        return await self._runner.step_down(keys, drain_s, out_s)

    def add(self, *partitions: P) -> None:
        """Campaign for more partitions, from now on; those that are there already are left as they are.

        Tell all members: each counts its share of what it knows, so what only some of them know may be led by nobody.

        Raises:
            ValueError, TypeError: one is not of the kind that the group was made with, or two have the same keys.
        """
        self._check_caller()
        added = {self._key(partition): partition for partition in partitions}
        self._repartition({**self._partitions, **added})

    async def remove(self, *partitions: P) -> None:
        """Campaign for these no longer; returns when those that were led have drained and are unlocked.

        Raises:
            KeyError: one is none of the group's partitions; nothing is changed.
        """
        await self._runner.gone(self._dropped(partitions))

    def _dropped(self, partitions: Iterable[P]) -> list[LockKey]:
        self._check_caller()
        gone = [self._own(partition) for partition in partitions]
        dropped = set(gone)
        self._repartition({key: shown for key, shown in self._partitions.items() if key not in dropped})
        return gone

    def _repartition(self, partitions: dict[LockKey, Any]) -> None:
        self._partitions = partitions
        self._runner.repartition(self._in_order())

    # -- small parts ---------------------------------------------------------------------------------------------------

    @override
    def _add_callback(self, hook: Hook, callback: Callable[..., object]) -> None:
        self._runner.terms.general.add(hook, callback)
