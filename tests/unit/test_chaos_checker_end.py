"""The checker of the chaos run finds who does not come back, what holds others up, and what is left in the end."""

from dataclasses import replace

import pytest

from benchmarks.chaos import checker, checks_end, checks_leading
from benchmarks.chaos.checks_end import GLANCES, unsettled
from benchmarks.chaos.children import HUNG
from benchmarks.chaos.history import Glance, History, Remains
from tests.support.chaos_histories import A, B, C, D, E, broken_rules, fault, glance, right

LIVE = (A, B, C, D, E)
BACK = "every replica comes back"
CLEAN = "all shut down cleanly"


def seen(**other: object) -> tuple[Glance, ...]:
    """All looks, each with this in place of what is right."""
    return tuple(glance(number, **other) for number in range(GLANCES))


def seen_once(**other: object) -> tuple[Glance, ...]:
    """The same, but one look in their midst only."""
    return tuple(glance(number, **(other if number == 7 else {})) for number in range(GLANCES))


def said(peace: tuple[Glance, ...]) -> str:
    history = replace(right(), peace=peace)
    assert broken_rules(history) == {BACK}
    return " | ".join(violation.what for violation in checker.violations(history))


def sessions(*names: str) -> tuple[tuple[str, int], ...]:
    return tuple((name, 100 + LIVE.index(name)) for name in names)


# Peace: one holds the lock, the others wait for it, each on one session


def test_all_at_their_places_is_right() -> None:
    assert unsettled(seen(), LIVE) == []


def test_a_replica_that_never_comes_back_is_a_violation() -> None:
    """As one that is wedged after a promotion, or still logs in with the old password."""
    text = said(seen(elections=sessions(A, B, C, D), waiters=(A, C, D)))
    assert "it had 0 to 0 election sessions" in text
    assert "neither held the lock nor waited" in text
    (one, *_) = checker.violations(replace(right(), peace=seen(elections=sessions(A, B, C, D))))
    assert one.processes == (E,)


def test_a_replica_that_is_connected_and_does_not_campaign_is_a_violation() -> None:
    assert "neither held the lock nor waited" in said(seen(waiters=(A, C, D)))


def test_a_replica_between_two_slices_of_its_wait_is_right() -> None:
    assert unsettled(seen_once(waiters=()), LIVE) == []


def test_a_replica_that_comes_and_goes_is_a_violation() -> None:
    assert "it had 0 to 1 election sessions" in said(seen_once(elections=sessions(A, B, C, D)))
    anew = tuple(glance(n, elections=(*sessions(A, B, C, D), (E, 200 + n // 5))) for n in range(GLANCES))
    assert "not the same all the time" in said(anew)


def test_two_election_sessions_of_one_replica_are_a_violation() -> None:
    assert "it had 1 to 2 election sessions" in said(seen_once(elections=(*sessions(*LIVE), (A, 777))))


@pytest.mark.parametrize("holders", [(), (A, B), (A,)], ids=["nobody", "two", "another one for a moment"])
def test_the_lock_is_held_by_one_and_the_same(holders: tuple[str, ...]) -> None:
    assert "not held by one and the same" in said(seen_once(holders=holders))


@pytest.mark.parametrize("holders", [(), (A, B)], ids=["nobody", "two"])
def test_nobody_or_two_all_the_time_are_not_one(holders: tuple[str, ...]) -> None:
    assert "not held by one and the same" in said(seen(holders=holders))


def test_a_holder_that_is_no_replica_is_a_violation() -> None:
    assert "neither held the lock nor waited" in said(seen(holders=("psql",), strangers=("psql",)))


@pytest.mark.parametrize("name", ["", "x"], ids=["none", "some other"])
def test_a_session_of_another_name_is_a_violation(name: str) -> None:
    """A second connection, of a mint or of the guard against poolers, that was not closed."""
    assert f"a session that nobody should have: '{name}'" in said(seen_once(strangers=(name,)))


def test_sessions_of_a_process_that_has_ended_are_a_violation() -> None:
    assert "it has ended, and has sessions" in said(seen(elections=(*sessions(*LIVE), ("a.0", 99))))
    assert "it has ended, and has sessions" in said(seen_once(writers=(A, B, "b.0")))


def test_two_connections_of_a_writer_are_a_violation() -> None:
    assert "its writer had 2 connections" in said(seen_once(writers=(A, B, B)))


def test_only_the_last_looks_are_judged_and_all_of_them_must_have_been_taken() -> None:
    assert unsettled((*seen(elections=()), *seen()), LIVE) == []
    assert unsettled((*seen(), *seen(elections=())), LIVE) != []
    assert "asked 19 times" in said(seen()[1:])
    assert "asked 0 times" in said(())


def test_all_five_live() -> None:
    history = replace(right(), live=(A, B, C, D), peace=seen(elections=sessions(A, B, C, D), waiters=(A, C, D)))
    assert broken_rules(history) == {BACK}


def test_where_nobody_led_nobody_looked_and_that_is_the_violation() -> None:
    assert broken_rules(replace(right(), peace=(), nobody_led=True)) == {"failover within bounds"}


# Maintenance


def test_an_index_build_that_does_not_end_is_a_violation() -> None:
    held_up = replace(fault("index", 3.0, until=18.0, targets=[]), held_up_by=("pgelect:chaos:c.1",))
    (violation,) = checks_leading.maintenance_is_not_held_up(replace(right(), faults=(held_up,)))
    assert "pgelect:chaos:c.1" in violation.what
    unknown = replace(held_up, held_up_by=())
    history = replace(right(), faults=(*right().faults, unknown))
    assert broken_rules(history) == {"maintenance is not held up"}
    assert broken_rules(replace(history, faults=(*right().faults, replace(unknown, held_up_by=None)))) == set()


# The end


def left(**remains: object) -> History:
    return replace(right(), left=replace(right().left, **remains))  # type: ignore[arg-type]  # the tests pass what fits


def test_what_is_left_in_the_end_is_a_violation() -> None:
    assert broken_rules(left(locks=1)) == {CLEAN}
    assert broken_rules(left(sessions=("",))) == {CLEAN}, "whatever its name"
    hung = replace(right().processes[2], status=HUNG)
    assert broken_rules(replace(right(), processes=(*right().processes[:2], hung))) == {CLEAN}


def test_a_last_term_that_was_given_up_and_is_not_marked_so_is_a_violation() -> None:
    assert broken_rules(left(released=False)) == {CLEAN}
    busy = replace(left(released=False), stalls=((20.5, 21.0),))
    assert broken_rules(busy) == set(), "its release waits for an open transaction, but not for ever"


def test_a_last_token_that_nobody_heard_of_need_not_be_marked() -> None:
    """It was minted for a process that was being shut down."""
    assert broken_rules(left(token=3, released=False)) == set()


def test_a_row_with_an_older_token_than_the_last_is_a_violation() -> None:
    assert broken_rules(left(token=1)) == {CLEAN}
    assert list(checks_end.ended_cleanly(replace(right(), left=Remains(token=2)))) == []


def test_a_process_that_complained_is_a_violation() -> None:
    loud = replace(right().processes[2], complaints=("Task was destroyed but it is pending!",))
    assert broken_rules(replace(right(), processes=(*right().processes[:2], loud))) == {"nothing goes wrong unseen"}
