"""The faults that are the same for a single lock and for a group. Each undoes itself, or is undone at the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from tests.simulation.stage import Machine, Stage

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from pgelect.testing._fake_cluster import FakeBackend

P = TypeVar("P", bound=Machine)


class Faults(ABC, Generic[P]):
    """Breaks processes, links and the server, and counts what it broke."""

    LONGEST_LEASES: ClassVar[float]
    """How many leases a process sleeps, or is cut off, at the most."""

    def __init__(self, sim: Stage[P], chance: Random) -> None:
        self.counts: dict[str, int] = {}
        self.at_peace = False
        self._stage = sim
        self._chance = chance
        self._undo: dict[Callable[[], None], None] = {}

    # What differs

    @abstractmethod
    def _process(self) -> P | None:
        """Choose a process that runs."""

    @abstractmethod
    def _backend(self) -> FakeBackend | None:
        """Choose a session of a member or an elector."""

    @abstractmethod
    def _for_a_while(self, undo: Callable[[], None], longest_leases: float = 2.0) -> None:
        """Undo it after a time."""

    @abstractmethod
    def _wrong(self, process: P, what: str) -> None:
        """Say what is wrong with a process."""

    # When

    def _draw(self, faults: list[tuple[int, Callable[[], None]]]) -> Callable[[], None]:
        (fault,) = self._chance.choices([fault for _, fault in faults], [weight for weight, _ in faults])
        return fault

    def _undo_all(self) -> None:
        self.at_peace = True
        while self._undo:
            undo, _ = self._undo.popitem()
            undo()

    def _count(self, what: str, detail: object = "") -> None:
        self.counts[what] = self.counts.get(what, 0) + 1
        self._stage.trace("nemesis", f"{what} {detail}")

    # What happens to processes

    def pause(self) -> None:
        process = self._process()
        if process is not None and not process.loop.asleep:
            self._count("pause", process)
            process.loop.sleep()
            self._for_a_while(process.loop.wake, self.LONGEST_LEASES)

    def kill(self) -> None:
        process = self._process()
        if process is not None:
            self._count("kill", process)
            process.kill(without_a_word=False)
            self._stage.replace_later(process)

    def power_failure(self) -> None:
        process = self._process()
        if process is not None:
            self._count("power failure", process)
            process.kill(without_a_word=True)
            for wire in process.network.wires:
                self._stage.notice_later(wire)
            self._stage.replace_later(process)

    def restart_process(self) -> None:
        process = self._process()
        if process is not None and not process.loop.asleep:
            self._count("shutdown", process)
            process.command("shutdown", self._shut_down(process))

    async def _shut_down(self, process: P) -> None:
        await process.shutdown()
        self._stage.replace_later(process)

    def fork(self) -> None:
        process = self._process()
        if process is not None:
            self._count("fork", process)
            for wrong in process.fork():
                self._wrong(process, wrong)

    # What happens to links

    def partition(self) -> None:
        process = self._process()
        if process is not None:
            up, down = self._chance.choice(((True, True), (True, False), (False, True)))
            self._count("partition", f"{process} up={up} down={down}")
            process.network.block(up=up, down=down)
            self._for_a_while(process.network.unblock, self.LONGEST_LEASES)

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
            self._stage.server.cut(backend.id.pid)
            self._stage.notice_later(backend.wire)

    def cut_off(self) -> None:
        backend = self._backend()
        if backend is not None:
            self._count("cut off", f"{backend.id.pid}: only the server hears")
            self._stage.server.cut_off(backend.id.pid)

    # What happens on the server

    def terminate(self) -> None:
        backend = self._backend()
        if backend is not None:
            self._count("terminate", backend.id.pid)
            self._stage.server.terminate(backend.id.pid)

    def cancel(self) -> None:
        backend = self._backend()
        if backend is not None:
            self._count("cancel", backend.id.pid)
            self._stage.server.cancel(backend.id.pid)

    def freeze_server(self) -> None:
        self._count("freeze")
        self._stage.server.freeze()
        self._for_a_while(self._stage.server.thaw)

    def demote(self) -> None:
        self._count("demotion")
        self._stage.server.demote()
        self._for_a_while(self._stage.server.promote)
