"""The checker of the chaos run finds each kind of wrong in what was written, and reads the books as they were kept."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.chaos import checker, checks_writing
from benchmarks.chaos.belief import Span, gaps, spans_of
from benchmarks.chaos.book import Book, read
from benchmarks.chaos.history import Failed, Glance, Look, Process, Refused, Remains, Row, Switch, position
from benchmarks.chaos.reading import load
from tests.support.chaos_histories import BOUNDS, SECOND_TIMELINE, A, B, broken_rules, right, write, wrote

# What was written


def test_a_write_that_commits_after_one_of_a_newer_token_is_a_violation() -> None:
    late = write(3, 1, at=12.0)
    assert broken_rules(wrote(write(1, 1), write(2, 2, by=B, at=11.0), late)) >= {"no stale write commits"}
    assert list(checks_writing.tokens_in_commit_order(wrote(write(1, 1), write(2, 2, by=B, at=11.0), late)))


def test_a_write_that_commits_after_a_newer_token_was_minted_is_a_violation_even_if_that_one_wrote_nothing() -> None:
    late = wrote(write(1, 1), write(2, 1, at=10.02))
    assert list(checks_writing.tokens_in_commit_order(late)) == []
    assert broken_rules(late) == {"no stale write commits"}


def test_a_token_of_an_older_timeline_that_writes_after_a_promotion_is_a_violation() -> None:
    """As when the fence compares tokens only: token 2 was lost with the tail, and the row says 1 again."""
    again = write(4, 1, at=12.0, timeline=2)
    history = wrote(write(1, 1), again, switches=(Switch(11.0, 1, 150),))
    assert list(checks_writing.nothing_after_a_newer_token(history)) == []
    assert broken_rules(history) == {"a token writes on its own timeline"}
    own = write(4, SECOND_TIMELINE + 2, at=12.0, timeline=2)
    assert broken_rules(wrote(write(1, 1), own, switches=(Switch(11.0, 1, 150),))) == set()
    early = write(4, SECOND_TIMELINE + 2, at=12.0, timeline=1)
    assert broken_rules(wrote(write(1, 1), early)) == {"a token writes on its own timeline"}


def test_a_term_that_did_not_see_what_an_earlier_one_wrote_is_a_violation() -> None:
    (told, row) = write(2, 2, by=B, at=11.0)
    blind = (replace(told, n=1), replace(row, n=1))
    assert broken_rules(wrote(write(1, 1), blind)) == {"a term sees what earlier terms wrote"}


def test_one_term_may_use_a_number_twice() -> None:
    """A commit whose answer was lost may arrive after the next write of the same process began."""
    (told, row) = write(2, 1, at=6.0)
    assert broken_rules(wrote(write(1, 1), (replace(told, n=1), replace(row, n=1)))) == set()


def test_an_acknowledged_write_that_is_missing_is_a_violation() -> None:
    history = wrote(write(1, 1), write(2, 1, at=6.0), kept=[2])
    (violation,) = checker.violations(history)
    assert violation.rule == "acknowledged writes are kept"
    assert "a.1:1" in violation.what


def test_a_promotion_excuses_only_what_came_after_the_position_where_the_timeline_was_left() -> None:
    written = [write(number, 1, at=5.0 + number / 10) for number in (1, 2, 3)]
    kept = wrote(*written, kept=[1], switches=(Switch(11.0, 1, 200),))
    assert checker.violations(kept) == []
    assert [each.n for each in checks_writing.lost_by_promotion(kept)] == [2, 3]
    lost_before = wrote(*written, kept=[2], switches=(Switch(11.0, 1, 260),))
    assert [violation.rule for violation in checker.violations(lost_before)] == ["acknowledged writes are kept"]
    other_timeline = wrote(*written, kept=[1], switches=(Switch(11.0, 2, 200),))
    assert len(checker.violations(other_timeline)) == 2


def test_an_orderly_promotion_excuses_no_acknowledged_write() -> None:
    written = [write(number, 1, at=5.0 + number / 10) for number in (1, 2)]
    orderly = wrote(*written, kept=[1], switches=(Switch(11.0, 1, 200, lossy=False),))
    (violation,) = checker.violations(orderly)
    assert violation.rule == "acknowledged writes are kept"
    assert "orderly" in violation.what
    assert checks_writing.lost_by_promotion(orderly) == []


def test_a_write_of_unknown_position_may_be_lost_by_a_promotion_and_by_nothing_else() -> None:
    (told, row) = write(1, 1)
    unknown = (replace(told, high=None), row)
    assert broken_rules(wrote(unknown, kept=[], switches=(Switch(11.0, 1, 50),))) == set()
    assert broken_rules(wrote(unknown, kept=[])) == {"acknowledged writes are kept"}


def test_books_that_contradict_each_other_are_a_violation() -> None:
    history = wrote(write(1, 1), switches=(Switch(11.0, 1, 90),))
    assert broken_rules(history) == {"the books agree"}


def test_a_write_that_is_there_twice_or_changed_is_a_violation() -> None:
    (told, row) = write(1, 1)
    assert broken_rules(replace(right(), acknowledged=(told,), rows=(row, row))) == {"acknowledged writes are kept"}
    assert "acknowledged writes are kept" in broken_rules(wrote((told, replace(row, n=7))))


def test_a_refused_write_in_the_ledger_is_a_violation() -> None:
    (told, row) = write(1, 1)
    assert broken_rules(wrote((told, row), refused=(Refused(row.id, 5.0, 1),))) == {"a refused write is not written"}
    failed = Failed(row.id, 5.0, unknown=False)
    assert broken_rules(wrote((told, row), failed=(failed,))) == {"a refused write is not written"}
    assert broken_rules(wrote((told, row), failed=(replace(failed, unknown=True),))) == set()


# Reading the books


def test_looks_become_spans_of_what_is_certain() -> None:
    looks = (
        Look(1.0, 1.01, 7),
        Look(2.0, 2.01, 7),
        Look(2.5, 4.5, 7),  # stopped in its midst: nobody knows when it looked
        Look(5.0, 5.01, None),
        Look(6.0, 6.01, 9),
    )
    found = spans_of(Process(A, 2.0, BOUNDS, looks=looks))
    assert found == [Span(A, 7, 1.01, 2.0), Span(A, 9, 6.01, 6.01)]
    assert gaps(found, 7.0) == [(2.0, 6.01), (6.01, 7.0)]


def test_a_position_is_read_as_a_number() -> None:
    assert position("0/1A") == 26
    assert position("2/10") == (2 << 32) + 16


def test_a_line_that_a_kill_cut_short_is_left_out(tmp_path: Path) -> None:
    book = Book(tmp_path / "book")
    book.write("one", 1.0, x=2)
    book.close()
    with (tmp_path / "book").open("a") as file:
        file.write('{"event": "tw')
    assert read(tmp_path / "book") == [{"event": "one", "at": 1.0, "x": 2}]


def test_books_are_read_into_a_history(tmp_path: Path) -> None:
    replica, nemesis = Book(tmp_path / "r0.1.jsonl"), Book(tmp_path / "nemesis.jsonl")
    replica.write("start", 1.0, lease_s=2.0, grace_s=1.5, bounds=BOUNDS)
    replica.write("look", 1.5, after=1.6, token=3)
    replica.write("acquired", 1.4, token=3, minted_us=5)
    told = {"token": 3, "timeline": 1, "isolation": "SERIALIZABLE"}
    replica.write("acked", 2.0, id="r0.1:1", n=1, low="0/10", **told)
    replica.write("acked", 2.2, id="r0.1:2", n=2, low="0/20", **told)
    replica.write("position", 2.1, id="r0.1:0", asked_at=1.9, timeline=1, lsn="0/12")
    replica.write("position", 2.5, id="r0.1:2", asked_at=2.3, timeline=1, lsn="0/30")
    replica.write("position", 2.6, id="r0.1:3", asked_at=2.4, timeline=2, lsn="0/15")
    replica.write("not_acquired", 2.8, type="SessionLostError")
    replica.write("not_acquired", 2.9, type="FenceBusyError")
    replica.write("refused", 3.0, id="r0.1:3", token=3, isolation="SERIALIZABLE", stubborn=True)
    replica.write("failed", 3.1, id="r0.1:4", unknown=True)
    replica.write("lost", 3.2, token=3)
    replica.write("log", 3.3, logger="pgelect", level="WARNING", text="as it should")
    replica.write("log", 3.4, logger="asyncio", level="ERROR", text="Task exception was never retrieved")
    nemesis.write("about", 0.0, seed=5)
    nemesis.write("begin", 1.0)
    nemesis.write(
        "fault",
        3.0,
        kind="kill",
        until=3.1,
        leader="r0.1",
        token=3,
        targets=["r0.1"],
        ended=[["*", 3.0, 3.1]],
        deaf=[],
        thwarted="another fault",
        held_up_by=["pgelect:chaos:r1.1"],
    )
    nemesis.write("switch", 3.5, timeline=1, left_at=99, kind="promote-lossy")
    nemesis.write("switch", 3.6, timeline=2, left_at=100, kind="promote")
    nemesis.write("stall", 3.6, until=3.9)
    nemesis.write("killed", 3.1, process="r0.1", said="Exception ignored in ...\n")
    nemesis.write("peace", 3.9, live=["r1.1"])
    seen = {"holders": ["r1.1"], "waiters": [], "writers": [], "strangers": ["psql"]}
    nemesis.write("glance", 3.95, elections=[["r1.1", 77]], **seen)
    nemesis.write("end", 4.0)
    nemesis.write("left", 5.0, locks=0, sessions=["psql"], token=3, released=False)
    (tmp_path / "ledger.jsonl").write_text(
        '{"id": "r0.1:1", "token": 3, "n": 1, "timeline": 1, "committed_us": 7, "isolation": "SERIALIZABLE"}\n'
    )
    history = load(tmp_path)
    (process,) = history.processes
    assert (process.name, process.status, process.looks) == ("r0.1", None, (Look(1.5, 1.6, 3),))
    assert [heard.kind for heard in process.heard] == ["acquired", "lost"]
    assert process.complaints == ("Exception ignored in ...", "Task exception was never retrieved")
    first, second = history.acknowledged
    assert (first.low, first.high) == (16, 48), "the first question on its timeline after its acknowledgement"
    assert (second.low, second.high) == (32, 48)
    assert history.faults[0].ended == (("*", 3.0, 3.1),)
    assert (history.faults[0].thwarted, history.faults[0].held_up_by) == ("another fault", ("pgelect:chaos:r1.1",))
    assert history.switches == (Switch(3.5, 1, 99), Switch(3.6, 2, 100, lossy=False))
    assert history.live == ("r1.1",)
    assert history.peace == (Glance(3.95, (("r1.1", 77),), ("r1.1",), strangers=("psql",)),)
    assert history.left == Remains(0, ("psql",), 3, released=False)
    assert (process.grace_s, process.fence_busy) == (1.5, (2.9,))
    assert history.stalled_s(3.7, 10.0) == pytest.approx(0.2)
    twice = replace(history, stalls=((1.0, 2.0), (1.5, 2.5), (1.6, 1.7), (4.0, 5.0)))
    assert twice.stalled_s(0.0, 4.5) == pytest.approx(2.0), "what two saw at the same time counts once"
    assert (history.refused[0].stubborn, history.failed[0].unknown) == (True, True)
    assert history.rows == (Row("r0.1:1", 3, 1, 1, 7),)


def test_a_run_that_was_broken_off_is_not_taken_for_a_history(tmp_path: Path) -> None:
    Book(tmp_path / "nemesis.jsonl").close()
    with pytest.raises(ValueError, match="no line"):
        load(tmp_path)
