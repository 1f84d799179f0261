"""What one seed of the simulation of groups decides before anything happens."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from pgelect import FixedInterval
from tests.simulation.plan import DRIFT, LEASES_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

MARGIN_RATIO, MARGIN_MIN_S = 0.05, 0.05


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """The choices of one seed."""

    members: int
    partitions: int
    lease_s: float
    settings: dict[str, Any]
    may_terminate: bool
    killable: bool
    client_check_s: float
    commits_slowly: bool
    faults_every_s: float
    lasts_s: float
    write_every_s: float
    values: Iterator[int] = field(default_factory=lambda: count(1))

    def rate(self, chance: Random) -> float:
        """How fast the clock of a process runs: at most so wrong that the margin still pays for it."""
        slack = max(MARGIN_MIN_S, MARGIN_RATIO * self.lease_s) / self.lease_s * DRIFT
        return 1.0 if chance.random() < 0.3 else 1.0 + chance.uniform(-slack, slack)

    @property
    def settles_within_s(self) -> float:
        """When everybody is well again: how long until every partition is led, and nobody has more than its share.

        A lease for a lost member, a retry, two rebalance intervals of looking, drains, and fenced transactions.
        """
        s = self.settings
        within_s: float = 4 * s["rebalance_interval_s"] + 3 * s["drain_timeout_s"] + s["takeover_delay_s"]
        return within_s + 3 * self.lease_s + 8.0


def plan_of(chance: Random) -> GroupPlan:
    """Choose."""
    lease_s = chance.choice(LEASES_S)
    return GroupPlan(
        members=chance.choice((1, 2, 2, 3, 3, 4, 5)),
        partitions=chance.choice((1, 2, 5, 8, 12)),
        lease_s=lease_s,
        settings={
            "lease_s": lease_s,
            "health_interval_s": lease_s * chance.choice((0.1, 0.25, 0.5)),
            "health_timeout_s": chance.choice((None, lease_s * 0.25)),
            "rebalance_interval_s": chance.choice((0.5, 2.0)),
            "takeover_delay_s": chance.choice((0.0, 0.0, lease_s * 1.2)),
            "drain_timeout_s": chance.choice((0.2, 1.0)),
            "retry_strategy": FixedInterval(chance.choice((0.05, 0.2, lease_s / 2))),
        },
        may_terminate=chance.random() < 0.8,
        killable=chance.random() < 0.9,
        client_check_s=chance.choice((0.0, 0.25)),
        commits_slowly=chance.random() < 0.3,
        faults_every_s=lease_s * chance.choice((0.3, 0.7, 1.5)),
        lasts_s=lease_s * chance.choice((3, 6, 9)),
        write_every_s=lease_s * chance.choice((0.2, 0.6)),
    )
