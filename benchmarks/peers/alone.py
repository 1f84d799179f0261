"""One candidate in a program of its own, as it is deployed, and with nothing that it would not do by itself.

    python -m benchmarks.peers.alone MODULE SYSTEM SETTINGS URL NAME

Its time on the processor and its memory are to be its own. So it is not forked, and it looks at what it believes once a
second and when its elector says that something changed. It reports "acquired" and "lost", and ends when it is killed.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
import time
from typing import TYPE_CHECKING

from benchmarks.peers.elector import Place
from benchmarks.process import report

if TYPE_CHECKING:
    from benchmarks.peers.elector import Candidate

ELECTION = "cost"
_LOOK_EVERY_S = 1.0


async def live(candidate: Candidate) -> None:
    """Campaign, and report."""
    told = False

    def look(at: float | None = None) -> None:
        nonlocal told
        leads = candidate.leads()
        if leads is not told:
            told = leads
            report("acquired" if leads else "lost", time.monotonic() if at is None else at)

    campaign = asyncio.create_task(candidate.campaign(lambda: None, look))
    while not campaign.done():
        await asyncio.wait({campaign}, timeout=_LOOK_EVERY_S)
        look()
    campaign.result()


def main() -> None:
    """Read the command line, and run."""
    module, system, settings, url, name = sys.argv[1:]
    elector = importlib.import_module(module)
    (values,) = (
        each.values for one in elector.SYSTEMS if one.name == system for each in one.settings if each.name == settings
    )
    asyncio.run(live(elector.candidate(Place(url, ELECTION, name, values))))


if __name__ == "__main__":
    main()
