"""pgelect run without a command tells each transition; and how it ends when it cannot lead, or nobody listens."""

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from psycopg.conninfo import make_conninfo

from pgelect import LockKey
from tests.support.processes import Worker
from tests.support.runs import ROOT, Run, runs
from tests.support.server import lock_holders, query, sessions, terminate
from tests.support.waiting import eventually_sync, scaled

JOB = LockKey.from_name("job")


@pytest.fixture
def run(worker: Callable[..., Worker], database: str) -> Run:
    return runs(worker, database)


def holders(database: str) -> list[int]:
    return lock_holders(database, JOB.key1, JOB.key2)


def test_each_transition_is_told_with_its_token(run: Run, database: str) -> None:
    one = run("job")
    one.wait_line("leader: token 1$", 20)
    assert terminate(database, holders(database)[0])
    one.wait_line("lost: token 1$")
    one.wait_line("leader: token 2$")
    one.signal(signal.SIGTERM)
    assert one.wait() == 128 + signal.SIGTERM
    assert any(line.endswith("Z released: token 2") for line in one.lines)
    assert "\x1b" not in "\n".join(one.lines + one.errors)
    eventually_sync(lambda: not sessions(database), message="no session is left")


def test_as_json_every_line_is_an_object_with_the_names_of_the_api(run: Run, database: str) -> None:
    one = run("job", "--json", "--once", "--metadata", "zone=a")
    told = one.wait_event(lambda event: event["event"] == "acquired", 20)
    assert {name: told[name] for name in ("key1", "key2", "name", "token", "metadata")} == {
        "key1": JOB.key1,
        "key2": JOB.key2,
        "name": "job",
        "token": 1,
        "metadata": {"zone": "a"},
    }
    assert terminate(database, holders(database)[0])
    assert one.wait() == 1, "its one term was lost"
    assert len(one.events) == len(one.lines)
    assert {"from": "leader", "to": "stopped"} in [
        {name: event.get(name) for name in ("from", "to")} for event in one.events if event["event"] == "state"
    ]


def test_who_does_not_want_to_wait_is_told_who_leads(run: Run) -> None:
    run("job", "--identity", "first").wait_line("leader", 20)
    second = run("job", "--wait", "0", "--", "true")
    assert second.wait(20) == 1
    assert "pgelect run: another process leads: first, with token 1" in second.errors


def test_keys_stand_in_for_a_name(run: Run, database: str, key: tuple[int, int]) -> None:
    one = run("--key1", str(key[0]), "--key2", str(key[1]), shell='echo "${PGELECT_NAME-none} $PGELECT_KEY1"')
    assert one.wait(20) == 0
    assert one.lines == [f"none {key[0]}"]


@pytest.mark.parametrize("wait", [True, False])
def test_a_server_that_is_away_is_told_in_a_line_and_waited_for_unless_unwanted(run: Run, wait: bool) -> None:
    one = run("job", *(() if wait else ("--wait", "0")), dsn="postgresql://me:hush-hush@127.0.0.1:1/x")
    if wait:
        eventually_sync(lambda: any("cannot connect" in line for line in one.errors), 20)
        one.signal(signal.SIGTERM)
    assert one.wait(20) == (128 + signal.SIGTERM if wait else 3)
    said = "\n".join(one.lines + one.errors)
    assert "refused" in said
    assert "hush" not in said
    assert "Traceback" not in said


def test_a_mistake_that_time_does_not_mend_ends_it(run: Run, database: str) -> None:
    one = run("job", "--lease", "3", "--health-interval", "4", quick=False)
    assert one.wait(20) == 2
    assert "health_interval_s (4)" in one.errors[0]
    assert "health_interval_s is from --health-interval" in one.errors[0]
    assert len(one.errors) == 1


def test_when_nobody_reads_any_more_it_releases_and_ends(database: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "pgelect", "run", "job", "--lease", "2", "--health-interval", "0.2"],
        cwd=ROOT,
        env=os.environ | {"PGELECT_DSN": database},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        while "leader: token 1" not in process.stdout.readline():
            assert process.poll() is None
        process.stdout.close()
        assert terminate(database, holders(database)[0])  # something to tell
        assert process.wait(scaled(20)) == 128 + signal.SIGPIPE
        said = process.stderr.read()
        assert "Traceback" not in said
        assert "BrokenPipe" not in said
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
    assert holders(database) == []


def test_probes_are_answered_while_it_runs(run: Run) -> None:
    fetch = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1] + '/leader').status)"
    one = run("job", "--http-port", "0")
    one.wait_line("leader: token", 20)
    url = one.errors[0].split()[-1]
    done = subprocess.run([sys.executable, "-c", fetch, url], capture_output=True, text=True, check=False)
    assert done.stdout == "200\n", (one.errors, done.stderr)
    one.signal(signal.SIGTERM)
    assert one.wait() == 128 + signal.SIGTERM


def test_a_role_that_may_not_make_the_schema_is_told_what_to_do(run: Run, database: str) -> None:
    role = f"role_{secrets.token_hex(4)}"
    query(database, f"CREATE ROLE {role} LOGIN")
    try:
        one = run("job", dsn=make_conninfo(database, user=role))
        assert one.wait(20) == 4
        assert "pgelect init --print --elector ROLE" in one.errors[-1]
    finally:
        query(database, f"DROP OWNED BY {role}; DROP ROLE {role}")
