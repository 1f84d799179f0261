"""The Session protocol on the fake server: the client's side of one session.

Rules, as on PostgreSQL:

- A call travels to the server, is executed there, and its answer travels back. A cancel or a deadline may strike on
  either way: then the link is dropped, and what the server did is uncertain.
- Two calls at once are a mistake of the caller and raise RuntimeError.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from pgelect._engine.session import LockAnswer, Proof, ResumeAnswer
from pgelect.testing._fake_client_end import ClientEnd

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgelect._engine.model import Backend, Grant, LostTerm
    from pgelect.testing._fake_statements import Statements
    from pgelect.testing._fake_wire import Wire


class FakeSession:
    """One session with a fake server. Made by ``FakeServer.session``; see ``pgelect._engine.session.Session``."""

    def __init__(self, statements: Statements, new_wire: Callable[[], Wire], connect_within_s: float) -> None:
        self._server = statements
        self._end = ClientEnd(statements.cluster, new_wire, lease_s=statements.lease_s)
        self._connect_within_s = connect_within_s

    def __repr__(self) -> str:
        return f"<FakeSession {self._server.key} backend={self.pid} {'closed' if self._end.dropped else 'live'}>"

    @property
    def pid(self) -> int | None:
        """The pid of the server process; None before ``open``."""
        return self._end.pid

    async def open(self, within_s: float) -> None:
        """Connect."""
        await self._end.open(min(within_s, self._connect_within_s), self._server.check_primary)

    def adjust(self, lease_s: float) -> None:
        """Have the server enforce that lease, from the next attempt or proof on."""
        self._server = replace(self._server, lease_s=lease_s)

    async def try_lock(self, ghost: Backend | None, within_s: float) -> LockAnswer:
        """Try for the lock without waiting."""
        return await self._try(self._server, ghost, within_s)

    async def wait_lock(self, within_s: float) -> LockAnswer:
        """Wait in the queue for one slice. After it, the place in the queue is gone."""
        return await self._end.ask(self._server.cluster.wait_slice_s + within_s, self._server.wait_lock)

    async def look(self, after_s: float, within_s: float) -> LockAnswer:
        """Stand aside for so long, then try for the lock."""
        server = self._server  # with the lease of now: what is sent later was settled when the call began
        until = asyncio.get_running_loop().time() + after_s
        while (left_s := until - asyncio.get_running_loop().time()) > 0:
            await self._end.listen(left_s)
        return await self._try(server, None, within_s)

    async def mint(self, within_s: float) -> Grant:
        """Mint a token; fenced transactions of earlier terms are waited for, then ended."""
        server = self._server
        return await self._end.ask(within_s, lambda backend: server.mint(backend, within_s))

    async def resume(self, grant: Grant, within_s: float) -> ResumeAnswer:
        """Take the lock again if the term of ``grant`` can go on: in several questions, as on PostgreSQL."""
        deadline = asyncio.get_running_loop().time() + within_s

        def left_s() -> float:
            return max(0.0, deadline - asyncio.get_running_loop().time())

        if over := await self._end.ask(left_s(), lambda _: self._server.why_over(grant)):
            return ResumeAnswer(resumed=False, final=True, why=over)
        answer = await self.try_lock(grant.backend, left_s())
        if not answer.granted:
            if other := await self._other_holder(grant, left_s()):
                return ResumeAnswer(resumed=False, final=True, why=other)
            answer = await self._end.ask(left_s(), self._server.wait_lock)
        if not answer.granted:
            other = await self._other_holder(grant, left_s())
            why = other or "our own lost session still holds the lock"
            return ResumeAnswer(resumed=False, final=bool(other), why=why)
        if over := await self._end.ask(left_s(), lambda _: self._server.why_over(grant)):
            await self._end.ask(left_s(), lambda backend: self._server.cluster.locks.unlock(self._server.key, backend))
            return ResumeAnswer(resumed=False, final=True, why=over)
        await self._end.ask(left_s(), lambda backend: self._server.adopt(backend, grant))
        return ResumeAnswer(resumed=True, backend=self._end.backend_id)

    async def prove(self, within_s: float) -> Proof:
        """Prove leadership."""
        return await self._end.ask(within_s, self._server.prove)

    async def watch(self, for_s: float) -> bool:
        """Idle; hear at once when the session ends, or somebody calls."""
        return await self._end.listen(for_s)

    async def announce(
        self,
        grant: Grant | None,
        lost: LostTerm | None,
        ago_s: float,  # noqa: ARG002 -- of the protocol; this history keeps no ends
        within_s: float,
    ) -> None:
        """Write down what has begun and what was lost; hear calls from now on."""
        await self._end.ask(within_s, lambda backend: self._server.announce(backend, grant, lost))

    async def heed(self, token: int, within_s: float) -> str | None:
        """Look who has asked the term of that token to end."""
        return await self._end.ask(within_s, lambda _: self._server.heed(token))

    async def unlock(self, token: int, within_s: float) -> bool:
        """Mark the term as released, unless a fenced transaction holds the row for long, and unlock."""
        return await self._end.ask(within_s, lambda backend: self._server.unlock(backend, token, within_s))

    async def close(self, within_s: float) -> None:
        """End the session in an orderly way."""
        await self._end.close(within_s)

    def abandon(self) -> None:
        """Drop the link. The server notices at once, unless nothing reaches it."""
        self._end.abandon()

    async def _try(self, server: Statements, ghost: Backend | None, within_s: float) -> LockAnswer:
        return await self._end.ask(within_s, lambda backend: server.try_lock(backend, ghost))

    async def _other_holder(self, grant: Grant, within_s: float) -> str:
        return await self._end.ask(within_s, lambda backend: self._server.other_holder(backend, grant.backend))
