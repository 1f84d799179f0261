"""What goes wrong with a group, when, and for how long: drawn from the seed. Each fault undoes itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgelect.testing._fake_cluster import FakeBackend
    from tests.simulation.groups.process import GroupProcess
    from tests.simulation.groups.simulation import GroupSimulation


class GroupNemesis:
    """Breaks one simulation."""

    def __init__(self, sim: GroupSimulation) -> None:
        self.counts: dict[str, int] = {}
        self.at_peace = False
        self._sim = sim
        self._chance = sim.world.chance
        self._undo: dict[Callable[[], None], None] = {}
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
        self.at_peace = True
        while self._undo:
            undo, _ = self._undo.popitem()
            undo()

    def _next(self) -> None:
        self._sim.world.call_later(self._chance.expovariate(1 / self._sim.plan.faults_every_s), self._strike)

    def _strike(self) -> None:
        if self.at_peace:
            return
        (fault,) = self._chance.choices([fault for _, fault in self._faults], [weight for weight, _ in self._faults])
        fault()
        self._next()

    def _for_a_while(self, undo: Callable[[], None], longest_leases: float = 2.0) -> None:
        def once() -> None:
            if self._undo.pop(undo, self._sim) is None:
                undo()

        self._undo[undo] = None
        self._sim.world.call_later(self._chance.random() * longest_leases * self._sim.plan.lease_s, once)

    def _count(self, what: str, detail: object = "") -> None:
        self.counts[what] = self.counts.get(what, 0) + 1
        self._sim.trace("nemesis", f"{what} {detail}")

    def _process(self) -> GroupProcess | None:
        running = [process for process in self._sim.processes if process.is_running]
        return self._chance.choice(running) if running else None

    def _backend(self) -> FakeBackend | None:
        sessions = list(self._sim.cluster.backends.values())
        return self._chance.choice(sessions) if sessions else None

    # What happens to processes

    def pause(self) -> None:
        process = self._process()
        if process is not None and not process.loop.asleep:
            self._count("pause", process)
            process.loop.sleep()
            self._for_a_while(process.loop.wake, 4.0)

    def kill(self) -> None:
        process = self._process()
        if process is not None:
            self._count("kill", process)
            process.kill(without_a_word=False)
            self._sim.replace_later(process)

    def power_failure(self) -> None:
        process = self._process()
        if process is not None:
            self._count("power failure", process)
            process.kill(without_a_word=True)
            for wire in process.network.wires:
                self._sim.notice_later(wire)
            self._sim.replace_later(process)

    def restart_process(self) -> None:
        process = self._process()
        if process is not None and not process.loop.asleep:
            self._count("shutdown", process)
            process.command("shutdown", self._shut_down(process))

    async def _shut_down(self, process: GroupProcess) -> None:
        await process.shutdown()
        self._sim.replace_later(process)

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

    def fork(self) -> None:
        process = self._process()
        if process is not None:
            self._count("fork", process)
            for wrong in process.fork():
                self._sim.checks.failed(process, wrong)

    def ask(self) -> None:
        pair = self._chance.choice(self._sim.partitions)
        asked = self._sim.server.request_step_down(self._sim.key_of(pair))
        self._count("request", f"of {pair}: asked {asked}")

    # What happens to links

    def partition(self) -> None:
        process = self._process()
        if process is not None:
            up, down = self._chance.choice(((True, True), (True, False), (False, True)))
            self._count("partition", f"{process} up={up} down={down}")
            process.network.block(up=up, down=down)
            self._for_a_while(process.network.unblock, 4.0)

    def slow_network(self) -> None:
        process = self._process()
        if process is not None:
            self._count("slow network", process)
            process.network.be_slow()
            self._for_a_while(process.network.be_fast)

    def cut(self) -> None:
        backend = self._backend()
        if backend is not None:
            self._count("cut", f"{backend.id.pid}: only the client hears")
            self._sim.server.cut(backend.id.pid)
            self._sim.notice_later(backend.wire)

    def cut_off(self) -> None:
        backend = self._backend()
        if backend is not None:
            self._count("cut off", f"{backend.id.pid}: only the server hears")
            self._sim.server.cut_off(backend.id.pid)

    # What happens on the server

    def terminate(self) -> None:
        backend = self._backend()
        if backend is not None:
            self._count("terminate", backend.id.pid)
            self._sim.server.terminate(backend.id.pid)

    def cancel(self) -> None:
        backend = self._backend()
        if backend is not None:
            self._count("cancel", backend.id.pid)
            self._sim.server.cancel(backend.id.pid)

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

    def freeze_server(self) -> None:
        self._count("freeze")
        self._sim.server.freeze()
        self._for_a_while(self._sim.server.thaw)

    def fail_over(self) -> None:
        """The standby falls behind; after a while the primary dies, and the standby goes on without the tail."""
        self._count("promotion")
        self._sim.server.hold_back()

        def take_over() -> None:
            self._sim.server.fail_over()
            self._sim.trace("nemesis", f"promoted, timeline {self._sim.server.timeline}")

        self._for_a_while(take_over)

    def demote(self) -> None:
        self._count("demotion")
        self._sim.server.demote()
        self._for_a_while(self._sim.server.promote)
