"""pgelect, waiting in the server's queue and polling.

Fast: ``lease_s=1``, proved at a third of it, and for polling a fixed interval of a third, as the others have. The queue
has no setting for how fast it is.

What its user goes by: ``lock.is_leader``. It gives leadership up by ``shutdown()``, and is gone: the others here know
no other way, so a ``step_down()`` after which it takes part again would not be the same work.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from benchmarks.peers.elector import EVERY_S, LEASE_S, Candidate, Changed, Place, Settings, System
from pgelect import FixedInterval, LeaderLock

if TYPE_CHECKING:
    from collections.abc import Callable

_FAST = {"lease_s": LEASE_S, "health_interval_s": EVERY_S}
_SLICE_S = 0.9  # of a follower in the server's queue

SYSTEMS = (
    System(
        name="pgelect-queue",
        module=__name__,
        needs=("pgelect",),
        settings=(
            Settings("defaults", {}, cycle_s=_SLICE_S, window_s=30.0),  # the lease is 15 s
            Settings("fast", _FAST, cycle_s=_SLICE_S, window_s=10.0),
        ),
    ),
    System(
        name="pgelect-poll",
        module=__name__,
        needs=("pgelect",),
        settings=(
            # A follower's pauses grow to 30 s at most, drawn at random; the lease is 15 s.
            Settings("defaults", {"acquire": "poll"}, cycle_s=30.0, window_s=60.0),
            Settings(
                "fast", {**_FAST, "acquire": "poll", "retry_strategy": FixedInterval(EVERY_S)}, EVERY_S, window_s=10.0
            ),
        ),
    ),
)


class _Pgelect:
    def __init__(self, place: Place) -> None:
        self._lock = LeaderLock(place.url, name=place.election, identity=place.name, **place.values)

    def leads(self) -> bool:
        return self._lock.is_leader

    async def campaign(self, ready: Callable[[], None], changed: Changed) -> None:
        def told() -> None:
            changed()

        for register in (self._lock.on_acquired, self._lock.on_lost, self._lock.on_released):
            register(told)
        async with self._lock:
            ready()
            await asyncio.Event().wait()

    async def resign(self) -> None:
        await self._lock.shutdown()


def candidate(place: Place) -> Candidate:
    """Make one."""
    return _Pgelect(place)
