"""The promises of progress, and how long each may take.

- Whoever got the lock leads, or lets go of it, within what failover_crash of bounds() leaves to one in the queue.
- While somebody campaigns, and nothing new goes wrong, somebody leads again within failover_silent or failover_clean.
- When a leader is deposed in peace, somebody leads within the bound of that kind of end, as its own bounds() say.

To each bound comes only what it does not count: messages, and clocks that run slowly.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Literal, TypeAlias

from pgelect._engine.bounds import FENCE_WAIT_S, bounds_of
from pgelect._engine.performer import ANSWER_WITHIN_S
from tests.simulation.network import MESSAGE_S, SLOW_S
from tests.simulation.plan import COMMIT_S, LEASES_THOUGHT, REPLACED_AFTER_S, SLICE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgelect import LockKey
    from pgelect._engine.settings import Settings
    from pgelect.testing._fake_cluster import Cluster, FakeBackend
    from tests.simulation.plan import Plan
    from tests.simulation.process import Process
    from tests.simulation.world import World

Kind: TypeAlias = Literal["clean", "crash", "silent"]

QUEUED_WITHIN_S = 2 * SLOW_S + 2 * MESSAGE_S
"""Between two slices a follower is not in the queue: for two messages, slow ones perhaps."""
LEADS_AFTER_S = 5 * MESSAGE_S + COMMIT_S
"""From the lock to leadership: it is told, asks for a token, is answered; at worst it is refused one, and hangs up."""
TAKES_OVER_AFTER_S = 4 * MESSAGE_S + LEADS_AFTER_S
"""Before it, the end of the leader is heard of, and the follower asks for the lock, or for its place in the queue."""


class Limits:
    """How long progress may take in the simulation of one plan."""

    def __init__(self, plan: Plan, settings: Settings) -> None:
        self._plan = plan
        self._settings = settings
        self.retry_s = plan.longest_retry_s
        self._bounds = bounds_of(settings, self.retry_s)
        self._crash_in_queue_s = bounds_of(settings, 0.0).failover_crash.seconds
        # Writers whose transactions a mint may not end: with them a token is tried for again.
        self._unkillable_s = 0.0 if plan.killable else LEASES_THOUGHT * plan.lease_s + self.retry_s + FENCE_WAIT_S

    def leads_s(self, process: Process) -> float:
        """From the lock to leadership."""
        return self._crash_in_queue_s / min(1.0, process.clock.rate) + LEADS_AFTER_S

    @property
    def campaigns_again_s(self) -> float:
        """For how long a follower that campaigns may not be seen to."""
        poll_s = self.retry_s / self._plan.slowest_rate if self._settings.acquire == "poll" else 0.0
        return poll_s + QUEUED_WITHIN_S

    @property
    def takeover_s(self) -> float:
        """How long a campaign may take while nobody leads: a whole lease, or a whole release.

        With writers whose transactions a mint may not end there is no such bound.
        """
        if not self._plan.killable:
            return inf
        longest_s = max(self._bounds.failover_silent.seconds, self._bounds.failover_clean.seconds)
        return (longest_s + 2 * QUEUED_WITHIN_S) / self._plan.slowest_rate

    def failover_s(self, deposed: Process, kind: Kind) -> float:
        """From the end of a leader until somebody leads, in peace."""
        bounds = deposed.bounds
        bound = {"clean": bounds.failover_clean, "crash": bounds.failover_crash, "silent": bounds.failover_silent}[kind]
        noticed_s = self._plan.client_check_s if kind == "crash" else 0.0
        return (bound.seconds + noticed_s + self._unkillable_s) / self._plan.slowest_rate + TAKES_OVER_AFTER_S

    @property
    def settles_s(self) -> float:
        """From the last fault, whatever it was, until one leads and all others campaign.

        Before failover_silent, what was asked of a link that is broken has to fail (each answer has ANSWER_WITHIN_S
        beyond its wait), a new process may have to start, or one that stepped down may be staying out; then comes one
        delay of the retry strategy.
        """
        hung_s = ANSWER_WITHIN_S + SLICE_S
        stays_out_s = max(1.0, 2 * self.retry_s)
        total_s = self._bounds.failover_silent.seconds + hung_s + REPLACED_AFTER_S + stays_out_s + self.retry_s
        ends_s = self._settings.drain_timeout_s + (self._settings.reconnect_grace_s or 0.0)
        return (total_s + ends_s + self._unkillable_s) / self._plan.slowest_rate


class Progress:
    """Sees to it that somebody leads."""

    def __init__(
        self, world: World, cluster: Cluster, key: LockKey, processes: Callable[[], list[Process]], limits: Limits
    ) -> None:
        self.fault_at = 0.0  # when something last went wrong, or was mended
        self.nearest: dict[str, float] = {}  # the greatest part of each bound that was needed
        self._world = world
        self._cluster = cluster
        self._key = key
        self._processes = processes
        self._limits = limits
        self._takeover_s, self._again_s = limits.takeover_s, limits.campaigns_again_s
        self._holder: FakeBackend | None = None
        self._heir: Process | None = None  # has the lock, but does not lead yet
        self._heir_since = 0.0
        self._campaigned_at = -inf  # when somebody was last seen to
        self._unled_since: float | None = None

    def polled(self) -> None:
        """Hear that the lock was refused to one that polls."""
        self._campaigned_at = self._world.now()

    def needed(self, what: str, took_s: float, bound_s: float) -> None:
        """Note how much of a bound was needed."""
        self.nearest[what] = max(self.nearest.get(what, 0.0), took_s / bound_s)

    def look(self, leaders: list[Process], holder: FakeBackend | None) -> str | None:
        """Look who leads, or should; what is wrong with it."""
        if holder is not self._holder:
            self._holder, self._heir_since = holder, self._world.now()
            self._heir = next((process for process in self._processes() if holder and process.owns(holder)), None)
        if self._heir is not None and holder is not None and (wrong := self._look_at_heir(self._heir, holder, leaders)):
            return wrong
        return self._look_at_campaign(leaders)

    def _look_at_heir(self, heir: Process, holder: FakeBackend, leaders: list[Process]) -> str | None:
        now, bound_s = self._world.now(), self._limits.leads_s(heir)
        took_s = now - max(self._heir_since, self.fault_at)
        grant = heir.lock._runner._machine.grant
        if heir in leaders and grant is not None and grant.backend == holder.id:
            self.needed("from the lock to leadership", took_s, bound_s)
            self._heir = None
        elif not (self._is_server_well and heir.is_well and is_link_well(holder)):
            self._heir_since = now
        elif took_s > bound_s:
            return f"{heir} has held the lock for {took_s:.2f} s, but does not lead"
        return None

    def _look_at_campaign(self, leaders: list[Process]) -> str | None:
        now = self._world.now()
        if leaders:
            if self._unled_since is not None:
                took_s = now - max(self._unled_since, self.fault_at)
                self.needed("a takeover in trouble", took_s, self._takeover_s)
            self._unled_since = None
            return None
        if self._cluster.locks.is_queued(self._key):
            self._campaigned_at = now
        if now - self._campaigned_at > self._again_s or not self._is_server_well:
            self._unled_since = None
        elif self._unled_since is None:
            self._unled_since = now
        elif now - max(self._unled_since, self.fault_at) > self._takeover_s:
            return f"nobody leads for {self._takeover_s:.2f} s though a follower campaigns"
        return None

    @property
    def _is_server_well(self) -> bool:
        cluster = self._cluster
        return cluster.up and not cluster.is_frozen and not cluster.in_recovery


def is_link_well(backend: FakeBackend) -> bool:
    """Both ends can still hear of each other."""
    return not (backend.client_gone or backend.wire.up.lost or backend.wire.down.lost)
