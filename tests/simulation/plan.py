"""What one seed decides before anything happens: the settings of the locks, the number of processes, the server."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from pgelect import ExponentialBackoff, FixedInterval
from pgelect._engine.crowd import PLACES
from pgelect._engine.settings import MARGIN_MIN_S, MARGIN_RATIO

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

LEASES_S = (0.5, 1.0, 2.0)
SLICE_S, FENCE_WAIT_S, RELEASE_WAIT_S = 0.9, 0.85, 0.9
"""As on PostgreSQL; two waits of a mint make FENCE_WAIT_S of bounds."""
COMMIT_S = 0.05
"""The longest that the commit of a token takes."""
REPLACED_AFTER_S = 1.0
"""The longest until a process that has ended is replaced."""
MANY = 0.03
"""How likely there are many processes, for a queue that is long."""
THINKS_LEASES = 1.2
"""The longest that a writer stays idle in its transaction."""
LEASES_THOUGHT = 2 * THINKS_LEASES
"""It may do so twice while it holds off a mint."""
DRIFT = 0.99
"""Of the margin, so much is used by clocks that run at another rate than the server's."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The choices of one seed."""

    processes: int
    lease_s: float
    settings: dict[str, Any]
    killable: bool
    may_terminate: bool
    commits_slowly: bool
    client_check_s: float
    faults_every_s: float
    lasts_s: float
    write_every_s: float
    places: int
    values: Iterator[int] = field(default_factory=lambda: count(1))

    def rate(self, chance: Random) -> float:
        """How fast the clock of a process runs: at most so wrong that the margin still pays for it."""
        if chance.random() < 0.3:
            return 1.0
        return 1.0 + chance.uniform(-1.0, 1.0) * (1.0 - self.slowest_rate)

    @property
    def slowest_rate(self) -> float:
        """How fast a clock runs at least."""
        return 1.0 - max(MARGIN_MIN_S, MARGIN_RATIO * self.lease_s) / self.lease_s * DRIFT

    @property
    def longest_retry_s(self) -> float:
        """The longest delay of the retry strategy."""
        strategy: FixedInterval | ExponentialBackoff = self.settings["retry_strategy"]
        return strategy.interval_s if isinstance(strategy, FixedInterval) else strategy.max_s

    def next_value(self) -> int:
        """A value that nobody else writes."""
        return next(self.values)


def plan_of(chance: Random, of_places: Random) -> Plan:
    """Choose. ``of_places``: what the number of places in the queue is drawn from."""
    lease_s = chance.choice(LEASES_S)
    fencing = chance.random() < 0.95
    retry_s = chance.choice((0.05, 0.2, lease_s / 2))
    settings: dict[str, Any] = {
        "lease_s": lease_s,
        "health_interval_s": lease_s * chance.choice((0.1, 0.25, 0.5)),
        "health_timeout_s": chance.choice((None, lease_s * 0.25)),
        "reconnect_grace_s": chance.choice((None, lease_s * 0.5, lease_s * 2)) if fencing else None,
        "acquire": chance.choice(("queue", "queue", "poll")),
        "takeover_delay_s": chance.choice((0.0, 0.0, lease_s * 1.2)) if fencing else 0.0,
        "drain_timeout_s": chance.choice((0.2, 1.0)),
        "fencing": fencing,
        "retry_strategy": chance.choice((FixedInterval(retry_s), ExponentialBackoff(retry_s, retry_s * 4))),
    }
    return Plan(
        processes=chance.choice((6, 7, 8) if chance.random() < MANY else (2, 2, 3, 3, 4)),
        lease_s=lease_s,
        settings=settings,
        killable=chance.random() < 0.8,
        may_terminate=chance.random() < 0.8,
        commits_slowly=chance.random() < 0.5,
        client_check_s=chance.choice((0.0, 0.25)),
        faults_every_s=lease_s * chance.choice((0.3, 0.7, 1.5)),
        lasts_s=lease_s * chance.choice((3, 6, 9)),
        write_every_s=lease_s * chance.choice((0.2, 0.6)),
        places=of_places.choice((1, 1, 2, PLACES)),
    )
