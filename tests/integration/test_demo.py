"""The demo shows what it claims, and says so when it is not so."""

import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

import pgelect
from tests.support.demos import Demo, demo_place, demos, nothing_of_it_is_left_in, processes_of, schemas
from tests.support.processes import Worker
from tests.support.server import query

ACTS = ("The leader crashes", "A rolling deploy", "The leader freezes", "An administrator ends")
TAKEOVER = re.compile(r"replica-\d leads [\d.]+ ms later, with token \d+\.")


@pytest.fixture
def place() -> Iterator[Path]:
    with demo_place() as directory:
        yield directory


@pytest.fixture
def demo(place: Path, worker: Callable[..., Worker]) -> Demo:
    return demos(worker, place)


@pytest.mark.slow
def test_four_leaders_are_replaced_and_every_claim_holds(demo: Demo) -> None:
    show = demo()
    status = show.wait(60)
    text = "\n".join(show.lines)
    assert status == 0, text
    assert show.errors == []
    for number, act in enumerate(ACTS, 1):
        assert f"Act {number}. {act}" in text
    assert len(TAKEOVER.findall(text)) == len(ACTS)
    assert re.search(r"replica-\d leads, with token 1\.", text)
    assert re.search(r"PostgreSQL 18\.\d+ is running", text)
    assert re.search(r"replica-\d looks at lock.is_leader: False\.", text)
    assert "ERROR PGE01: token 3 of lock" in text
    assert "ERROR PGE02: INSERT on pgelect_demo.ledger refused" in text
    assert "FAILED" not in text
    assert "nothing was lost" in text
    assert "All of it held" in show.lines[-1]


@pytest.mark.slow
def test_lines_on_a_pipe_are_plain(demo: Demo) -> None:
    show = demo(env={"FORCE_COLOR": "1", "TERM": "xterm-256color"})
    assert show.wait(60) == 0
    assert max(map(len, show.lines)) <= 80
    assert all(line.isascii() for line in show.lines)
    assert all(line.isprintable() for line in show.lines), "colour or a control character"


@pytest.mark.slow
def test_json_is_one_object_with_what_was_seen_on_the_version_asked_for(demo: Demo) -> None:
    show = demo("--json", "--postgres", "16")
    assert show.wait(60) == 0
    assert len(show.lines) == 1
    results: dict[str, Any] = json.loads(show.lines[0])
    assert results["held"] is True
    assert all(claim["held"] for claim in results["claims"])
    assert results["server"].startswith("16.")
    acts = results["acts"]
    assert [act["title"].split(" ")[0] for act in acts] == ["crash", "step_down()", "freeze", "session"]
    assert [act["new"] for act in acts[:-1]] == [act["old"] for act in acts[1:]]
    assert all(act["old"] != act["new"] and act["old_token"] < act["new_token"] for act in acts)
    assert all(act["took_s"] > 0 for act in acts)
    assert acts[3]["noticed_s"] > 0
    assert results["writes"] >= 5 * len(acts)


@pytest.mark.slow
def test_a_given_server_is_left_as_it_was_and_no_password_is_shown(demo: Demo, place: Path, database: str) -> None:
    show = demo("--dsn", make_conninfo(database, password="hush-hush"))
    show.wait_line("leads, with token 1", 20)
    replicas = [str(process.info["cmdline"]) for process in processes_of(place) if process.pid != show.pid]
    assert len(replicas) == 3
    assert "hush-hush" not in str(replicas), "everybody can see the arguments of a process"
    assert show.wait(60) == 0, show.errors
    assert "hush-hush" not in "\n".join(show.lines + show.errors)
    assert not any("private" in line for line in show.lines)
    assert show.lines[-1].startswith("The schema pgelect stays in this database")
    assert schemas(database) == ["pgelect"]
    nothing_of_it_is_left_in(database)


@pytest.mark.slow
def test_a_fence_that_does_not_hold_is_seen(demo: Demo, database: str) -> None:
    # The demo must be able to fail: else its exit code says nothing.
    query(database, pgelect.schema_sql())
    query(
        database,
        "CREATE OR REPLACE FUNCTION pgelect.check_token(key1 int, key2 int, token bigint) RETURNS void "
        "LANGUAGE sql AS ''; CREATE OR REPLACE FUNCTION pgelect.guard() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN RETURN NULL; END'",
    )
    show = demo("--dsn", database)
    assert show.wait(60) == 1
    text = "\n".join(show.lines)
    assert text.count("PostgreSQL TAKES the write.") == 2
    assert "FAILED  its late write with the old token was refused by the fence" in text
    assert "FAILED  its late write without a token was refused by the table's guard" in text
    assert "write(s) of an older token stand AFTER one of a newer token" in text
    assert "claims did NOT hold" in text
    nothing_of_it_is_left_in(database)


def test_libpqs_environment_does_not_reach_the_private_server(demo: Demo) -> None:
    show = demo(env={"PGHOST": "nowhere.invalid", "PGSSLMODE": "require", "PGSERVICE": "none", "PGOPTIONS": "-c x=y"})
    show.wait_line("leads, with token 1", 20)
    show.signal(signal.SIGINT)
    assert show.wait(20) == 130
