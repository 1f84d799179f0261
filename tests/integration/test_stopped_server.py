"""The server stands still, whole or in part, as on a paused machine or a stalled disk: it is silent, not gone."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterable
from contextlib import ExitStack, asynccontextmanager, suppress

import psutil
import pytest

from pgelect import LockState
from pgelect.testing import Postgres
from tests.support.databases import fresh_database
from tests.support.electors import LEASE_S, Elector, one_leads
from tests.support.looks import now
from tests.support.server import lock_holders, lock_waiters, sessions
from tests.support.waiting import eventually

Key = tuple[int, int]


@pytest.fixture
def own_database(own_server: Postgres, last_of_all: ExitStack) -> str:
    return last_of_all.enter_context(fresh_database(own_server))


def everything(server: Postgres) -> list[int]:
    """All processes of the server, the postmaster first."""
    postmaster = psutil.Process(server.postmaster_pid)
    return [postmaster.pid, *(child.pid for child in postmaster.children(recursive=True))]


@asynccontextmanager
async def standing_still(pids: Iterable[int]) -> AsyncIterator[None]:
    stopped = []
    for pid in pids:
        with suppress(ProcessLookupError):  # a session that ended meanwhile
            os.kill(pid, signal.SIGSTOP)
            stopped.append(pid)
    try:
        yield
    finally:
        for pid in stopped:
            with suppress(ProcessLookupError):  # a session that ended while the others went on already
                os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("grace_s", [None, 30.0])
async def test_nobody_leads_while_the_whole_server_stands_still(
    own_server: Postgres, own_database: str, key: Key, grace_s: float | None
) -> None:
    async with Elector(own_database, key, reconnect_grace_s=grace_s) as a, Elector(own_database, key) as b:
        leader = await one_leads(a, b)
        token = leader.lock.token or 0
        await eventually(lambda: lock_waiters(own_database, *key), message="the other waits in the queue")
        async with standing_still(everything(own_server)):
            stopped_at = now()
            await eventually(lambda: not leader.is_leader, message="trust runs out")
            await asyncio.sleep(LEASE_S)  # the fault itself goes on
            went_on_at = now()
            assert {a.is_leader, b.is_leader} == {False}
        assert not a.looks.was_true(stopped_at + LEASE_S, went_on_at)
        assert not b.looks.was_true(stopped_at + LEASE_S, went_on_at)
        await one_leads(a, b, above=token - 1)
        await eventually(lambda: len(lock_waiters(own_database, *key)) == 1, message="the other waits in the queue")
        assert len(lock_holders(own_database, *key)) == 1
        assert len(sessions(own_database)) == 2
        a.check_pairs()
        b.check_pairs()


async def test_a_leaders_backend_that_stands_still_holds_the_lock_but_gives_no_leadership(
    database: str, key: Key
) -> None:
    """Neither the lease nor an administrator can end it: nobody may lead until it goes on, and then one does."""
    async with Elector(database, key) as a:
        token = (await a.leads()).token
        async with Elector(database, key) as b:
            await eventually(lambda: lock_waiters(database, *key), message="it waits in the queue")
            held = lock_holders(database, *key)
            async with standing_still(held):
                stopped_at = now()
                await a.has_lost(token)
                await asyncio.sleep(LEASE_S)  # the fault itself goes on
                went_on_at = now()
                assert lock_holders(database, *key) == held
                assert a.lock.state is not LockState.STOPPED
                assert b.terms == []
            assert not a.looks.was_true(stopped_at + LEASE_S, went_on_at)
            leader = await one_leads(a, b, above=token)
            assert lock_holders(database, *key) != held
            assert leader.is_leader
            a.check_pairs()
            b.check_pairs()
