"""The GroupSession protocol on the fake server: the client's side of one member's session."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from pgelect.errors import PgElectError, SessionLostError
from pgelect.testing._fake_client_end import ClientEnd

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgelect._engine.model import Backend, Grant, LockKey
    from pgelect._group.session import Catch, Sight
    from pgelect.testing._fake_group import GroupStatements
    from pgelect.testing._fake_wire import Wire


class FakeGroupSession:
    """One session with a fake server. Made by ``FakeServer.group_session``; see ``pgelect._group.session``."""

    def __init__(self, statements: GroupStatements, new_wire: Callable[[], Wire], connect_within_s: float) -> None:
        self._server = statements
        self._end = ClientEnd(statements.cluster, new_wire, lease_s=statements.lease_s)
        self._connect_within_s = connect_within_s
        self._me = random.getrandbits(32) - 2**31
        self._holds: set[LockKey] = set()
        self._told = False  # somebody may have called before it was listened to

    def __repr__(self) -> str:
        return f"<FakeGroupSession backend={self.pid} {'closed' if self._end.dropped else 'live'}>"

    @property
    def pid(self) -> int | None:
        """The pid of the server process; None before ``open``."""
        return self._end.pid

    @property
    def me(self) -> int:
        """The id of this member in the ring."""
        return self._me

    async def open(self, within_s: float) -> None:
        """Connect."""
        await self._end.open(min(within_s, self._connect_within_s), self._server.check_primary)

    async def join(self, ghost: Backend | None, within_s: float) -> Backend:
        """Become a member that others see."""
        joined = await self._end.ask(within_s, lambda backend: self._server.join(backend, self._me, ghost))
        if not joined or self._end.backend_id is None:
            self.abandon()
            raise SessionLostError("closed", "the number that this member has drawn is taken")
        return self._end.backend_id

    async def look(self, known: int | None, wait_for: int | None, wait_s: float, within_s: float) -> Sight:
        """Wait for the end of a member, prove the locks, and look at the group."""
        held = frozenset(self._holds)
        sight = await self._end.ask(
            wait_s + within_s, lambda backend: self._server.look(backend, held, known, wait_for, wait_s)
        )
        called, self._told = self._end.was_called() or self._told, False
        return replace(sight, called=called)

    async def take(self, keys: tuple[LockKey, ...], within_s: float) -> Catch:
        """Try for locks, and mint the tokens of those that are granted."""
        wanted = tuple(key for key in keys if key not in self._holds)
        caught = await self._end.ask(within_s, lambda backend: self._server.take(backend, wanted))
        self._holds.update(key for key, _ in caught.grants)
        self._holds.update(caught.held_up)
        return caught

    async def mint(self, key: LockKey, within_s: float) -> Grant:
        """Mint one token that fenced transactions hold up."""
        try:
            return await self._end.ask(within_s, lambda backend: self._server.mint(backend, key, within_s))
        except PgElectError:
            self._holds.discard(key)
            raise

    async def tell(self, grants: tuple[tuple[LockKey, Grant], ...], within_s: float) -> None:
        """Write down that these terms have begun, and hear calls to them."""
        await self._end.ask(within_s, lambda backend: self._server.tell(backend, grants))
        self._told = True

    async def heed(self, tokens: tuple[tuple[LockKey, int], ...], within_s: float) -> tuple[tuple[LockKey, str], ...]:
        """Look which of these terms were asked to end."""
        return await self._end.ask(within_s, lambda _: self._server.heed(tokens))

    async def free(self, tokens: tuple[tuple[LockKey, int], ...], within_s: float) -> None:
        """Mark these terms as cleanly released, then unlock."""
        freed = await self._end.ask(within_s, lambda backend: self._server.free(backend, tokens))
        self._holds.difference_update(key for key, _ in tokens)
        if not freed:
            self.abandon()
            raise SessionLostError("disproved", "the server says that this session did not hold what it gave up")

    async def watch(self, for_s: float) -> None:
        """Idle; hear at once when the session ends, or somebody calls."""
        await self._end.listen(for_s, keep=True)

    def hurry(self) -> None:
        """Have the wait of a look that is in flight end soon."""
        self._end.interrupt()

    async def close(self, within_s: float) -> None:
        """End the session in an orderly way."""
        await self._end.close(within_s)

    def abandon(self) -> None:
        """Drop the link."""
        self._end.abandon()
