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
from tests.simulation.plan import COMMIT_S, FENCE_WAIT_S, RELEASE_WAIT_S, REPLACED_AFTER_S, SLICE_S, plan_of
from tests.simulation.process import Process
from tests.simulation.progress import Limits, Progress
from tests.simulation.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pgelect.testing._fake_wire import Wire

CONNECT_WITHIN_S = 5.0
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
            commit_s=(lambda: chance.random() * COMMIT_S) if self.plan.commits_slowly else None,
            connect_within_s=CONNECT_WITHIN_S,
            timers=self.world,
        )
        self.cluster = self.server._cluster
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

    def trace(self, who: str, what: str) -> None:
        """Write down what happened."""
        self._lines.append((self.world.now(), who, what))

    def replace_later(self, process: Process) -> None:
        """Start a new process in the place of one that has ended."""
        self.world.call_later(
            self.world.chance.random() * REPLACED_AFTER_S,
            lambda: None if self.nemesis.at_peace else self._replace(process),
        )

    def notice_later(self, wire: Wire) -> None:
        """Have the server's system find out, in time, that nobody is at the other end of a link (tcp_user_timeout)."""

        def notice() -> None:
            for backend in list(self.cluster.backends.values()):
                if backend.wire is wire:
                    self.server.cut_off(backend.id.pid)

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

    def readable(self) -> list[str]:
        """The last lines of the trace."""
        head = [f"plan: {self.plan}"]
        left_out = len(self._lines) - TRACE_MAX
        if left_out > 0:
            head.append(f"... {left_out} lines before")
        return [*head, *(f"{at:10.4f}  {who:<8} {what}" for at, who, what in self._lines[-TRACE_MAX:])]

    def fill_up(self) -> None:
        """Start a process for each that does not run any more."""
        for process in list(self.processes):
            if not process.alive or process.has_stopped:
                self._replace(process)
            elif process.stopping:
                self._succeed(process)

    def _add(self, name: str) -> None:
        self.processes.append(Process(name, self))

    def _replace(self, process: Process) -> None:
        if process in self.processes:
            self.trace("world", f"{process} is replaced")
            self.processes.remove(process)
            self.dead.append(process)
            self._succeed(process)

    def _succeed(self, process: Process) -> None:
        if not process.has_successor:
            process.has_successor = True
            number, _, generation = process.name.partition(".")
            self._add(f"{number}.{int(generation or 0) + 1}")

    def _bury_all(self) -> None:
        self.world.after_each = lambda: None
        for process in (*self.processes, *self.dead):
            process.bury()


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
