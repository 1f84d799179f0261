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
from pgelect._postgres.opened import Opened, results
from pgelect.errors import FenceBusyError, PgElectError, SessionLostError

if TYPE_CHECKING:
    from psycopg import AsyncConnection

    from pgelect._postgres.link import Deadline
    from pgelect._postgres.opened import Rows

_STILL_LOCKED = frozenset({"55P03", "57014"})
_SOON_S = 0.1  # most rows are written by then
_LOOK_EVERY_S = 0.02


async def mint(session: Opened, deadline: Deadline) -> Grant:
    """Write the next token.

    Raises:
        FenceBusyError: a fenced transaction holds the row and could not be ended.
        KeyCollisionError: the row carries another name.
        SessionLostError: the session does not hold the lock any more, or was lost.
    """
    if not session.options.fencing:
        return await _begin_unfenced(session, deadline)
    attempt = _Attempt(session, deadline)
    writing = asyncio.get_running_loop().create_task(attempt.write())
    tasks = {writing}
    try:
        await asyncio.wait(tasks, timeout=_SOON_S)
        if not writing.done():
            tasks.add(asyncio.get_running_loop().create_task(attempt.end_blockers()))
        row = await writing
    finally:
        await _end_all(tasks)  # when we are being cancelled, too: the writing drops the link and is over at once
    if row is None:
        raise FenceBusyError(session.options.key, tuple(sorted(attempt.blockers)))
    return _grant(session, row)


async def _end_all(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
        task.add_done_callback(lambda task: None if task.cancelled() else task.exception())  # seen
    if left := {task for task in tasks if not task.done()}:
        await asyncio.wait(left)


class _Attempt:
    """One minting: what writes, waiting for others, and what ends those that it waits for."""

    def __init__(self, session: Opened, deadline: Deadline) -> None:
        self._session = session
        self._deadline = deadline
        # Two waits or more, and time left for the answers: the caller needs the session to free the lock afterwards.
        self._wait_s = max(0.001, min(session.facts.slice_s, deadline.left_s() / 4))
        self._waited = asyncio.Event()  # fenced transactions have had the time to end by themselves
        self._helped = asyncio.Event()  # they have been told to end, or nobody can
        self.blockers: set[int] = set()

    async def write(self) -> tuple[Any, ...] | None:
        """Write the row; None when it stayed locked."""
        row = await _write(self._session, self._wait_s, self._deadline)
        self._waited.set()
        while row is None:
            row = await _write(self._session, self._wait_s, self._deadline)
            if self._helped.is_set() or self._deadline.left_s() < 2 * self._wait_s:
                break
        return row

    async def end_blockers(self) -> None:
        """Until cancelled, end whoever the writing waits for, where this role may.

        To connect may take as long as one of the waits, over a slow network: so it begins with the first of them.
        """
        try:
            link = await Connector(self._session.options).connect(self._deadline, beside=self._session.link)
        except PgElectError:  # then they are merely not known
            self._helped.set()
            return
        try:
            await self._waited.wait()
            await self._end_them(Opened(link, self._session.options, self._session.facts))
        except PgElectError:  # the second session was lost or came too late; what was seen is still true
            self._helped.set()
        finally:
            link.drop()

    async def _end_them(self, beside: Opened) -> None:
        query = sql.fence_blockers(self._session.facts.backend)
        while True:
            rows = (await beside.ask(query, self._deadline, "looking for blockers"))[-1]
            for pid in {pid for (pid,) in rows} - self.blockers:
                self.blockers.add(pid)
                await _end(beside, pid, self._deadline)
            self._helped.set()
            await asyncio.sleep(_LOOK_EVERY_S)


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


async def _write(session: Opened, wait_s: float, deadline: Deadline) -> tuple[Any, ...] | None:
    """Try once; None when the row stayed locked."""
    options = session.options
    query = sql.mint(options, session.facts, max(1, round(wait_s * 1000)))

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
    timeline, held, clean, prior_name, *written = row
    if written[0] is None:
        session.refuse_collision(prior_name)
        if not held:
            session.link.drop()
            detail = "the server says that this session does not hold the lock any more: no token was minted"
            raise SessionLostError("disproved", detail)
        raise PgElectError(f"no token was written for {session.options.key}: the row changed meanwhile; try again")
    record = sql.record_of(written)
    return Grant(
        token=record.token,
        acquired_at=record.acquired_at,
        backend=record.backend,
        timeline=timeline,
        predecessor_clean=bool(clean),
        record=record,
    )


async def _end(beside: Opened, pid: int, deadline: Deadline) -> None:
    try:
        await beside.ask(sql.terminate(pid), deadline, "ending a fenced transaction of an earlier term")
    except PgElectError:  # no right to; it may end by itself
        return
