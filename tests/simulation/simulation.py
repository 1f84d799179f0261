"""One seed, from its plan to its end: trouble, then peace, then everybody goes home.

`run(seed)` returns what happened, or raises `FoundError` with the seed and a trace that can be read.
"""

from __future__ import annotations

import random
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgelect import LeaderLock, LockKey
from pgelect.testing import FakeServer
from tests.simulation.checks import Checks, ViolationError
from tests.simulation.home import go_home
from tests.simulation.loop import SpinError
from tests.simulation.nemesis import Nemesis
from tests.simulation.peace import make_peace
from tests.simulation.plan import COMMIT_S, FENCE_WAIT_S, RELEASE_WAIT_S, SLICE_S, plan_of
from tests.simulation.process import Process
from tests.simulation.progress import Limits, Progress
from tests.simulation.stage import Stage
from tests.simulation.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tests.simulation.plan import Plan


CONNECT_WITHIN_S = 5.0


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
    deposed_by: str
    recovered_s: float
    recovery_bound_s: float
    nearest: dict[str, float]


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


class Simulation(Stage[Process]):
    """One seed."""

    plan: Plan

    def __init__(self, seed: int) -> None:
        random.seed(seed)  # the jitter of the retry strategies
        self.seed = seed
        self.world = World(seed)
        chance = self.world.chance
        self.plan = plan_of(chance, random.Random(f"places of {seed}"))
        self.key = LockKey(7001, 7002)
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
        self.cluster.places = self.plan.places
        self.processes: list[Process] = []
        self.dead: list[Process] = []
        settings = LeaderLock("", self.key.key1, self.key.key2, **self.plan.settings)._settings
        self.limits = Limits(self.plan, settings)
        self.progress = Progress(self.world, self.cluster, self.key, lambda: self.processes, self.limits)
        self.checks = Checks(self.world, self.server, self.key, lambda: self.processes, self.progress)
        self._lines: list[tuple[float, str, str]] = []
        self.ends_at = self.plan.lasts_s
        for number in range(self.plan.processes):
            self._add(f"p{number}")
        self.world.after_each = self.checks.look
        self.nemesis = Nemesis(self)

    # What the nemesis uses

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
            recovery = make_peace(self)
            go_home(self)
        except (ViolationError, SpinError) as error:
            raise FoundError(self.seed, str(error), self.readable()) from None
        except Exception as error:  # a fault of the simulation itself, or of the fake server: the seed shows it again
            raise FoundError(self.seed, f"{type(error).__name__}: {error}", self.readable()) from error
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
            deposed_by=recovery.how,
            recovered_s=recovery.took_s,
            recovery_bound_s=recovery.bound_s,
            nearest=self.progress.nearest,
        )

    @property
    def troubled(self) -> bool:
        """There is no peace yet."""
        return not self.nemesis.at_peace

    def _add(self, name: str) -> None:
        self.processes.append(Process(name, self))


def run(seed: int) -> Outcome:
    """Run one seed."""
    return Simulation(seed).run()


def first_found(seeds: Iterable[int], saying: str = "", run: Callable[[int], Outcome] = run) -> FoundError | None:
    """Run seeds until one of them breaks a promise, and says that in these words; which, and how."""
    for seed in seeds:
        try:
            run(seed)
        except FoundError as error:
            if saying in error.what:
                return error
    return None
