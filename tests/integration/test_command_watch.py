"""pgelect watch: each change as it comes; blindness is told; Ctrl-C and a reader that goes away end it quietly."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from pgelect.testing import Postgres
from tests.support.commands import candidate, pgelect
from tests.support.processes import Worker
from tests.support.proxy import BreakableProxy
from tests.support.server import sessions
from tests.support.terminal import Terminal
from tests.support.waiting import eventually_sync, scaled

ROOT = str(Path(__file__).parents[2])
Start = Callable[..., Worker]


def test_on_a_pipe_each_change_is_a_line(database: str, worker: Start) -> None:
    with candidate(database, "invoices", "web-1"):
        watch = worker("-m", "pgelect", "watch", env={"PGELECT_DSN": database}, cwd=ROOT)
        watch.wait_line("present +web-1 leads invoices with token 1")
        with candidate(database, "invoices", "web-2", leads=False):
            assert pgelect("step-down", "invoices", "--wait", "0", dsn=database).code == 0
            watch.wait_line(r"began +web-2 leads invoices with token \d+, after web-1")
    watch.wait_line(
        "released +web-[12] gave invoices up|lost +the session of web-[12] is gone"
    )  # where it was too busy
    watch.signal(signal.SIGINT)
    assert watch.wait() == 130
    assert watch.errors == []
    eventually_sync(lambda: not sessions(database, "%"))


def test_as_json_each_change_is_an_object_and_blindness_is_told(
    server: Postgres, database: str, proxy: BreakableProxy, worker: Start
) -> None:
    dsn = proxy.dsn(database)
    with candidate(database, "invoices", "web-1"):
        watch = worker("-m", "pgelect", "watch", "invoices", "--json", "--dsn", dsn, cwd=ROOT)
        assert watch.wait_event(lambda e: e["kind"] == "present")["record"]["holder"] == "web-1"
        proxy.cut()
        blind = watch.wait_event(lambda e: e["kind"] == "blind")
        assert blind["name"] == "invoices"
        assert blind["error"]
        back = watch.wait_event(lambda e: e["kind"] == "back")
        assert (back["record"]["holder"], back["missed_terms"]) == ("web-1", 0)
    watch.wait_event(lambda e: e["kind"] in {"released", "lost"})  # the latter where it was too busy to mark its end
    watch.signal(signal.SIGTERM)
    assert watch.wait() == 143
    assert watch.errors == []


def test_a_reader_that_goes_away_ends_it_although_nothing_changes(database: str) -> None:
    with (
        candidate(database, "invoices", "web-1"),
        subprocess.Popen(
            [sys.executable, "-m", "pgelect", "watch", "--dsn", database],
            cwd=ROOT, env=os.environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as watch,
    ):  # fmt: skip
        try:
            assert watch.stdout is not None
            assert watch.stderr is not None
            assert "web-1 leads invoices" in watch.stdout.readline()
            watch.stdout.close()
            assert watch.wait(scaled(20)) == 128 + signal.SIGPIPE
            assert watch.stderr.read() == ""
        finally:
            watch.kill()


def test_on_a_terminal_of_80_columns_it_draws_who_leads_and_ends_on_ctrl_c(database: str) -> None:
    long = "an-identity-that-is-longer-than-a-terminal-is-wide-" * 2
    env = {"PGELECT_DSN": database, "COLUMNS": "80"}
    with (
        candidate(database, "invoices", f"{long}\x1b[2J"),
        Terminal("-m", "pgelect", "watch", env=env, cwd=ROOT) as screen,
    ):
        screen.wait_text("watching; Ctrl-C ends it")
        screen.wait_text("yes")
        screen.press(b"\x03")
        assert screen.wait() == 130
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\^C", "", screen.text)
    assert max(len(line) for line in re.split(r"[\r\n]+", plain)) <= 80
    assert r"\x1b[2J" in plain.replace("\r\n", "").replace(" ", "")
    assert screen.text.rstrip().rfind("\x1b[?25h") > screen.text.rfind("\x1b[?25l")  # the cursor is back
    assert "Traceback" not in screen.text
