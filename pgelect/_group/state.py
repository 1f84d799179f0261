"""All that a group knows at one instant, and the rules it plays by. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, StrEnum
from math import inf
from typing import TYPE_CHECKING

from pgelect._group.shares import View

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pgelect._engine.model import Backend, Grant, LockKey, Term
    from pgelect._group.events import Io


class GroupState(StrEnum):
    """What a member of a group is doing. Which partitions it leads is said by ``LeaderGroup.leading``."""

    STOPPED = "stopped"
    """Not running: no task, no connection."""
    CONNECTING = "connecting"
    """Running without a session: connecting, joining, or waiting to try again. Leads nothing."""
    MEMBER = "member"
    """In the ring: leads its share, takes what is free, and watches the next member."""
    LEAVING = "leaving"
    """Gives up everything: the duties drain, the locks are freed, then the session is closed."""


class Phase(Enum):
    """Of a partition whose token is ours."""

    WAITING = "waiting"
    """The takeover delay is not over: not led yet."""
    LEADING = "leading"
    DRAINING = "draining"
    """Being given up: its duty is asked to stop."""
    DRAINED = "drained"
    """To be unlocked."""


@dataclass(frozen=True, slots=True)
class Held:
    """One partition whose token is ours.

    Attributes:
        grant: what the server confirmed.
        number: of the term, counted in this process; 0 while it has not begun.
        phase: what becomes of it.
        until: WAITING: when it begins. DRAINING: when the drain is over.
        cooldown_s: how long to leave it alone once it is given up.
    """

    grant: Grant
    number: int = 0
    phase: Phase = Phase.LEADING
    until: float = inf
    cooldown_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Rules:
    """What the machine needs of the settings, in seconds.

    Attributes:
        trust_s: for how long one proof is trusted.
        health_interval_s: between two proofs, at most.
        wait_s: one wait for the next member's end, at most.
        rebalance_interval_s: between two looks at the whole group, at most.
        takeover_delay_s: before a partition is led whose last term ended uncleanly.
        drain_timeout_s: for the duty of a partition that is handed to another member.
    """

    trust_s: float
    health_interval_s: float
    wait_s: float
    rebalance_interval_s: float
    takeover_delay_s: float
    drain_timeout_s: float


@dataclass(frozen=True, slots=True)
class Machine:
    """All that a member knows, at one instant."""

    rules: Rules
    partitions: tuple[LockKey, ...] = ()  # that it campaigns for, the most preferred first
    state: GroupState = GroupState.STOPPED
    epoch: int = 0  # of the present session; grows whenever a session is opened or dropped
    connected: bool = False
    io: Io | None = None  # the one I/O in flight
    settled: bool = False  # it has been a member once: mistakes are no longer taken for permanent
    wake_at: float = inf  # CONNECTING: the next attempt
    me: int = 0  # in the ring
    backend: Backend | None = None  # of the present session
    ghost: Backend | None = None  # a session of ours that the server may still keep alive
    trusted_until: float = -inf
    proved_at: float = -inf
    proof_at: float = inf
    look_at: float = inf  # a look at the whole group is due
    heir_until: float = -inf  # the next member has died: take all that is free, whatever the share
    unwaited_until: float = -inf  # the server has refused a wait for the next member: none until then
    poll_s: float = 0.0  # something is about to change: look that often; 0: nothing is
    view: View = field(default_factory=View)
    print: int | None = None  # of that view
    share: int = 0
    taking: tuple[LockKey, ...] = ()  # free, to be tried for
    minting: tuple[LockKey, ...] = ()  # locked, but fenced transactions hold the row of the token
    held: Mapping[LockKey, Held] = field(default_factory=dict)
    untold: tuple[LockKey, ...] = ()  # terms that are yet to be announced
    called: bool = False  # requests to step down are to be looked at
    barred: Mapping[LockKey, float] = field(default_factory=dict)  # left alone until then
    number: int = 0  # of the last term that began
    stopping: bool = False  # LEAVING: stop afterwards
    away_s: float = 0.0  # LEAVING: stay out for this long afterwards

    @property
    def trusting(self) -> bool:
        """A trust is running that can run out."""
        return self.connected and self.state in {GroupState.MEMBER, GroupState.LEAVING}

    @property
    def deadline(self) -> float:
        """When the next Tick is due."""
        due = [self.wake_at, *(held.until for held in self.held.values())]
        if self.trusting:
            due.append(self.trusted_until)
        return min(due)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What everybody else may know, replaced as a whole at each step; safe to read from any thread."""

    state: GroupState = GroupState.STOPPED
    trusted_until: float = -inf
    proved_at: float = -inf
    terms: Mapping[LockKey, tuple[int, Term]] = field(default_factory=dict)  # those that are led
    share: int = 0
    members: int = 0
