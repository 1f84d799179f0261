"""A plain lease in Redis: SET NX PX, renewed and polled at a third of it. The elector is this file.

One setting: a lease of a second. The leader trusts it from when it sent the renewal, for a twentieth less than the
lease, as clocks may differ in rate; what it gives up, it deletes, if it is still its own.

What its user goes by: ``leads()``. Who loses the connection gets a new one and goes on leading.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from benchmarks.peers.elector import EVERY_S, LEASE_S, Candidate, Changed, Place, Settings, System

if TYPE_CHECKING:
    from collections.abc import Callable

_TRUST = 0.95
_RENEW_OR_TAKE = """
if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) end
if redis.call('set', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end
return 0
"""
_GIVE_UP = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end"

SYSTEMS = (
    System(
        name="redis",
        module=__name__,
        needs=("redis.asyncio",),
        store="redis",
        settings=(Settings("fast", {}, cycle_s=EVERY_S, window_s=10.0),),
    ),
)


def candidate(place: Place) -> Candidate:
    """Make one."""
    from redis.asyncio import Redis  # noqa: PLC0415 -- optional
    from redis.exceptions import RedisError  # noqa: PLC0415 -- optional

    class RedisLease:
        def __init__(self) -> None:
            self._redis: Any = Redis.from_url(place.url, client_name=place.name, socket_timeout=EVERY_S)
            self._trusted_until = 0.0
            self._campaigning: asyncio.Task[None] | None = None

        def leads(self) -> bool:
            return time.monotonic() < self._trusted_until

        async def campaign(self, ready: Callable[[], None], changed: Changed) -> None:
            while not await self._is_there():
                await asyncio.sleep(EVERY_S)
            ready()
            self._campaigning = asyncio.create_task(self._renew_or_take(changed))
            with suppress(asyncio.CancelledError):
                await self._campaigning
            await asyncio.Event().wait()

        async def resign(self) -> None:
            assert self._campaigning is not None
            self._trusted_until = 0.0
            self._campaigning.cancel()
            await asyncio.wait({self._campaigning})
            self._trusted_until = 0.0
            await self._redis.eval(_GIVE_UP, 1, place.election, place.name)

        async def _is_there(self) -> bool:
            with suppress(RedisError):  # a busy machine may take longer than the timeout of a command
                return bool(await self._redis.ping())
            return False

        async def _renew_or_take(self, changed: Changed) -> None:
            lease_ms = int(LEASE_S * 1000)
            while True:
                sent = time.monotonic()
                with suppress(RedisError):  # trust runs out by itself
                    got = await self._redis.eval(_RENEW_OR_TAKE, 1, place.election, place.name, lease_ms)
                    self._trusted_until = sent + _TRUST * LEASE_S if got else 0.0
                    changed()
                await asyncio.sleep(EVERY_S)

    return RedisLease()
