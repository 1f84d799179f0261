"""The floor: what the server does for two sessions without any elector. One holds a lock, one is blocked for it.

It has no belief, and no lease: nothing happens when the holder is stopped, or its link is frozen. What ends is its
session (killed, terminated) or its hold (unlocked).
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from psycopg import pq

from benchmarks.peers.elector import Candidate, Changed, Place, Settings, System
from benchmarks.process import DidNotHappenError

if TYPE_CHECKING:
    from collections.abc import Callable

_NO_LEASE = "a bare session has no lease: it keeps the lock"

SYSTEMS = (
    System(
        name="floor",
        module=__name__,
        needs=("psycopg",),
        settings=(Settings("fast", {}, cycle_s=0.1, window_s=10.0),),
        cannot={"stopped": _NO_LEASE, "frozen": _NO_LEASE},
        is_floor=True,
    ),
)


class _Floor:
    def __init__(self, place: Place) -> None:
        self._place = place
        self._holds = False
        self._conn: pq.abc.PGconn | None = None

    def leads(self) -> bool:
        return self._holds

    async def campaign(self, ready: Callable[[], None], changed: Changed) -> None:
        self._conn = pq.PGconn.connect(self._place.url.encode())
        ready()
        key = int.from_bytes(self._place.election.encode()[-7:])
        changed(await asyncio.to_thread(self._lock, f"SELECT pg_advisory_lock({key})".encode()))
        await asyncio.Event().wait()

    async def resign(self) -> None:
        assert self._conn is not None
        self._holds = False
        self._conn.exec_(b"SELECT pg_advisory_unlock_all()")

    def _lock(self, query: bytes) -> float:
        assert self._conn is not None
        result = self._conn.exec_(query)
        at = time.monotonic()
        if result.status != pq.ExecStatus.TUPLES_OK:
            raise DidNotHappenError(self._conn.get_error_message())
        self._holds = True
        return at


def candidate(place: Place) -> Candidate:
    """Make one."""
    return _Floor(place)
