"""The demo leaves nothing behind, whatever ends it and at whatever moment."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

import pgelect
from tests.support.demos import ROOT, Demo, demo_place, demos, nothing_of_it_is_left_in, processes_of, schemas
from tests.support.processes import Worker
from tests.support.server import query, sessions
from tests.support.waiting import eventually_sync, scaled


@pytest.fixture
def place() -> Iterator[Path]:
    with demo_place() as directory:
        yield directory


@pytest.fixture
def demo(place: Path, worker: Callable[..., Worker]) -> Demo:
    return demos(worker, place)


@pytest.mark.parametrize(
    "moment",
    [
        "^Starting a private",
        "^Three replicas",
        "^Act 1",
        "^Act 2",
        "kill -STOP",
        "^Act 4",
    ],
)
def test_an_interrupt_at_any_moment_cleans_up(demo: Demo, place: Path, moment: str) -> None:
    show = demo()
    show.wait_line(moment, 40)
    children = eventually_sync(lambda: psutil.Process(show.pid).children(recursive=True))
    show.signal(signal.SIGINT)
    assert show.wait(20) == 130
    assert [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE] == []
    assert list(place.iterdir()) == []
    assert [line for line in show.errors if line] == ["pgelect demo: SIGINT: ending the replicas and the server"]


@pytest.mark.parametrize("moment", ["is at 127.0.0.1", "kill -STOP"])
def test_an_interrupt_cleans_up_a_given_server(demo: Demo, database: str, moment: str) -> None:
    show = demo("--dsn", database)
    show.wait_line(moment, 40)
    show.signal(signal.SIGINT)
    assert show.wait(20) == 130
    nothing_of_it_is_left_in(database)


def test_an_interrupt_while_the_server_is_slow_to_make_the_ledger_leaves_none(demo: Demo, database: str) -> None:
    query(database, pgelect.schema_sql())
    with psycopg.connect(database) as blocker:
        blocker.execute("LOCK TABLE pgelect.schema_version; LOCK TABLE pg_catalog.pg_description IN EXCLUSIVE MODE")
        show = demo("--dsn", database)
        eventually_sync(lambda: query(database, "SELECT 1 FROM pg_catalog.pg_locks WHERE NOT granted"), 20)
        show.signal(signal.SIGINT)
        time.sleep(0.2)  # nothing is to be seen of it before the server goes on
        blocker.rollback()
        assert show.wait(20) == 130
    nothing_of_it_is_left_in(database)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_that_end_a_process_clean_up_too(demo: Demo, number: signal.Signals) -> None:
    show = demo()
    show.wait_line("leads, with token 1", 20)
    show.signal(number)
    assert show.wait(20) == 128 + number


def test_a_second_interrupt_does_not_stop_the_clean_up(demo: Demo) -> None:
    show = demo()
    show.wait_line("leads, with token 1", 20)
    for _ in range(5):
        show.signal(signal.SIGINT)
        time.sleep(0.01)  # so that they do not merge into one
    assert show.wait(20) == 130


def test_a_reader_that_goes_away_ends_it_quietly(place: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "pgelect", "demo"],
        cwd=ROOT, env={**os.environ, "TMPDIR": str(place)}, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as show:  # fmt: skip
        assert show.stdout is not None
        assert show.stderr is not None
        assert show.stdout.readline().startswith("pgelect ")
        show.stdout.close()
        assert show.stderr.read() == ""
        assert show.wait(scaled(30)) == 128 + signal.SIGPIPE


@pytest.mark.parametrize("moment", ["leads, with token 1", "kill -STOP"])
def test_replicas_and_server_end_with_a_demo_that_is_killed(demo: Demo, place: Path, moment: str) -> None:
    # The fault: a replica that is stopped cannot see that its standard input has ended, and stays for ever.
    show = demo()
    show.wait_line(moment, 40)
    if "STOP" in moment:
        eventually_sync(lambda: any(p.status() == psutil.STATUS_STOPPED for p in processes_of(place)))
    show.kill()
    eventually_sync(lambda: not processes_of(place), 15, "no process of the demo is left")


def test_what_a_killed_demo_left_in_a_database_is_replaced(demo: Demo, database: str) -> None:
    killed = demo("--dsn", database)
    killed.wait_line("leads, with token 1", 20)
    killed.kill()
    eventually_sync(lambda: not sessions(database, "%"), 10)
    assert schemas(database) == ["pgelect", "pgelect_demo"]
    show = demo("--dsn", database)
    show.wait_line("leads, with token [2-9]", 20)
    show.signal(signal.SIGINT)
    assert show.wait(20) == 130
    nothing_of_it_is_left_in(database)
