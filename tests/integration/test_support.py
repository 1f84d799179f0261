"""The infrastructure of the tests does what the tests take for granted."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import psycopg
import pytest

from pgelect.testing import Postgres, throwaway_postgres
from tests.support.loops import loop_factories
from tests.support.pgbouncer import PgBouncer
from tests.support.processes import Worker
from tests.support.proxy import BreakableProxy
from tests.support.server import lock_holders, lock_waiters, query, sessions, terminate
from tests.support.waiting import eventually, eventually_sync

HELD_S = 0.3  # for so long must something not happen


def test_every_version_serves_over_tcp_and_socket(any_server: Postgres, any_database: str) -> None:
    version = query(any_database, "SHOW server_version_num")[0][0]
    assert int(version) // 10_000 == any_server.version
    assert query(any_server.dsn(socket=True), "SELECT inet_client_addr()") == [(None,)]
    assert query(any_server.dsn(application_name="seen"), "SHOW application_name") == [("seen",)]


def test_a_database_is_empty_and_its_own(database: str, server: Postgres) -> None:
    assert query(database, "SELECT current_database() LIKE 'test_%'") == [(True,)]
    assert database != server.dsn()


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_restart_ends_sessions_and_keeps_data_and_port(own_server: Postgres, mode: str) -> None:
    port = own_server.port
    query(own_server.dsn(), "CREATE TABLE kept AS SELECT 1 AS x")
    query(own_server.dsn(), "CHECKPOINT")
    with psycopg.connect(own_server.dsn()) as conn:
        own_server.restart("fast" if mode == "fast" else "immediate")
        with pytest.raises(psycopg.OperationalError):
            conn.execute("SELECT 1")
    assert own_server.port == port
    assert query(own_server.dsn(), "SELECT x FROM kept") == [(1,)]


def test_a_killed_postmaster_can_be_started_again(own_server: Postgres) -> None:
    own_server.kill()
    assert not own_server.is_running
    own_server.start()
    assert query(own_server.dsn(), "SELECT 1") == [(1,)]


def test_a_killed_server_leaves_no_shared_memory() -> None:
    server = throwaway_postgres()
    segment = (server.data_dir / "postmaster.pid").read_text().splitlines()[6].split()[1]
    server.kill()
    server.close()
    assert segment not in [line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()]


def test_settings_change_by_reload(own_server: Postgres) -> None:
    own_server.configure(work_mem="7MB", search_path="it's, public")
    own_server.reload()
    assert query(own_server.dsn(), "SHOW work_mem") == [("7MB",)]
    assert "received SIGHUP" in own_server.log_text()


def test_a_standby_streams_and_is_promoted(standby_pair: tuple[Postgres, Postgres]) -> None:
    primary, standby = standby_pair
    query(primary.dsn(), "CREATE TABLE streamed AS SELECT 1 AS x")
    eventually_sync(lambda: query(standby.dsn(), "SELECT to_regclass('streamed') IS NOT NULL")[0][0])
    assert query(standby.dsn(), "SELECT pg_is_in_recovery()") == [(True,)]
    standby.promote()
    query(standby.dsn(), "INSERT INTO streamed VALUES (2)")


@pytest.mark.parametrize("end", ["kill", "stop", None])
def test_a_former_primary_follows_the_new_one_on_its_port(
    standby_pair: tuple[Postgres, Postgres], end: str | None
) -> None:
    former, primary = standby_pair
    port = former.port
    query(former.dsn(), "CREATE TABLE streamed AS SELECT 1 AS x")
    eventually_sync(lambda: query(primary.dsn(), "SELECT to_regclass('streamed') IS NOT NULL")[0][0])
    primary.promote()
    query(former.dsn(), "INSERT INTO streamed VALUES (2)")  # nobody has told it
    if end is not None:
        getattr(former, end)()
    former.follow(primary)
    assert former.port == port
    assert query(former.dsn(), "SELECT pg_is_in_recovery(), count(*) FROM streamed") == [(True, 1)]
    query(primary.dsn(), "INSERT INTO streamed VALUES (3)")
    eventually_sync(lambda: query(former.dsn(), "SELECT x FROM streamed ORDER BY x") == [(1,), (3,)])


def test_a_standby_keeps_its_own_settings_when_it_follows_anew(own_server: Postgres) -> None:
    own_server.configure(work_mem="7MB")
    own_server.reload()
    with own_server.standby(settings={"work_mem": "9MB"}) as standby:
        standby.follow(own_server)
        assert query(standby.dsn(), "SHOW work_mem") == [("9MB",)]


def test_nothing_is_left_after_close() -> None:
    server = throwaway_postgres()
    standby = server.standby()
    started = [server.postmaster_pid, standby.postmaster_pid]
    processes = [child for pid in started for child in (psutil.Process(pid), *psutil.Process(pid).children())]
    directories = [server.data_dir.parent, standby.data_dir.parent]
    for one in (standby, server, server):
        one.close()
    assert not any(process.is_running() for process in processes)
    assert not any(directory.exists() for directory in directories)
    with pytest.raises(RuntimeError, match="closed"):
        server.start()


def test_a_server_ends_with_the_program_that_made_it_even_killed(worker: Callable[..., Worker]) -> None:
    code = (
        "import time; from pgelect.testing import throwaway_postgres; pg = throwaway_postgres(); "
        "print(pg.postmaster_pid, pg.data_dir, flush=True); time.sleep(60)"
    )
    child = worker("-c", code, cwd=str(Path(__file__).parents[2]))
    pid, data_dir = child.wait_line(r"^\d+ ", 30).split()
    postmaster = psutil.Process(int(pid))
    child.kill()
    eventually_sync(lambda: not postmaster.is_running() or postmaster.status() == psutil.STATUS_ZOMBIE)
    eventually_sync(lambda: not Path(data_dir).parent.exists())


def test_a_fork_does_not_end_its_parents_server(own_server: Postgres) -> None:
    pid = os.fork()
    if pid == 0:
        own_server.close()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert query(own_server.dsn(), "SELECT 1") == [(1,)]


def test_the_terminals_interrupt_does_not_reach_the_server(own_server: Postgres) -> None:
    assert os.getsid(own_server.postmaster_pid) != os.getsid(0)
    assert os.getpgid(own_server.postmaster_pid) != os.getpgid(0)


async def test_a_frozen_proxy_holds_traffic_and_connections(proxy: BreakableProxy, database: str) -> None:
    async with await psycopg.AsyncConnection.connect(proxy.dsn(database), autocommit=True) as conn:
        proxy.freeze()
        asked = asyncio.create_task(conn.execute("SELECT 1"))
        assert await asyncio.wait({asked}, timeout=HELD_S) == (set(), {asked})
        assert proxy.connections == 1
        proxy.thaw()
        assert await (await asked).fetchone() == (1,)


async def test_a_proxy_frozen_one_way_lets_the_request_through(proxy: BreakableProxy, database: str) -> None:
    async with await psycopg.AsyncConnection.connect(proxy.dsn(database), autocommit=True) as conn:
        await conn.execute("CREATE TABLE written (x int)")
        proxy.freeze("down")
        asked = asyncio.create_task(conn.execute("INSERT INTO written VALUES (1)"))
        await eventually(lambda: query(database, "SELECT * FROM written"))
        assert not asked.done()
        proxy.thaw()
        await asked


def test_a_close_does_not_pass_a_frozen_proxy(proxy: BreakableProxy, database: str) -> None:
    psycopg_session = psycopg.connect(proxy.dsn(database, application_name="stranded"))
    proxy.freeze()
    psycopg_session.close()
    time.sleep(HELD_S)
    assert len(sessions(database, "stranded")) == 1
    proxy.thaw()
    eventually_sync(lambda: not sessions(database, "stranded"))


def test_a_proxy_cuts_refuses_and_lets_in_again(proxy: BreakableProxy, database: str) -> None:
    with psycopg.connect(proxy.dsn(database, application_name="cut")) as conn:
        assert proxy.cut() == 1
        with pytest.raises(psycopg.OperationalError):
            conn.execute("SELECT 1")
    assert proxy.connections == 0
    eventually_sync(lambda: not sessions(database, "cut"))
    proxy.refuse()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(proxy.dsn(database))
    proxy.refuse(False)
    assert query(proxy.dsn(database), "SELECT 1") == [(1,)]
    assert proxy.total_connections == 3


def test_a_proxy_cuts_while_frozen(proxy: BreakableProxy, database: str) -> None:
    with psycopg.connect(proxy.dsn(database)) as conn:
        proxy.freeze()
        proxy.cut()
        with pytest.raises(psycopg.OperationalError):
            conn.execute("SELECT 1")


def test_a_proxy_delays(proxy: BreakableProxy, database: str) -> None:
    with psycopg.connect(proxy.dsn(database), autocommit=True) as conn:
        proxy.delay_up_s = proxy.delay_down_s = HELD_S / 2
        began = time.monotonic()
        conn.execute("SELECT 1")
        assert time.monotonic() - began >= HELD_S
        proxy.delay(0)


def test_a_proxy_leads_new_connections_elsewhere(proxy: BreakableProxy, pg16: Postgres, server: Postgres) -> None:
    through = proxy.dsn(server.dsn())
    assert query(through, "SHOW port") == [(str(server.port),)]
    proxy.upstream = ("127.0.0.1", pg16.port)
    assert query(through, "SHOW port") == [(str(pg16.port),)]


async def test_a_blocked_loop_does_not_stop_the_proxy(proxy: BreakableProxy, database: str) -> None:
    # A synchronous query blocks this test's loop; it could not be answered if the proxy ran there.
    assert query(proxy.dsn(database), "SELECT 1") == [(1,)]


def test_transaction_pooling_hands_one_backend_to_two_clients(
    pgbouncer: Callable[..., PgBouncer], database: str
) -> None:
    pooler = pgbouncer("transaction", pool_size=1)
    dsn = pooler.through(database)
    with psycopg.connect(dsn, autocommit=True) as one, psycopg.connect(dsn, autocommit=True) as two:
        pids = [conn.execute("SELECT pg_backend_pid()").fetchone() for conn in (one, two)]
        assert pids[0] == pids[1]
    assert pooler.admin("SHOW POOLS")


def test_session_pooling_keeps_clients_apart(pgbouncer: Callable[..., PgBouncer], server: Postgres) -> None:
    dsn = pgbouncer("session").dsn()
    with psycopg.connect(dsn, autocommit=True) as one, psycopg.connect(dsn, autocommit=True) as two:
        pids = [conn.execute("SELECT pg_backend_pid()").fetchone() for conn in (one, two)]
        assert pids[0] != pids[1]


async def test_holders_and_waiters_are_seen_and_ended(database: str, key: tuple[int, int]) -> None:
    async with (
        await psycopg.AsyncConnection.connect(database, autocommit=True) as holder,
        await psycopg.AsyncConnection.connect(database, autocommit=True) as waiter,
    ):
        await holder.execute("SELECT pg_advisory_lock(%s, %s)", key)
        waiting = asyncio.create_task(waiter.execute("SELECT pg_advisory_lock(%s, %s)", key))
        waiter_pid, holder_pid = waiter.info.backend_pid, holder.info.backend_pid
        assert await eventually(lambda: lock_waiters(database, *key)) == [waiter_pid]
        assert lock_holders(database, *key) == [holder_pid]
        assert terminate(database, holder_pid)
        await waiting
        assert lock_holders(database, *key) == [waiter_pid]


def test_a_worker_prints_events_stops_goes_on_and_ends(worker: Callable[..., Worker]) -> None:
    code = "import itertools, time\nfor n in itertools.count(): print('{\"n\": %d}' % n); time.sleep(0.01)"
    child = worker("-c", code)
    child.wait_line("n")
    child.stop()
    stopped_at = len(child.events)
    time.sleep(HELD_S)
    assert len(child.events) <= stopped_at + 1  # one may have been on its way
    child.cont()
    child.wait_event(lambda event: event["n"] > stopped_at + 5)
    child.stop()
    child.close()
    assert child.returncode == -signal.SIGKILL


def test_a_worker_that_ends_early_is_told_with_what_it_said(worker: Callable[..., Worker]) -> None:
    child = worker("-c", "raise SystemExit('no good')")
    with pytest.raises(AssertionError, match="no good"):
        child.wait_line("never")
    assert child.wait() == 1


@pytest.mark.parametrize("loop_factory", loop_factories())
def test_chosen_tests_run_under_other_loops(loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        assert runner.run(asyncio.sleep(0, True))


def test_a_leaked_task_and_a_leaked_session_fail_the_test(tmp_path: Path) -> None:
    tests = Path(__file__).parents[1]
    (tmp_path / "test_leaks.py").write_text(
        "import asyncio, psycopg\n"
        "from tests.conftest import *\n"
        "kept = []\n"
        "async def test_task():\n"
        "    kept.append(asyncio.create_task(asyncio.sleep(60)))\n"
        "def test_session(database):\n"
        "    kept.append(psycopg.connect(database, application_name='pgelect:x:y'))\n"
        "    assert True\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(tests.parent / "pyproject.toml"),
         "--rootdir", str(tmp_path), str(tmp_path / "test_leaks.py")],
        cwd=tests.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "tasks remain after the test" in done.stdout, done.stdout + done.stderr
    assert "sessions of pgelect remain after the test" in done.stdout
    assert "2 passed, 2 errors" in done.stdout
