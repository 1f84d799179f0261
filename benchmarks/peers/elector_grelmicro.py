"""grelmicro's LeaderElection on its Postgres backend: a row with an expiry, renewed and polled.

Fast: its defaults, each scaled down to a lease of a second, so that they keep their proportions. It then renews and
polls every 0.13 s, more often than the others here.

What its user goes by: ``is_leader()``. It gives leadership up when its task is stopped. The backend is handed to the
election: with one that is only registered, as of 0.20, the lock is not released then. Each election has a table of its
own, so that no two candidates create the same one at the same time.

Sessions come from a pool of ten, and the lease is a row: who loses all of them gets new ones and goes on leading.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from benchmarks.peers.elector import LEASE_S, Candidate, Changed, Place, Settings, System

if TYPE_CHECKING:
    from collections.abc import Callable

_FAST = {
    "lease_duration": LEASE_S,
    "renew_deadline": LEASE_S * 10 / 15,
    "backend_timeout": LEASE_S * 5 / 15,
    "retry_interval": LEASE_S * 2 / 15,
}

SYSTEMS = (
    System(
        name="grelmicro",
        module=__name__,
        needs=("asyncpg", "grelmicro.sync.postgres", "grelmicro.task"),
        settings=(
            Settings("defaults", {}, cycle_s=2.0, window_s=30.0),  # a lease of 15 s, polled every 2 s
            Settings("fast", _FAST, cycle_s=_FAST["retry_interval"], window_s=10.0),
        ),
    ),
)


def candidate(place: Place) -> Candidate:
    """Make one."""
    import grelmicro  # noqa: PLC0415 -- optional
    from grelmicro import sync  # noqa: PLC0415 -- optional
    from grelmicro.sync.postgres import PostgresSyncBackend  # noqa: PLC0415 -- optional
    from grelmicro.task import TaskManager  # noqa: PLC0415 -- optional

    class Grelmicro:
        def __init__(self) -> None:
            backend = PostgresSyncBackend(place.url, table_name=f"locks_{place.election}")
            sync.register(backend)
            self._election = sync.LeaderElection(place.election, backend=backend, worker=place.name, **place.values)
            self._stop = asyncio.Event()
            self._stopped = asyncio.Event()

        def leads(self) -> bool:
            return not self._stop.is_set() and bool(self._election.is_leader())

        async def campaign(self, ready: Callable[[], None], changed: Changed) -> None:
            tasks = TaskManager()
            tasks.add_task(self._election)
            async with grelmicro.lifespan(tasks):
                ready()
                telling = asyncio.create_task(self._tell(changed))
                await self._stop.wait()
                telling.cancel()
            self._stopped.set()
            await asyncio.Event().wait()

        async def resign(self) -> None:
            self._stop.set()
            await self._stopped.wait()

        async def _tell(self, changed: Changed) -> None:
            while True:
                await self._election.wait_for_leader()
                changed()
                await self._election.wait_lose_leader()
                changed()

    return Grelmicro()
