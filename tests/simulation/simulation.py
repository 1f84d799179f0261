"""One seed, from its plan to its end: trouble, then peace, then everybody goes home.

`run(seed)` returns what happened, or raises `FoundError` with the seed and a trace that can be read.
"""

from __future__ import annotations

import random
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from pgelect import LockKey
from pgelect._engine.bounds import bounds_of
from pgelect._engine.performer import ANSWER_WITHIN_S
from pgelect._engine.settings import MARGIN_MIN_S
from pgelect.testing import FakeServer
from tests.simulation.checks import QUEUED_WITHIN_S, Checks, ViolationError
from tests.simulation.loop import SpinError
from tests.simulation.nemesis import Nemesis
from tests.simulation.plan import LEASES_S, plan_of
from tests.simulation.process import Process
from tests.simulation.world import World

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pgelect.testing._fake_wire import Wire

SLICE_S, FENCE_WAIT_S, RELEASE_WAIT_S = (
    0.9,
    0.85,
    0.9,
)  # as on PostgreSQL; two waits of a mint make FENCE_WAIT_S of bounds
CONNECT_WITHIN_S = 5.0
REPLACED_AFTER_S = 1.0
TRACE_MAX = 400


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one seed came to."""

    seed: int
    simulated_s: float
    steps: int
    terms: int
    overlaps: int
    writes: int
    refused: int
    faults: dict[str, int]
    recovered_s: float
    recovery_bound_s: float


class FoundError(Exception):
    """A seed that breaks a promise."""

    def __init__(self, seed: int, what: str, trace: list[str]) -> None:
        self.seed = seed
        self.what = what
        self.trace = trace
        super().__init__(f"seed {seed}: {what}")

    def __reduce__(self) -> tuple[type[FoundError], tuple[int, str, list[str]]]:
        return FoundError, (self.seed, self.what, self.trace)

    def report(self) -> str:
        """The trace and what it came to, to be read by people."""
        return "\n".join([*self.trace, f"seed {self.seed}: {self.what}"])


class Simulation:
    """One seed."""

    def __init__(self, seed: int) -> None:
        random.seed(seed)  # the jitter of the retry strategies
        self.seed = seed
        self.world = World(seed)
        chance = self.world.chance
        self.plan = plan_of(chance)
        self.key = LockKey(7001, 7002)
        self.server = FakeServer(
            wait_slice_s=SLICE_S,
            fence_wait_s=FENCE_WAIT_S,
            release_wait_s=RELEASE_WAIT_S,
            may_terminate=self.plan.may_terminate,
            client_check_s=self.plan.client_check_s,
            commit_s=(lambda: chance.random() * 0.05) if self.plan.commits_slowly else None,
            connect_within_s=CONNECT_WITHIN_S,
            timers=self.world,
        )
        self.cluster = self.server._cluster
        self.processes: list[Process] = []
        self.dead: list[Process] = []
        self.checks = Checks(self.world, self.server, self.key, lambda: self.processes)
        self._lines: list[tuple[float, str, str]] = []
        self._peace = False
        self.ends_at = self.plan.lasts_s
        for number in range(self.plan.processes):
            self._add(f"p{number}")
        self.checks.takeover_bound_s = self.takeover_bound_s
        self.world.after_each = self.checks.look
        self.nemesis = Nemesis(self)

    # What the nemesis uses

    def trace(self, who: str, what: str) -> None:
        """Write down what happened."""
        self._lines.append((self.world.now(), who, what))

    def replace_later(self, process: Process) -> None:
        """Start a new process in the place of one that has ended."""
        self.world.call_later(
            self.world.chance.random() * REPLACED_AFTER_S, lambda: None if self._peace else self._replace(process)
        )

    def notice_later(self, wire: Wire) -> None:
        """Have the server's system find out, in time, that nobody is at the other end of a link (tcp_user_timeout)."""

        def notice() -> None:
            for backend in list(self.cluster.backends.values()):
                if backend.wire is wire:
                    self.cluster.reached(partial(self.cluster.end, backend, "connection timed out"))

        self.world.call_later(2 * self.plan.lease_s, notice)

    @contextmanager
    def losing(self) -> Iterator[None]:
        """Tell the checks what is lost of the ledger in the block."""
        before = {written.value for written in self.server.ledger()}
        yield
        self.checks.lost(before - {written.value for written in self.server.ledger()})

    # The course of it

    def run(self) -> Outcome:
        """Run it to its end.

        Raises:
            FoundError: a promise was broken.
        """
        try:
            while self.world.now() < self.ends_at:
                self.world.run(until=self.ends_at)
            recovered_s, bound_s = self._make_peace()
            self._go_home()
        except (ViolationError, SpinError) as error:
            raise FoundError(self.seed, str(error), self.readable()) from None
        finally:
            self._bury_all()
        everybody = [*self.processes, *self.dead]
        return Outcome(
            seed=self.seed,
            simulated_s=self.world.now(),
            steps=self.world.steps,
            terms=self.checks.terms,
            overlaps=self.checks.overlaps,
            writes=self.checks.writes,
            refused=sum(process.writer.refused for process in everybody if process.writer is not None),
            faults=self.nemesis.counts,
            recovered_s=recovered_s,
            recovery_bound_s=bound_s,
        )

    def readable(self) -> list[str]:
        """The last lines of the trace."""
        head = [f"plan: {self.plan}"]
        left_out = len(self._lines) - TRACE_MAX
        if left_out > 0:
            head.append(f"... {left_out} lines before")
        return [*head, *(f"{at:10.4f}  {who:<8} {what}" for at, who, what in self._lines[-TRACE_MAX:])]

    @property
    def takeover_bound_s(self) -> float:
        """How long a follower in the queue may wait while nobody leads: bounds().failover_silent, or a whole release.

        With writers whose transactions a mint may not end there is no such bound.
        """
        if not self.plan.killable:
            return inf
        bounds = bounds_of(self.processes[0].lock._settings, 0.0)
        longest_s = max(bounds.failover_silent.seconds, bounds.failover_clean.seconds)
        return (longest_s + 2 * QUEUED_WITHIN_S) / (1.0 - MARGIN_MIN_S / LEASES_S[0])

    @property
    def recovery_bound_s(self) -> float:
        """How long it may take after the last fault until somebody leads.

        bounds().failover_silent: the session of a leader that is gone may live for a lease, and a fenced transaction of
        its term may have to be waited for. Before it, what was asked of a link that is broken has to fail (each answer
        has ANSWER_WITHIN_S beyond its wait), a new process may have to start, or one that stepped down may be staying
        out; then comes one delay of the retry strategy. All by the slowest clock.
        """
        settings = self.processes[0].lock._settings
        strategy = self.plan.settings["retry_strategy"]
        longest_s = getattr(strategy, "max_s", getattr(strategy, "interval_s", 0.0))
        silent_s = bounds_of(settings, longest_s).failover_silent.seconds
        hung_s = ANSWER_WITHIN_S + SLICE_S
        stays_out_s = max(1.0, 2 * longest_s)
        unkillable_s = 0.0 if self.plan.killable else 2 * 1.2 * self.plan.lease_s
        total = silent_s + hung_s + REPLACED_AFTER_S + stays_out_s + longest_s + unkillable_s
        return (total + settings.drain_timeout_s + (settings.reconnect_grace_s or 0.0)) / min(
            process.clock.rate for process in self.processes
        )

    def _make_peace(self) -> tuple[float, float]:
        self.trace("nemesis", "peace")
        self.nemesis.stop()
        self._peace = True
        for process in list(self.processes):
            if not process.alive:
                self._replace(process)
            elif process.stopping:
                self._add(f"{process.name}+")
        began, bound_s = self.world.now(), self.recovery_bound_s
        if not self.world.run(until=began + bound_s, stop=self._somebody_leads):
            raise ViolationError(f"nobody leads {bound_s:.1f} s after the last fault")
        recovered_s = self.world.now() - began
        # In peace nothing changes any more, once what was under way, such as a step-down, has settled.
        settings = self.plan.settings
        self.world.run(until=self.world.now() + self.plan.lease_s + settings["drain_timeout_s"] + 0.5)
        terms = self.checks.terms
        self.world.run(until=self.world.now() + 1.2 * self.plan.lease_s)
        if self.checks.terms != terms:
            raise ViolationError("the leader changed in peace")
        if not self._somebody_leads():
            raise ViolationError("nobody leads any more, in peace")
        return recovered_s, bound_s

    def _somebody_leads(self) -> bool:
        holder = self.cluster.locks.holder(self.key)
        return holder is not None and any(
            process.leads and (grant := process.lock._runner._machine.grant) is not None and grant.backend == holder.id
            for process in self.processes
        )

    def _go_home(self) -> None:
        self.trace("world", "everybody goes home")
        tasks = [process.command("shutdown", process.shutdown()) for process in self.processes]
        until = self.world.now() + 30.0
        self.world.run(until=until, stop=lambda: not any(process.loop.tasks for process in self.processes))
        if not all(task.done() for task in tasks):
            raise ViolationError("a shutdown does not end")
        self.world.run(until=self.world.now() + 3 * self.plan.lease_s)
        for process in self.processes:
            if process.loop.tasks:
                raise ViolationError(f"{process}: tasks are left: {process.loop.tasks}")
            if (left := process.told) and left[-1][0] == "acquired":
                raise ViolationError(f"{process}: term {left[-1][1]} was never ended")
            if process.lock._runner._performer._sessions:
                raise ViolationError(f"{process}: sessions are left")
        self._check_server()
        self._check_ledger()

    def _check_server(self) -> None:
        server = self.server
        left = {
            "sessions": server.sessions(),
            "holders": server.holders(self.key),
            "waiters": server.waiters(self.key),
            "fenced transactions": tuple(self.server._tables.fenced()),
        }
        for what, found in left.items():
            if found:
                raise ViolationError(f"{what} are left on the server: {found}")

    def _check_ledger(self) -> None:
        there = {written.value for written in self.server.ledger()} | self.checks.lost_values
        for process in (*self.processes, *self.dead):
            if process.writer is not None and (missing := set(process.writer.acknowledged) - there):
                raise ViolationError(f"{process}: acknowledged writes are not there: {sorted(missing)}")

    def _add(self, name: str) -> None:
        self.processes.append(Process(name, self))

    def _replace(self, process: Process) -> None:
        if process in self.processes:
            self.trace("world", f"{process} is replaced")
            self.processes.remove(process)
            self.dead.append(process)
            number, _, generation = process.name.partition(".")
            self._add(f"{number}.{int(generation or 0) + 1}")

    def _bury_all(self) -> None:
        self.world.after_each = lambda: None
        for process in (*self.processes, *self.dead):
            process.bury()


def run(seed: int) -> Outcome:
    """Run one seed."""
    return Simulation(seed).run()


def first_found(seeds: Iterable[int]) -> FoundError | None:
    """Run seeds until one of them breaks a promise; which, and how."""
    for seed in seeds:
        try:
            run(seed)
        except FoundError as error:
            return error
    return None
