"""Beginning a term: the token is written, greater than any before, and confirmed.

The row may be locked by transactions that an earlier token fenced. They are waited for in bounded time, then ended
where the role may; a term never begins without its token. Who they are is asked from a second session while the first
one waits: only then does the server say so exactly. (The row's xmax does not: after a savepoint it is a number that
pg_locks no longer shows, and it may be a multixact.)
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import psycopg

from pgelect._engine.model import Grant
from pgelect._postgres import sql
from pgelect._postgres.connect import Connector
from pgelect._postgres.link import Deadline
from pgelect._postgres.opened import Opened, results
from pgelect.errors import FenceBusyError, PgElectError

if TYPE_CHECKING:
    from psycopg import AsyncConnection

    from pgelect._postgres.opened import Rows

_STILL_LOCKED = frozenset({"55P03", "57014"})
_LOOK_EVERY_S = 0.02


async def mint(session: Opened, deadline: Deadline) -> Grant:
    """Write the next token.

    Raises:
        FenceBusyError: a fenced transaction holds the row and could not be ended.
        KeyCollisionError: the row carries another name.
    """
    if not session.options.fencing:
        return await _begin_unfenced(session, deadline)
    # Two waits, and time left for the answers: the caller needs the session to release the lock when this fails.
    wait_ms = max(1, round(min(session.facts.slice_s, deadline.left_s() / 4) * 1000))
    row = await _write(session, wait_ms, deadline)  # fenced transactions may end by themselves
    if row is None:
        row, blockers = await _write_against_blockers(session, wait_ms, deadline)
        if row is None:
            raise FenceBusyError(session.options.key, blockers)
    return _grant(session, row)


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
            if error.sqlstate in _STILL_LOCKED:
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


async def _write_against_blockers(
    session: Opened, wait_ms: int, deadline: Deadline
) -> tuple[tuple[Any, ...] | None, tuple[int, ...]]:
    """Try again, and end whoever is in the way meanwhile: the result of the attempt, and who was seen."""
    writing = asyncio.get_running_loop().create_task(_write(session, wait_ms, deadline))
    writing.add_done_callback(lambda task: None if task.cancelled() else task.exception())  # seen, even when cancelled
    try:
        blockers = await _end_blockers(session, writing, Deadline.after(wait_ms / 1000))
        return await writing, blockers
    finally:
        if not writing.done():  # we are being cancelled: it drops the link and is over at once
            writing.cancel()
            await asyncio.wait({writing})


async def _end_blockers(session: Opened, writing: asyncio.Task[Any], deadline: Deadline) -> tuple[int, ...]:
    """While ``writing`` waits: end the fenced transactions that it waits for, where this role may."""
    seen: set[int] = set()
    try:
        link = await Connector(session.options).connect(deadline)
    except PgElectError:  # then they are merely not known
        return ()
    beside = Opened(link, session.options, session.facts)
    try:
        while not writing.done():
            rows = (await beside.ask(sql.fence_blockers(session.facts.backend), deadline, "looking for blockers"))[-1]
            for pid in {pid for (pid,) in rows} - seen:
                seen.add(pid)
                await _end(beside, pid, deadline)
            await asyncio.wait({writing}, timeout=_LOOK_EVERY_S)
    except PgElectError:  # the second session was lost or came too late; what was seen is still true
        pass
    finally:
        link.drop()
    return tuple(sorted(seen))


async def _end(beside: Opened, pid: int, deadline: Deadline) -> None:
    try:
        await beside.ask(sql.terminate(pid), deadline, "ending a fenced transaction of an earlier term")
    except PgElectError:  # no right to; it may end by itself
        return
