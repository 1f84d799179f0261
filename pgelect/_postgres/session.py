"""The Session protocol on PostgreSQL: one dedicated connection, from connect to close.

Each method computes its deadline once; ``Link`` keeps it. What a statement that was cut short did on the server is
unknown, so the link is dropped then; the rules are those of the protocol.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from pgelect._engine.session import Proof
from pgelect._postgres import announcing, campaign, campaign_sql, minting, sql
from pgelect._postgres.dedicated import DedicatedSession
from pgelect._postgres.link import Deadline
from pgelect._postgres.options import SessionOptions
from pgelect._postgres.settings_sql import lease_in_force
from pgelect.errors import PgElectError, SessionLostError

if TYPE_CHECKING:
    from pgelect._engine.model import Backend, Grant, LostTerm
    from pgelect._engine.session import LockAnswer, ResumeAnswer
    from pgelect._postgres.opened import Opened

__all__ = ["PostgresSession", "SessionOptions"]

_CALLS_APART_S = 0.02  # anybody may call, as often as he likes


class PostgresSession(DedicatedSession):
    """One dedicated server session. See ``pgelect._engine.session.Session`` for what each method promises."""

    def __init__(self, options: SessionOptions) -> None:
        super().__init__(options)
        self._has_waited = False
        self._is_aside = False  # and counted there
        self._adjusted = False  # the server is yet to be told of another lease
        self._heard_at = 0.0
        self._named: tuple[Backend, float] | None = None  # session and lease in the token row
        self._released: int | None = None  # the token of the term that was given up cleanly

    def adjust(self, lease_s: float) -> None:
        """Have the server enforce that lease, from the next attempt or proof on."""
        self._options = replace(self._options, lease_s=lease_s)
        if self._opened is not None:
            self._opened = replace(self._opened, options=self._options)
            self._adjusted = True

    async def try_lock(self, ghost: Backend | None, within_s: float) -> LockAnswer:
        """Try for the lock without waiting; if our own ghost holds it, end that first."""
        session, deadline = self._open_session(), Deadline.after(within_s)
        if ghost is not None:
            return await campaign.try_past_ghost(session, ghost, deadline)
        return await self._look(session, deadline)

    async def wait_lock(self, within_s: float) -> LockAnswer:
        """Wait in the server's queue for one slice; ``within_s`` is what is allowed beyond it."""
        session = self._open_session()
        first, self._has_waited = not self._has_waited, True
        return await campaign.wait_lock(session, Deadline.after(session.facts.slice_s + within_s), first=first)

    async def look(self, after_s: float, within_s: float) -> LockAnswer:
        """Stand aside for ``after_s`` seconds, then try for the lock."""
        session = self._open_session()
        if after_s > 0:
            await session.link.watch(after_s, after_s)
        return await self._look(session, Deadline.after(within_s))

    async def _look(self, session: Opened, deadline: Deadline) -> LockAnswer:
        answer = await campaign.look(session, deadline, aside=self._is_aside)
        self._is_aside = answer.is_full
        return answer

    async def mint(self, within_s: float) -> Grant:
        """Mint the term's token and have it confirmed."""
        return await minting.mint(self._open_session(), Deadline.after(within_s))

    async def resume(self, grant: Grant, within_s: float) -> ResumeAnswer:
        """Take the lock again if the term of ``grant`` can go on."""
        return await campaign.resume(self._open_session(), grant, Deadline.after(within_s))

    async def prove(self, within_s: float) -> Proof:
        """Prove leadership."""
        session = self._open_session()
        query = campaign_sql.prove(self._options.key, session.facts)
        adjusting, self._adjusted = self._adjusted, False
        if adjusting:
            query = lease_in_force(self._options.lease_s) + query
        try:
            rows = await session.ask(query, Deadline.after(within_s), "proving leadership")
        except PgElectError:
            self._adjusted = self._adjusted or adjusting
            raise
        held, followers, in_recovery = rows[-1][0]
        if in_recovery:
            session.link.drop()
            raise SessionLostError("disproved", "the server is in recovery: it has been demoted, or is a standby")
        return Proof(bool(held), followers)

    async def watch(self, for_s: float) -> bool:
        """Idle on the socket: a session that ends surfaces at once, and so does a call."""
        deaf_s = max(0.0, self._heard_at + _CALLS_APART_S - time.monotonic())
        link = self._open_session().link
        heard = await link.watch(for_s, deaf_s)
        if heard:
            self._heard_at = time.monotonic()
        return heard or not announcing.may_listen(link.conn)  # deaf: who may have called is looked for now and then

    async def announce(self, grant: Grant | None, lost: LostTerm | None, ago_s: float, within_s: float) -> None:
        """Write down what has begun and what was lost; hear calls from now on."""
        session, deadline = self._open_session(), Deadline.after(within_s)
        named = session.facts.backend, session.options.lease_s
        if self._named is None and grant is not None and grant.record is not None:
            self._named = grant.record.backend, grant.record.lease_s  # as it was minted
        await announcing.announce(session, grant, lost, ago_s, deadline, outdated=self._named != named)
        self._named = named

    async def heed(self, token: int, within_s: float) -> str | None:
        """Look who has asked the term of that token to end."""
        return await announcing.heed(self._open_session(), token, Deadline.after(within_s))

    async def unlock(self, token: int, within_s: float) -> bool:
        """Mark the term as cleanly released, then unlock."""
        session, deadline = self._open_session(), Deadline.after(within_s)
        key = self._options.key
        doing = f"releasing the lock {key}"
        query = sql.unlock(key)
        self._released = token or None
        if self._options.fencing:
            # Fenced transactions of this very term may still hold the row; the release must not hang on them. In the
            # second half of the wait no more of them come: after the drain there is nothing they could be wanted for.
            wait_s = min(session.facts.slice_s, within_s / 2)
            mark = sql.release(key, token, max(1, round(wait_s * 1000 / 2)))
            for marked in (mark, sql.close_own(key, token) + mark):
                try:
                    return bool((await session.ask(marked, deadline, doing))[-1][0][0])
                except SessionLostError:
                    raise
                except PgElectError:  # not marked: the next leader will take the end of this term for an unclean one
                    continue
            query = sql.ROLLBACK + query
        return bool((await session.ask(query, deadline, doing))[-1][0][0])

    async def close(self, within_s: float) -> None:
        """End the session; a call in flight is cancelled on the server first. Never raises but a cancel."""
        deadline = Deadline.after(within_s)
        try:
            if self._released is not None and os.getpid() == self._owner_pid:
                await self._tell_released(self._released, deadline)
            if self._link is not None and os.getpid() == self._owner_pid:
                await self._link.cancel(deadline)
        finally:
            self.abandon()

    async def _tell_released(self, token: int, deadline: Deadline) -> None:
        """Tell observers that nobody leads: the next leader, if there is one, need not wait for that."""
        if self._link is None or self._link.busy or self._link.dropped:
            return
        with suppress(PgElectError):
            await announcing.tell_released(self._open_session(), token, deadline)
