"""Beginning a term: the token is written, greater than any before, and confirmed.

The row may be locked by transactions that an earlier token fenced. They are waited for in bounded time, then ended
where the role may; a term never begins without its token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg

from pgelect._engine.model import Grant
from pgelect._postgres import sql
from pgelect._postgres.opened import results
from pgelect.errors import FenceBusyError, PgElectError, SessionLostError

if TYPE_CHECKING:
    from psycopg import AsyncConnection

    from pgelect._postgres.link import Deadline
    from pgelect._postgres.opened import Opened, Rows

_ROUNDS = 2  # waits for the row; between them the blockers are ended
_TERMINATE_WAIT_MS = 300
_LOCK_NOT_AVAILABLE = "55P03"


async def mint(session: Opened, deadline: Deadline) -> Grant:
    """Write the next token.

    Raises:
        FenceBusyError: a fenced transaction holds the row and could not be ended.
        KeyCollisionError: the row carries another name.
    """
    if not session.options.fencing:
        return await _begin_unfenced(session, deadline)
    # Leave time for the answers: the caller needs the session to release the lock when this fails.
    wait_ms = max(1, round(min(session.facts.slice_s, deadline.left_s() / (2 * _ROUNDS)) * 1000))
    blockers: set[int] = set()
    for attempt in range(_ROUNDS):
        row = await _write(session, wait_ms, deadline)
        if row is not None:
            return _grant(session, row)
        last = attempt == _ROUNDS - 1
        blockers = await _blockers(session, deadline, end=not last)
    raise FenceBusyError(session.options.key, tuple(sorted(blockers)))


async def _begin_unfenced(session: Opened, deadline: Deadline) -> Grant:
    rows = (await session.ask(sql.begin_unfenced(), deadline, "beginning a term"))[-1]
    timeline, now_us = rows[0]
    return Grant(
        token=0,
        acquired_at=sql.instant(now_us),
        backend=session.facts.backend,
        timeline=timeline,
        predecessor_clean=True,
        record=None,
    )


async def _write(session: Opened, wait_ms: int, deadline: Deadline) -> tuple[Any, ...] | None:
    """Try once; None when the row stayed locked."""
    options = session.options
    query = sql.mint(options, session.facts.backend, wait_ms)

    async def work(conn: AsyncConnection[Any]) -> list[Rows] | None:
        try:
            return await results(conn, query)
        except psycopg.Error as error:
            if error.sqlstate == _LOCK_NOT_AVAILABLE:
                return None
            raise

    found = await session.link.run(work, deadline, f"minting a token for {options.key}")
    return found[-1][0] if found is not None else None


def _grant(session: Opened, row: tuple[Any, ...]) -> Grant:
    timeline, found, released, prior_name, *written = row
    if written[0] is None:
        session.refuse_collision(prior_name)
        raise PgElectError(f"no token was written for {session.options.key}: the row changed meanwhile; try again")
    record = sql.record_of(written)
    return Grant(
        token=record.token,
        acquired_at=record.acquired_at,
        backend=record.backend,
        timeline=timeline,
        predecessor_clean=not found or bool(released),
        record=record,
    )


async def _blockers(session: Opened, deadline: Deadline, *, end: bool) -> set[int]:
    """Who holds the row; ``end``: end them where this role may."""
    pids: set[int] = set()
    for multixact in (False, True):
        query = sql.fence_blockers(session.options.key, multixact=multixact)
        try:
            rows = (await session.ask(query, deadline, "looking for fenced transactions"))[-1]
        except SessionLostError:
            raise
        except PgElectError:  # the row's xmax is no multixact
            continue
        pids.update(pid for (pid,) in rows if pid is not None)
    for pid in pids if end else ():
        try:
            query = sql.terminate(pid, _TERMINATE_WAIT_MS)
            await session.ask(query, deadline, "ending a fenced transaction of an earlier term")
        except SessionLostError:
            raise
        except PgElectError:  # no right to; it may end by itself
            continue
    return pids
