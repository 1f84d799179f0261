"""One simulated process: a LeaderLock with a duty, on a loop and a clock of its own, and what it was told.

A process that was killed does not come back: a new one takes its place, with the same number.
"""

from __future__ import annotations

import asyncio
import os
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from pgelect import LeaderLock, LockState, ShutdownError, Term
from pgelect.errors import ForkedError
from tests.simulation.loop import DriftingClock, ProcessLoop
from tests.simulation.network import Network
from tests.simulation.stage import Machine
from tests.simulation.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from pgelect._engine.model import Backend
    from pgelect._engine.state import Snapshot
    from pgelect.testing._fake_cluster import FakeBackend
    from tests.simulation.simulation import Simulation


class Process(Machine):
    """A lock, its duty, and the machine they run on."""

    def __init__(self, name: str, simulation: Simulation) -> None:
        world, server, key, plan = simulation.world, simulation.server, simulation.key, simulation.plan
        self.name = name
        self.plan = plan
        self.alive = True  # not killed
        self.stopping = False  # asked to stop
        self.has_stopped = False  # in an orderly way
        self.has_successor = False
        self.working: int | None = None  # the number of the term that its duty works for
        self.seen: Snapshot | None = None  # by the checks, the last one
        self.releasing_since: float | None = None
        self.term: Term | None = None  # the last one that it heard of
        self.polled_at = -inf
        self.granted: dict[int, Backend] = {}  # the sessions of its terms, by token, the latest ones
        self.told: list[tuple[str, int]] = []  # ("acquired", token), then ("lost" or "released", token)
        self._world = world
        self._tell = simulation.checks.told
        self._failed = simulation.checks.failed
        self._trace = simulation.trace
        self._progress = simulation.checks.progress
        chance = world.chance
        self.clock = DriftingClock(world, plan.rate(chance), start=chance.uniform(0.0, 1e6))
        self.loop = ProcessLoop(world, self.clock, self._unhandled)
        self.network = Network(world, self.loop.hand_over)
        self.lock = LeaderLock("", key.key1, key.key2, identity=name, **plan.settings)
        self.settings = settings = self.lock._settings  # as it began; what it is given later is never longer
        self.bounds = self.lock.bounds()
        session = partial(
            server.session, key=key, identity=name, fencing=settings.fencing, new_wire=self.network.new_wire
        )
        self.lock._build(settings, lambda: session(lease_s=self.lock._settings.lease_s), self.clock)
        self.writer = Writer(self, world, server, key) if settings.fencing else None
        self._register()
        self.command("main", self._main())

    # What the world does with it

    def fork(self) -> list[str]:
        """Let a child be born and try everything; return what is wrong with it. The parent must not notice."""
        lock, child = self.lock, os.getpid() + 1
        wrong = []
        with patch.object(os, "getpid", lambda: child):
            if lock.is_leader or lock.term is not None or lock.state is not LockState.STOPPED:
                wrong.append("a forked child says that it leads")
            calls = (lock.start, lock.step_down, lock.shutdown, lock.run, lock.wait_for_leadership)
            wrong += [fault for call in calls if (fault := _went_on(call.__name__, call()))]
        return wrong

    async def shutdown(self) -> None:
        """Stop in an orderly way."""
        self.stopping = True
        timeout_s = self.plan.settings["drain_timeout_s"] + 2.0
        try:
            await self.lock.shutdown(timeout_s)
        except ShutdownError as error:
            self._trace(self.name, f"shutdown: {error}")
        if self.writer is not None:
            await self.writer.close()
        self.has_stopped = True

    async def step_down(self) -> None:
        """Give up leadership, if there is any."""
        await self.lock.step_down()

    async def reconfigure(self, share: float) -> None:
        """Let it go on with a part of the lease that it began with, and of what has to fit into that."""
        plan = self.plan.settings
        names = ("lease_s", "health_interval_s", "health_timeout_s")
        self.lock.reconfigure(**{name: plan[name] * share for name in names if plan[name] is not None})

    @property
    def leads(self) -> bool:
        """Whether its lock says so, at this very instant."""
        return self.alive and self.lock.is_leader

    @property
    def is_well(self) -> bool:
        """Whether nothing keeps it from leading."""
        return self.is_running and not self.loop.asleep and self.network.is_well

    def owns(self, backend: FakeBackend) -> bool:
        """Whether a session of the server is its own."""
        return backend.wire in self.network.wires

    # What it does itself

    async def _main(self) -> None:
        await self.lock.start()
        await self.lock.lead(self._duty, repeat=True)
        if not self.stopping:
            self._failed(self, f"its lock stopped by itself: {self.lock._runner.stop_reason!r}")

    async def _duty(self, term: Term) -> None:
        self.term = term
        self.working = number = self.lock._runner.snapshot.number
        chance = self._world.chance
        try:
            while True:
                await asyncio.sleep(chance.random() * self.plan.write_every_s)
                if self.writer is not None:
                    await self.writer.write(term.token)
        finally:
            try:
                if chance.random() < 0.3:  # cleaning up takes its time, sometimes more than there is
                    await asyncio.sleep(chance.random() * self.plan.settings["drain_timeout_s"] * 1.3)
            finally:
                if self.working == number:
                    self.working = None

    def _register(self) -> None:
        lock, chance = self.lock, self._world.chance

        @lock.on_acquired
        async def acquired(term: Term) -> None:
            self._note("acquired", term)
            if chance.random() < 0.1:
                await asyncio.sleep(chance.random() * self.plan.lease_s)

        @lock.on_lost
        async def lost(term: Term) -> None:
            self._note("lost", term)
            if chance.random() < 0.1:
                await asyncio.sleep(chance.random() * self.plan.lease_s)

        lock.on_acquire_failed(self._refused)
        lock.on_released(lambda term: self._note("released", term))
        lock.on_error(lambda error: self._trace(self.name, f"on_error {error}"))
        lock.on_state_change(self._changed)

    def _note(self, what: str, term: Term) -> None:
        self._trace(self.name, f"on_{what} {term.token}")
        self.term = term
        self.told.append((what, term.token))
        self._tell(self, what, term.token)

    def _refused(self, error: Exception | None) -> None:
        if error is None and self.plan.settings["acquire"] == "poll":
            self.polled_at = self._world.now()
            self._progress.polled()

    def _changed(self, before: LockState, after: LockState) -> None:
        self._trace(self.name, f"{before} -> {after}")

    def _unhandled(self, message: str, error: BaseException | None) -> None:
        self._failed(self, f"{message}: {error!r}")


def _went_on(name: str, call: Coroutine[Any, Any, Any]) -> str:
    """What is wrong with a call in a forked child, which must raise at once."""
    try:
        call.send(None)
    except ForkedError:
        return ""
    except BaseException as error:  # noqa: BLE001 -- whatever it is, it is wrong
        return f"{name}() in a forked child raised {error!r}"
    finally:
        call.close()
    return f"{name}() in a forked child went on"
