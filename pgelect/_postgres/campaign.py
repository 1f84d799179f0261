"""Getting the lock: try, wait in the server's queue, and take up a term again after its session was lost."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from pgelect._engine.session import LockAnswer, ResumeAnswer
from pgelect._postgres import campaign_sql, sql
from pgelect._postgres.link import Deadline
from pgelect._postgres.settings_sql import lease_ms
from pgelect.errors import PgElectError, SessionLostError

if TYPE_CHECKING:
    from pgelect._engine.model import Backend, Grant
    from pgelect._postgres.opened import Opened

_SHORTENED = 0.1  # a slice is up to so much shorter than it may be
_GHOST_END_S = 0.3  # a backend that is told to end does so within milliseconds
_GHOST_POLL_S = 0.005


async def try_past_ghost(session: Opened, ghost: Backend, deadline: Deadline) -> LockAnswer:
    """Try without waiting. When our own ghost holds the lock, end it and try again for a moment."""
    answer = await _try(session, deadline)
    if not answer.granted and await _end_ghost(session, ghost, deadline):
        gone_by = Deadline.after(min(_GHOST_END_S, deadline.left_s() / 2))
        while gone_by.left_s() > 0:
            await asyncio.sleep(_GHOST_POLL_S)
            answer = await _try(session, deadline)
            if answer.granted:
                break
    return answer


async def look(session: Opened, deadline: Deadline, *, aside: bool) -> LockAnswer:
    """Try without waiting, and stand aside where the queue is full. ``aside``: this session does so already."""
    return await _try(session, deadline, places=session.options.places, aside=aside)


async def wait_lock(session: Opened, deadline: Deadline, *, first: bool = False) -> LockAnswer:
    """Wait in the server's queue for one slice. ``first``: make the session ready to lead before that."""
    options = session.options
    # Followers that began together would leave the queue together, over and over, and never see how many they are.
    slice_s = session.facts.slice_s * random.uniform(1 - _SHORTENED, 1)  # noqa: S311 -- jitter, not a secret
    query = campaign_sql.wait_lock(options, session.facts, lease_ms(options.lease_s), round(slice_s * 1000))
    if first and options.fencing:
        query = sql.rehearse(options, session.facts) + query
    return await session.answer(query, deadline, f"waiting for the lock {options.key}")


async def _try(session: Opened, deadline: Deadline, *, places: int | None = None, aside: bool = False) -> LockAnswer:
    options = session.options
    query = campaign_sql.try_lock(options, session.facts, lease_ms(options.lease_s), places=places, aside=aside)
    return await session.answer(query, deadline, f"trying for the lock {options.key}")


async def _end_ghost(session: Opened, ghost: Backend, deadline: Deadline) -> bool:
    """End our own lost session if it holds the lock. False: it does not, or this role may not."""
    query = sql.end_ghost(session.options.key, session.facts, ghost)
    try:
        rows = (await session.ask(query, deadline, "ending our own lost session"))[-1]
    except SessionLostError:
        raise
    except PgElectError:  # no right to: it will end by its lease
        return False
    return bool(rows and rows[0][0])


_HELD_STILL = "the lock is not free yet: our own lost session holds it, or something holds it in shared mode"


async def resume(session: Opened, grant: Grant, deadline: Deadline) -> ResumeAnswer:
    """Take the lock again if the term of ``grant`` can go on. Not held unless the answer is ``resumed``."""
    over = await _why_over(session, grant, deadline)
    if over:
        return ResumeAnswer(resumed=False, final=True, why=over)
    answer = await try_past_ghost(session, grant.backend, deadline)
    if not answer.granted:
        other = await _other_holder(session, grant.backend, deadline)
        if other:
            return ResumeAnswer(resumed=False, final=True, why=other)
        answer = await wait_lock(session, deadline)
    if not answer.granted:
        other = await _other_holder(session, grant.backend, deadline)
        return ResumeAnswer(resumed=False, final=bool(other), why=other or _HELD_STILL)
    # The row is looked at again now that nobody else can write it.
    over = await _why_over(session, grant, deadline)
    if over:
        await session.ask(sql.unlock(session.options.key), deadline, "unlocking: the term is over")
        return ResumeAnswer(resumed=False, final=True, why=over)
    adopt = sql.adopt(session.options.key, grant.token, session.facts.backend)
    await session.ask(adopt, deadline, "naming the new session in the token row")
    return ResumeAnswer(resumed=True, backend=session.facts.backend)


async def _why_over(session: Opened, grant: Grant, deadline: Deadline) -> str:
    """Why the term cannot go on; empty while it can."""
    key = session.options.key
    query = sql.timeline() + sql.THEN + sql.record(key) + sql.THEN + sql.closed(key)
    times, rows, closed = await session.ask(query, deadline, "looking at the term")
    if times[0][0] != grant.timeline:
        return f"the server was promoted (timeline {grant.timeline} -> {times[0][0]})"
    row = session.record(rows)
    if row is None:
        return "the token row is gone"
    if row.token != grant.token:
        return f"another term has begun (token {row.token})"
    if row.released_at is not None:
        return "the term was released"
    # Its token lets nobody in any more: a term that went on could write nothing.
    return "another session has begun to end this term" if (grant.token,) in closed else ""


async def _other_holder(session: Opened, ghost: Backend, deadline: Deadline) -> str:
    """Who holds the lock, if it is somebody else than our ghost."""
    rows = (await session.ask(sql.holder(session.options.key, session.facts), deadline, "looking"))[-1]
    for pid, start_us, mine in rows:
        # A start that is hidden from this role counts as the ghost's: the doubt ends with the ghost's lease.
        hidden_or_same = start_us is None or sql.instant(start_us) == ghost.started_at
        if not mine and not (pid == ghost.pid and hidden_or_same):
            return f"another session holds the lock (pid {pid})"
    return ""
