"""What a duty does: transactions that are fenced by the token of its term, driven by the client, step by step."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pgelect import StaleTokenError
from pgelect.errors import PgElectError
from pgelect.testing._fake_transactions import ISOLATIONS
from tests.simulation.plan import THINKS_LEASES

if TYPE_CHECKING:
    from pgelect import LockKey
    from pgelect.testing import FakeClient, FakeServer
    from tests.simulation.process import Process
    from tests.simulation.world import World

INSISTS = 6


class Writer:
    """One connection of one process, made anew when it is lost."""

    def __init__(self, process: Process, world: World, server: FakeServer, key: LockKey) -> None:
        self.acknowledged: list[int] = []
        self.refused = 0
        self._process = process
        self._world = world
        self._server = server
        self._key = key
        self._client: FakeClient | None = None
        self._opened = False
        self._late: list[asyncio.Task[None]] = []
        self._stubborn = world.chance.random() < 0.3

    async def write(self, token: int) -> None:
        """Write once under the fence. A stubborn writer goes on when its term is over, as a faulty program does."""
        if self._stubborn and self._world.chance.random() < 0.3:
            self._late.append(self._process.command("stubborn writer", self._insist(token)))
        await self._write(token)

    async def close(self) -> None:
        """End the connections."""
        for task in self._late:
            task.cancel()
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()

    async def _write(self, token: int) -> None:
        """Write on the connection of the duty."""
        if self._client is None:
            self._client = self._new_client()
            self._opened = False
        client = self._client
        try:
            if not self._opened:
                await client.open()
                self._opened = True
            await self._transaction(client, token)
        except StaleTokenError:  # as with lock.fence(): the duty ends, and the term with it
            self.refused += 1
            self._drop()
            raise
        except asyncio.CancelledError:
            self._drop()
            raise
        except PgElectError:  # the connection is lost, the row was changed, or the statement was canceled
            self._drop()

    async def _insist(self, token: int) -> None:
        """Go on with a token, on connections of its own, whatever has become of its term."""
        chance, lease_s = self._world.chance, self._process.plan.lease_s
        await asyncio.sleep(chance.random() * 2 * lease_s)
        for _ in range(INSISTS):
            client = self._new_client()
            try:
                await client.open()
                await self._transaction(client, token)
                await client.close()
            except StaleTokenError:
                self.refused += 1
            except PgElectError:
                pass
            finally:
                client.abandon()
            await asyncio.sleep(chance.random() * 0.1 * lease_s)

    def _new_client(self) -> FakeClient:
        process = self._process
        return self._server.client(self._key, killable=process.plan.killable, new_wire=process.network.new_wire)

    def _drop(self) -> None:
        if self._client is not None:
            self._client.abandon()
            self._client = None

    async def _transaction(self, client: FakeClient, token: int) -> None:
        chance = self._world.chance
        value = self._process.plan.next_value()
        await client.begin(chance.choice(ISOLATIONS))
        if chance.random() < 0.3:
            await client.peek()  # takes the snapshot before the check
            await self._think()
        await client.check(token)
        await self._think()
        await client.write(value)
        await self._think()
        await client.commit()
        self.acknowledged.append(value)

    async def _think(self) -> None:
        chance = self._world.chance
        if chance.random() < 0.15:
            await asyncio.sleep(chance.random() * self._process.plan.lease_s * THINKS_LEASES)
