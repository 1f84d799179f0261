"""The doctor's list of findings: nothing ends it early, it has its exit code, and it can be read on a pipe."""

import io
import json
import re
from dataclasses import replace

import pytest
from rich.console import Console

from pgelect import LockKey
from pgelect._engine.settings import Settings
from pgelect.cli import doctor_checks, doctor_view
from pgelect.cli.doctor_checks import findings, worst
from pgelect.cli.doctor_facts import Finding, Unseen
from tests.support.doctoring import ERROR, NOTE, OK, RIGHTS, WARNING, facts, severities


def test_a_server_on_which_all_is_well_has_no_other_findings() -> None:
    found = findings(facts())
    assert worst(found) is OK
    assert len(found) > 15
    assert doctor_view.verdict(found) == f"All is well, in all of {len(found)} findings."


def test_what_could_not_be_looked_at_is_told_and_ends_nothing() -> None:
    everything = ("options", "rights", "room", "tokens", "locks", "fenced", "replication", "timing")
    found = findings(facts(**{name: Unseen("permission denied") for name in everything}))
    unseen = [finding for finding in found if finding.severity is WARNING]
    assert len(unseen) == 10  # rights and timing are looked at by several checks
    assert {finding.said for finding in unseen} == {"could not be looked at: permission denied"}
    assert findings(facts())[-1] == found[-1]  # the last check was made all the same


def test_a_session_that_is_lost_on_the_way_is_one_error_that_says_so() -> None:
    late, closed = Unseen("no answer within 10 s", lost=True), Unseen("the session has been closed", lost=True)
    found = findings(facts(options=late, room=closed, replication=closed, timing=closed))
    assert severities(f for f in found if f.severity is not OK) == [ERROR]
    assert "not complete: no answer within 10 s" in found[-1].said
    assert not {"settings", "connections", "latency"} & {f.check for f in found}


def test_without_fencing_nothing_is_asked_of_the_schema() -> None:
    settings = Settings(key=LockKey(1, 2), identity="doctor", fencing=False)
    found = findings(facts(settings=settings, rights=replace(RIGHTS, schema=None, tables=None, parts=[])))
    assert severities(f for f in found if f.check in {"rights", "schema"}) == [NOTE]
    assert worst(found) is NOTE


def test_a_check_that_fails_does_not_end_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(room: object) -> list[Finding]:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(doctor_checks, "check_room", broken)
    found = findings(facts())
    assert severities(f for f in found if f.check == "connections") == [WARNING]
    assert len(found) == len(findings(facts()))


def test_the_gravest_finding_is_what_counts() -> None:
    found = [Finding(NOTE, "a", ""), Finding(ERROR, "b", ""), Finding(WARNING, "c", "")]
    assert worst(found) is ERROR
    assert doctor_view.verdict(found) == "1 error, 1 warning, 1 note; all else is well."


def test_on_a_pipe_each_finding_is_a_line_and_a_remedy_stands_below(capsys: pytest.CaptureFixture[str]) -> None:
    doctor_view.show(
        [Finding(OK, "server", "a primary\x1b[2J"), Finding(ERROR, "rights", "none", "GRANT a;\nGRANT b;")]
    )
    assert capsys.readouterr().out.splitlines() == [
        "ok       server  a primary\\x1b[2J",
        "error    rights  none",
        "                 do: GRANT a;",
        "                     GRANT b;",
        "1 error; all else is well.",
    ]


def test_on_a_terminal_of_80_columns_nothing_is_wider_or_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(width=80, file=io.StringIO(), force_terminal=True, color_system="standard")
    monkeypatch.setattr(doctor_view, "terminal", lambda: console)
    doctor_view.show([Finding(WARNING, "keys", "a" * 150, "GRANT " + "b" * 150), *findings(facts())])
    assert isinstance(console.file, io.StringIO)
    drawn = console.file.getvalue()
    assert "\x1b[33mwarning" in drawn
    lines = re.sub(r"\x1b\[[0-9;]*m", "", drawn).splitlines()
    assert max(map(len, lines)) <= 80
    assert "".join(lines[:4]).count("a") >= 150  # folded, not cut
    assert "".join(lines).count("b") >= 150


def test_as_json_it_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    seen = facts()
    doctor_view.show_json(seen, findings(seen))
    told = json.loads(capsys.readouterr().out)
    assert told["severity"] == "ok"
    assert told["server"] == {"where": "db:5432", "version": 160004, "database": "app"}
    assert told["findings"][0]["severity"] == "ok"
    assert told["bounds"]["failover_crash"]["seconds"] == 1.7
