"""What every simulation is played on: processes that come and go, links that are found dead, and a trace."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from tests.simulation.plan import REPLACED_AFTER_S

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Coroutine

    from pgelect.testing import FakeServer
    from pgelect.testing._fake_cluster import Cluster
    from pgelect.testing._fake_wire import Wire
    from tests.simulation.loop import ProcessLoop
    from tests.simulation.network import Network
    from tests.simulation.world import World

TRACE_MAX = 400


class Machine(ABC):
    """What a process runs on: a loop, a network, and power."""

    name: str
    alive: bool  # not killed
    stopping: bool  # asked to stop
    has_stopped: bool  # in an orderly way
    has_successor: bool
    loop: ProcessLoop
    network: Network

    def __repr__(self) -> str:
        return self.name

    def command(self, what: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Have it do something."""
        return self.loop.start(work, f"{self.name} {what}")

    def kill(self, *, without_a_word: bool) -> None:
        """End it. The system closes its links, unless its power failed."""
        self.alive = False
        self.loop.dead = True
        if without_a_word:
            self.network.power_off()
        else:
            self.network.hang_up()

    def bury(self) -> None:
        """Leave nothing of it in memory."""
        self.kill(without_a_word=True)
        self.loop.bury()

    @abstractmethod
    async def shutdown(self) -> None:
        """Stop in an orderly way."""

    @abstractmethod
    def fork(self) -> list[str]:
        """Let a child be born; return what is wrong with it."""

    @property
    def is_running(self) -> bool:
        """Whether it was neither killed nor asked to stop."""
        return self.alive and not self.stopping


P = TypeVar("P", bound=Machine)


class Planned(Protocol):
    """What is asked of a plan here."""

    @property
    def lease_s(self) -> float:
        """The lease that every process begins with."""


class Stage(ABC, Generic[P]):
    """One seed of a simulation."""

    world: World
    server: FakeServer
    cluster: Cluster
    plan: Planned
    processes: list[P]
    dead: list[P]
    _lines: list[tuple[float, str, str]]

    @property
    @abstractmethod
    def troubled(self) -> bool:
        """There is no peace yet."""

    @abstractmethod
    def _add(self, name: str) -> None:
        """Start a process of that name."""

    def trace(self, who: str, what: str) -> None:
        """Write down what happened."""
        self._lines.append((self.world.now(), who, what))

    def readable(self) -> list[str]:
        """The last lines of the trace."""
        head = [f"plan: {self.plan}"]
        left_out = len(self._lines) - TRACE_MAX
        if left_out > 0:
            head.append(f"... {left_out} lines before")
        return [*head, *(f"{at:10.4f}  {who:<8} {what}" for at, who, what in self._lines[-TRACE_MAX:])]

    def replace_later(self, process: P) -> None:
        """Start a new process in the place of one that has ended."""
        self.world.call_later(
            self.world.chance.random() * REPLACED_AFTER_S,
            lambda: self._replace(process) if self.troubled else None,
        )

    def notice_later(self, wire: Wire) -> None:
        """Have the server's system find out, in time, that nobody is at the other end of a link (tcp_user_timeout)."""

        def notice() -> None:
            for backend in list(self.cluster.backends.values()):
                if backend.wire is wire:
                    self.server.cut_off(backend.id.pid)

        self.world.call_later(2 * self.plan.lease_s, notice)

    def fill_up(self) -> None:
        """Start a process for each that does not run any more."""
        for process in list(self.processes):
            if not process.alive or process.has_stopped:
                self._replace(process)
            elif process.stopping:
                self._succeed(process)

    def _replace(self, process: P) -> None:
        if process in self.processes:
            self.trace("world", f"{process} is replaced")
            self.processes.remove(process)
            self.dead.append(process)
            self._succeed(process)

    def _succeed(self, process: P) -> None:
        if not process.has_successor:
            process.has_successor = True
            number, _, generation = process.name.partition(".")
            self._add(f"{number}.{int(generation or 0) + 1}")

    def _bury_all(self) -> None:
        self.world.after_each = lambda: None
        for process in (*self.processes, *self.dead):
            process.bury()
