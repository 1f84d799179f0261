"""The settings of a group, for type checkers and editors, and their checks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from pgelect._postgres.options import ConnectFn
    from pgelect.retry import RetryLike

WEIGHT_MIN, WEIGHT_MAX = 1e-6, 1e6
LIMIT_MAX = 2**31 - 1


class BlockingGroupSettings(TypedDict, total=False):
    """Each as in the docstring of ``pgelect.LeaderGroup``; those that its blocking counterpart has, too."""

    group: str | None
    max_share: int | None
    weight: float
    rebalance_interval_s: float
    identity: str | None
    metadata: Mapping[str, Any] | None
    health_interval_s: float
    health_timeout_s: float | None
    lease_s: float
    takeover_delay_s: float
    drain_timeout_s: float
    retry_strategy: RetryLike
    connect_fn: ConnectFn | None
    allow_pooler: bool


class GroupSettings(BlockingGroupSettings, total=False):
    """All of them."""

    shutdown_event: asyncio.Event | None


def check_weight(weight: object) -> float:
    """Check a member's weight; return it.

    Raises:
        ValueError, TypeError: it is not a number in the range.
    """
    if not isinstance(weight, int | float) or isinstance(weight, bool):
        raise TypeError(f"weight must be a number, not {type(weight).__name__}")
    if not WEIGHT_MIN <= weight <= WEIGHT_MAX or not math.isfinite(weight):
        raise ValueError(f"weight={weight!r} is outside {WEIGHT_MIN:g} .. {WEIGHT_MAX:g}")
    return float(weight)


def check_max_share(most: object) -> int | None:
    """Check the most partitions that a member leads; return it.

    Raises:
        ValueError, TypeError: it is not a number of partitions.
    """
    if most is None:
        return None
    if not isinstance(most, int) or isinstance(most, bool):
        raise TypeError(f"max_share must be a number of partitions, not {type(most).__name__}")
    if not 0 <= most <= LIMIT_MAX:
        raise ValueError(f"max_share={most} must be 0 or more")
    return most
