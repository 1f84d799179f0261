"""run() campaigns until it is told to stop, whatever ends its terms, and the work of a term begins anew in each.

Holds off the zombie standby: after one failure nobody of the fleet campaigns any more, and all look healthy (faults
like kuberhealthy/kuberhealthy#1533 and skupperproject/skupper#1646).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from psycopg.conninfo import conninfo_to_dict

from pgelect import LockState, Term
from tests.support.electors import Elector, one_leads
from tests.support.ledger import connected
from tests.support.locks import is_free
from tests.support.proxy import BreakableProxy
from tests.support.server import lock_holders, lock_waiters, query, terminate
from tests.support.waiting import eventually

Key = tuple[int, int]
SETTINGS = {"lease_s": 6.0, "health_interval_s": 0.2, "health_timeout_s": 1.0}  # no loss but by a fault


class Member:
    """One of a fleet: it only calls run() and lead(); its link can be broken apart from that of the others."""

    def __init__(self, database: str, key: Key) -> None:
        self.database, self.key = database, key
        self.proxy = BreakableProxy("127.0.0.1", int(conninfo_to_dict(database)["port"] or 0))
        self.elector = Elector(self.proxy.dsn(database), key, **SETTINGS)
        self.lock = self.elector.lock
        self.worked: list[int] = []  # the terms in which the duty ran, in order
        self.working: list[int] = []  # the terms in which it runs now

    async def duty(self, term: Term) -> None:
        self.worked.append(term.token)
        self.working.append(term.token)
        try:
            await asyncio.Event().wait()
        finally:
            self.working.remove(term.token)

    @asynccontextmanager
    async def campaigning(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(self.lock.run())
            await eventually(lambda: self.lock.state is not LockState.STOPPED)
            leading = group.create_task(self.lock.lead(self.duty))
            try:
                with self.elector.looks:
                    yield
                assert not running.done(), "run() has returned"
                assert not leading.done(), "lead() has returned"
            finally:
                await self.lock.shutdown()
                self.proxy.close()


async def _terminated(it: Member) -> None:
    terminate(it.database, lock_holders(it.database, *it.key)[0])


async def _cut(it: Member) -> None:
    it.proxy.cut()


async def _cut_off_for_a_while(it: Member) -> None:
    it.proxy.refuse()
    it.proxy.cut()
    seen = len(it.elector.errors)
    await eventually(lambda: len(it.elector.errors) > seen + 1, message="it fails to connect")
    it.proxy.refuse(False)


async def _frozen(it: Member) -> None:
    it.proxy.freeze()
    token = it.lock.token or 0
    await it.elector.has_lost(token)
    it.proxy.cut()
    it.proxy.thaw()


async def _ended_in_the_minting(it: Member) -> None:
    """The session of the term ends, and then that of whoever holds the lock next, before it has a token."""
    waiting = "SELECT pid FROM pg_locks WHERE relation = 'pgelect.token'::regclass AND NOT granted"
    async with connected(it.database) as held:
        await held.execute("LOCK TABLE pgelect.token IN SHARE MODE")
        await _terminated(it)
        for (pid,) in await eventually(lambda: query(it.database, waiting), message="a mint waits"):
            terminate(it.database, pid)


async def _stepped_down(it: Member) -> None:
    await it.lock.step_down()


FAULTS = [_terminated, _cut, _cut_off_for_a_while, _frozen, _ended_in_the_minting, _stepped_down]
Fault = Callable[[Member], Awaitable[None]]


def _name(fault: Fault) -> str:
    return fault.__name__.strip("_").replace("_", " ")


@pytest.mark.parametrize("fault", FAULTS, ids=_name)
async def test_alone_it_leads_again_after_the_same_fault_time_and_again(database: str, key: Key, fault: Fault) -> None:
    it = Member(database, key)
    async with it.campaigning():
        token = 0
        for _ in range(3):
            token = (await it.elector.leads(above=token)).token
            await eventually(lambda: it.working == [token], message="the duty works in this term, and in no other")  # noqa: B023
            await fault(it)
        token = (await it.elector.leads(above=token)).token
        await eventually(lambda: it.working == [token], message="the duty works in this term")
        it.elector.check_pairs()
        assert it.worked == it.elector.tokens("acquired")
    assert it.working == []
    await is_free(database, key)


async def test_two_lead_in_turn_through_twenty_faults_of_every_kind(database: str, key: Key) -> None:
    members = [Member(database, key), Member(database, key)]
    a, b = (it.elector for it in members)
    async with members[0].campaigning(), members[1].campaigning():
        token = 0
        for n in range(20):
            leader = await one_leads(a, b, above=token)
            it = members[0] if leader is a else members[1]
            token = leader.lock.token or 0
            await eventually(lambda: it.working == [token], message="its duty works")  # noqa: B023
            await FAULTS[n % len(FAULTS)](it)
        leader = await one_leads(a, b, above=token)
        await eventually(lambda: len(lock_waiters(database, *key)) == 1, message="the other waits in the queue")
        assert len(lock_holders(database, *key)) == 1
        await eventually(lambda: [len(it.working) for it in members].count(1) == 1, message="one duty works")
        for it in members:
            it.elector.check_pairs()
            assert it.worked == it.elector.tokens("acquired")
        begun = sorted(a.tokens("acquired") + b.tokens("acquired"))
        assert len(begun) == len(set(begun)) >= 21
        assert begun[-1] == leader.lock.token
    assert members[0].working == members[1].working == []
    await is_free(database, key)
