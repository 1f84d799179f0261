"""The replicated servers and the spliceable proxy do what the tests of failovers take for granted."""

import psycopg
import pytest

from pgelect.testing import Postgres
from tests.support.replication import make_alter, replicated, shared_pairs
from tests.support.server import query, sessions, terminate
from tests.support.splice import RawSession, SpliceableProxy
from tests.support.waiting import eventually


def test_a_failover_of_a_standby_that_was_held_back_loses_the_tail_and_the_servers_swap() -> None:
    with replicated() as pair:
        first, second = pair.primary, pair.standby
        assert pair.timeline == 1
        query(first.dsn(), "CREATE TABLE ledger AS SELECT 1 AS x")
        pair.hold_back()
        query(first.dsn(), "INSERT INTO ledger VALUES (2)")
        assert query(second.dsn(), "SELECT x FROM ledger") == [(1,)]
        pair.fail_over()
        assert (pair.primary, pair.standby) == (second, first)
        assert not first.is_running
        assert pair.timeline == 2
        assert query(second.dsn(), "SELECT x FROM ledger") == [(1,)]
        pair.rejoin()
        query(second.dsn(), "INSERT INTO ledger VALUES (3)")
        pair.caught_up()
        assert query(first.dsn(), "SELECT x FROM ledger ORDER BY x") == [(1,), (3,)]


def test_a_standby_that_was_held_back_follows_again() -> None:
    with replicated() as pair:
        pair.hold_back()
        query(pair.primary.dsn(), "CREATE TABLE ledger AS SELECT 1 AS x")
        pair.follow()
        assert query(pair.standby.dsn(), "SELECT x FROM ledger") == [(1,)]


def test_a_shared_pair_is_put_in_order_and_a_session_left_on_it_fails_the_test() -> None:
    with shared_pairs() as pairs:
        with pairs.lend() as pair:
            query(pair.primary.dsn(), "CREATE SCHEMA pgelect")
            pair.fail_over()
            query(pair.primary.dsn(), make_alter("synchronous_standby_names", "*"))
            pair.primary.reload()
        for _ in range(2):
            with pairs.lend() as again:
                assert again is pair
                assert query(pair.primary.dsn(), "SELECT to_regnamespace('pgelect') IS NULL") == [(True,)]
                assert query(pair.primary.dsn(), "SHOW synchronous_standby_names") == [("",)]
                pair.caught_up()
        with pytest.raises(AssertionError, match="no session of pgelect is left"), pairs.lend() as pair:
            left = psycopg.connect(pair.standby.dsn(application_name="pgelect:x:y"))
        left.close()


async def test_a_connection_is_spliced_to_a_session_of_another_server(pg16: Postgres, pg18: Postgres) -> None:
    with SpliceableProxy(pg18) as proxy:
        async with await psycopg.AsyncConnection.connect(proxy.dsn(), autocommit=True) as conn:
            cursor = await conn.execute("SHOW port")
            assert await cursor.fetchone() == (str(pg18.port),)
            pid = conn.info.backend_pid
            proxy.splice(RawSession(pg16, "SET application_name = 'spliced'"))
            cursor = await conn.execute("SELECT current_setting('port'), current_setting('application_name')")
            assert await cursor.fetchone() == (str(pg16.port), "spliced")
            ended = "SELECT 1 FROM pg_stat_activity WHERE pid = %s"
            await eventually(lambda: not query(pg18.dsn(), ended, pid), message="the session that it had is over")
        await eventually(lambda: not sessions(pg16.dsn(), "spliced"), message="a close ends the spliced session")


async def test_a_spliced_session_that_ends_is_heard_at_once(pg16: Postgres, pg18: Postgres) -> None:
    with SpliceableProxy(pg18) as proxy:
        async with await psycopg.AsyncConnection.connect(proxy.dsn(), autocommit=True) as conn:
            proxy.splice(RawSession(pg16, "SET application_name = 'spliced'"))
            (session,) = sessions(pg16.dsn(), "spliced")
            terminate(pg16.dsn(), session.pid)
            with pytest.raises(psycopg.OperationalError):
                await anext(conn.notifies(timeout=10))
