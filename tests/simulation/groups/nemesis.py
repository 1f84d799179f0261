"""What goes wrong with a group, when, and for how long: drawn from the seed. Each fault undoes itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.faults import Faults
from tests.simulation.groups.process import GroupProcess

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgelect.testing._fake_cluster import FakeBackend
    from tests.simulation.groups.simulation import GroupSimulation


class GroupNemesis(Faults[GroupProcess]):
    """Breaks one simulation."""

    LONGEST_LEASES = 4.0

    def __init__(self, sim: GroupSimulation) -> None:
        super().__init__(sim, sim.world.chance)
        self._sim = sim
        self._faults: list[tuple[int, Callable[[], None]]] = [
            (4, self.pause),
            (4, self.kill),
            (1, self.power_failure),
            (3, self.restart_process),
            (3, self.step_down),
            (2, self.repartition),
            (1, self.fork),
            (2, self.ask),
            (4, self.partition),
            (2, self.slow_network),
            (3, self.cut),
            (3, self.cut_off),
            (5, self.terminate),
            (3, self.cancel),
            (1, self.strip),
            (2, self.restart_server),
            (1, self.freeze_server),
            (2, self.fail_over),
            (1, self.demote),
        ]
        self._next()

    def stop(self) -> None:
        """Make peace: undo all that is still broken."""
        self._undo_all()

    def _next(self) -> None:
        self._sim.world.call_later(self._chance.expovariate(1 / self._sim.plan.faults_every_s), self._strike)

    def _strike(self) -> None:
        if self.at_peace:
            return
        self._draw(self._faults)()
        self._next()

    def _for_a_while(self, undo: Callable[[], None], longest_leases: float = 2.0) -> None:
        def once() -> None:
            if self._undo.pop(undo, self._sim) is None:
                undo()

        self._undo[undo] = None
        self._sim.world.call_later(self._chance.random() * longest_leases * self._sim.plan.lease_s, once)

    def _wrong(self, process: GroupProcess, what: str) -> None:
        self._sim.checks.failed(process, what)

    def _process(self) -> GroupProcess | None:
        running = [process for process in self._sim.processes if process.is_running]
        return self._chance.choice(running) if running else None

    def _backend(self) -> FakeBackend | None:
        sessions = list(self._sim.cluster.backends.values())
        return self._chance.choice(sessions) if sessions else None

    # What happens to processes

    def step_down(self) -> None:
        process = self._process()
        if process is not None:
            leading = list(process.claims)
            which = self._chance.choice([None, *leading])
            self._count("step down", f"{process} {which or 'everything'}")
            process.command("step down", process.group.step_down(which))

    def repartition(self) -> None:
        """One process leaves a partition to the others for a while."""
        process, pair = self._process(), self._chance.choice(self._sim.partitions)
        if process is not None and pair in process.group.partitions and len(process.group.partitions) > 1:
            self._count("remove", f"{process} {pair}")

            async def remove() -> None:  # it may have been stopped meanwhile, and told the same twice
                if pair in process.group.partitions:
                    await process.group.remove(pair)

            process.command("remove", remove())

            async def add() -> None:
                if process.is_running and pair not in process.group.partitions:
                    process.group.add(pair)

            def undo() -> None:
                if process.alive:
                    process.command("add", add())

            self._for_a_while(undo)

    def ask(self) -> None:
        pair = self._chance.choice(self._sim.partitions)
        asked = self._sim.server.request_step_down(self._sim.key_of(pair))
        self._count("request", f"of {pair}: asked {asked}")

    # What happens on the server

    def strip(self) -> None:
        """A pooler's DISCARD ALL: the session goes on without its locks."""
        backend = self._backend()
        if backend is not None and backend.statement is None and not self._sim.cluster.is_frozen:
            self._count("discard all", backend.id.pid)
            self._sim.checks.stripped(backend)
            self._sim.server.unlock_all(backend.id.pid)

    def restart_server(self) -> None:
        immediate = self._chance.random() < 0.5
        self._count("restart", "immediate" if immediate else "fast")
        self._sim.server.stop(immediate=immediate)
        self._for_a_while(self._sim.server.start, 1.5)

    def fail_over(self) -> None:
        """The standby falls behind; after a while the primary dies, and the standby goes on without the tail."""
        self._count("promotion")
        self._sim.server.hold_back()

        def take_over() -> None:
            self._sim.server.fail_over()
            self._sim.trace("nemesis", f"promoted, timeline {self._sim.server.timeline}")

        self._for_a_while(take_over)
