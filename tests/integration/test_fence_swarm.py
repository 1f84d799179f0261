"""Writers that call the check by number, one after another without end: terms end and begin all the same.

Holds off three faults. A lock for share does not queue behind who waits to write: overlapping transactions of an old
token kept the next term away for good, while session after session was ended for it. A release waited anew for each of
them, past its deadline, and was told as a loss. And what was to be ended was ended by its number some time after it had
been looked up: a pooled connection may be in a transaction of somebody else by then.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.sql import SQL, Composed

from pgelect import FenceBusyError, LockKey
from pgelect._engine.model import Backend
from pgelect._postgres.blockers import end_blocker, fence_blockers
from pgelect.fencing import check_token, guard_table
from tests.support.electors import Elector
from tests.support.looks import now
from tests.support.roles import MAY_END_WRITERS, Role, Roles
from tests.support.server import lock_holders, query, terminate
from tests.support.waiting import POLL_S, eventually, scaled

Key = tuple[int, int]
WRITERS = 6
HOLD_S = 0.06
CHECK = "SELECT pgelect.check_token(%s::int4, %s::int4, %s::int8)"
MINE = (
    "SELECT pid, (SELECT backend_start FROM pg_stat_activity AS a WHERE a.pid = b.pid) FROM pg_backend_pid() AS b (pid)"
)


class Swarm:
    """Writers of one role, each with transactions of 60 ms under one token, until they hear that it is stale.

    None commits before another one has been let in: there is no gap, however slow the machine is.
    """

    def __init__(self, writer: Role, key: Key, token: int) -> None:
        self._dsn = writer.dsn
        self._check = (*key, token)
        self.committed = 0
        self.ended = 0
        self.refused: list[str | None] = []
        self._inside = 0

    async def write(self, nth: int) -> None:
        await asyncio.sleep(HOLD_S * nth / WRITERS)
        while not self.refused or self.refused == ["PGE01"] * len(self.refused):
            try:
                async with await AsyncConnection.connect(self._dsn) as conn:
                    while True:
                        await conn.execute(CHECK, self._check)
                        await self._stay_inside(conn)
                        await conn.commit()
                        self.committed += 1
            except psycopg.OperationalError:
                self.ended += 1
            except psycopg.Error as error:
                self.refused.append(error.sqlstate)
                return

    async def _stay_inside(self, conn: AsyncConnection[Any]) -> None:
        self._inside += 1
        try:
            await asyncio.sleep(HOLD_S)
            while self._inside == 1 and not self.refused:
                await asyncio.sleep(POLL_S)
                await conn.execute("SELECT 1")  # it may have been ended
        finally:
            self._inside -= 1


@asynccontextmanager
async def swarm(writer: Role, key: Key, token: int) -> AsyncIterator[Swarm]:
    """Inside the block they write; at its end each of them has been told that the token is stale."""
    it = Swarm(writer, key, token)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        for nth in range(WRITERS):
            group.create_task(it.write(nth))
        await eventually(lambda: it.committed >= 2 * WRITERS, message="all of them write")
        yield it
    assert it.refused == ["PGE01"] * WRITERS


# The next term


@pytest.mark.parametrize("may_end", [True, False])
async def test_a_new_term_begins_in_time_though_writers_of_the_old_token_overlap_without_end(
    any_roles: Roles, key: Key, may_end: bool
) -> None:
    """Regression: no term within 12 s, and 210 sessions ended for it. A writer that had committed is left alone."""
    elector, writer = any_roles.electors_and_writers()
    if may_end:
        any_roles.run(MAY_END_WRITERS, app_elector=elector.name, app_writer=writer.name)
    honest = any_roles.connect(writer)
    async with Elector(elector.dsn, key, lease_s=10.0) as a:
        old = (await a.leads()).token
        with honest.transaction():
            honest.execute(CHECK, (*key, old))
        honest.execute("BEGIN")  # what a pool gives it to do next
        honest.execute("SELECT 1")
        async with swarm(writer, key, old) as writers:
            died_at = now()
            terminate(any_roles.database, lock_holders(any_roles.database, *key)[0])
            new = (await a.leads(above=old)).token
        assert a.when("acquired", new) - died_at < a.lock.bounds().failover_crash.seconds
        assert [error for error in a.errors if isinstance(error, FenceBusyError)] == []
        assert writers.ended <= (3 if may_end else 0)
        honest.execute("COMMIT")
        assert query(any_roles.database, "SELECT key1, key2, token FROM pgelect.closed") == [(*key, old)]
        with honest.transaction():
            honest.execute(CHECK, (*key, new))
        a.check_pairs()


async def test_who_cannot_close_the_token_still_ends_what_is_in_the_way(database: str, key: Key) -> None:
    """An administrator keeps the table from being written: closing does not wait for that."""
    async with Elector(database, key, lease_s=10.0) as a:
        old = (await a.leads()).token
        async with (
            await AsyncConnection.connect(database) as administrator,
            await AsyncConnection.connect(database) as stuck,
        ):
            await administrator.execute("LOCK TABLE pgelect.closed IN SHARE MODE")
            await check_token(stuck, LockKey(*key), old)
            terminate(database, lock_holders(database, *key)[0])
            new = (await a.leads(above=old)).token
            with pytest.raises(psycopg.OperationalError):
                await stuck.execute("SELECT 1")
            await administrator.execute("SELECT 1")
        assert query(database, "SELECT count(*) FROM pgelect.closed") == [(0,)]
        async with await AsyncConnection.connect(database) as conn:
            await check_token(conn, LockKey(*key), new)


async def test_a_transaction_that_was_in_writes_no_more_to_a_guarded_table_once_its_token_is_closed(
    roles: Roles, key: Key
) -> None:
    """It may commit what it has, and is told plainly that its term is over, not that it had no fence."""
    elector, writer = roles.electors_and_writers()
    roles.run(f"CREATE TABLE public.work (n integer); GRANT INSERT, SELECT ON public.work TO {writer.name}")
    async with await AsyncConnection.connect(roles.database, autocommit=True) as owner:
        await guard_table(owner, "public.work", LockKey(*key))
    conn, late = roles.connect(writer), roles.connect(writer)
    async with Elector(elector.dsn, key, lease_s=10.0) as a:
        old = (await a.leads()).token
        for each, value in ((conn, 1), (late, 2)):
            each.execute("BEGIN")
            each.execute(CHECK, (*key, old))
            each.execute("INSERT INTO public.work VALUES (%s)", (value,))
        terminate(roles.database, lock_holders(roles.database, *key)[0])
        busy = await a.hears(FenceBusyError)
        assert isinstance(busy, FenceBusyError)
        assert set(busy.blockers) <= {conn.info.backend_pid, late.info.backend_pid}
        with pytest.raises(psycopg.Error, match=f"token {old} of lock .* is stale") as refused:
            late.execute("INSERT INTO public.work VALUES (3)")
        assert refused.value.sqlstate == "PGE01"
        conn.execute("COMMIT")
        late.execute("ROLLBACK")
        await a.leads(above=old)
        assert query(roles.database, "SELECT n FROM public.work") == [(1,)]


# The release


async def test_stepping_down_is_a_release_in_time_though_writers_of_its_token_overlap_without_end(
    any_roles: Roles, key: Key
) -> None:
    """Regression: it took 11 s, and was told as a loss."""
    elector, writer = any_roles.electors_and_writers()
    async with Elector(elector.dsn, key, lease_s=10.0) as a:
        token = (await a.leads()).token
        async with swarm(writer, key, token):
            begun_at = now()
            assert await a.lock.step_down(cooldown_s=60.0)
            await eventually(lambda: a.terms[1:], message="the end is told")
        assert a.terms == [("acquired", token), ("released", token)]
        assert a.when("released", token) - begun_at < a.lock.bounds().failover_clean.seconds
        assert a.errors == []
        assert lock_holders(any_roles.database, *key) == []
        assert query(any_roles.database, "SELECT released_at IS NOT NULL FROM pgelect.token") == [(True,)]


# Whom it ends


async def test_a_session_that_is_no_longer_in_the_way_is_not_ended(any_database: str, key: Key) -> None:
    """Regression: it was ended by the pid of the last look, and with it what it did for somebody else by now."""
    other = LockKey(key[0], key[1] ^ 1)
    async with Elector(any_database, key) as a, Elector(any_database, (other.key1, other.key2)) as b:
        token, elsewhere = (await a.leads()).token, (await b.leads()).token
        async with (
            await AsyncConnection.connect(any_database) as waiting,  # the last to be closed
            await AsyncConnection.connect(any_database) as pooled,
            await AsyncConnection.connect(any_database) as stuck,
            await AsyncConnection.connect(any_database, autocommit=True) as beside,
        ):
            waiter = await _backend(waiting)
            await check_token(pooled, LockKey(*key), token)
            await check_token(stuck, LockKey(*key), token)
            change = asyncio.create_task(
                waiting.execute("UPDATE pgelect.token SET terms = terms WHERE key1 = %s AND key2 = %s", key)
            )
            await _waits_for(beside, waiter, pooled, stuck)
            await pooled.commit()
            await check_token(pooled, other, elsewhere)
            await _waits_for(beside, waiter, stuck)
            assert await _end(beside, waiter, pooled) in ([], [(None,)])
            await pooled.commit()
            assert not change.done()
            assert await _end(beside, waiter, stuck) == [(True,)]
            await change
            with pytest.raises(psycopg.OperationalError):
                await stuck.commit()
            await waiting.rollback()
            assert await _end(beside, waiter, pooled) in ([], [(None,)])


async def _backend(conn: AsyncConnection[Any]) -> Backend:
    pid, started_at = (await _last(conn, SQL(MINE).format()))[0]
    await conn.commit()
    return Backend(pid, started_at)


async def _last(conn: AsyncConnection[Any], statement: Composed) -> list[tuple[Any, ...]]:
    cursor = await conn.execute(statement)
    while cursor.nextset():
        pass
    return await cursor.fetchall()


async def _waits_for(beside: AsyncConnection[Any], waiter: Backend, *blockers: AsyncConnection[Any]) -> None:
    """Wait until it waits for one of these, and for nobody else."""
    pids = {blocker.info.backend_pid for blocker in blockers}
    async with asyncio.timeout(scaled(10)):
        while not (seen := {pid for (pid,) in await _last(beside, fence_blockers(waiter))}) or not seen <= pids:
            await asyncio.sleep(POLL_S)


async def _end(beside: AsyncConnection[Any], waiter: Backend, blocker: AsyncConnection[Any]) -> list[tuple[Any, ...]]:
    return await _last(beside, end_blocker(waiter, blocker.info.backend_pid))
