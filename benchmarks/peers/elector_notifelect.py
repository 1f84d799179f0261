"""notifelect's Coordinator: a bully election by NOTIFY, in which the candidate that came last wins.

Fast: an election of a third of a second, of which candidates have as long to answer, begins a third of a second after
the last one: who does not answer for between one and two thirds of a second is not elected any more.

What its user goes by: ``outcome.winner``. It gives leadership up when its context is left and its connection is closed,
as its README does it. All candidates of a database share one channel unless they set the prefix, as here.

As of 0.0.3 a query that never returns or that fails ends or halts the task that holds elections, and ``outcome.winner``
stays what it was. Leaving waits for the election that is under way, and answers others until the connection is closed.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from benchmarks.peers.elector import EVERY_S, Candidate, Changed, Place, Settings, System

if TYPE_CHECKING:
    from collections.abc import Callable

_FAST = {"election_interval": timedelta(seconds=EVERY_S), "election_timeout": timedelta(seconds=EVERY_S)}

SYSTEMS = (
    System(
        name="notifelect",
        module=__name__,
        needs=("asyncpg", "notifelect.election_manager"),
        settings=(
            # An election every 25 s; an answer of the dead may still count in the next one, and leaving takes one more.
            Settings("defaults", {}, cycle_s=25.0, window_s=80.0),
            Settings("fast", _FAST, cycle_s=2 * EVERY_S, window_s=10.0),
        ),
    ),
)


def candidate(place: Place) -> Candidate:
    """Make one."""
    import asyncpg  # noqa: PLC0415 -- optional
    from notifelect.election_manager import Coordinator  # noqa: PLC0415 -- optional
    from notifelect.queries import Queries  # noqa: PLC0415 -- optional

    os.environ["NOTIFELECT_PREFIX"] = f"{place.election}_"

    class Notifelect:
        def __init__(self) -> None:
            self._outcome: Any = None
            self._leave = asyncio.Event()
            self._left = asyncio.Event()

        def leads(self) -> bool:
            return not self._leave.is_set() and self._outcome is not None and bool(self._outcome.winner)

        async def campaign(self, ready: Callable[[], None], changed: Changed) -> None:
            conn = await asyncpg.connect(place.url)
            try:
                with suppress(asyncpg.DuplicateTableError):  # the first candidate has made it
                    await Queries(conn).install()
                async with Coordinator(conn, **place.values) as self._outcome:
                    ready()
                    await self._leave.wait()
                    changed()
            finally:
                await conn.close()
            self._left.set()
            await asyncio.Event().wait()

        async def resign(self) -> None:
            self._leave.set()
            await self._left.wait()

    return Notifelect()
