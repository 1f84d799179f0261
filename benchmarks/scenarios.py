"""The scenarios: what is done to the leader, and what is timed. Each round begins when somebody really waits.

The moment is then put off by a random part of a follower's slice in the server's queue; every fourth time it is put off
to about the end of a slice, where the follower queues anew.
"""

from __future__ import annotations

import random
import signal
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.process import STARTS_WITHIN_S, Child, DidNotHappenError, python

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from benchmarks.looking import Observer
    from pgelect.testing import Postgres

SLICE_S = 0.9
"""A follower's slice: how long it waits in the server's queue before it queues anew."""
_END_EVERY, _END_WITHIN_S = 4, 0.005
HEALTH_S, LEASE_S = 5.0, 15.0
"""The library's defaults."""
LANES = 4
"""SIGSTOP is timed in seconds, so several pairs can be stopped at once."""


@dataclass(frozen=True, slots=True)
class Arena:
    """A server, and how processes are started on it."""

    server: Postgres
    uvloop: bool
    phase_s: float = SLICE_S

    def any_moment(self) -> None:
        """Let a random part of a follower's slice pass."""
        time.sleep(random.uniform(0.0, self.phase_s))

    def moment_of(self, number: int, observer: Observer, follower: str) -> None:
        """Do the same for the round of that number; every fourth time come close to the end of a slice instead."""
        if number % _END_EVERY != _END_EVERY - 1:
            self.any_moment()
            return
        left_s = SLICE_S - observer.waited_s(follower) + random.uniform(-_END_WITHIN_S, _END_WITHIN_S)
        time.sleep(max(0.0, left_s))

    def replica(
        self, name: str, key: int, *, health_s: float = HEALTH_S, lease_s: float = LEASE_S, stages: bool = False
    ) -> Child:
        """Start a replica."""
        arguments = ["--dsn", self.server.dsn(), "--key", str(key), "--name", name]
        arguments += ["--health", str(health_s), "--lease", str(lease_s)]
        flags = ["--uvloop"] * self.uvloop + ["--stages"] * stages
        return Child(name, python("benchmarks.replica", *arguments, *flags))

    def bare(self, name: str, key: int, *flags: str) -> Child:
        """Start a session without the library."""
        dsn = self.server.dsn(application_name=name)
        return Child(name, python("benchmarks.floor", "--dsn", dsn, "--key", str(key), *flags))

    def psql(self, name: str, key: int) -> Child:
        """Start a psql that takes the lock."""
        dsn = self.server.dsn(application_name=name)
        child = Child(name, [self.server.bin_dir / "psql", "-X", "-q", "-o", "/dev/null", dsn])
        child.tell(f"SELECT pg_advisory_lock({key}, {key});")
        return child


class Succession:
    """Somebody holds a lock and another waits; when the holder is killed the waiter holds it, and a new one comes."""

    def __init__(self, observer: Observer, start: Callable[[int], Child]) -> None:
        self._observer = observer
        self._start = start
        self._number = 0
        self._all = ExitStack()
        self.holder = self._next()
        self.holder.wait_for("acquired", within_s=STARTS_WITHIN_S)
        self.waiter = self._next()

    def until_ready(self) -> None:
        """Return when the waiter waits."""
        self._observer.until_waiting(self.waiter.name)

    def kill(self) -> tuple[float, dict[str, Any]]:
        """Kill the holder; return the time just before, and the report of the waiter that got the lock."""
        at = self.holder.signal(signal.SIGKILL)
        return at, self.waiter.wait_for("acquired")

    def go_on(self) -> None:
        """Make the waiter the holder, and start the next one."""
        self.holder.close()
        self.holder, self.waiter = self.waiter, self._next()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._all.close()

    def _next(self) -> Child:
        self._number += 1
        return self._all.enter_context(self._start(self._number))


@dataclass(frozen=True, slots=True)
class Crashes:
    """The times of one run, in seconds, round by round.

    Attributes:
        floor: a bare Python process that holds the lock is killed, until another that is blocked in
            ``pg_advisory_lock`` has it.
        psql: the same with psql as the one that is killed: a smaller process, so the system takes it apart sooner.
        library: the leader is killed, until the follower's ``on_acquired``.
    """

    floor: list[float]
    psql: list[float]
    library: list[float]


def crash(arena: Arena, observer: Observer, rounds: int) -> Crashes:
    """SIGKILL whoever holds the lock; the library and its floors take turns, so noise of the machine hits all alike."""
    seen = Crashes([], [], [])
    with (
        arena.bare("psql-waiter", 1, "--again") as psql_waiter,
        Succession(observer, lambda n: arena.bare(f"floor-{n}", 2)) as bare,
        Succession(observer, lambda n: arena.replica(f"crash-{n}", 3)) as library,
    ):
        for number in range(rounds):
            with arena.psql(f"psql-{number}", 1) as psql:
                bare.until_ready()
                library.until_ready()
                observer.until_holding(psql.name)
                mark = psql_waiter.mark()
                psql_waiter.tell("again")
                observer.until_waiting(psql_waiter.name)
                arena.any_moment()
                at = psql.signal(signal.SIGKILL)
                seen.psql.append(psql_waiter.wait_for("acquired", mark)["at"] - at)
            arena.any_moment()
            at, got = bare.kill()
            seen.floor.append(got["at"] - at)
            arena.moment_of(number, observer, library.waiter.name)
            at, got = library.kill()
            seen.library.append(got["at"] - at)
            bare.go_on()
            library.go_on()
    return seen


def step_down(arena: Arena, observer: Observer, rounds: int) -> list[float]:
    """``step_down()`` until the next ``on_acquired``, in seconds."""
    seen = handovers(arena, observer, rounds)
    return [acquired["at"] - stepped["at"] for stepped, acquired in seen]


def handovers(
    arena: Arena, observer: Observer, rounds: int, *, stages: bool = False
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Have leaders step down; return what each reported, and what the next one did."""
    seen: list[tuple[dict[str, Any], dict[str, Any]]] = []
    one, two = (arena.replica(f"step-down-{n}", 4, stages=stages) for n in (1, 2))
    with one, two:
        leader, other = _who_leads(observer, one, two)
        for number in range(rounds):
            observer.until_waiting(other.name)
            arena.moment_of(number, observer, other.name)
            asked, got = leader.mark(), other.mark()
            leader.tell("step_down")
            acquired = other.wait_for("acquired", got)
            stepped = leader.wait_for("stepped_down", asked)
            if not stepped["done"]:
                raise DidNotHappenError(f"{leader.name}: step_down() said that it did not lead")
            seen.append((stepped, acquired))
            leader, other = other, leader
    return seen


def terminated(arena: Arena, observer: Observer, rounds: int) -> list[float]:
    """Termination of the leader's backend until its ``on_lost``, in seconds."""
    times: list[float] = []
    with arena.replica("terminated-1", 5) as one, arena.replica("terminated-2", 5) as two:
        leader, other = _who_leads(observer, one, two)
        for number in range(rounds):
            observer.until_waiting(other.name)
            backend = observer.until_holding(leader.name)
            arena.moment_of(number, observer, other.name)
            heard, got = leader.mark(), other.mark()
            at = observer.terminate(backend)
            times.append(leader.wait_for("lost", heard)["at"] - at)
            other.wait_for("acquired", got)
            leader, other = other, leader
    return times


@dataclass(frozen=True, slots=True)
class Stopped:
    """One SIGSTOP: the takeover in seconds, and what the old leader said at its first look after SIGCONT."""

    takeover_s: float
    leader_at_first_look: bool
    state_at_first_look: str


def stopped(arena: Arena, observer: Observer, rounds: int, lease_s: float) -> list[Stopped]:
    """SIGSTOP of the leader until the next ``on_acquired``; then SIGCONT, and its first look."""
    seen: list[Stopped] = []
    with ExitStack() as stack:
        pairs = []
        for lane in range(min(LANES, rounds)):
            one, two = (
                stack.enter_context(
                    arena.replica(f"stopped-{lane}-{n}", 10 + lane, health_s=lease_s / 3, lease_s=lease_s)
                )
                for n in (1, 2)
            )
            pairs.append((one, two))
        pairs = [_who_leads(observer, one, two) for one, two in pairs]
        while len(seen) < rounds:
            now = pairs[: rounds - len(seen)]
            for _, other in now:
                observer.until_waiting(other.name)
            arena.any_moment()
            seen += _stop_and_continue(now, lease_s)
            pairs = [(other, leader) for leader, other in pairs]
    return seen


def _stop_and_continue(pairs: list[tuple[Child, Child]], lease_s: float) -> list[Stopped]:
    """Stop the leaders at about the same time, each of its own pair."""
    for leader, _ in pairs:
        asked, at_least = leader.mark(), leader.signal(signal.SIGCONT)  # harmless to a process that runs: it looks
        if not leader.wait_for("look", asked, at_least=at_least)["is_leader"]:
            raise DidNotHappenError(f"{leader.name}: is_leader was False before it was stopped")
    marks = [(leader.mark(), other.mark()) for leader, other in pairs]
    at = [leader.signal(signal.SIGSTOP) for leader, _ in pairs]
    seen: list[Stopped] = []
    for (leader, other), (looked, got), stopped_at in zip(pairs, marks, at, strict=True):
        acquired = other.wait_for("acquired", got, within_s=lease_s + STARTS_WITHIN_S)
        continued = leader.signal(signal.SIGCONT)
        look = leader.wait_for("look", looked, at_least=continued)
        seen.append(Stopped(acquired["at"] - stopped_at, look["is_leader"], look["state"]))
    return seen


def _who_leads(observer: Observer, one: Child, two: Child) -> tuple[Child, Child]:
    """Two replicas that were just started: the one that leads, and the other, which waits."""
    deadline = time.monotonic() + STARTS_WITHIN_S
    while not one.mark() and not two.mark():
        if time.monotonic() > deadline:
            one.wait_for("acquired", within_s=0.0)
        time.sleep(0.01)
    leader, other = (one, two) if one.mark() else (two, one)
    leader.wait_for("acquired")
    observer.until_waiting(other.name)
    return leader, other
