"""One simulated process with a LeaderGroup: handlers that write under their terms' fences, and what it was told."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import TYPE_CHECKING
from unittest.mock import patch

from pgelect import GroupState, LeaderGroup, LockKey, ShutdownError, StaleTokenError, Term
from pgelect.errors import PgElectError
from tests.simulation.loop import DriftingClock, ProcessLoop
from tests.simulation.network import Network
from tests.simulation.stage import Machine

if TYPE_CHECKING:
    from pgelect.testing import FakeTransaction
    from tests.simulation.groups.simulation import GroupSimulation

Pair = tuple[int, int]


class GroupProcess(Machine):
    """A member, its handlers, and the machine they run on."""

    def __init__(self, name: str, sim: GroupSimulation) -> None:
        self.name = name
        self.alive = True
        self.stopping = False
        self.has_stopped = False
        self.has_successor = False
        self.refused = 0
        self.told: dict[Pair, list[tuple[str, int]]] = {}
        self.working: dict[Pair, int] = {}  # by partition: the token that a handler works for
        self.asked_at: dict[Pair, float] = {}  # when a handler was last asked to stop
        self.calm = False  # its handlers do not fail any more
        self._sim = sim
        self._writing: dict[FakeTransaction, None] = {}
        chance = sim.world.chance
        self.clock = DriftingClock(sim.world, sim.plan.rate(chance), start=chance.uniform(0.0, 1e6))
        self.loop = ProcessLoop(sim.world, self.clock, self._unhandled)
        self.network = Network(sim.world, self.loop.hand_over)
        self.weight = chance.choice((1.0, 1.0, 1.0, 2.0))
        group = LeaderGroup(
            "", keys=sim.partitions, group="group", identity=name, weight=self.weight, **sim.plan.settings
        )
        self.group = group
        session = partial(
            sim.server.group_session,
            group=group._settings.key,
            identity=name,
            lease_s=sim.plan.lease_s,
            weight=self.weight,
            new_wire=self.network.new_wire,
        )
        group._build(session, self.clock)
        group.on_acquired(lambda term: self._note("acquired", term))
        group.on_lost(lambda term: self._note("lost", term))
        group.on_released(lambda term: self._note("released", term))
        group.on_error(lambda error: sim.trace(name, f"on_error {error}"))
        group.on_state_change(lambda before, after: sim.trace(name, f"{before} -> {after}"))
        self.command("main", self._main())

    # What the world does with it

    def kill(self, *, without_a_word: bool) -> None:
        """End it. The system closes its links, unless its power failed."""
        super().kill(without_a_word=without_a_word)
        for transaction in list(self._writing):
            transaction.rollback()

    def fork(self) -> list[str]:
        """Let a child be born and look; return what is wrong with it."""
        child = os.getpid() + 1
        with patch.object(os, "getpid", lambda: child):
            if self.group.leading or self.group.state is not GroupState.STOPPED:
                return ["a forked child says that it leads"]
        return []

    async def shutdown(self) -> None:
        """Stop in an orderly way."""
        self.stopping = True
        try:
            await self.group.shutdown(self._sim.plan.settings["drain_timeout_s"] + 2.0)
        except ShutdownError as error:
            self._sim.trace(self.name, f"shutdown: {error}")
        self.has_stopped = True

    @property
    def claims(self) -> dict[Pair, int]:
        """The partitions that it says it leads at this very instant, and their tokens."""
        if not self.alive or not self.group._runner.is_trusted():
            return {}
        terms = self.group._runner.snapshot.terms
        return {(key.key1, key.key2): term.token for key, (_, term) in terms.items()}

    # What it does itself

    async def _main(self) -> None:
        await self.group.start()
        await self.group.lead(self._handle)
        if not self.stopping:
            self._sim.checks.failed(self, f"its group stopped by itself: {self.group._runner.stop_reason!r}")

    async def _handle(self, partition: Pair, term: Term) -> None:
        if partition in self.working:
            self._sim.checks.failed(self, f"two handlers work for {partition} in one process")
        self.working[partition] = term.token
        chance, plan = self._sim.world.chance, self._sim.plan
        try:
            while True:
                await asyncio.sleep(chance.random() * plan.write_every_s)
                await self._write(LockKey(*partition), term.token)
                if not self.calm and chance.random() < 0.01:
                    raise ValueError("the work cannot be done")
        except asyncio.CancelledError:
            self.asked_at[partition] = self._sim.world.now()
            raise
        finally:
            try:
                if chance.random() < 0.2:
                    await asyncio.sleep(chance.random() * plan.settings["drain_timeout_s"] * 1.3)
            finally:
                if self.working.get(partition) == term.token:
                    del self.working[partition]

    async def _write(self, key: LockKey, token: int) -> None:
        sim = self._sim
        if not sim.cluster.up or sim.cluster.in_recovery or sim.cluster.is_frozen:
            return
        try:
            transaction = sim.server.begin_fenced(key, token, killable=sim.plan.killable)
        except StaleTokenError:
            self.refused += 1
            return
        self._writing[transaction] = None
        try:
            transaction.write(token, sim.checks.new_value(key))
            await asyncio.sleep(sim.world.chance.random() * 0.3 * sim.plan.lease_s)
            transaction.commit()
        except PgElectError:  # the server ended it
            pass
        finally:
            transaction.rollback()
            del self._writing[transaction]

    def _note(self, what: str, term: Term) -> None:
        pair = (term.key.key1, term.key.key2)
        self._sim.trace(self.name, f"on_{what} {pair[1]} {term.token}")
        told = self.told.setdefault(pair, [])
        told.append((what, term.token))
        self._sim.checks.told(self, pair, told)

    def _unhandled(self, message: str, error: BaseException | None) -> None:
        self._sim.checks.failed(self, f"{message}: {error!r}")
