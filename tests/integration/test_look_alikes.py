"""What looks like a leader or a follower of a lock in pg_locks, and is none, is not counted by pgelect.leaders."""

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from pgelect import LockKey
from pgelect.observe import get_leader
from pgelect.testing import Postgres
from tests.support.databases import fresh_database
from tests.support.puppets import Puppet
from tests.support.server import query
from tests.support.waiting import eventually

Key = tuple[int, int]
WAITING = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


@pytest.fixture
def elsewhere(server: Postgres) -> Iterator[str]:
    """Another database of the same server."""
    with fresh_database(server) as dsn:
        yield dsn


async def seen(dsn: str, key: Key) -> tuple[bool | None, int | None]:
    record = await get_leader(dsn, key)
    assert record is not None
    return record.alive, record.followers


async def test_a_later_session_with_the_same_pid_is_not_the_leader(here: str, key: Key) -> None:
    with Puppet(here, LockKey(*key)) as puppet:
        puppet.begin()
        assert await seen(here, key) == (True, 0)
        query(here, "UPDATE pgelect.token SET backend_start = backend_start - interval '1 s'")
        assert await seen(here, key) == (False, 0)


async def test_a_term_that_was_given_up_is_over_though_its_session_still_holds_the_lock(here: str, key: Key) -> None:
    with Puppet(here, LockKey(*key)) as puppet:
        puppet.begin()
        query(here, "UPDATE pgelect.token SET released_at = clock_timestamp()")
        assert await seen(here, key) == (False, 0)


async def test_who_waits_for_another_lock_that_looks_the_same_is_no_follower(
    here: str, elsewhere: str, key: Key
) -> None:
    """The same keys in another database, as one key of 64 bits, and shared."""
    single = (key[0] << 32) + (key[1] & 0xFFFFFFFF)
    with (
        Puppet(here, LockKey(*key)) as puppet,
        closing(psycopg.connect(here, autocommit=True)) as holder,
        closing(psycopg.connect(here, autocommit=True)) as bigint,
        closing(psycopg.connect(elsewhere, autocommit=True)) as other_holder,
        closing(psycopg.connect(elsewhere, autocommit=True)) as other,
        closing(psycopg.connect(here, autocommit=True)) as shared,
    ):
        puppet.begin()
        holder.execute("SELECT pg_advisory_lock(%s::bigint)", (single,))
        other_holder.execute("SELECT pg_advisory_lock(%s::int, %s::int)", key)
        for conn, wait in (
            (bigint, f"pg_advisory_lock('{single}'::bigint)"),
            (other, f"pg_advisory_lock('{key[0]}'::int, '{key[1]}'::int)"),
            (shared, f"pg_advisory_lock_shared('{key[0]}'::int, '{key[1]}'::int)"),
        ):
            conn.pgconn.send_query(f"SELECT {wait}".encode())
        pids = [conn.info.backend_pid for conn in (bigint, other, shared)]
        await eventually(lambda: query(here, f"{WAITING} AND pid = ANY (%s)", pids) == [(3,)])
        assert await seen(here, key) == (True, 0)
