"""A successor far from the server: the fenced transaction that holds up its token is ended all the same."""

from contextlib import closing

import psycopg

from pgelect import FenceBusyError
from tests.support.electors import Elector
from tests.support.proxy import BreakableProxy
from tests.support.server import lock_holders, lock_waiters, query, terminate
from tests.support.waiting import eventually

Key = tuple[int, int]
DELAY_S = 0.2  # each way: to connect and to look takes longer than one wait for the row
LEASE_S = 4.0


async def test_a_blocker_is_ended_though_connecting_takes_as_long_as_a_wait(
    proxy: BreakableProxy, database: str, key: Key
) -> None:
    """Regression: to connect a second session had the time of one wait for the row.

    Every candidate came as far as fence_busy, and gave the lock to the next, for as long as the transaction was open.
    """
    async with Elector(database, key, lease_s=30.0, auto_reacquire=False) as a:
        token = (await a.leads()).token
        with closing(psycopg.connect(database)) as writer:
            writer.execute("SELECT pgelect.check_token(%s::int4, %s::int4, %s)", (*key, token))
            proxy.delay(DELAY_S)
            async with Elector(proxy.dsn(database), key, lease_s=LEASE_S, health_interval_s=1.0) as b:
                await eventually(lambda: lock_waiters(database, *key), message="it waits in the queue")
                terminate(database, lock_holders(database, *key)[0])
                await b.leads(above=token)
                assert [error for error in b.errors if isinstance(error, FenceBusyError)] == []
                its_session = "SELECT 1 FROM pg_stat_activity WHERE pid = %s"
                await eventually(lambda: query(database, its_session, writer.info.backend_pid) == [], message="ended")
