"""Who leads, in words and in a table: ages, endings, strangers' text, narrow terminals."""

import io
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from rich.cells import cell_len
from rich.console import Console

from pgelect import LockKey
from pgelect._engine.model import Backend, LeaderRecord
from pgelect.cli.health import judge
from pgelect.cli.output import say_json
from pgelect.cli.records import age, details, duration, ending_of, lasted, lock_of, standing
from pgelect.cli.status_view import table_of
from pgelect.cli.step_down_words import Handover, Outcome, words
from pgelect.cli.watch_view import line
from pgelect.cli.watch_words import words as change_words
from pgelect.observe import ChangeKind, LeadershipChange, TermEnding, TermRecord

NOW = datetime(2026, 3, 1, 2, 30, tzinfo=UTC)
KEY = LockKey.from_name("invoices")
LED = LeaderRecord(
    key1=KEY.key1, key2=KEY.key2, name="invoices", token=12, holder="web-1", metadata={"version": "1.2"},
    acquired_at=NOW - timedelta(minutes=5, seconds=3), released_at=None, terms=12, lease_s=15.0,
    backend=Backend(42, NOW), alive=True, client_addr="10.0.0.3", application_name="pgelect:invoices:web-1",
    database="app", last_contact_at=NOW - timedelta(seconds=2), followers=1,
)  # fmt: skip
RELEASED = replace(LED, alive=False, released_at=NOW - timedelta(seconds=9))
GONE = replace(LED, alive=False)
NEXT = replace(LED, holder="web-2", token=14, terms=13, acquired_at=NOW)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-5, "0s"), (0.9, "0s"), (59, "59s"), (60, "1m00s"), (3599, "59m59s"), (7500, "2h05m"), (360000, "4d04h")],
)
def test_a_duration_is_shown_in_its_two_greatest_units(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_an_age_that_is_not_known_is_a_dash() -> None:
    assert age(None, NOW) == "-"


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (LED, "web-1 leads invoices with token 12, for 5m03s now."),
        (RELEASED, "Nobody leads invoices: web-1 gave it up 9s ago (token 12)."),
        (GONE, "Nobody leads invoices: the session of web-1 is gone (token 12)."),
        (None, f"invoices ({KEY.key1}, {KEY.key2}) was never led in this database."),
    ],
)
def test_who_leads_is_a_sentence(record: LeaderRecord | None, said: str) -> None:
    assert standing(record, KEY, NOW) == said


def test_a_standby_cannot_say_who_leads_now() -> None:
    assert "known to the primary only" in standing(replace(LED, alive=None), KEY, NOW)


def test_a_lock_without_a_name_is_shown_by_its_keys() -> None:
    assert lock_of(replace(LED, key1=-5, key2=7, name=None)) == "(-5, 7)"
    assert standing(None, LockKey(-5, 7), NOW).startswith("(-5, 7) was never led")


def test_details_leave_out_what_is_hidden_from_the_role() -> None:
    shown = dict(details(replace(LED, last_contact_at=None, client_addr=None, metadata={}), NOW))
    assert "last contact" not in shown
    assert "metadata" not in shown
    assert shown["session"] == "server process 42, pgelect:invoices:web-1"


def test_metadata_without_end_is_cut() -> None:
    shown = dict(details(replace(LED, metadata={"blob": "x" * 100_000}), NOW))
    assert len(shown["metadata"]) < 3000
    assert "--json" in shown["metadata"]


TERM = TermRecord(
    key1=1, key2=2, name=None, token=3, term=1, holder="web-1", metadata={}, began_at=NOW - timedelta(hours=2),
    ended_at=NOW - timedelta(hours=1), ending=TermEnding.LOST, reason="closed",
)  # fmt: skip


@pytest.mark.parametrize(
    ("term", "ended", "long"),
    [
        (TERM, "lost", "1h00m"),
        (replace(TERM, ended_at=None, ending=TermEnding.UNKNOWN), "unknown", "-"),
        (replace(TERM, ended_at=None, ending=None), "lasts", "2h00m"),
    ],
)
def test_a_term_has_its_end_and_its_length(term: TermRecord, ended: str, long: str) -> None:
    assert (ending_of(term), lasted(term, NOW)) == (ended, long)


# The table


def drawn(*records: LeaderRecord, width: int = 80, watched: bool = False) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system="standard")
    console.print(table_of(records, NOW, watched=watched), highlight=False, markup=False)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def bare(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_at_80_columns_names_are_folded_and_nothing_is_lost() -> None:
    holder = "invoices-7c9f8b6d5-x2k4q.production.svc.cluster.local:1:a3f2c1"
    long = replace(LED, name="a-lock-whose-name-is-long-as-well", holder=holder, token=1099511627810, terms=123456)
    lines = bare(drawn(LED, long)).splitlines()
    assert max(map(len, lines)) <= 80
    assert "1099511627810" in "\n".join(lines)  # numbers and ages are not folded
    assert "5m03s" in "\n".join(lines)
    head = next(text for text in lines if "leader" in text)
    holders = "".join(text[head.index("leader") : head.index("since")].strip() for text in lines)
    assert holder in holders


def test_wide_characters_are_counted_as_a_terminal_shows_them() -> None:
    wide = replace(LED, name="日本語の長い名前" * 5, holder="übersicht-" * 9)
    assert max(cell_len(text) for text in bare(drawn(LED, wide)).splitlines()) <= 80


def test_colours_tell_the_living_from_the_dead() -> None:
    assert "\x1b[32myes" in drawn(LED)
    assert "\x1b[1;31mno" in drawn(GONE)
    assert "\x1b[33mreleased" in drawn(RELEASED)
    assert "nobody (was" in bare(drawn(GONE, width=120))


def test_a_watched_table_has_only_what_is_told_when_it_changes() -> None:
    assert "followers" not in drawn(LED, watched=True)
    assert "followers" in drawn(LED)


# Changes


def change(kind: ChangeKind, record: LeaderRecord | None = None, **more: object) -> LeadershipChange:
    given = {"key": KEY, "previous": None, "missed_terms": 0, "error": None, **more}
    return LeadershipChange(kind=kind, record=record, seen_at=NOW, **given)  # type: ignore[arg-type]  # of each its own type


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (change(ChangeKind.PRESENT, LED), "web-1 leads invoices with token 12, for 5m03s now"),
        (change(ChangeKind.PRESENT, key=None), "no lock was ever led in this database"),
        (change(ChangeKind.PRESENT), f"invoices ({KEY.key1}, {KEY.key2}) was never led"),
        (change(ChangeKind.BEGAN, NEXT, previous=LED), "web-2 leads invoices with token 14, after web-1"),
        (
            change(ChangeKind.BEGAN, NEXT, previous=LED, missed_terms=2),
            "web-2 leads invoices with token 14, after web-1 (2 terms in between not seen)",
        ),
        (change(ChangeKind.RELEASED, RELEASED), "web-1 gave invoices up (token 12); nobody leads it yet"),
        (change(ChangeKind.LOST, GONE), "the session of web-1 is gone (token 12); nobody leads invoices yet"),
        (change(ChangeKind.RESUMED, LED), "web-1 goes on leading invoices with token 12, on a new session"),
        (
            change(ChangeKind.BLIND, error=OSError("gone\x1b[2J")),
            "BLIND: changes may be missed until the connection is back: gone\\x1b[2J",
        ),
        (change(ChangeKind.BACK), "the connection is back; no term has begun meanwhile"),
        (change(ChangeKind.BACK, missed_terms=1), "the connection is back; 1 term began meanwhile"),
    ],
)
def test_each_change_is_a_sentence(seen: LeadershipChange, said: str) -> None:
    assert change_words(seen) == said


def test_every_kind_of_change_has_its_words() -> None:
    for kind in ChangeKind:
        assert change_words(change(kind, LED, error=OSError("away")))
        assert change_words(change(kind, None, error=OSError("away")))


def test_a_change_on_a_pipe_is_one_line_whatever_its_holder_is_called() -> None:
    hostile = replace(NEXT, holder="a\nb\x1b[2J", name="c\rd")
    assert line(change(ChangeKind.BEGAN, hostile)).count("\n") == 0
    assert r"a\nb\x1b[2J leads c\rd" in line(change(ChangeKind.BEGAN, hostile))


def test_a_change_as_json_names_its_lock(capsys: pytest.CaptureFixture[str]) -> None:
    say_json(change(ChangeKind.BLIND, error=OSError("away")))
    told = capsys.readouterr().out
    assert f'"key1": {KEY.key1}' in told
    assert '"name": "invoices"' in told
    assert '"error": "away"' in told


# A step-down


@pytest.mark.parametrize(
    ("done", "first", "last"),
    [
        (
            Handover(Outcome.HANDED_OVER, 12, 0.25, LED, NEXT),
            "Asked web-1 (token 12) to step down: its term is over after 0.25 s.",
            "web-2 leads invoices with token 14, for 0s now.",
        ),
        (
            Handover(Outcome.HANDED_OVER, 12, 0.25, LED, replace(NEXT, holder="web-1")),
            "Asked web-1 (token 12) to step down: its term is over after 0.25 s.",
            "That is the same process again: nobody else was waiting.",
        ),
        (
            Handover(Outcome.HANDED_OVER, 13, 0.25, LED, NEXT),  # it had changed hands before it was asked
            "Asked the leader (token 13) to step down: its term is over after 0.25 s.",
            "web-2 leads invoices with token 14, for 0s now.",
        ),
        (
            Handover(Outcome.RELEASED, 12, 2.5, LED, RELEASED),
            "Asked web-1 (token 12) to step down: its term is over after 2.50 s.",
            "No follower has taken invoices over: who led may lead again after its cooldown.",
        ),
        (
            Handover(Outcome.NOBODY_LEADS, None, 0.0, None, None),
            "Nothing done: there is nobody to ask.",
            f"invoices ({KEY.key1}, {KEY.key2}) was never led in this database.",
        ),
        (
            Handover(Outcome.TERM_OVER, None, 0.0, NEXT, NEXT),
            "Nothing done: the term of that token is over.",
            "web-2 leads invoices with token 14, for 0s now.",
        ),
    ],
)
def test_what_became_of_a_request_is_told(done: Handover, first: str, last: str) -> None:
    said = words(KEY, done, NOW)
    assert (said[0], said[-1]) == (first, last)


def test_only_a_term_that_ended_or_a_request_nobody_waits_for_is_a_success() -> None:
    assert {outcome for outcome in Outcome if outcome.code == 0} == {
        Outcome.HANDED_OVER,
        Outcome.RELEASED,
        Outcome.ASKED,
    }


# Health


@pytest.mark.parametrize(
    ("record", "healthy"),
    [
        (LED, True),
        (replace(LED, last_contact_at=None), True),  # hidden from this role: the server sees to the lease
        (replace(LED, last_contact_at=NOW - timedelta(seconds=15.5)), True),  # just being ended
        (replace(LED, last_contact_at=NOW - timedelta(seconds=17)), False),
        (RELEASED, False),
        (GONE, False),
        (None, False),
        (replace(LED, alive=None), False),
    ],
)
def test_a_lock_is_healthy_while_the_server_hears_from_its_leader_within_the_lease(
    record: LeaderRecord | None, healthy: bool
) -> None:
    assert judge(record, KEY, NOW)[0] is healthy
