"""The settings of a blocking lock, for type checkers and editors: those of ``pgelect.LeaderLock``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pgelect._engine.meter import Metrics
    from pgelect._postgres.options import ConnectFn
    from pgelect.retry import RetryLike


class LockSettings(TypedDict, total=False):
    """Each as in the constructor of ``pgelect.LeaderLock``."""

    name: str | None
    identity: str | None
    metadata: Mapping[str, Any] | None
    health_interval_s: float
    health_timeout_s: float | None
    lease_s: float
    reconnect_grace_s: float | None
    acquire: Literal["queue", "poll"]
    retry_strategy: RetryLike
    takeover_delay_s: float
    drain_timeout_s: float
    auto_reacquire: bool
    fencing: bool
    connect_fn: ConnectFn | None
    allow_pooler: bool
    metrics: Metrics | None
