"""The promises of progress, and how long each may take.

- Whoever got the lock leads, or lets go of it, within what failover_crash of bounds() leaves to one in the queue.
- While somebody campaigns, and nothing new goes wrong, somebody leads again within failover_silent or failover_clean.
- Where all who campaign stand aside, as those who waited have died, the next one to look leads, or is in the queue.
- When a leader is deposed in peace, somebody leads within the bound of that kind of end, as its own bounds() say.

To each bound comes only what it does not count: messages, and clocks that run slowly.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Literal, TypeAlias

from pgelect._engine.bounds import FENCE_WAIT_S, bounds_of
from pgelect._engine.crowd import LOOK_EVERY_S, SPREAD
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

Kind: TypeAlias = Literal["clean", "crash", "silent", "aside"]

QUEUED_WITHIN_S = 2 * SLOW_S + 2 * MESSAGE_S
"""Between two slices a follower is not in the queue: for two messages, slow ones perhaps."""
LEADS_AFTER_S = 5 * MESSAGE_S + COMMIT_S
"""From the lock to leadership: it is told, asks for a token, is answered; at worst it is refused one, and hangs up."""
LOOKS_WITHIN_S = (1 + SPREAD) * LOOK_EVERY_S + 4 * SLOW_S
"""Who stands aside looks, and is in the queue then: there are never as many as would look more rarely."""
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

    @property
    def looks_s(self) -> float:
        """From when somebody stands aside until it has looked."""
        return LOOKS_WITHIN_S / self._plan.slowest_rate

    @property
    def leaves_s(self) -> float:
        """From when one more waits than there are places, as another was between two slices, until one has left."""
        return 3 * (SLICE_S + QUEUED_WITHIN_S)

    def failover_s(self, deposed: Process, kind: Kind) -> float:
        """From the end of a leader until somebody leads, in peace."""
        bounds = deposed.bounds
        bound = {"clean": bounds.failover_clean, "silent": bounds.failover_silent}.get(kind, bounds.failover_crash)
        noticed_s = 0.0 if kind in {"clean", "silent"} else self._plan.client_check_s
        aside_s = self.looks_s if kind == "aside" else 0.0
        return (bound.seconds + noticed_s + self._unkillable_s) / self._plan.slowest_rate + TAKES_OVER_AFTER_S + aside_s

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
        return (total_s + ends_s + self._unkillable_s) / self._plan.slowest_rate + self.looks_s


@dataclass(slots=True)
class _Unled:
    """For how long nobody has led while somebody campaigned in one way, and how long that may be."""

    what: str
    bound_s: float
    again_s: float
    seen_at: float = -inf  # when somebody was last seen to
    since: float | None = None


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
        self._holder: FakeBackend | None = None
        self._heir: Process | None = None  # has the lock, but does not lead yet
        self._heir_since = 0.0
        self._unled = {
            "campaigns": _Unled("a takeover in trouble", limits.takeover_s, limits.campaigns_again_s),
            "stands aside": _Unled(
                "a takeover from aside", limits.takeover_s + limits.looks_s, limits.campaigns_again_s
            ),
        }

    def polled(self) -> None:
        """Hear that the lock was refused to one that polls."""
        for unled in self._unled.values():
            unled.seen_at = self._world.now()

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
        queued = self._cluster.locks.is_queued(self._key)
        seen = {"campaigns": queued, "stands aside": queued or (not leaders and self._is_anyone_aside())}
        for how, unled in self._unled.items():
            if seen[how]:
                unled.seen_at = now
            if leaders:
                if unled.since is not None:
                    self.needed(unled.what, now - max(unled.since, self.fault_at), unled.bound_s)
                unled.since = None
            elif now - unled.seen_at > unled.again_s or not self._is_server_well:
                unled.since = None
            elif unled.since is None:
                unled.since = now
            elif now - max(unled.since, self.fault_at) > unled.bound_s:
                return f"nobody leads for {unled.bound_s:.2f} s though a follower {how}"
        return None

    def _is_anyone_aside(self) -> bool:
        aside = [one for one in self._cluster.backends.values() if one.aside == self._key and is_link_well(one)]
        return any(process.is_well and process.owns(one) for one in aside for process in self._processes())

    @property
    def _is_server_well(self) -> bool:
        cluster = self._cluster
        return cluster.up and not cluster.is_frozen and not cluster.in_recovery


def is_link_well(backend: FakeBackend) -> bool:
    """Both ends can still hear of each other."""
    return not (backend.client_gone or backend.wire.up.lost or backend.wire.down.lost)
