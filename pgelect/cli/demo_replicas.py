"""The demo's side of its replicas: start processes, hear what they report, stop and kill them.

Each is a process group of its own, so that the terminal's Ctrl-C reaches the demo alone. They end with the demo,
however it ends: their standard input ends with it, and on Linux the system kills them, stopped ones too.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pgelect.cli.demo_ledger import Line
from pgelect.cli.demo_worker import CONTROLLED

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

__all__ = ["DemoError", "Replica", "Replicas", "Report", "uninterrupted"]

T = TypeVar("T")
_END_WITHIN_S = 3.0
_PACKAGE_PLACE = Path(__file__).parents[2]


class DemoError(Exception):
    """The demo cannot go on; the message is for its user."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a replica said of itself, at an instant of the monotonic clock."""

    replica: Replica
    what: str
    at: float
    data: dict[str, Any]


class Replica:
    """One process."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.pid = process.pid
        self.state = "starting"
        self.token: int | None = None  # of its last term
        self.writes: list[Line] = []  # acknowledged ones
        self.fate: Literal["", "killed", "stopped", "ended"] = ""
        self.complaints: deque[str] = deque(maxlen=5)
        self._process = process

    @property
    def is_leader(self) -> bool:
        """Whether it leads, as far as it has said."""
        return self.state == "leader" and not self.fate

    @property
    def writes_in_term(self) -> int:
        """How many writes of its last term were acknowledged."""
        return sum(line.token == self.token for line in self.writes)

    def tell(self, **message: object) -> None:
        """Write one line to its standard input; also while it is stopped."""
        if self._process.stdin is not None:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")

    def kill(self) -> float:
        """Kill it with SIGKILL; gives the moment just before."""
        self.fate = "killed"
        return self._signal(signal.SIGKILL)

    def stop(self) -> float:
        """Stop it in its tracks with SIGSTOP; gives the moment just before."""
        self.fate = "stopped"
        return self._signal(signal.SIGSTOP)

    def go_on(self) -> float:
        """Let it go on with SIGCONT; gives the moment just before."""
        self.fate, self.state = "", "waking up"  # whatever it said last, it does not lead
        return self._signal(signal.SIGCONT)

    def dismiss(self) -> None:
        """Ask it to end by itself; a stopped one cannot, and is killed."""
        if self.fate == "stopped":
            self.kill()
        elif not self.fate:
            self.fate = "ended"
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _signal(self, number: signal.Signals) -> float:
        moment = time.monotonic()
        with suppress(ProcessLookupError):
            self._process.send_signal(number)
        return moment


class Replicas:
    """All of them, and everything they reported."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self.all: list[Replica] = []
        self.reports: list[Report] = []
        self._listeners: list[asyncio.Task[None]] = []
        self._news = asyncio.Event()
        self._ended: dict[Replica, int] = {}

    @property
    def living(self) -> list[Replica]:
        """Those that have not been killed or ended."""
        return [replica for replica in self.all if replica.fate in {"", "stopped"}]

    @property
    def leader(self) -> Replica | None:
        """The one that leads, as far as they have said."""
        return next((replica for replica in self.all if replica.is_leader), None)

    @property
    def acknowledged(self) -> list[Line]:
        """Every write that a replica knows to be committed."""
        return [line for replica in self.all for line in replica.writes]

    async def start(self) -> Replica:
        """Start one more."""
        # Until it is in the list nobody would end it.
        return await uninterrupted(self._spawn(f"replica-{len(self.all) + 1}"))

    async def first(
        self, wanted: Callable[[Report], bool], doing: str, *, since: int = 0, within_s: float = 20.0
    ) -> Report:
        """Return the first report from number ``since`` on that is wanted, waiting for it.

        Raises:
            DemoError: it did not come in time, or a replica ended that should not; ``doing`` says what was going on.
        """
        try:
            async with asyncio.timeout(within_s):
                while True:
                    self._news.clear()
                    for report in self.reports[since:]:
                        if wanted(report):
                            return report
                    self.check()
                    await self._news.wait()
        except TimeoutError:
            said = [f"{one.name}: {text}" for one in self.living for text in list(one.complaints)[-1:]]
            raise DemoError("; ".join([f"{doing}: did not happen within {within_s:g} s", *said])) from None

    def check(self) -> None:
        """Raise DemoError when a replica has ended that should not."""
        for replica, status in self._ended.items():
            if not replica.fate:
                why = "; ".join(replica.complaints) or "it said nothing"
                raise DemoError(f"{replica.name} ended by itself (exit status {status}): {why}")

    async def end(self) -> None:
        """End all that live, and hear them out. May be repeated."""
        for replica in self.all:
            replica.dismiss()
        if self._listeners:
            _, late = await asyncio.wait(self._listeners, timeout=_END_WITHIN_S)
            if late:
                for replica in self.all:
                    if replica not in self._ended:
                        replica.kill()
                await asyncio.wait(self._listeners)

    async def _spawn(self, name: str) -> Replica:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "pgelect.cli.demo_worker", CONTROLLED, name,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=_environment(),
            process_group=0,
        )  # fmt: skip
        replica = Replica(name, process)
        self.all.append(replica)
        self._listeners.append(asyncio.create_task(self._listen(replica, process)))
        replica.tell(name=name, dsn=self._dsn)  # not in its arguments, which everybody can see
        return replica

    async def _listen(self, replica: Replica, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None  # noqa: S101 -- for the type checker; both are pipes
        assert process.stderr is not None  # noqa: S101
        complaining = asyncio.create_task(_collect(process.stderr, replica.complaints))
        async for line in process.stdout:
            with suppress(ValueError, KeyError):  # a line cut short by SIGKILL
                self._hear(replica, json.loads(line))
        await complaining
        self._ended[replica] = await process.wait()
        self._news.set()

    def _hear(self, replica: Replica, said: dict[str, Any]) -> None:
        report = Report(replica, said["what"], said["at"], said)
        match report.what:
            case "state":
                replica.state = said["state"]
            case "acquired":
                replica.token = said["token"]
            case "wrote":
                replica.writes.append(Line(said["seq"], said["token"], replica.name))
            case "error" | "failed":
                replica.complaints.append(said["text"])
        self.reports.append(report)
        self._news.set()


async def uninterrupted(work: Coroutine[Any, Any, T]) -> T:
    """Await ``work`` to its end, also when cancelled meanwhile; the cancel is raised after it."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # seen
        raise


async def _collect(stream: asyncio.StreamReader, into: deque[str]) -> None:
    async for line in stream:
        into.append(line.decode(errors="replace").rstrip())


def _environment() -> dict[str, str]:
    """Our own, in which the replica finds this very pgelect even when it is not installed."""
    if _PACKAGE_PLACE.name.endswith("-packages"):
        return dict(os.environ)
    places = [str(_PACKAGE_PLACE), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
