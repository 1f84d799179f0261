"""Whatever goes wrong for ever, no elector runs hot; and in peace it says at most one thing an interval.

Holds off a loop that asks, fails or wins and loses as fast as it can (faults like oban-bg/oban#651, 2.5 million calls
an hour, and CrunchyData/postgres-operator#1631). What is counted are connections, statements and terms as the proxy
and the server saw them; what they are held against is what the retry strategy was asked for, not the speed of the
machine.
"""

import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import psycopg
import pytest

from pgelect import ExponentialBackoff, FixedInterval, RetryContext, RetryStrategy
from pgelect.testing import Postgres
from tests.support.databases import fresh_database
from tests.support.electors import Elector, one_leads
from tests.support.proxy import BreakableProxy
from tests.support.server import lock_holders, lock_waiters, query, terminate
from tests.support.waiting import eventually

Key = tuple[int, int]


class Asked:
    """A strategy that remembers what it answered; by default the usual one, but ten times as fast."""

    def __init__(self, inner: RetryStrategy = ExponentialBackoff(0.1, 1.0)) -> None:  # noqa: B008 -- immutable
        self.delays_s: list[float] = []
        self.attempts: list[int] = []  # which failure in a row it was asked about
        self._inner = inner

    def next_delay_s(self, ctx: RetryContext) -> float:
        delay_s = self._inner.next_delay_s(ctx)
        assert delay_s is not None
        self.delays_s.append(delay_s)
        self.attempts.append(ctx.attempt)
        return delay_s


@asynccontextmanager
async def counted(strategy: Asked, count: Callable[[], int], asked: int = 6) -> AsyncIterator[None]:
    """While the strategy is asked so many times: no attempt without its delay, and no delay cut short."""
    yield
    before, already = count(), len(strategy.delays_s)
    began = time.monotonic()
    await eventually(lambda: len(strategy.delays_s) >= already + asked, 30, "it goes on trying")
    attempts, waited_s = count() - before, time.monotonic() - began
    delays_s = strategy.delays_s[already:]
    assert attempts <= len(delays_s) + 2, (attempts, delays_s)
    assert waited_s >= sum(delays_s[:-1]), (waited_s, delays_s)


async def test_an_outage_is_met_with_the_strategys_attempts_and_no_more(
    database: str, key: Key, proxy: BreakableProxy
) -> None:
    strategy = Asked()
    async with Elector(proxy.dsn(database), key, lease_s=10.0, retry_strategy=strategy) as a:
        token = (await a.leads()).token
        async with counted(strategy, lambda: proxy.total_connections, asked=8):
            proxy.refuse()
            proxy.cut()
            await a.has_lost(token)
        assert max(strategy.delays_s) <= 1.0
        assert len(set(strategy.delays_s)) == len(strategy.delays_s), "without jitter all come back together"
        proxy.refuse(False)
        await a.leads(above=token)


async def test_a_login_that_is_refused_for_ever_is_tried_by_the_strategy(
    database: str, key: Key, proxy: BreakableProxy
) -> None:
    strategy = Asked()
    async with Elector(proxy.dsn(database, dbname="no_such_database"), key, retry_strategy=strategy) as a:
        async with counted(strategy, lambda: proxy.total_connections):
            pass
        assert a.terms == []


async def test_a_token_that_cannot_be_minted_is_tried_for_by_the_strategy(
    database: str, key: Key, proxy: BreakableProxy
) -> None:
    strategy = Asked(FixedInterval(1.0))
    async with Elector(proxy.dsn(database), key, lease_s=1.0, retry_strategy=strategy) as a:
        token = (await a.leads()).token
        async with await psycopg.AsyncConnection.connect(database) as conn:
            await conn.execute("LOCK TABLE pgelect.token IN SHARE MODE")
            async with counted(strategy, lambda: proxy.total_connections // 2, asked=3):  # it looks with a second one
                terminate(database, lock_holders(database, *key)[0])
                await a.has_lost(token)
            assert strategy.attempts[-3:] == [1, 2, 3], "a lock that is granted is no success while no token is minted"
            await conn.rollback()
        await a.leads(above=token)


async def test_an_on_acquired_that_always_fails_is_tried_by_the_strategy(database: str, key: Key) -> None:
    strategy, begun = Asked(), []
    a = Elector(database, key, lease_s=10.0, retry_strategy=strategy)

    @a.lock.on_acquired
    def fail() -> None:
        begun.append(1)
        raise ValueError("on purpose")

    async with a, counted(strategy, lambda: len(begun)):
        pass


async def test_terms_that_end_as_soon_as_they_begin_back_off(database: str, key: Key, proxy: BreakableProxy) -> None:
    """Something ends the session of whoever leads, at once and every time. The first such loss is not waited for."""
    strategy = Asked()
    a = Elector(proxy.dsn(database), key, lease_s=10.0, retry_strategy=strategy)
    a.lock.on_acquired(proxy.cut)
    async with a, counted(strategy, lambda: len(a.tokens("acquired"))):
        await eventually(lambda: len(a.tokens("acquired")) >= 3)


async def test_sessions_that_end_as_soon_as_they_wait_back_off(database: str, key: Key, proxy: BreakableProxy) -> None:
    """The same for a follower."""
    strategy = Asked(FixedInterval(0.3))
    async with Elector(database, key, lease_s=10.0) as leader:
        await leader.leads()
        a = Elector(proxy.dsn(database), key, lease_s=10.0, retry_strategy=strategy)
        a.lock.on_acquire_failed(lambda error: None if error else proxy.cut())
        async with a, counted(strategy, lambda: proxy.total_connections):
            pass
        assert leader.tokens("lost") == []


# In peace


@pytest.fixture
def own_database(own_server: Postgres, last_of_all: ExitStack) -> str:
    return last_of_all.enter_context(fresh_database(own_server))


def statements(server: Postgres, since: int) -> dict[str, int]:
    """How many statements each pid sent, by the server's log."""
    found: dict[str, int] = {}
    for pid in re.findall(r"\[(\d+)\] pgelect:\S* LOG:  (?:statement|execute)", server.log_text()[since:]):
        found[pid] = found.get(pid, 0) + 1
    return found


@pytest.mark.parametrize("acquire", ["queue", "poll"])
async def test_in_peace_each_elector_says_one_thing_an_interval_and_nothing_changes(
    own_server: Postgres, own_database: str, key: Key, acquire: str
) -> None:
    """A busy machine makes it fewer, never more."""
    interval_s, poll_s = 0.3, 0.4
    settings: dict[str, Any] = {"lease_s": 10.0, "health_interval_s": interval_s, "acquire": acquire}
    electors = [Elector(own_database, key, **settings, retry_strategy=FixedInterval(poll_s)) for _ in range(3)]
    async with electors[0], electors[1], electors[2]:
        leader = await one_leads(*electors)
        if acquire == "queue":
            await eventually(lambda: len(lock_waiters(own_database, *key)) == 2)
        query(own_database, "ALTER SYSTEM SET log_statement = 'all'")
        own_server.reload()
        (holder,) = lock_holders(own_database, *key)
        began, since = time.monotonic(), len(own_server.log_text())
        await eventually(lambda: statements(own_server, since).get(str(holder), 0) >= 8, 30, "eight proofs are logged")
        seen, lasted_s = statements(own_server, since), time.monotonic() - began
        assert seen.pop(str(holder)) <= lasted_s / interval_s + 2
        assert len(seen) == 2
        slice_s = 0.9 if acquire == "queue" else poll_s
        assert all(number <= lasted_s / slice_s + 2 for number in seen.values()), (seen, lasted_s)
        assert leader.terms == [("acquired", leader.lock.token)]
        assert sum(len(elector.terms) for elector in electors) == 1
        assert [elector.errors for elector in electors] == [[]] * 3
