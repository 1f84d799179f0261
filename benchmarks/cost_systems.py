"""What one leader and one follower of each system cost while nothing happens, all systems at the same time.

Each has a server of its own, so nobody's load is in another's figures, and idle systems leave the machine idle. First
the leaders are watched alone, then with a second process: what the server does more in the second window is that one's.
With most systems it follows; there are some with which who comes last leads, and that is told.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.process import STARTS_WITHIN_S, Child, DidNotHappenError
from benchmarks.telling import progress
from benchmarks.usage import Metered, Usage, Window, windows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.systems import System

_LEADER, _SECOND = "leader", "second"
_LEADS_WITHIN_S = 60.0
"""There are systems that elect nobody before their first half a minute is over."""
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one system.

    Attributes:
        alone: the leader, in the first window.
        second: the process that came later, in the second window.
        second_leads: whether that has led since; then the first one may not.
        server_alone_ms_per_s, server_both_ms_per_s: processor time of the whole server, for each second.
        written_alone_per_s, written_both_per_s: bytes of log; None where the server keeps none.
    """

    system: str
    version: str
    window_s: float
    alone: Usage
    second: Usage
    second_leads: bool
    server_alone_ms_per_s: float
    server_both_ms_per_s: float
    written_alone_per_s: float | None
    written_both_per_s: float | None


class _Booth:
    """One system on its own server."""

    def __init__(self, system: System, stack: ExitStack) -> None:
        self.system = system
        self._stack = stack
        self.store = stack.enter_context(system.store())
        self.metered = stack.enter_context(Metered(self.store))
        self._children: dict[str, Child] = {}

    def start(self, lane: str) -> None:
        """Start a process on a lane of its own."""
        child = self.system.start(self.metered.lane(lane), lane)
        self._children[lane] = self._stack.enter_context(child)

    def until_it_leads(self) -> None:
        """Return when the first process leads."""
        self._children[_LEADER].wait_for("acquired", within_s=_LEADS_WITHIN_S)

    def until_connected(self) -> None:
        """Return when the second process is connected."""
        deadline = time.monotonic() + STARTS_WITHIN_S
        while self.metered.traffic(_SECOND).connects == 0:
            if time.monotonic() > deadline:
                raise DidNotHappenError(f"{self.system.name}: the second process did not connect")
            time.sleep(_POLL_S)

    def clients(self) -> dict[str, list[int]]:
        """Give the processes on each lane."""
        return {lane: [child.pid] for lane, child in self._children.items()}

    def second_leads(self) -> bool:
        """Whether the second process has led."""
        return bool(self._children[_SECOND].events("acquired"))


def by_system(systems: Sequence[System], settle_s: float, window_s: float) -> list[Costs]:
    """Measure all of them."""
    with ExitStack() as stack:
        booths = []
        for system in systems:
            progress(f"a server for {system.name}")
            booths.append(_Booth(system, stack))
        progress("the leaders, alone")
        for booth in booths:
            booth.start(_LEADER)
        for booth in booths:
            booth.until_it_leads()
        time.sleep(settle_s)
        alone = _watch_all(booths, window_s)
        progress("and with a second process each")
        for booth in booths:
            booth.start(_SECOND)
        for booth in booths:
            booth.until_connected()
        time.sleep(settle_s)
        both = _watch_all(booths, window_s)
        return [
            Costs(
                system=booth.system.name,
                version=booth.store.version,
                window_s=one.window_s,
                alone=one.lanes[_LEADER],
                second=two.lanes[_SECOND],
                second_leads=booth.second_leads(),
                server_alone_ms_per_s=one.server_ms_per_s,
                server_both_ms_per_s=two.server_ms_per_s,
                written_alone_per_s=one.written_per_s,
                written_both_per_s=two.written_per_s,
            )
            for booth, one, two in zip(booths, alone, both, strict=True)
        ]


def _watch_all(booths: list[_Booth], window_s: float) -> list[Window]:
    """Measure all in the same window."""
    return windows(window_s, [(booth.metered, booth.clients()) for booth in booths])
