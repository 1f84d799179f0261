"""The checker of the chaos run finds each kind of wrong in who led when, and nothing in a history that is right."""

from dataclasses import replace

import pytest

from benchmarks.chaos import checker, checks_leading
from benchmarks.chaos.allowance import BESIDE, CLEAN, COME_BACK, CRASH, SILENT, Allowances
from benchmarks.chaos.faults import ASIDE, KINDS
from benchmarks.chaos.history import Heard, Look, Process, Switch
from tests.support.chaos_histories import BOUNDS, SECOND_TIMELINE, A, B, C, broken_rules, fault, led, life, right


def test_a_right_history_breaks_no_rule() -> None:
    assert checker.violations(right()) == []


# One leader at a time


def test_two_believers_without_an_early_end_of_a_session_are_a_violation() -> None:
    history = led(life(A, (1, 1.0, 10.0)), life(B, (2, 9.9, 20.0)), faults=[fault("stop", 7.0, until=12.0, deaf=5.0)])
    (violation,) = checks_leading.one_leader(history)
    assert violation.processes == (A, B)
    assert violation.at == pytest.approx(9.9)
    assert "not ended the older session early" in violation.what


def test_even_a_millisecond_of_two_believers_under_the_lease_alone_is_a_violation() -> None:
    stop = [fault("stop", 7.0, until=12.0, deaf=5.0)]
    assert broken_rules(led(life(A, (1, 1.0, 9.001)), life(B, (2, 9.0, 20.0)), faults=stop)) == {"one leader at a time"}
    assert broken_rules(led(life(A, (1, 1.0, 8.999)), life(B, (2, 9.0, 20.0)), faults=stop)) == set()


def test_a_stopped_leader_that_believes_again_afterwards_is_seen() -> None:
    """As when trust ignores the clock: the looks before and after the stop are of one token."""
    a = Process(
        A,
        2.0,
        BOUNDS,
        looks=(Look(1.0, 1.0, 1), Look(7.0, 7.0, 1), Look(12.0, 12.0, 1), Look(12.01, 12.01, None)),
        heard=(Heard("acquired", 1.0, 1, 1_000_000), Heard("lost", 12.01, 1)),
    )
    history = led(a, life(B, (2, 9.1, 20.0)), faults=[fault("stop", 7.0, until=12.0, deaf=5.0)])
    assert broken_rules(history) == {"one leader at a time"}


def test_a_deaf_leader_whose_session_was_ended_may_believe_for_overlap_session_and_no_longer() -> None:
    deaf = [fault("deaf", 9.0, until=12.0, ended=True, deaf=3.0)]
    assert broken_rules(led(life(A, (1, 1.0, 10.85)), life(B, (2, 9.1, 20.0)), faults=deaf)) == set()
    assert broken_rules(led(life(A, (1, 1.0, 10.95)), life(B, (2, 9.1, 20.0)), faults=deaf)) == {"one leader at a time"}


def test_a_leader_that_could_have_heard_may_not_use_the_whole_window() -> None:
    ended = [fault("terminate", 9.0, ended=True)]
    assert broken_rules(led(life(A, (1, 1.0, 9.2)), life(B, (2, 9.1, 20.0)), faults=ended)) == set()
    (violation,) = checks_leading.one_leader(led(life(A, (1, 1.0, 10.5)), life(B, (2, 9.1, 20.0)), faults=ended))
    assert "could have heard" in violation.what


def test_a_deaf_leader_hears_once_its_link_is_mended() -> None:
    a, b = life(A, (1, 1.0, 10.8)), life(B, (2, 9.1, 20.0))
    for deaf_s, expected in ((1.0, set()), (0.5, {"one leader at a time"})):
        assert broken_rules(led(a, b, faults=[fault("deaf", 9.0, ended=True, deaf=deaf_s)])) == expected


def test_the_early_end_of_another_session_excuses_nothing() -> None:
    other = [fault("terminate", 9.0, leader=C, ended=True), fault("stop", 7.0, deaf=3.0)]
    both = (life(A, (1, 1.0, 9.2)), life(B, (2, 9.1, 20.0)), life(C))
    assert broken_rules(led(*both, faults=other)) == {"one leader at a time"}


def test_an_early_end_before_the_older_term_excuses_nothing() -> None:
    before = [fault("deaf", 0.5, until=3.5, ended=True, deaf=3.0)]
    assert broken_rules(led(life(A, (1, 1.0, 2.2)), life(B, (2, 2.1, 20.0)), faults=before)) == {"one leader at a time"}


def test_a_belief_without_on_acquired_is_a_violation() -> None:
    silent = replace(life(A, (1, 1.0, 10.0)), heard=())
    assert "one leader at a time" in broken_rules(replace(right(), processes=(silent, *right().processes[1:])))


# Tokens and callbacks


@pytest.mark.parametrize("second", [1, 2], ids=["smaller", "the same"])
def test_a_token_that_does_not_grow_is_a_violation(second: int) -> None:
    history = led(
        life(A, (2, 1.0, 10.0)), life(B, (second, 10.01, 20.0)), faults=[fault("terminate", 9.99, ended=True)]
    )
    assert "tokens strictly increase" in broken_rules(history)


def test_tokens_grow_across_a_promotion_too() -> None:
    promotion = fault("promote-lossy", 9.99, token=8, until=10.0, targets=["*"])
    switches = (Switch(10.0, 1, 1000),)
    for token, expected in ((SECOND_TIMELINE + 4, set()), (4, {"tokens strictly increase"})):
        history = led(life(A, (8, 1.0, 9.99)), life(B, (token, 10.5, 20.0)), faults=[promotion], switches=switches)
        assert broken_rules(history) == expected


@pytest.mark.parametrize(
    "kinds",
    [
        ["acquired"],
        ["acquired", "lost", "lost"],
        ["acquired", "lost", "released"],
        ["lost"],
        ["acquired", "acquired", "lost"],
    ],
    ids=" ".join,
)
def test_callbacks_that_do_not_pair_are_a_violation(kinds: list[str]) -> None:
    heard = tuple(Heard(kind, 9.0, 1, 1_000_000) for kind in kinds)
    process = replace(life(A, (1, 1.0, 10.0)), heard=heard)
    assert list(checks_leading.callbacks_pair(led(process)))


def test_the_end_of_another_term_is_no_pair() -> None:
    process = replace(life(A), heard=(Heard("acquired", 1.0, 1), Heard("lost", 2.0, 2), Heard("lost", 3.0, 1)))
    assert len(list(checks_leading.callbacks_pair(led(process)))) == 1


def test_the_last_term_of_a_killed_process_has_no_end() -> None:
    heard = (Heard("acquired", 1.0, 1), Heard("lost", 2.0, 1), Heard("acquired", 3.0, 2))
    assert list(checks_leading.callbacks_pair(led(replace(life(A), heard=heard, status=None)))) == []
    assert len(list(checks_leading.callbacks_pair(led(replace(life(A), heard=heard, status=0))))) == 1


def test_a_fault_that_a_term_has_survived_is_no_cause_of_its_later_loss() -> None:
    """The leader was stopped for a short time, and led on; its deadline would be over at 3 + 3.7."""
    short = [fault("stop-short", 3.0, until=3.5)]
    for lost_at, grace_s, found in ((7.5, 0.0, 0), (8.0, 0.0, 1), (8.0, 1.0, 0)):
        lost = replace(life(A, (1, 1.0, lost_at), end="lost"), grace_s=grace_s)
        history = led(lost, life(B, (2, lost_at + 0.01, 20.0)), faults=short)
        assert len(list(checks_leading.losses_have_a_cause(history))) == found, (lost_at, grace_s)
        busy = replace(history, stalls=((4.0, 4.2),))
        assert list(checks_leading.losses_have_a_cause(busy)) == [], "a machine that was too busy is allowed for"


def test_a_cause_that_comes_after_the_loss_is_none() -> None:
    lost = (life(A, (1, 1.0, 10.0), end="lost"), life(B, (2, 10.01, 20.0)))
    assert broken_rules(led(*lost, faults=[fault("terminate", 10.005)])) == {"a loss has a cause"}


def test_a_term_that_is_lost_without_a_fault_is_a_violation() -> None:
    lost = (life(A, (1, 1.0, 10.0), end="lost"), life(B, (2, 10.01, 20.0)), life(C))
    assert broken_rules(led(*lost, faults=[fault("cancel", 9.0, until=10.5, targets=[])])) == {"a loss has a cause"}
    assert "a loss has a cause" in broken_rules(led(*lost, faults=[fault("kill", 9.99, leader=C)]))
    assert broken_rules(led(*lost, faults=[fault("terminate", 9.99)])) == set()
    assert broken_rules(led(life(A, (1, 1.0, 10.0)), lost[1])) == set(), "a term that was given up needs no fault"


# Failover within bounds


@pytest.mark.parametrize(
    ("kind", "allowed_s"),
    [("terminate", 1.7), ("stop", 3.7), ("step-down", 3.0), ("restart-fast", 1.7 + 3.0)],
)
def test_a_failover_may_take_what_its_fault_allows_and_no_more(kind: str, allowed_s: float) -> None:
    targets = ["*"] if kind == "restart-fast" else [A]
    for more_s, expected in ((0.9, set()), (1.1, {"failover within bounds"})):
        second = life(B, (2, 5.0 + allowed_s + more_s, 20.0))
        history = led(life(A, (1, 1.0, 5.0)), second, faults=[fault(kind, 5.0, targets=targets)])
        assert broken_rules(history) == expected


def test_a_gap_without_a_fault_is_a_violation() -> None:
    history = led(life(A, (1, 1.0, 5.0)), life(B, (2, 6.1, 20.0)))
    assert broken_rules(history) == {"failover within bounds"}


def test_nobody_leading_at_the_end_is_a_violation() -> None:
    history = led(life(A, (1, 1.0, 5.0)), faults=[fault("kill", 5.0)])
    assert broken_rules(history) == {"failover within bounds"}
    assert broken_rules(led(life(A))) == {"failover within bounds"}
    assert broken_rules(replace(right(), nobody_led=True)) == {"failover within bounds"}


def test_a_fault_that_begins_during_the_gap_prolongs_it_and_a_later_one_does_not() -> None:
    second = life(B, (2, 9.0, 20.0))
    during = [fault("kill", 5.0), fault("restart-fast", 6.0, targets=["*"])]
    assert broken_rules(led(life(A, (1, 1.0, 5.0)), second, faults=during)) == set()
    late = [fault("kill", 5.0), fault("restart-fast", 7.5, targets=["*"])]
    assert broken_rules(led(life(A, (1, 1.0, 5.0)), second, faults=late)) == {"failover within bounds"}


def test_cancelled_statements_prolong_a_takeover_and_index_builds_do_not() -> None:
    second = life(B, (2, 8.5, 20.0))
    for kind, expected in (("cancel", set()), ("index", {"failover within bounds"})):
        beside = fault(kind, 5.1, until=6.1, targets=[])
        assert broken_rules(led(life(A, (1, 1.0, 5.0)), second, faults=[fault("kill", 5.0), beside])) == expected


def test_without_free_connections_a_queued_follower_leads_as_after_a_crash_unless_the_fence_was_busy() -> None:
    late = life(B, (2, 9.0, 20.0))
    at_once = replace(fault("exhaust", 5.0, until=8.0), ended=((A, 5.0, 5.1),))
    assert broken_rules(led(life(A, (1, 1.0, 5.0)), life(B, (2, 7.7, 20.0)), faults=[at_once])) == set()
    assert broken_rules(led(life(A, (1, 1.0, 5.0)), late, faults=[at_once])) == {"failover within bounds"}
    busy = replace(life(C), fence_busy=(6.9,))
    assert broken_rules(led(life(A, (1, 1.0, 5.0)), late, busy, faults=[at_once])) == set()
    other = [replace(at_once, kind="terminate")]
    assert broken_rules(led(life(A, (1, 1.0, 5.0)), late, busy, faults=other)) == {"failover within bounds"}


def test_a_machine_that_was_too_busy_is_allowed_for() -> None:
    late = led(life(A, (1, 1.0, 5.0)), life(B, (2, 8.5, 20.0)), faults=[fault("kill", 5.0)])
    assert broken_rules(late) == {"failover within bounds"}
    assert broken_rules(replace(late, stalls=((5.5, 6.5),))) == set()
    assert broken_rules(replace(late, stalls=((1.0, 2.0),))) == {"failover within bounds"}


def test_every_kind_of_fault_has_one_bound() -> None:
    groups = (SILENT, CRASH, CLEAN, COME_BACK, BESIDE)
    assert sorted(KINDS) == sorted(kind for group in groups for kind in group)
    assert set(ASIDE) == BESIDE
    with pytest.raises(ValueError, match="no bound"):
        Allowances(right()).deadline(fault("flood", 1.0))


def test_silence_is_counted_from_its_beginning_and_for_each_that_fell_silent() -> None:
    a, b = life(A, (1, 1.0, 5.0)), life(B, (2, 11.0, 20.0))
    slow = replace(fault("freeze-slow", 4.0), deaf=((A, 6.5, 12.0),))
    assert broken_rules(led(a, b, faults=[slow])) == set()
    assert broken_rules(led(a, b, faults=[replace(slow, deaf=((A, 6.0, 12.0),))])) == {"failover within bounds"}
    both = fault("partition", 4.5, targets=[A, B])
    assert broken_rules(led(a, b, faults=[both])) == set()
    assert broken_rules(led(a, b, faults=[replace(both, targets=(A,))])) == {"failover within bounds"}


def test_a_takeover_is_counted_for_its_own_fault_and_not_where_the_leader_stayed() -> None:
    a, b = life(A, (1, 1.0, 5.0), (3, 9.0, 20.0)), life(B, (2, 5.5, 8.9))
    faults = [
        fault("stop-short", 3.0, until=3.5),
        fault("kill", 5.0),
        fault("cancel", 5.1, targets=[]),
        fault("cut", 8.8, leader=B, token=2),
    ]
    found = checks_leading.takeovers(led(a, b, faults=faults))
    assert [(each.kind, heard.token, round(took_s, 3)) for each, heard, took_s in found] == [
        ("kill", 2, 0.5),
        ("cut", 3, 0.2),
    ]
