"""Beginning a term: the token is written, greater than any before, and confirmed.

The row may be locked by transactions that an earlier token fenced. They are waited for in bounded time; then the token
is closed, so that no more of them come (the row alone lets them in: a lock for share does not queue behind who waits to
write), and those that are there are ended where the role may. A term never begins without its token. Who they are is
asked from a second session while the first one waits: only then does the server say so exactly. (The row's xmax does
not: after a savepoint it is a number that pg_locks no longer shows, and it may be a multixact.)
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import psycopg

from pgelect._engine.model import Grant
from pgelect._postgres import blockers, sql
from pgelect._postgres.connect import Connector
from pgelect._postgres.install import rewritten_token
from pgelect._postgres.opened import Opened, results
from pgelect.errors import FenceBusyError, PgElectError, SessionLostError

if TYPE_CHECKING:
    from psycopg import AsyncConnection

    from pgelect._postgres.link import Deadline
    from pgelect._postgres.opened import Rows

_STILL_LOCKED = frozenset({"55P03", "57014"})
_SOON_S = 0.1  # most rows are written by then
_LAST_CHANCE_S = 0.1  # for those that came during the wait: once no more can come, short ones are over by then
_LOOK_EVERY_S = 0.02


async def mint(session: Opened, deadline: Deadline) -> Grant:
    """Write the next token.

    Raises:
        FenceBusyError: a fenced transaction holds the row and could not be ended.
        KeyCollisionError: the row carries another name.
        SchemaError: what was written is not a greater token; it was rolled back.
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
        self._told: set[int] = set()  # or this role may not tell them
        self.blockers: set[int] = set()

    async def write(self) -> tuple[Any, ...] | None:
        """Write the row; None when it stayed locked."""
        row = await _write(self._session, self._wait_s, self._deadline)
        if row is None:
            await self._close()
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
            await asyncio.sleep(min(_LAST_CHANCE_S, self._wait_s / 4))
            await self._end_them(Opened(link, self._session.options, self._session.facts))
        except PgElectError:  # the second session was lost or came too late; what was seen is still true
            self._helped.set()
        finally:
            link.drop()

    async def _end_them(self, beside: Opened) -> None:
        query = blockers.fence_blockers(self._session.facts.backend)
        while True:
            rows = (await beside.ask(query, self._deadline, "looking for blockers"))[-1]
            for pid in {pid for (pid,) in rows} - self._told:
                self.blockers.add(pid)
                if await blockers.end(beside, self._session.facts.backend, pid, self._deadline):
                    self._told.add(pid)
            self._helped.set()
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _close(self) -> None:
        """Let no more fenced transactions in. Those that have a snapshot from before still may come, but no others."""
        key = self._session.options.key
        try:
            await self._session.ask(sql.close(key, self._session.facts), self._deadline, f"closing the term of {key}")
        except SessionLostError:
            raise
        except PgElectError:  # somebody has locked that row or its table: then it goes on as without it
            return


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
            if sql.REPEATED in str(error):
                raise rewritten_token() from None
            raise

    found = await session.link.run(work, deadline, f"minting a token for {options.key}")
    return found[-1][0] if found is not None else None


def _grant(session: Opened, row: tuple[Any, ...]) -> Grant:
    _, timeline, held, clean, *columns = row
    written, before = columns[: sql.RECORD_COLUMNS], columns[sql.RECORD_COLUMNS :]
    prior = None if before[0] is None else sql.record_of(before)
    if written[0] is None:
        session.refuse_collision(prior.name if prior is not None else None)
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
        prior=prior,
    )
