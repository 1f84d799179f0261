"""pgelect status, history and health: what they print on a pipe and as JSON, and their exit codes."""

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pgelect import schema_sql
from tests.support.commands import candidate, pgelect
from tests.support.roles import Roles
from tests.support.server import query, sessions, terminate
from tests.support.waiting import eventually_sync

AWAY = "host=127.0.0.1 port=1 dbname=postgres user=postgres password=hunter2"
HOSTILE = "evil\x1b[2J\x1b]0;owned\x07\r\n\u202eend"


def test_status_shows_every_lock_of_the_database_in_aligned_columns(database: str) -> None:
    with candidate(database, "invoices", "web-1"), candidate(database, "übersicht-日本", "web-2"):
        said = pgelect("status", dsn=database)
    assert (said.code, said.err) == (0, "")
    head, *rows = said.lines
    assert head.split("  ")[0] == "lock"
    assert [row.split()[:2] for row in rows] == [["invoices", "web-1"], ["übersicht-日本", "web-2"]]
    assert all(" yes " in row for row in rows)
    assert not any(line != line.rstrip() for line in said.lines)


def test_status_of_one_lock_tells_all_that_is_known_and_is_zero_while_it_is_led(database: str) -> None:
    with (
        candidate(database, "invoices", "web-1", metadata={"version": "1.2"}) as leader,
        candidate(database, "invoices", "web-2", leads=False),
    ):
        said = pgelect("status", "invoices", dsn=database)
        by_keys = pgelect("status", f"--key1={leader.key.key1}", f"--key2={leader.key.key2}", dsn=database)
    told = {line[:14].strip(): line[14:].strip() for line in said.lines}
    assert said.code == by_keys.code == 0
    assert told["leader"] == "web-1"
    assert told["alive"].startswith("yes")
    assert told["followers"] == "1 waiting"
    assert told["metadata"] == '{"version": "1.2"}'
    assert "pgelect:invoices:web-1" in told["session"]


def test_status_as_json_has_the_names_of_the_python_api(database: str) -> None:
    with candidate(database, "invoices", "web-1"):
        one, all_ = pgelect("status", "invoices", "--json", dsn=database), pgelect("status", "--json", dsn=database)
    assert one.json["holder"] == "web-1"
    assert one.json["alive"] is True
    assert {"key1", "key2", "name", "token", "acquired_at", "released_at", "terms", "lease_s", "pid"} <= {*one.json}
    assert [record["token"] for record in all_.json] == [one.json["token"]]


def test_status_is_one_when_nobody_leads(database: str) -> None:
    with candidate(database, "invoices", "web-1"):
        pass
    said = pgelect("status", "invoices", dsn=database)
    assert said.code == 1
    assert "no: it gave the lock up, and nobody has taken over yet" in said.out
    assert "nobody (was web-1)" in pgelect("status", dsn=database).out


def test_status_is_one_for_a_lock_that_was_never_led(database: str) -> None:
    query(database, schema_sql())
    said = pgelect("status", "no-such", dsn=database)
    assert said.code == 1
    assert "was never led" in said.out
    assert pgelect("status", "no-such", "--json", dsn=database).out == "null\n"
    assert pgelect("history", "no-such", dsn=database).code == 1
    empty = pgelect("status", dsn=database)
    assert (empty.code, empty.lines) == (0, ["No lock was ever led in this database."])


def test_a_leader_whose_session_is_gone_is_not_alive(database: str) -> None:
    with candidate(database, "invoices", "web-1", auto_reacquire=False) as leader:
        assert leader.record is not None
        terminate(database, leader.record.pid)
        eventually_sync(lambda: pgelect("status", "invoices", dsn=database).code == 1)
        said = pgelect("status", "invoices", dsn=database)
    assert "its session is gone" in said.out
    assert pgelect("health", "invoices", dsn=database).code == 1


def test_what_others_wrote_does_not_drive_the_terminal(database: str) -> None:
    with candidate(database, HOSTILE, HOSTILE, metadata={HOSTILE: HOSTILE}):
        for said in (
            pgelect("status", dsn=database),
            pgelect("status", HOSTILE, dsn=database),
            pgelect("history", HOSTILE, dsn=database),
            pgelect("health", HOSTILE, dsn=database),
        ):
            assert said.code == 0
            assert "evil" in said.out
            assert [c for c in said.out if not c.isprintable() and c != "\n"] == []
        assert pgelect("status", HOSTILE, "--json", dsn=database).json["holder"] == HOSTILE


def test_history_has_the_terms_newest_first_with_their_ends(database: str) -> None:
    for number in (1, 2):
        with candidate(database, "invoices", f"web-{number}"):
            pass
    with candidate(database, "invoices", "web-3"):
        eventually_sync(lambda: len(pgelect("history", "invoices", dsn=database).lines) == 4)
        said = pgelect("history", "invoices", dsn=database)
        last = pgelect("history", "invoices", "--limit", "1", "--json", dsn=database)
    assert said.code == 0
    assert [line.split()[1] for line in said.lines[1:]] == ["web-3", "web-2", "web-1"]
    assert [line.split()[-2] for line in said.lines[1:]] == ["lasts", "released", "released"]
    assert [term["holder"] for term in last.json] == ["web-3"]
    assert last.json[0]["ending"] is None


def test_health_of_a_lock_is_whether_it_is_led(database: str) -> None:
    with candidate(database, "invoices", "web-1"):
        said = pgelect("health", "invoices", dsn=database)
        told = pgelect("health", "invoices", "--json", dsn=database)
    assert said.code == told.code == 0
    assert said.out.startswith("healthy: web-1 leads invoices with token 1")
    assert told.json["healthy"] is True
    assert pgelect("health", "invoices", dsn=database).code == 1


@contextmanager
def endpoint(status: int, body: str) -> Iterator[int]:
    """An HTTP server that answers every request so; its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_health_of_a_process_is_what_its_endpoint_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # of no use to reach a process of this machine
    with endpoint(200, json.dumps({"healthy": True, "reason": "it follows"})) as port:
        well = pgelect("health", "--http-port", str(port))
    assert (well.code, well.out) == (0, "healthy: it follows\n")
    with endpoint(503, json.dumps({"healthy": False, "reason": "its proofs are\x1b[2J overdue"})) as port:
        ill = pgelect("health", "--url", f"http://127.0.0.1:{port}/")
        told = pgelect("health", "--url", f"http://127.0.0.1:{port}", "--json", "--ready")
    assert (ill.code, ill.out) == (1, "not healthy: its proofs are\\x1b[2J overdue\n")
    assert (told.code, told.json["healthy"]) == (1, False)


def test_a_process_that_does_not_answer_is_not_healthy() -> None:
    said = pgelect("health", "--http-port", "1")
    assert said.code == 1
    assert said.out.startswith("not healthy: no answer from http://127.0.0.1:1/livez: ")


@pytest.mark.parametrize(
    "arguments",
    [[], ["invoices", "--http-port", "1"], ["--url", "file:///etc/passwd"], ["invoices", "--ready"], ["--key1", "5"]],
)
def test_a_health_question_that_is_none_is_a_usage_error(arguments: list[str]) -> None:
    said = pgelect("health", *arguments)
    assert said.code == 2
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    "arguments",
    [["status"], ["status", "x"], ["history", "x"], ["health", "x"], ["step-down", "x"], ["watch"], ["doctor"]],
)
def test_a_server_that_is_away_is_told_in_one_line_with_an_exit_code_of_its_own(arguments: list[str]) -> None:
    said = pgelect(*arguments, dsn=AWAY)
    assert (said.code, said.out) == (3, "")
    assert len(said.err.splitlines()) == 1
    assert said.err.startswith(f"pgelect {arguments[0]}: cannot connect: ")
    assert "hunter2" not in said.err


def test_a_database_without_the_schema_is_told_with_what_to_do(database: str) -> None:
    for command in ("status", "history", "step-down", "watch", "health"):
        said = pgelect(command, "x", dsn=database)
        assert said.code == 4
        assert "pgelect init" in said.err
        assert len(said.err.splitlines()) == 1


def test_a_role_without_rights_is_told_which_it_lacks(database: str) -> None:
    query(database, schema_sql())
    with Roles(database) as roles:
        role = roles.make("nobody")
        looking, asking = pgelect("status", dsn=role.dsn), pgelect("step-down", "x", dsn=role.dsn)
    assert (looking.code, asking.code) == (4, 4)
    assert "GRANT SELECT ON pgelect.leaders" in looking.err


def test_looking_leaves_no_session(database: str) -> None:
    with candidate(database, "invoices", "web-1"):
        for command in (["status"], ["status", "invoices"], ["history", "invoices"], ["health", "invoices"]):
            assert pgelect(*command, dsn=database).code == 0
        eventually_sync(lambda: [s.application_name for s in sessions(database, "%")] == ["pgelect:invoices:web-1"])


@pytest.mark.parametrize("wrong", ["dbname=nosuchdatabase", "user=nosuchrole"])
def test_a_server_that_does_not_let_us_in_is_no_connection(database: str, wrong: str) -> None:
    done = pgelect("status", dsn=f"{database} {wrong}")
    assert done.code == 3
    assert wrong.partition("=")[2] in done.err
    assert len(done.err.splitlines()) == 1
