"""The event loop of one simulated process: asyncio's tasks and futures run on it, in the time of a drifting clock.

Rules:

- A process that sleeps (stopped, as by SIGSTOP) runs nothing; what became due or arrived meanwhile is there when it
  wakes, all at once, as with a real one.
- A process runs until it has nothing to do, but now and then it is interrupted between two turns of its loop.
- An unhandled error is a fault of the program: it is handed to `on_error`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator
    from contextvars import Context

    from tests.simulation.world import Due, World

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

TURNS_MAX, SPIN_S = 10_000, 0.1
"""A loop that turns this often within so short a time spins."""
ASKED_MAX = 20_000
"""A process that asks for the time this often at one instant spins, too."""
INTERRUPTED = 0.02
"""How likely a process is interrupted between two turns."""
TURN_S = 1e-4
"""The longest time that a process waits for its CPU."""


class SpinError(Exception):
    """A process does something over and over without time passing."""


class Call(asyncio.TimerHandle):
    """A callback, due now or later."""

    due: Due | None = None

    def cancel(self) -> None:
        super().cancel()
        if self.due is not None:
            self.due.cancel()


class DriftingClock:
    """A monotonic clock that does not run at the true rate."""

    def __init__(self, world: World, rate: float, start: float) -> None:
        self._world = world
        self.rate = rate
        self._start = start
        self._asked = self._asked_at = 0

    def time(self) -> float:
        """The local time, in seconds."""
        return self._start + self.rate * self._world.now()

    def now(self) -> float:
        """The local time, as a lock asks for it: again and again, while nothing else happens, if it spins."""
        self._asked += 1
        if self._asked > ASKED_MAX:
            if self._asked_at == self._world.steps:
                raise SpinError("a process spins: it never waits")
            self._asked, self._asked_at = 0, self._world.steps
        return self.time()


class ProcessLoop(asyncio.BaseEventLoop):
    """One process's event loop, stepped by the world."""

    def __init__(
        self, world: World, clock: DriftingClock, on_error: Callable[[str, BaseException | None], None]
    ) -> None:
        self._world = world
        self._drifting = clock
        self._on_error = on_error
        self._calls: deque[Call] = deque()
        self._turn: Due | None = None
        self._turns, self._turns_since = 0, 0.0
        self._tasks: dict[asyncio.Task[Any], None] = {}  # strong, and in order
        self.asleep = False
        self.dead = False

    # What asyncio asks of a loop

    def time(self) -> float:
        return self._drifting.time()

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self.dead

    def is_closed(self) -> bool:
        return self.dead

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        task: asyncio.Task[T] = asyncio.Task(coro, loop=self, name=str(name), context=context)
        self._tasks[task] = None
        task.add_done_callback(self._forget)
        return task

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        call = Call(self.time(), callback, args, self, context)
        self._calls.append(call)
        self._want_turn()
        return call

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        call = Call(self.time() + delay, callback, args, self, context)
        call.due = self._world.call_later(delay / self._drifting.rate, lambda: self._fire(call))
        return call

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_later(when - self.time(), callback, *args, context=context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.dead:
            self._on_error(str(context.get("message")), context.get("exception"))

    # What the simulation does with it

    @property
    def tasks(self) -> list[asyncio.Task[Any]]:
        """The tasks that have not ended."""
        return list(self._tasks)

    def start(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Begin a task, from outside. If it fails, that is a fault of the program."""
        task = self.create_task(work, name=name)
        task.add_done_callback(self._ended)
        return task

    def hand_over(self, deliver: Callable[[], None]) -> None:
        """Give the process something that has arrived for it."""
        if not self.dead:
            self.call_soon(deliver)

    def sleep(self) -> None:
        """Stop running, as by SIGSTOP."""
        self.asleep = True

    def wake(self) -> None:
        """Go on."""
        self.asleep = False
        self._want_turn()

    def bury(self) -> None:
        """End the tasks of a dead process, so that it leaves nothing in memory: nobody sees or hears what they do."""
        self.dead = True
        self._turns = 0
        for _ in range(TURNS_MAX):
            for task in self.tasks:
                task.cancel()
            if not self._tasks:
                return
            self._run(interrupted=0.0)
        raise SpinError("the tasks of a dead process do not end")

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self.dead:
            self._on_error(f"task {task.get_name()} failed", error)

    def _fire(self, call: Call) -> None:
        if not self.dead:
            self._calls.append(call)
            self._want_turn()

    def _want_turn(self) -> None:
        if self._turn is None and not self.asleep and not self.dead:
            self._turn = self._world.call_later(self._world.chance.random() * TURN_S, self._take_turn)

    def _take_turn(self) -> None:
        self._turn = None
        if not self.asleep and not self.dead:
            self._run(INTERRUPTED)
            if self._calls:
                self._want_turn()

    def _run(self, interrupted: float) -> None:
        if self._world.now() - self._turns_since > SPIN_S:
            self._turns, self._turns_since = 0, self._world.now()
        asyncio._set_running_loop(self)
        try:
            while self._turns < TURNS_MAX:
                self._turns += 1
                for _ in range(len(self._calls)):
                    call = self._calls.popleft()
                    if not call.cancelled():
                        call._run()
                if not self._calls or self._world.chance.random() < interrupted:
                    return
        finally:
            asyncio._set_running_loop(None)
        raise SpinError("a process spins: it does the same over and over while hardly any time passes")
