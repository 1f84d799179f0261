"""What subcommands print: aligned on a pipe, JSON under the names of the API, nothing that steers a terminal."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone

import pytest

from pgelect import Backend, LeaderRecord, LockKey, LockState
from pgelect.cli.output import as_json, clean, say_json, say_table
from pgelect.observe import ChangeKind, LeadershipChange

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=1)))
RECORD = LeaderRecord(
    key1=-1, key2=2, name="jöb", token=7, holder="me", metadata={"a": [1, None]}, acquired_at=AT, released_at=None,
    terms=3, lease_s=15.0, backend=Backend(42, AT), alive=True,
)  # fmt: skip


def test_a_record_keeps_its_names_and_has_its_pid() -> None:
    told = as_json(RECORD)
    assert told["token"] == 7
    assert told["acquired_at"] == "2026-01-02T02:04:05Z"
    assert told["metadata"] == {"a": [1, None]}
    assert told["released_at"] is None
    assert told["pid"] == 42
    assert told["backend"] == {"pid": 42, "started_at": "2026-01-02T02:04:05Z"}
    assert datetime.fromisoformat(told["acquired_at"]) == AT


def test_a_key_is_flattened_into_what_it_stands_in() -> None:
    change = LeadershipChange(ChangeKind.BLIND, LockKey(1, 2, "a"), RECORD, None, 0, ValueError("password=x y"), AT)
    told = as_json(change)
    assert "key" not in told
    assert (told["key1"], told["key2"], told["name"]) == (1, 2, "a")
    assert told["kind"] == "blind"
    assert told["record"]["token"] == 7
    assert "=x" not in told["error"]
    assert as_json(LockKey(1, 2)) == {"key1": 1, "key2": 2, "name": None}


def test_a_missing_key_is_three_nulls() -> None:
    told = as_json(LeadershipChange(ChangeKind.BACK, None, None, None, 2, None, AT))
    assert (told["key1"], told["key2"], told["name"]) == (None, None, None)


def test_what_json_cannot_say_is_null_and_what_nobody_knows_is_an_error() -> None:
    @dataclass(frozen=True)
    class Bound:
        seconds: float
        _hidden: int = 1

    assert as_json([Bound(float("inf")), LockState.LEADER, True]) == [{"seconds": None}, "leader", True]
    with pytest.raises(TypeError, match="no JSON for bytes"):
        as_json({"a": [b"x"]})


def test_json_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    say_json({"at": datetime(2026, 1, 1, tzinfo=UTC), "text": "a\nb"})
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 1
    assert json.loads(out) == {"at": "2026-01-01T00:00:00Z", "text": "a\nb"}


def test_a_table_on_a_pipe_is_a_line_a_row_whatever_its_width(capsys: pytest.CaptureFixture[str]) -> None:
    say_table(("name", "token"), [("a", 7), ("b" * 200, 12345), (None, 1)], right=("token",))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[1] == "a" + " " * 199 + "      7"
    assert lines[3].startswith("- ")
    assert {len(line) for line in lines} == {200 + 2 + 5}


def test_what_others_wrote_steers_no_terminal() -> None:
    assert clean("a\x1b[31mred\r\n\x9b\u202eb") == "a\\x1b[31mred\\r\\n\\x9b\\u202eb"
    assert clean("jöb 日本") == "jöb 日本"
