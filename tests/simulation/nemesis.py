"""What goes wrong, when, and for how long: drawn from the seed. Each fault undoes itself, or is undone at the end."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from tests.simulation.faults import Faults
from tests.simulation.plan import LEASES_S
from tests.simulation.process import Process

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgelect.testing._fake_cluster import FakeBackend
    from tests.simulation.simulation import Simulation

LEASE_SHARES = (0.5, 0.75, 1.0)
"""Of the lease that a process began with; never more, for the bounds that are checked follow from that one."""
LONG = 0.04
"""How likely a fault lasts for longer than a takeover may take."""


class Nemesis(Faults[Process]):
    """Breaks one simulation."""

    LONGEST_LEASES = 5.0

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation, simulation.world.chance)
        self._sim = simulation
        self._world = simulation.world
        self._progress = simulation.checks.progress
        self._takeover_s = simulation.limits.takeover_s
        self._pressed: dict[Process, None] = {}
        self._quiet_s = 0.0
        self._faults: list[tuple[int, Callable[[], None]]] = [
            (4, self.pause),
            (3, self.kill),
            (1, self.power_failure),
            (2, self.restart_process),
            (2, self.step_down),
            (1, self.fork),
            (4, self.reconfigure),
            (2, self.ask),
            (1, self.call),
            (4, self.partition),
            (2, self.slow_network),
            (3, self.cut),
            (3, self.cut_off),
            (5, self.terminate),
            (2, self.terminate_writer),
            (2, self.cancel),
            (2, self.strip),
            (2, self.restart_server),
            (2, self.freeze_server),
            (2, self.fail_over),
            (1, self.demote),
        ]
        self._next()

    def stop(self) -> None:
        """Make peace: undo all that is still broken."""
        self._progress.fault_at = self._world.now()
        self._undo_all()
        for process in self._pressed:  # two messages may take longer than so short a lease leaves for a proof
            if process.is_running:
                process.command("reconfigure", process.reconfigure(1.0))

    # When

    def _next(self) -> None:
        quiet_s, self._quiet_s = self._quiet_s, 0.0
        self._world.call_later(quiet_s + self._chance.expovariate(1 / self._sim.plan.faults_every_s), self._strike)

    def _strike(self) -> None:
        if self.at_peace:
            return
        fault = self._draw(self._faults)
        self._progress.fault_at = self._world.now()
        fault()
        self._next()

    def _for_a_while(self, undo: Callable[[], None], longest_leases: float = 2.0) -> None:
        def once() -> None:
            if self._undo.pop(undo, self._sim) is None:
                self._progress.fault_at = self._world.now()
                undo()

        self._undo[undo] = None
        lasts_s = self._chance.random() * longest_leases * self._sim.plan.lease_s
        if self._chance.random() < LONG and self._takeover_s < inf:
            # Nothing else happens meanwhile: somebody else has to lead before it is over.
            lasts_s = self._quiet_s = self._takeover_s + 1.2 * self._sim.plan.lease_s
            self._sim.ends_at = max(self._sim.ends_at, self._world.now() + lasts_s + 0.1)
        self._world.call_later(lasts_s, once)

    def _wrong(self, process: Process, what: str) -> None:
        self._sim.checks.violate(f"{process}: {what}")

    # Whom: mostly the leader

    def _process(self) -> Process | None:
        alive = [process for process in self._sim.processes if process.alive and not process.stopping]
        leading = [process for process in alive if process.lock.is_leader]
        if leading and self._chance.random() < 0.6:
            return leading[0]
        return self._chance.choice(alive) if alive else None

    def _backend(self) -> FakeBackend | None:
        cluster = self._sim.cluster
        sessions = [backend for backend in cluster.backends.values() if backend.lease_s is not None]
        holder = cluster.locks.holder(self._sim.key)
        if holder is not None and self._chance.random() < 0.6:
            return holder
        return self._chance.choice(sessions) if sessions else None

    # What happens to processes

    def step_down(self) -> None:
        process = self._process()
        if process is not None:
            self._count("step down", process)
            process.command("step down", process.step_down())

    def reconfigure(self) -> None:
        process = self._process()
        if process is not None:
            share = self._chance.choice(LEASE_SHARES)
            if self._chance.random() < 0.5:  # the proof that would tell the server of it does not get there
                process.network.block(up=True, down=self._chance.random() < 0.5)
                self._for_a_while(process.network.unblock, self.LONGEST_LEASES)
            self._count("reconfigure", f"{process}: {share:g} of its lease")
            process.command("reconfigure", process.reconfigure(share))
            if share * self._sim.plan.lease_s < min(LEASES_S):
                self._pressed[process] = None

    # What operators and strangers ask for

    def ask(self) -> None:
        row = self._sim.server.row(self._sim.key)
        token = None if row is None else self._chance.choice((None, row.token, row.token - 1))
        self._count("request", f"of term {token}: asked {self._sim.server.request_step_down(self._sim.key, token)}")

    def call(self) -> None:
        self._count("call")
        self._sim.server.call(self._sim.key)

    # What happens on the server

    def terminate_writer(self) -> None:
        clients = self._sim.server.clients()
        if clients:
            pid = self._chance.choice(clients)
            self._count("terminate writer", pid)
            self._sim.server.terminate(pid)

    def strip(self) -> None:
        """A pooler's DISCARD ALL: the session goes on without its lock."""
        holder = self._sim.cluster.locks.holder(self._sim.key)
        can = holder is not None and holder.statement is None and not self._sim.cluster.is_frozen
        if holder is not None and can:  # only the session itself can do it, between statements
            self._count("discard all", holder.id.pid)
            self._sim.checks.stripped(holder)
            self._sim.server.unlock_all(holder.id.pid)

    def restart_server(self) -> None:
        immediate = self._chance.random() < 0.5
        self._count("restart", "immediate" if immediate else "fast")
        with self._sim.losing():
            self._sim.server.stop(immediate=immediate)
        self._for_a_while(self._sim.server.start, 1.5)

    def fail_over(self) -> None:
        """The standby falls behind; after a while the primary dies, and later the standby goes on without the tail."""
        self._count("promotion")
        self._sim.server.hold_back()

        def take_over() -> None:
            with self._sim.losing():
                self._sim.server.fail_over()
            self._sim.trace("nemesis", f"promoted, timeline {self._sim.server.timeline}")

        def die() -> None:
            self._sim.trace("nemesis", "the primary dies")
            self._sim.server.stop(immediate=True)
            if not self.at_peace and self._chance.random() < 0.7:
                self._for_a_while(take_over, 0.5)
            else:
                take_over()

        self._for_a_while(die)
