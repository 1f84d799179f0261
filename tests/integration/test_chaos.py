"""The chaos run really runs, says what it found, and leaves nothing behind. Its rules: unit/test_chaos_checker.py."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from itertools import islice
from pathlib import Path

import psutil
import psycopg
import pytest

from benchmarks.chaos import faults_servers, plan
from benchmarks.chaos.__main__ import main
from benchmarks.chaos.links import LossyProxy
from benchmarks.chaos.nemesis import schedule
from benchmarks.chaos.stage import Fault, ThwartedError
from pgelect.testing import Postgres
from tests.support.server import lock_holders, query
from tests.support.waiting import eventually, eventually_sync, scaled

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "benchmarks.chaos", "--seed", "1"]


def seed_with(*kinds: str, first: int = 1) -> int:
    """Give the seed of a schedule that begins with so many faults of these kinds."""
    return next(seed for seed in range(100_000) if set(islice(schedule(seed)[0], first)) <= set(kinds))


STOPS_FIRST = seed_with("stop")
Key = tuple[int, int]


class Seen:
    """The processes that a run has started, and the directories of its servers."""

    def __init__(self, pid: int) -> None:
        self._run = psutil.Process(pid)
        self._looked_at = 0.0
        self.processes: set[psutil.Process] = set()
        self.directories: set[Path] = set()

    def look(self) -> set[psutil.Process]:
        """Look, a few times a second at most, and return all that were ever seen."""
        if time.monotonic() - self._looked_at < 0.2:
            return self.processes
        self._looked_at = time.monotonic()
        for process in self._run.children(recursive=True):
            try:
                command = process.cmdline()
            except psutil.Error:
                continue
            self.processes.add(process)
            if "-D" in command:
                self.directories.add(Path(command[command.index("-D") + 1]))
        return self.processes

    def nothing_is_left(self, temporary: Path) -> None:
        _, left = psutil.wait_procs(self.processes, timeout=scaled(15))
        assert not left
        assert not [path for path in self.directories if path.exists()]
        assert list(temporary.iterdir()) == []


@contextmanager
def running(*flags: str, temporary: Path) -> Iterator[tuple[subprocess.Popen[str], Seen]]:
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(
        [*COMMAND, *flags], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
    ) as run:
        try:
            yield run, Seen(run.pid)
        finally:
            if run.poll() is None:
                run.terminate()


def until_it_says(run: subprocess.Popen[str], wanted: str) -> None:
    """Read what it says of its progress, until it says that."""
    assert run.stderr is not None
    assert any(line.rstrip().endswith(f"  {wanted}") for line in run.stderr)


def finished(*flags: str, temporary: Path) -> subprocess.CompletedProcess[str]:
    """Run it to its end, with its temporary files there."""
    return subprocess.run(
        [*COMMAND, *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=scaled(100),
        check=False,
        env={**os.environ, "TMPDIR": str(temporary)},
    )


@pytest.mark.slow
def test_a_short_run_finds_no_violation_and_a_history_that_was_tampered_with_is_not_believed(tmp_path: Path) -> None:
    kept, written, temporary = tmp_path / "kept", tmp_path / "found.json", tmp_path / "tmp"
    temporary.mkdir()
    done = finished("--seconds", "8", "--keep", str(kept), "--json", str(written), temporary=temporary)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "longest without a leader" in done.stdout
    found = json.loads(written.read_text())
    assert found["violations"] == []
    assert found["about"]["seed"] == 1
    assert found["happened"]["terms"] >= 2, "it was not for nothing"
    assert found["happened"]["acknowledged writes"] >= 10
    assert sum(each["takeovers"] for each in found["faults"]) == found["happened"]["takeovers"] >= 1
    assert list(temporary.iterdir()) == []

    again = finished("--recheck", str(kept), temporary=temporary)
    assert again.returncode == 0
    ledger = kept / "ledger.jsonl"
    first, *rest = ledger.read_text().splitlines(keepends=True)
    ledger.write_text("".join(rest))
    tampered = finished("--recheck", str(kept), temporary=temporary)
    assert tampered.returncode == 1
    for said in ("acknowledged writes are kept", json.loads(first)["id"], "seed: 1", f"history: {kept}"):
        assert said in tampered.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "seed", "seconds", "rule"),
    [
        ("trust", STOPS_FIRST, "1", "one leader at a time"),
        # The old leader's writer lives, and is likely to be in the midst of a transaction: four times.
        ("fence", seed_with("step-down", "terminate", "cut-server", "deaf", first=4), "4", "no stale write commits"),
    ],
)
def test_a_library_that_is_broken_on_purpose_is_found(
    tmp_path: Path, broken: str, seed: int, seconds: str, rule: str
) -> None:
    """Or a run without violations would prove nothing."""
    flags = ["--seed", str(seed), "--seconds", seconds, "--break", broken, "--keep", str(tmp_path / "kept")]
    done = finished(*flags, temporary=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"broken: {broken}" in done.stdout
    assert f"VIOLATION: {rule}" in done.stdout


@pytest.mark.slow
def test_sigterm_leaves_no_process_and_no_directory_even_where_one_is_stopped(tmp_path: Path) -> None:
    with running("--seed", str(STOPS_FIRST), temporary=tmp_path) as (run, seen):

        def one_is_stopped() -> bool:
            return any(each.is_running() and each.status() == psutil.STATUS_STOPPED for each in seen.look())

        until_it_says(run, "stop")
        eventually_sync(one_is_stopped, 30.0, "the first fault of this seed: a leader is stopped")
        os.kill(run.pid, signal.SIGTERM)
        assert run.wait(scaled(30)) == 130
        seen.nothing_is_left(tmp_path)


@pytest.mark.slow
def test_ctrl_c_while_it_is_still_being_set_up_leaves_nothing_either(tmp_path: Path) -> None:
    with running(temporary=tmp_path) as (run, seen):
        until_it_says(run, "servers")
        eventually_sync(lambda: seen.look() and seen.directories, 30.0, "a server has been started")
        os.kill(run.pid, signal.SIGINT)
        assert run.wait(scaled(30)) == 130
        seen.nothing_is_left(tmp_path)


def test_what_cannot_be_run_or_read_is_neither_clean_nor_a_violation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--recheck", str(tmp_path)]) == 2
    assert "cannot be read" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["--seconds", "0"])


@pytest.mark.parametrize(
    ("refusal", "free", "expected"),
    [
        ("sorry, too many clients already", 3, nullcontext()),
        ("remaining connection slots are reserved for ...", 3, nullcontext()),
        ("the database system is shutting down", 3, pytest.raises(psycopg.OperationalError, match="shutting down")),
        ("none", plan.MAX_CONNECTIONS, pytest.raises(ThwartedError, match="none was refused")),
    ],
)
def test_a_server_that_never_refuses_a_connection_was_not_exhausted(
    monkeypatch: pytest.MonkeyPatch, refusal: str, free: int, expected: AbstractContextManager[object]
) -> None:
    left = list(range(free))

    def connect(_: str) -> AbstractContextManager[object]:
        if not left:
            raise psycopg.OperationalError(f"connection failed: FATAL:  {refusal}")
        return nullcontext(left.pop())

    monkeypatch.setattr(psycopg, "connect", connect)
    with expected:
        assert faults_servers._crowd_in(ExitStack(), "") == free


@pytest.mark.parametrize(("name", "thwarted"), [("pgelect:chaos:r1.1", False), ("chaos-writer:r1.1", True)])
def test_an_index_build_that_is_held_up_says_by_whom(
    database: str, monkeypatch: pytest.MonkeyPatch, name: str, thwarted: bool
) -> None:
    """As by a follower that waits for the lock in one transaction without an end; a writer may hang by a fault."""
    monkeypatch.setattr(faults_servers, "_MAINTENANCE_WITHIN_S", 0.3)
    monkeypatch.setattr(faults_servers, "_LONG_S", 0.1)
    query(database, "CREATE TABLE public.ledger (token bigint)")
    build = "CREATE INDEX CONCURRENTLY ledger_token ON public.ledger (token)"
    fault = Fault("index", 0.0)
    with psycopg.connect(database, autocommit=True) as conn:
        with psycopg.connect(database, application_name=name) as other:
            other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ  # with a snapshot that lasts
            other.execute("SELECT count(*) FROM public.ledger")
            with pytest.raises(ThwartedError, match=name) if thwarted else nullcontext():
                faults_servers._maintain(fault, conn, build)
        assert fault.held_up_by == (None if thwarted else [name])
        done = Fault("index", 0.0)
        faults_servers._maintain(done, conn, "DROP INDEX CONCURRENTLY public.ledger_token", build)
        assert done.held_up_by is None


@pytest.mark.parametrize("end", ["client", "server"])
async def test_a_link_can_be_cut_at_one_end_and_the_other_never_hears_of_it(
    server: Postgres, database: str, key: Key, end: str
) -> None:

    with LossyProxy("127.0.0.1", server.port) as proxy:
        async with await psycopg.AsyncConnection.connect(proxy.dsn(database), autocommit=True) as conn:
            await conn.execute("SELECT pg_advisory_lock(%s, %s)", key)
            pid = conn.info.backend_pid
            if end == "client":
                assert proxy.cut_end("client") == 1
                with pytest.raises(psycopg.OperationalError):
                    await conn.execute("SELECT 1")
                assert lock_holders(database, *key) == [pid], "a ghost holds the lock"
            else:
                assert proxy.cut_end("server") == 1
                await eventually(lambda: lock_holders(database, *key) == [], message="the server freed the lock")
                assert not conn.closed
                conn.pgconn.finish()
    await eventually(
        lambda: query(database, "SELECT count(*) FROM pg_stat_activity WHERE pid = %s", pid) == [(0,)],
        message="closing the proxy ends the ghost",
    )
