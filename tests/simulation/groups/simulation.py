"""One seed of the simulation of groups: trouble, then peace, then one member leaves, then everybody goes home."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from pgelect import GroupState, LockKey
from pgelect._engine.driver import CLOSE_WITHIN_S
from pgelect.testing import FakeServer
from tests.simulation.checks import ViolationError
from tests.simulation.groups.checks import GroupChecks
from tests.simulation.groups.nemesis import GroupNemesis
from tests.simulation.groups.plan import plan_of
from tests.simulation.groups.process import GroupProcess
from tests.simulation.loop import SpinError
from tests.simulation.network import MESSAGE_S
from tests.simulation.plan import COMMIT_S, FENCE_WAIT_S, RELEASE_WAIT_S, SLICE_S
from tests.simulation.simulation import CONNECT_WITHIN_S, FoundError, Outcome
from tests.simulation.stage import Stage
from tests.simulation.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.groups.plan import GroupPlan
    from tests.simulation.groups.process import Pair

STOPS_WITHIN_S = 30.0
TAKEN_WITHIN_S = 0.6
"""For a few messages and a commit: less than a wait for something else than the end of the next member."""


class GroupSimulation(Stage[GroupProcess]):
    """One seed."""

    plan: GroupPlan

    def __init__(self, seed: int) -> None:
        random.seed(seed)
        self.seed = seed
        self.world = World(seed)
        chance = self.world.chance
        self.plan = plan_of(chance)
        self.partitions: list[Pair] = [(7100, number) for number in range(self.plan.partitions)]
        self.server = FakeServer(
            wait_slice_s=SLICE_S,
            fence_wait_s=FENCE_WAIT_S,
            release_wait_s=RELEASE_WAIT_S,
            may_terminate=self.plan.may_terminate,
            client_check_s=self.plan.client_check_s,
            commit_s=(lambda: chance.random() * COMMIT_S) if self.plan.commits_slowly else None,
            connect_within_s=CONNECT_WITHIN_S,
            timers=self.world,
        )
        self.cluster = self.server._cluster
        self.processes: list[GroupProcess] = []
        self.dead: list[GroupProcess] = []
        self._lines: list[tuple[float, str, str]] = []
        self.checks = GroupChecks(self)
        for number in range(self.plan.members):
            self._add(f"m{number}")
        self.world.after_each = self.checks.look
        self.nemesis = GroupNemesis(self)

    def key_of(self, pair: Pair) -> LockKey:
        """The key of a partition."""
        return LockKey(*pair)

    # The course of it

    def run(self) -> Outcome:
        """Run it to its end.

        Raises:
            FoundError: a promise was broken.
        """
        try:
            self.world.run(until=self.plan.lasts_s)
            recovered_s = self._make_peace()
            self._stay_at_peace()
            self._one_leaves()
            self._go_home()
        except (ViolationError, SpinError) as error:
            raise FoundError(self.seed, str(error), self.readable()) from None
        except Exception as error:
            raise FoundError(self.seed, f"{type(error).__name__}: {error}", self.readable()) from error
        finally:
            self._bury_all()
        return Outcome(
            seed=self.seed,
            simulated_s=self.world.now(),
            steps=self.world.steps,
            terms=self.checks.terms,
            overlaps=self.checks.overlaps,
            writes=self.checks.writes,
            refused=sum(process.refused for process in (*self.processes, *self.dead)),
            faults=self.nemesis.counts,
            deposed_by="peace",
            recovered_s=recovered_s,
            recovery_bound_s=self.plan.settles_within_s,
            nearest={"balance after trouble": recovered_s / self.plan.settles_within_s},
        )

    def _make_peace(self) -> float:
        self.nemesis.stop()
        self.trace("world", "peace")
        self.fill_up()
        began = self.world.now()
        self._wait_for(self._is_balanced, self.plan.settles_within_s, "every partition is led, by who is to lead it")
        return self.world.now() - began

    def _stay_at_peace(self) -> None:
        """Nothing changes any more, but for handlers that fail and are tried again elsewhere."""
        for process in self.processes:
            process.calm = True
        # A handler that has failed may still be cleaning up, and whoever stays out for a while comes back.
        self.world.run(until=self.world.now() + 2 * self.plan.lease_s + 1.5 * self.plan.settings["drain_timeout_s"])
        self._wait_for(self._is_balanced, self.plan.settles_within_s, "it is balanced once more")
        before = self._tokens()
        self.world.run(until=self.world.now() + 3 * self.plan.settings["rebalance_interval_s"])
        if (after := self._tokens()) != before:
            raise ViolationError(f"partitions move in peace: {before} -> {after}")

    def _one_leaves(self) -> None:
        running = [process for process in self.processes if process.is_running]
        if len(running) < 2:
            return
        gone = self.world.chance.choice(running)
        kept = {pair: token for process in running if process is not gone for pair, token in process.claims.items()}
        if self.world.chance.random() < 0.5:
            self.trace("world", f"{gone} leaves")
            gone.command("shutdown", gone.shutdown())
        else:
            self.trace("world", f"{gone} dies")
            gone.kill(without_a_word=False)
            within_s = TAKEN_WITHIN_S + self.plan.client_check_s + self.plan.settings["takeover_delay_s"] * 1.1
            self._wait_for(
                lambda: len(self._tokens()) == len(self.partitions), within_s, "another one leads what it had at once"
            )
        self.world.run(until=self.world.now() + MESSAGE_S)
        self._wait_for(self._is_balanced, self.plan.settles_within_s, "the others lead everything, evenly")
        self.world.run(until=self.world.now() + 2 * self.plan.settings["rebalance_interval_s"])
        after = self._tokens()
        moved = {pair: token for pair, token in kept.items() if after.get(pair) != token}
        if moved:
            raise ViolationError(f"{gone} left, and what others had moved: {moved}")

    def _tokens(self) -> dict[Pair, int]:
        return {pair: token for process in self.processes for pair, token in process.claims.items()}

    def _is_balanced(self) -> bool:
        running = [process for process in self.processes if process.is_running]
        if any(process.group.state is not GroupState.MEMBER for process in running):
            return False  # with few partitions, others lead all that there is while it still connects
        claims = [process.claims for process in running]
        if sum(map(len, claims)) != len(self.partitions) or len(self._tokens()) != len(self.partitions):
            return False
        total = sum(process.weight for process in running)
        shares = [-(-len(self.partitions) * process.weight // total) for process in running]
        return all(len(claim) <= share for claim, share in zip(claims, shares, strict=True))

    def _wait_for(self, condition: Callable[[], bool], within_s: float, what: str) -> None:
        if not self.world.run(until=self.world.now() + within_s, stop=condition):
            state = {process.name: (str(process.group.state), sorted(process.claims)) for process in self.processes}
            raise ViolationError(f"not so within {within_s:g} s: {what}: {state}")

    def _go_home(self) -> None:
        self.trace("world", "everybody goes home")
        for process in self.processes:
            if process.is_running:
                process.command("shutdown", process.shutdown())
        at_home = self.world.run(
            until=self.world.now() + STOPS_WITHIN_S,
            stop=lambda: all(process.has_stopped for process in self.processes if process.alive),
        )
        if not at_home:
            raise ViolationError("a shutdown does not end")
        self.world.run(until=self.world.now() + CLOSE_WITHIN_S + MESSAGE_S + 3 * self.plan.lease_s)
        if left := (*self.server.sessions(), *self.cluster.locks.held()):
            raise ViolationError(f"sessions and locks are left on the server: {left}")
        for process in (*self.processes, *self.dead):
            if process.has_stopped:
                _check_stopped(process)

    @property
    def troubled(self) -> bool:
        """There is no peace yet."""
        return not self.nemesis.at_peace

    def _add(self, name: str) -> None:
        self.processes.append(GroupProcess(name, self))


def _check_stopped(process: GroupProcess) -> None:
    if process.loop.tasks:
        raise ViolationError(f"{process}: tasks are left: {process.loop.tasks}")
    for pair, told in process.told.items():
        if told[-1][0] == "acquired":
            raise ViolationError(f"{process}: {pair}: term {told[-1][1]} was never ended")
    if process.group._runner._performer._sessions:
        raise ViolationError(f"{process}: sessions are left")
    if process.group.state is not GroupState.STOPPED or process.group.leading:
        raise ViolationError(f"{process} has stopped, but says that it is {process.group.state}")


def run(seed: int) -> Outcome:
    """Run one seed."""
    return GroupSimulation(seed).run()
