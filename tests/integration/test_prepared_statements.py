"""Nothing is prepared on the election's session: behind a pooler the name would live on another one."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.support.electors import Elector, one_leads
from tests.support.pgbouncer import PgBouncer
from tests.support.server import lock_holders, terminate
from tests.support.waiting import eventually

Key = tuple[int, int]
PROOFS = 100
SETTINGS = {"lease_s": 30.0, "health_interval_s": 0.01}


@pytest.mark.parametrize("threshold", [0, 1, 5, None])
async def test_a_connection_of_the_users_is_not_made_to_prepare_whatever_its_threshold(
    database: str, key: Key, threshold: int | None
) -> None:
    """Over a whole life: opening, waiting, minting, a hundred proofs, a lost session, and a release."""
    made: list[psycopg.AsyncConnection[Any]] = []

    async def connect() -> psycopg.AsyncConnection[Any]:
        made.append(await psycopg.AsyncConnection.connect(database, prepare_threshold=threshold))
        return made[-1]

    async with Elector(database, key, lease_s=30.0) as first:
        await first.leads()
        a = Elector("", key, connect_fn=connect, reconnect_grace_s=30.0, **SETTINGS)
        async with a:
            await eventually(lambda: made, message="it has connected")
            await first.lock.shutdown()
            await a.leads()
            await a.proved(PROOFS // 2)
            terminate(database, lock_holders(database, *key)[0])
            await a.proved(PROOFS // 2)
            assert len(made) >= 2  # a mint that takes its time looks with one more
            (session,) = [conn for conn in made if not conn.closed]
            rows = await session.execute("SELECT count(*) FROM pg_prepared_statements", prepare=False)
            assert await rows.fetchone() == (0,)
            assert len(lock_holders(database, *key)) == 1
            assert a.tokens("acquired")


async def test_a_hundred_proofs_through_a_pool_among_its_other_clients_never_fail(
    pgbouncer: Callable[..., PgBouncer], database: str, key: Key
) -> None:
    """They take turns with clients that prepare, and whose sessions were the elector's before."""
    pooled = pgbouncer("session", 4).through(database)
    async with Elector(pooled, key, **SETTINGS) as a, Elector(pooled, key, **SETTINGS) as b:
        token = 0
        for _ in range(3):
            leader = await one_leads(a, b, above=token)
            token = leader.lock.token or 0
            async with await psycopg.AsyncConnection.connect(pooled, prepare_threshold=0) as conn:
                await conn.execute("SELECT count(*) FROM pg_locks")
                await leader.proved(PROOFS // 3)
            assert await leader.lock.step_down()
        assert a.errors == b.errors == []
