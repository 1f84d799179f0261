"""The GroupSession protocol on PostgreSQL: one dedicated connection that carries the terms of many partitions.

What this session holds is remembered here, and each proof counts it on the server: a lock more or less than that, and
the session is dropped. Session locks stack and outlive a failed statement, so a key is tried for only while it is not
held, and after an error whatever may have been granted is given back.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.sql import SQL, Composed, Identifier, Literal

from pgelect._engine.model import Grant
from pgelect._group.session import Catch, Sight
from pgelect._postgres import announcing, group_sql, minting, sql
from pgelect._postgres.dedicated import DedicatedSession
from pgelect._postgres.link import Deadline
from pgelect.errors import KeyCollisionError, PgElectError, SessionLostError

if TYPE_CHECKING:
    from pgelect._engine.model import Backend, LockKey
    from pgelect._postgres.group_sql import Ring
    from pgelect._postgres.opened import Opened, Rows
    from pgelect._postgres.options import SessionOptions

_HURRY_S = 1.0  # for a request that the server end a wait
_CALLS_APART_S = 0.02  # anybody may call, as often as he likes
_MARK_S = 1.0  # for marking terms as released


class PostgresGroupSession(DedicatedSession):
    """See ``pgelect._group.session.GroupSession`` for what each method promises."""

    def __init__(self, options: SessionOptions, ring: Ring, weight: float, most: int | None) -> None:
        """``options.key`` names the group, for the errors and for others to see."""
        super().__init__(options)
        self._ring = ring
        self._weight = weight
        self._most = most
        self._me = secrets.randbits(32) - 2**31
        self._holds: set[LockKey] = set()
        self._listens: set[LockKey] = set()
        self._called = False  # since the last look
        self._heard_at = 0.0
        self._hurrying: asyncio.Task[None] | None = None

    @property
    def me(self) -> int:
        """The id of this member in the ring."""
        return self._me

    async def join(self, ghost: Backend | None, within_s: float) -> Backend:
        """Become a member that others see; end ``ghost``, our own lost session, first."""
        session, deadline = self._open_session(), Deadline.after(within_s)
        if ghost is not None:
            try:
                await self._ask(group_sql.end_session(ghost), deadline, "ending our own lost session")
            except SessionLostError:
                raise
            except PgElectError:  # no right to: it will end by its lease
                pass
        query = group_sql.join(self._ring, self._me, self._weight, self._most)
        rows = (await self._ask(query, deadline, "joining the group"))[-1]
        if not rows[0][0]:
            self.abandon()
            raise SessionLostError("closed", "the number that this member has drawn is taken; it draws another one")
        return session.facts.backend

    async def look(self, known: int | None, wait_for: int | None, wait_s: float, within_s: float) -> Sight:
        """Wait for the end of a member for that long at most, then prove all locks and look at the group."""
        session = self._open_session()
        wait_s = min(wait_s, session.facts.slice_s)
        deadline = Deadline.after(wait_s + within_s)
        if wait_for is None:
            rows = await self._ask(self._sight(known, waited=False), deadline, "proving leadership")
        else:
            wait = group_sql.wait_for(self._ring, wait_for, max(1, round(wait_s * 1000)))
            rows = await self._wait_and_look(wait, known, deadline)
        orphaned, ours, held, in_recovery, number, text = rows[-1][0]
        if in_recovery:
            self.abandon()
            raise SessionLostError("disproved", "the server is in recovery: it has been demoted, or is a standby")
        if not ours or held != len(self._holds) + 1:
            self.abandon()
            detail = f"the server says that this session holds {held} locks, not {len(self._holds) + 1}"
            raise SessionLostError("disproved", detail if ours else "the server session is not the one we set up")
        view = None if text is None else group_sql.view_of(text, self._ring)
        called, self._called = await session.link.watch(0.0) or self._called, False  # what came meanwhile
        deaf = not announcing.may_listen(session.link.conn)  # then it is looked from time to time who may have called
        return Sight(number, view, bool(orphaned), called or deaf)

    async def _wait_and_look(self, wait: Composed, known: int | None, deadline: Deadline) -> list[Rows]:
        try:
            return await self._ask(wait + self._sight(known, waited=True), deadline, "proving leadership")
        except PgElectError as error:
            if self._hurrying is None or not isinstance(error.__cause__, psycopg.errors.QueryCanceled):
                raise
            await asyncio.wait({self._hurrying})  # it met not the wait, but what goes before or after it
        session = self._open_session()  # until the next ``_ask`` no further request is made, to meet this
        return await session.ask(self._sight(known, waited=False), deadline, "proving leadership")

    def _sight(self, known: int | None, *, waited: bool) -> Composed:
        return group_sql.look(self._ring, self._open_session().facts, known, waited=waited)

    async def take(self, keys: tuple[LockKey, ...], within_s: float) -> Catch:
        """Try for these locks without waiting, and mint the tokens of those that are granted."""
        session, deadline = self._open_session(), Deadline.after(within_s)
        keys = tuple(key for key in keys if key not in self._holds)
        query = group_sql.try_locks(keys) + sql.THEN + group_sql.mint_all(session.options, session.facts, keys)
        try:
            locked, rows = (await self._ask(query, deadline, "taking partitions"))[-2:]
        except SessionLostError:
            raise
        except PgElectError as error:
            await self._give_back(deadline)
            return Catch(failed=tuple((key, error) for key in keys))
        by_pair = {(key.key1, key.key2): key for key in keys}
        ours = set(locked)
        granted = [key for key in keys if (key.key1, key.key2) in ours]
        self._holds.update(granted)
        return await self._caught(session, granted, {by_pair[row[0], row[1]]: row for row in rows}, deadline)

    async def _caught(
        self, session: Opened, granted: list[LockKey], rows: dict[LockKey, tuple[Any, ...]], deadline: Deadline
    ) -> Catch:
        grants: list[tuple[LockKey, Grant]] = []
        held_up: list[LockKey] = []
        failed: list[tuple[LockKey, Exception]] = []
        for key in granted:
            row = rows.get(key)
            if row is None:
                self.abandon()
                detail = f"the server says that this session does not hold the lock {key} any more"
                raise SessionLostError("disproved", detail)
            if row[4] is not None:
                failed.append((key, KeyCollisionError(key, key.name or "", row[4])))
            elif row[5] is None:
                held_up.append(key)
            else:
                grants.append((key, _grant(session, row)))
        if failed:
            await self._unlock([key for key, _ in failed], deadline)
        return Catch(tuple(grants), tuple(held_up), tuple(failed))

    async def mint(self, key: LockKey, within_s: float) -> Grant:
        """With the lock held: mint one token, waiting for the fenced transactions that hold it up, and ending them."""
        session, deadline = self._open_session(), Deadline.after(within_s)
        await self._hurried()
        one = replace(session, options=replace(session.options, key=key))
        try:
            return await minting.mint(one, deadline)
        except SessionLostError:
            raise
        except PgElectError:
            await self._unlock([key], Deadline.after(within_s))
            raise

    async def tell(self, grants: tuple[tuple[LockKey, Grant], ...], within_s: float) -> None:
        """Write down that these terms have begun, and hear calls to them from now on."""
        session, deadline = self._open_session(), Deadline.after(within_s)
        if session.facts.announces:
            await self._listen(session, [key for key, _ in grants], deadline)
            words = SQL("; ").join([announcing.begun(key, grant) for key, grant in grants])
            await self._ask(announcing.bounded(deadline) + words, deadline, "announcing terms")
        await self._ask(_notify(grants), deadline, "telling of terms")

    async def _listen(self, session: Opened, keys: list[LockKey], deadline: Deadline) -> None:
        if not announcing.may_listen(session.link.conn):
            return
        new = [key for key in keys if key not in self._listens]
        words = [SQL("LISTEN {}").format(Identifier(announcing.step_down_channel(key))) for key in new]
        if words:
            await self._ask(SQL("; ").join(words), deadline, "listening")
            self._listens.update(new)
            self._called = True  # somebody may have called before it was listened to

    async def heed(self, tokens: tuple[tuple[LockKey, int], ...], within_s: float) -> tuple[tuple[LockKey, str], ...]:
        """Look which of these terms were asked to end, and by whom."""
        if not self._open_session().facts.announces:
            return ()
        deadline = Deadline.after(within_s)
        query = announcing.bounded(deadline) + group_sql.asked(tokens)
        rows = (await self._ask(query, deadline, "looking for requests to step down"))[-1]
        by_pair = {(key.key1, key.key2): key for key, _ in tokens}
        return tuple((by_pair[key1, key2], str(by)) for key1, key2, by in rows)

    async def free(self, tokens: tuple[tuple[LockKey, int], ...], within_s: float) -> None:
        """Mark these terms as cleanly released, then unlock."""
        deadline = Deadline.after(within_s)
        keys = [key for key, _ in tokens]
        wait_ms = max(1, round(min(_MARK_S, within_s / 2) * 1000))
        try:
            rows = (await self._ask(group_sql.free_all(tokens, wait_ms), deadline, "releasing partitions"))[-1]
        except SessionLostError:
            raise
        except PgElectError:  # not marked: their next leaders will take the end of these terms for an unclean one
            query = sql.ROLLBACK + group_sql.unlock_all(keys)
            rows = (await self._ask(query, deadline, "releasing partitions"))[-1]
        self._freed(keys, rows)

    async def watch(self, for_s: float) -> None:
        """Idle for that long, or until somebody calls."""
        deaf_s = max(0.0, self._heard_at + _CALLS_APART_S - time.monotonic())
        if await self._open_session().link.watch(for_s, deaf_s):
            self._heard_at, self._called = time.monotonic(), True

    def hurry(self) -> None:
        """Have the wait of a look that is in flight end soon. Never raises."""
        if self._link is None or self._hurrying is not None or os.getpid() != self._owner_pid:
            return
        self._hurrying = asyncio.get_running_loop().create_task(self._link.interrupt(_HURRY_S))

    async def close(self, within_s: float) -> None:
        """End the session in an orderly way. Never raises but a cancel."""
        deadline = Deadline.after(within_s)
        try:
            if self._link is not None and os.getpid() == self._owner_pid:
                await self._link.cancel(deadline)
        finally:
            self.abandon()

    async def _ask(self, query: Composed, deadline: Deadline, doing: str) -> list[Rows]:
        await self._hurried()
        return await self._open_session().ask(query, deadline, doing)

    async def _hurried(self) -> None:
        """Before the next statement: a request to cancel that is under way must not meet that instead."""
        hurrying, self._hurrying = self._hurrying, None
        if hurrying is not None and not hurrying.done():
            await asyncio.wait({hurrying})

    async def _give_back(self, deadline: Deadline) -> None:
        query = group_sql.unlock_others(self._holds, self._ring, self._me)
        await self._ask(query, deadline, "giving back what was taken")

    async def _unlock(self, keys: list[LockKey], deadline: Deadline) -> None:
        self._freed(keys, (await self._ask(group_sql.unlock_all(keys), deadline, "unlocking"))[-1])

    def _freed(self, keys: list[LockKey], rows: Rows) -> None:
        self._holds.difference_update(keys)
        if not all(freed for _, _, freed in rows) or len(rows) != len(keys):
            self.abandon()
            raise SessionLostError("disproved", "the server says that this session did not hold what it gave up")


def _grant(session: Opened, row: tuple[Any, ...]) -> Grant:
    written, before = group_sql.grant_columns(row, sql.RECORD_COLUMNS)
    record = sql.record_of(written)
    return Grant(
        token=record.token,
        acquired_at=record.acquired_at,
        backend=session.facts.backend,
        timeline=row[2],
        predecessor_clean=bool(row[3]),
        record=record,
        prior=None if before[0] is None else sql.record_of(before),
    )


def _notify(grants: tuple[tuple[LockKey, Grant], ...]) -> Composed:
    texts = [
        json.dumps({"key1": key.key1, "key2": key.key2, "token": grant.token, "event": "began"})
        for key, grant in grants
    ]
    return SQL("SELECT pg_catalog.pg_notify({}, t) FROM unnest({}::pg_catalog.text[]) AS t").format(
        Literal(announcing.CHANGES), Literal(texts)
    )
