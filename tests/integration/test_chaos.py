"""The chaos run really runs, says what it found, and leaves nothing behind. Its rules: unit/test_chaos_checker.py."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import psycopg
import pytest

from benchmarks.chaos.__main__ import main
from benchmarks.chaos.links import LossyProxy
from benchmarks.chaos.nemesis import schedule
from pgelect.testing import Postgres
from tests.support.server import lock_holders, query
from tests.support.waiting import eventually, eventually_sync, scaled

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "benchmarks.chaos", "--seed", "1"]
STOPS_FIRST = next(seed for seed in range(10_000) if next(schedule(seed)[0]) == "stop")
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


@pytest.mark.slow
def test_a_short_run_finds_no_violation_and_a_history_that_was_tampered_with_is_not_believed(tmp_path: Path) -> None:
    kept, written, temporary = tmp_path / "kept", tmp_path / "found.json", tmp_path / "tmp"
    temporary.mkdir()
    done = subprocess.run(
        [*COMMAND, "--seconds", "8", "--keep", str(kept), "--json", str(written)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=scaled(100),
        check=False,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "longest without a leader" in done.stdout
    found = json.loads(written.read_text())
    assert found["violations"] == []
    assert found["about"]["seed"] == 1
    assert found["happened"]["terms"] >= 2, "it was not for nothing"
    assert found["happened"]["acknowledged writes"] >= 10
    assert sum(each["takeovers"] for each in found["faults"]) == found["happened"]["takeovers"] >= 1
    assert list(temporary.iterdir()) == []

    again = subprocess.run([*COMMAND, "--recheck", str(kept)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert again.returncode == 0
    ledger = kept / "ledger.jsonl"
    first, *rest = ledger.read_text().splitlines(keepends=True)
    ledger.write_text("".join(rest))
    tampered = subprocess.run([*COMMAND, "--recheck", str(kept)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert tampered.returncode == 1
    for said in ("acknowledged writes are kept", json.loads(first)["id"], "seed: 1", f"history: {kept}"):
        assert said in tampered.stdout


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
