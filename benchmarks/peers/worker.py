"""The processes of one elector: each takes part in an election, and reports when it begins and ceases to believe.

    python -m benchmarks.peers.worker MODULE SOCKET      started by benchmarks.peers.nursery

A candidate reports "ready", "acquired" and "lost", and after SIGCONT "look", whatever it then believes. It looks when
its elector says that something changed, and by itself: every millisecond from the command ``watch`` on and after each
change, then ever less often, so that what is found out by looking is late by no more than a thousandth of the time.
The other command is ``resign``.
"""

from __future__ import annotations

import asyncio
import importlib
import signal
import sys
import time
import traceback
from typing import TYPE_CHECKING

from benchmarks.peers.elector import Place
from benchmarks.peers.nursery import serve
from benchmarks.process import report

if TYPE_CHECKING:
    from benchmarks.peers.elector import Candidate

_REST_S = 0.05
"""Between two looks while nobody watches."""
_FINEST_S, _COARSEST_S, _LATENESS = 0.001, 0.01, 0.001


class Watch:
    """Looks at what a candidate believes, and reports when that changes."""

    def __init__(self, candidate: Candidate) -> None:
        self._candidate = candidate
        self._loop = asyncio.get_running_loop()
        self._told = False
        self._continued = 0
        self._since: float | None = None  # when watching began, or the last change
        self._next: asyncio.TimerHandle | None = None
        signal.signal(signal.SIGCONT, self._look_first)
        self._look_by_itself()

    def watch(self) -> None:
        """Look often from now on."""
        self._since = time.monotonic()
        if self._next is not None:
            self._next.cancel()
        self._look_by_itself()

    def look(self, at: float | None = None) -> None:
        """Look now; what has changed, has at that time."""
        continued = self._continued
        now, leads = time.monotonic(), self._candidate.leads()
        if continued != self._continued:  # stopped in between: that was reported when it went on
            return
        if leads is not self._told:
            self._told = leads
            if self._since is not None:
                self._since = now
            report("acquired" if leads else "lost", now if at is None else at)

    def end(self) -> None:
        """Believe nothing any more: the elector ended with an error, which its user gets."""
        if self._told:
            report("lost", time.monotonic())

    def _look_first(self, *_: object) -> None:
        # What runs first after SIGCONT, before the event loop does.
        at, self._told = time.monotonic(), self._candidate.leads()
        self._continued += 1
        self._since = at
        report("look", at, leads=self._told)

    def _look_by_itself(self) -> None:
        self.look()
        pause_s = _REST_S
        if self._since is not None:
            pause_s = min(max(_FINEST_S, (time.monotonic() - self._since) * _LATENESS), _COARSEST_S)
        self._next = self._loop.call_later(pause_s, self._look_by_itself)


async def take_part(candidate: Candidate) -> None:
    """Campaign, and do what the commands say."""
    watch = Watch(candidate)
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    campaign = asyncio.create_task(
        candidate.campaign(lambda: report("ready", time.monotonic()), watch.look), name="campaign"
    )
    hearing = asyncio.create_task(_hear(commands, candidate, watch))
    await asyncio.wait({campaign, hearing}, return_when=asyncio.FIRST_COMPLETED)
    if campaign.done():
        watch.end()
    for task in (campaign, hearing):
        if task.done():
            task.result()


async def _hear(commands: asyncio.StreamReader, candidate: Candidate, watch: Watch) -> None:
    while line := (await commands.readline()).strip():
        if line == b"watch":
            watch.watch()
        elif line == b"resign":
            report("resigning", time.monotonic())
            await candidate.resign()
            watch.look()
            report("resigned", time.monotonic())


def main() -> None:
    module, descriptor = sys.argv[1], int(sys.argv[2])
    elector = importlib.import_module(module)
    values = {(system.name, way.name): way.values for system in elector.SYSTEMS for way in system.settings}
    for need in {need for system in elector.SYSTEMS for need in system.needs}:
        importlib.import_module(need)

    def live(arguments: list[str]) -> None:
        system, way, url, election, name = arguments

        async def a_life() -> None:
            await take_part(elector.candidate(Place(url, election, name, values[system, way])))

        try:
            asyncio.run(a_life())
        except BaseException:  # noqa: BLE001 -- here the process ends
            traceback.print_exc()
            sys.stderr.flush()

    serve(descriptor, live)


if __name__ == "__main__":
    main()
