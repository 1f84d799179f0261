"""Whether enough happened in a chaos run for it to mean anything, in which order faults come, and what is printed."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.chaos import broken, checker, checks_leading, plan, report
from benchmarks.chaos.faults import ASIDE, KINDS, MAIN
from benchmarks.chaos.nemesis import schedule
from tests.support.chaos_histories import A, B, broken_rules, fault, led, life, right


def test_a_run_in_which_too_little_happened_is_told_apart() -> None:
    assert any("acknowledged writes: 3" in line for line in checker.shortfalls(replace(right(), end=91.0)))
    missing = [line for line in checker.shortfalls(replace(right(), end=91.0)) if line.startswith("no fault")]
    assert len(missing) == len(KINDS) - 1, "one of each kind but 'terminate'"
    for said in (
        "no promotion lost",
        "no two believed",
        "acknowledged under SERIALIZABLE",
        "refused under READ_COMMITTED",
    ):
        assert any(said in line for line in checker.shortfalls(replace(right(), end=91.0)))
    assert all(not line.startswith("no ") for line in checker.shortfalls(right())), "a short run need not have all"


def test_a_fault_that_was_thwarted_does_not_count() -> None:
    thwarted = replace(right(), end=91.0, faults=(replace(right().faults[0], thwarted="another fault"),))
    assert checker.happened(thwarted)["faults"] == 0
    assert checker.happened(thwarted)["takeovers"] == 0
    assert "no fault of the kind 'terminate'" in checker.shortfalls(thwarted)
    assert "no fault of the kind 'terminate'" not in checker.shortfalls(replace(right(), end=91.0))
    (row,) = (each for each in report.results(thwarted)["faults"] if each["kind"] == "terminate")
    assert (row["n"], row["takeovers"]) == (0, 0)
    assert broken_rules(thwarted) == broken_rules(replace(right(), end=91.0)), "what it broke is excused nevertheless"


def test_a_kind_of_fault_that_does_not_depose_the_leader_it_is_aimed_at_is_told() -> None:
    stays = led(life(A, (1, 1.0, 90.5)), faults=[fault("kill", 5.0), fault("stop-short", 9.0)], end=91.0)
    assert checks_leading.unmoved(stays) == {"kill": (1, 1)}
    assert "of 1 faults of the kind 'kill', 1 deposed nobody" in checker.shortfalls(stays)
    aside = led(life(A, (1, 1.0, 90.5)), faults=[fault("kill", 5.0, targets=[B])], end=91.0)
    assert checks_leading.unmoved(aside) == {}, "it was not aimed at the leader"
    assert checks_leading.unmoved(right()) == {"terminate": (1, 0)}


@pytest.mark.parametrize(("grace_s", "expected"), [(0.0, {"restart-fast": (1, 1)}), (2.0, {})])
def test_a_leader_with_a_grace_may_lead_on_when_all_come_back_at_once(
    grace_s: float, expected: dict[str, tuple[int, int]]
) -> None:
    stays = led(replace(life(A, (1, 1.0, 20.0)), grace_s=grace_s), faults=[fault("restart-fast", 5.0, targets=["*"])])
    assert checks_leading.unmoved(stays) == expected


def test_one_miss_among_many_faults_of_a_kind_is_let_pass() -> None:
    terms = [(number, 5.0 * number - 4, 5.0 * number) for number in range(1, 13)]
    faults = [fault("kill", at, token=token) for token, _, at in terms[:-1]]
    history = led(life(A, *terms), faults=faults, end=95.0)
    assert checks_leading.unmoved(history) == {"kill": (11, 0)}
    for missed, told in ((2, False), (3, True)):
        shifted = [*faults[missed:], *(fault("kill", 61.0 + number, token=12) for number in range(missed))]
        assert checks_leading.unmoved(replace(history, faults=tuple(shifted))) == {"kill": (11, missed)}
        said = checker.shortfalls(replace(history, faults=tuple(shifted)))
        assert any("deposed nobody" in line for line in said) is told


def test_every_kind_of_fault_comes_before_any_comes_again() -> None:
    main, aside = schedule(3)
    for _ in range(3):
        assert sorted(next(main) for _ in MAIN) == sorted(MAIN)
        assert sorted(next(aside) for _ in ASIDE) == sorted(ASIDE)


def test_a_seed_gives_one_schedule() -> None:
    one, same, other = (schedule(seed)[0] for seed in (1, 1, 2))
    first = [next(one) for _ in range(40)]
    assert first == [next(same) for _ in range(40)]
    assert first != [next(other) for _ in range(40)]


def test_the_table_and_an_accusation_say_what_one_needs_to_look_further() -> None:
    history = led(life(A, (1, 1.0, 10.0)), life(B, (2, 9.9, 20.0)), faults=[fault("stop", 7.0, deaf=5.0)])
    found = report.results(history)
    text = report.table(found)
    assert all(kind in text for kind in KINDS)
    assert [line.split()[:3] for line in text.splitlines() if line.startswith("all ")] == [["all", "1", "1"]]
    assert "violations" in text
    (violation,) = checker.violations(history)
    said = report.accusation(violation, history.begin, 17, Path("kept"))
    assert "8.900 s from the beginning" in said
    assert "a.1, b.1" in said
    assert "seed: 17" in said
    assert "kept" in said


def test_the_table_has_a_row_over_all_kinds_whose_p99_is_not_the_worst_of_one_kind() -> None:
    terms = [(number, float(number), number + 0.9) for number in range(1, 202)]
    faults = [
        fault("kill" if token % 2 else "terminate", last - (0.4 if token < 3 else 0), token=token)
        for token, _, last in terms[:-1]
    ]
    found = report.results(led(life(A, *terms), faults=faults, end=203.0))
    over_all = found["all_faults"]
    assert (over_all["n"], over_all["takeovers"]) == (200, 200)
    times = [round(over_all[each]) for each in ("median_ms", "p99_ms", "worst_ms")]
    assert times == [100, 100, 500]
    (killed,) = (each for each in found["faults"] if each["kind"] == "kill")
    assert killed["p99_ms"] == pytest.approx(100)


def test_the_least_that_must_happen_is_counted() -> None:
    assert set(plan.LEAST) <= set(checker.happened(right()))


def test_a_replica_that_is_broken_on_purpose_asks_for_its_password_once() -> None:
    passwords = iter("abc")
    asks = broken.dsn("", lambda: next(passwords))
    assert [asks(), asks()] == ["a", "b"]
    asks = broken.dsn("password", lambda: next(passwords))
    assert [asks(), asks()] == ["c", "c"]
