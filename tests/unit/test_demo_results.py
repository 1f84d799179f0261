"""The demo's check of its ledger: it would see every kind of damage, and takes nothing for granted."""

import json

import pytest

from pgelect.cli.demo_ledger import Line
from pgelect.cli.demo_results import Act, Claim, Results, ledger_claims, terms_claim

GOOD = [Line(1, 1, "a"), Line(2, 1, "a"), Line(3, 4, "b"), Line(4, 4, "b")]


def held(lines: list[Line], acknowledged: list[Line]) -> list[bool]:
    """Whether it is numbered well, in the order of tokens, and complete."""
    return [claim.held for claim in ledger_claims(lines, acknowledged)]


def test_a_good_ledger_holds_also_with_a_write_that_nobody_heard_the_answer_of() -> None:
    assert held(GOOD, GOOD) == [True, True, True]
    assert held(GOOD, GOOD[:-1]) == [True, True, True]


@pytest.mark.parametrize(
    ("damaged", "expected"),
    [
        ([*GOOD[:2], Line(2, 1, "a"), *GOOD[2:]], [False, True, True]),  # written twice
        (GOOD[:1] + GOOD[2:], [False, True, False]),  # one is gone
        ([*GOOD, Line(5, 1, "a")], [True, False, True]),  # by an old leader, late
        ([*GOOD[:3], Line(4, 4, "c")], [True, True, False]),  # the line is there, and it is another's
        ([], [False, True, False]),
    ],
)
def test_each_damage_is_seen(damaged: list[Line], expected: list[bool]) -> None:
    assert held(damaged, GOOD) == expected


def test_nothing_written_or_acknowledged_is_no_success() -> None:
    assert held([], []) == [False, True, False]
    assert not terms_claim([]).held


def test_terms_hold_only_while_tokens_grow() -> None:
    assert terms_claim([1, 2, 5]).held
    assert not terms_claim([1, 3, 3]).held
    assert not terms_claim([2, 1]).held


def test_results_hold_only_if_every_claim_does_and_fit_into_json() -> None:
    act = Act("crash", "a", "b", 1, 2, 0.01)
    results = Results("18.4", (act,), (Claim("x", held=True), Claim("y", held=False)), 3, 1.5)
    assert not results.held
    assert json.loads(json.dumps(results.as_json()))["held"] is False
    assert Results("18.4", (act,), results.claims[:1], 3, 1.5).held
