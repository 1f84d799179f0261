"""asyncpg-lock's AdvisoryLockGuard: a session-level advisory lock that is polled, and a keep-alive query.

Fast: after_acquire_delay is the time that a predecessor is given to notice that it lost its session, and its keep-alive
is asked at a third of it; at a second it is what a lease of a second is to others. Polling and reconnecting at a third.

What its user goes by: the guarded function runs, or has been cancelled. It gives leadership up when ``run()`` is
cancelled, which closes the session; there is no other way.

It has no lease: while a holder's session lasts, stopped or cut off as it may be, the server keeps its lock. Whoever
makes the connection could have the server end it (idle_session_timeout); its README does not, nor is it done here.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from benchmarks.peers.elector import EVERY_S, LEASE_S, Candidate, Changed, Place, Settings, System

if TYPE_CHECKING:
    from collections.abc import Callable

_FAST = {"after_acquire_delay": LEASE_S, "reacquire_delay": EVERY_S, "reconnect_delay": EVERY_S}

SYSTEMS = (
    System(
        name="asyncpg-lock",
        module=__name__,
        needs=("asyncpg", "asyncpg_lock"),
        settings=(
            Settings("defaults", {}, cycle_s=5.0, window_s=30.0),  # polls every 5 s, then waits for 5 s
            Settings("fast", _FAST, cycle_s=EVERY_S, window_s=10.0),
        ),
    ),
)


def candidate(place: Place) -> Candidate:
    """Make one."""
    import asyncpg  # noqa: PLC0415 -- optional
    import asyncpg_lock  # noqa: PLC0415 -- optional

    class AsyncpgLock:
        def __init__(self) -> None:
            self._runs = False
            self._running: asyncio.Task[None] | None = None

        def leads(self) -> bool:
            return self._runs

        async def campaign(self, ready: Callable[[], None], changed: Changed) -> None:
            async def connect() -> Any:
                conn = await asyncpg.connect(place.url)
                ready()
                return conn

            async def guarded() -> None:
                self._runs = True
                changed()
                try:
                    await asyncio.Event().wait()
                finally:
                    self._runs = False
                    changed()

            guard = asyncpg_lock.AdvisoryLockGuard(connect=connect, **place.values)
            key = int.from_bytes(place.election.encode()[-7:])
            self._running = asyncio.create_task(guard.run(key, guarded))
            with suppress(asyncio.CancelledError):
                await self._running
            await asyncio.Event().wait()

        async def resign(self) -> None:
            assert self._running is not None
            self._running.cancel()
            await asyncio.wait({self._running})

    return AsyncpgLock()
