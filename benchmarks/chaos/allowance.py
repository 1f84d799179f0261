"""How long leadership may be away after a fault: what ``lock.bounds()`` says, and what the fault itself takes.

By kind of fault, counted from its beginning unless it is said otherwise:

- the leader cannot hear or be heard (stopped, frozen, its end of the link cut): ``failover_silent`` of the leader, from
  the moment at which that begins. Of a partition that includes a follower: that of both, one after the other, for the
  follower may be the next in the queue, and be granted a lock that it never hears of.
- the leader's session ends (killed, terminated, cut at the server's end): ``failover_crash``, from the end of the
  session.
- with the leader some or all of those die who wait in the queue: those who stand aside look within ``_ASIDE_S``.
- it gives leadership up (step-down, shutdown): ``failover_clean``.
- everybody's session ends (restarts, promotions, all sessions terminated): from the moment at which there is a primary
  again, what it takes to come back: the longest sleep of the retry strategy and one connect timeout, for one of the two
  addresses may be dead; then ``failover_crash``.
- no connection is free, and the leader's session ends: ``failover_crash`` as well, for the others are connected, and
  queued. But the second session, by which a mint finds out whom to end, cannot be had: if the fence was busy for longer
  than a mint waits, it takes what it takes to come back, from the moment at which there are connections again.
- cancelled statements may undo attempts to take over: the longest sleep of the retry strategy, then
  ``failover_crash``, from the last of them. Nobody loses leadership by these.
- index builds and VACUUM, which go on beside other faults: nothing at all.

The bounds do not count the time for which processes wait for a CPU. ``SLACK_S`` is for that, and so is twice the time
for which the machine was seen to be too busy, as ``stalls`` says; on a quiet machine that is nothing. It never
excuses a belief beyond ``overlap_session``, nor anything that was written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.chaos import plan
from pgelect._engine.crowd import LOOK_EVERY_S, SPREAD

if TYPE_CHECKING:
    from benchmarks.chaos.history import Fault, History

SLACK_S = 1.0

_LOOKS_S = 0.1
"""Looks are that far apart at most: a belief may seem to end so long before the fault that ends it."""

SILENT = frozenset(
    {"stop", "stop-short", "freeze-both", "freeze-up", "freeze-down", "freeze-slow", "partition", "cut-client"}
)
CRASH = frozenset({"kill", "cut", "cut-server", "deaf", "terminate", "stop+terminate", "rotate-password", "exhaust"})
CLEAN = frozenset({"step-down", "shutdown"})
COME_BACK = frozenset({"restart-fast", "restart-immediate", "promote", "promote-lossy", "terminate-all"})
IDLE = frozenset({"index", "vacuum"})
BESIDE = IDLE | {"cancel"}

_ASIDE_S = LOOK_EVERY_S * (1 + SPREAD)
_COME_BACK_S = plan.BACKOFF_MAX_S + plan.CONNECT_TIMEOUT_S


class Allowances:
    """The deadlines that follow from the faults of one history."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._bounds = {process.name: process.bounds for process in history.processes}
        self._until = [(fault, self.deadline(fault)) for fault in history.faults]

    def deadline(self, fault: Fault) -> float:
        """When somebody must lead again after that fault, if it were alone and CPUs were free.

        Raises:
            ValueError: a kind that nothing was said about.
        """
        if fault.kind in SILENT:
            silent_since = min((since for _, since, _ in fault.deaf), default=fault.begun)
            return silent_since + sum(self._bound("failover_silent", each) for each in fault.targets)
        if fault.kind in CRASH and not self._in_need_of_a_second_session(fault):
            ended_at = max((until for _, _, until in fault.ended), default=fault.until)
            aside_s = _ASIDE_S if len(fault.targets) > 1 else 0.0
            return ended_at + aside_s + self._bound("failover_crash", fault.leader)
        if fault.kind in CLEAN:
            return fault.begun + self._bound("failover_clean", fault.leader)
        if fault.kind in COME_BACK | CRASH:
            return fault.until + _COME_BACK_S + self._bound("failover_crash", fault.leader)
        if fault.kind in IDLE:
            return fault.begun
        if fault.kind in BESIDE:
            return fault.until + plan.BACKOFF_MAX_S + self._bound("failover_crash", fault.leader)
        raise ValueError(f"no bound is known for the fault '{fault.kind}'")

    def limit(self, since: float, until: float) -> float:
        """Tell until when nobody need lead from ``since`` on, given the faults up to ``until`` and a busy machine.

        One fault may begin while leadership is still away because of another: their times are joined.
        """
        found = since
        for fault, deadline in self._until:  # sorted by their beginning
            if fault.begun <= min(found + _LOOKS_S, until):
                found = max(found, deadline)
        return found + SLACK_S + 2 * self._history.stalled_s(since, until)

    def _in_need_of_a_second_session(self, fault: Fault) -> bool:
        busy = (at for process in self._history.processes for at in process.fence_busy)
        return fault.kind == "exhaust" and any(fault.begun <= at <= fault.until for at in busy)

    def _bound(self, name: str, process: str) -> float:
        return self._bounds[process][name]
