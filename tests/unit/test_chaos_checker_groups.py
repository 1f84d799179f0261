"""The checker of the chaos run finds what goes wrong with the group that the replicas form."""

from dataclasses import replace

import pytest

from benchmarks.chaos import checker
from benchmarks.chaos.checks_groups import unshared
from benchmarks.chaos.history import History, PartitionHeard, PartitionLook, Process
from benchmarks.chaos.plan import PARTITIONS
from tests.support.chaos_histories import SECOND_TIMELINE, A, B, C, D, E, broken_rules, life, right

ONE, TWO = PARTITIONS[:2]
EVEN = {A: 2, B: 1, C: 1, D: 1, E: 1}


def heard(kind: str, at: float, token: int, partition: str = ONE, minted_at: float | None = None) -> PartitionHeard:
    return PartitionHeard(kind, at, partition, token, round((at if minted_at is None else minted_at) * 1e6))


def member(name: str, *told: PartitionHeard, looks: tuple[PartitionLook, ...] = (), status: int | None = 0) -> Process:
    return replace(life(name, status=status), partitions_heard=told, partition_looks=looks)


def of(*processes: Process) -> History:
    return replace(right(), processes=(*right().processes[:2], *processes))


def look(at: float, **tokens: int) -> PartitionLook:
    names = {"one": ONE, "two": TWO}
    return PartitionLook(at, at, {names[name]: token for name, token in tokens.items()})


def test_a_partition_that_moves_is_right() -> None:
    one = member(C, heard("acquired", 2.0, 7), heard("lost", 4.0, 7), looks=(look(2.0, one=7), look(4.9, one=7)))
    two = member(D, heard("acquired", 3.0, 9), heard("released", 8.0, 9), looks=(look(3.0, one=9),))
    assert checker.violations(of(one, two)) == []


def test_one_token_twice_is_a_violation() -> None:
    one = member(C, heard("acquired", 2.0, 7), heard("lost", 4.0, 7))
    two = member(D, heard("acquired", 5.0, 7), heard("released", 8.0, 7))
    assert broken_rules(of(one, two)) == {"tokens of partitions grow"}


def test_a_smaller_token_that_was_minted_later_is_a_violation_but_on_another_timeline() -> None:
    def history(token: int) -> History:
        one = member(C, heard("acquired", 2.0, token), heard("lost", 4.0, token))
        return of(one, member(D, heard("acquired", 5.0, 7), heard("released", 8.0, 7)))

    assert broken_rules(history(8)) == {"tokens of partitions grow"}
    assert broken_rules(history(SECOND_TIMELINE + 8)) == set()  # their clocks are not compared


@pytest.mark.parametrize(
    "told",
    [
        (heard("acquired", 2.0, 7), heard("acquired", 3.0, 8), heard("lost", 4.0, 8)),
        (heard("lost", 4.0, 7),),
        (heard("acquired", 2.0, 7), heard("lost", 3.0, 7), heard("released", 4.0, 7)),
        (heard("acquired", 2.0, 7), heard("lost", 3.0, 6)),
        (heard("acquired", 2.0, 7),),
    ],
    ids=["no end between", "an end alone", "two ends", "another one's end", "no end at all"],
)
def test_callbacks_that_do_not_pair_are_a_violation(told: tuple[PartitionHeard, ...]) -> None:
    assert broken_rules(of(member(C, *told))) == {"callbacks of partitions pair"}


def test_a_killed_process_need_not_end_its_terms_and_partitions_are_told_apart() -> None:
    told = (heard("acquired", 2.0, 7), heard("acquired", 2.0, 8, TWO), heard("lost", 3.0, 8, TWO))
    assert broken_rules(of(member(C, *told, status=None))) == set()


def test_a_belief_that_outlasts_its_lease_is_a_violation() -> None:
    """The lease is 2 s: the session may have ended early, but what was last proved is trusted no longer than that."""
    newer = member(D, heard("acquired", 3.0, 9), heard("released", 9.0, 9))

    def history(until: float) -> History:
        looks = (look(2.0, one=7), look(until, one=7))
        return of(member(C, heard("acquired", 2.0, 7), heard("lost", 6.0, 7), looks=looks), newer)

    assert broken_rules(history(5.0)) == set()
    assert broken_rules(history(5.2)) == {"an old belief ends within a lease"}


@pytest.mark.parametrize(
    ("led", "members", "wrong"),
    [
        (EVEN, 5, ""),
        ({**EVEN, A: 3, B: 0}, 5, "not shared evenly"),
        ({**EVEN, A: 1}, 5, "not shared evenly"),
        ({A: 2, B: 2, C: 2}, 3, "3 of 5 were members"),
    ],
)
def test_partitions_are_to_be_shared_evenly_in_the_end(led: dict[str, int], members: int, wrong: str) -> None:
    assert wrong in unshared(led, members)
    assert bool(unshared(led, members)) == bool(wrong)
    found = broken_rules(replace(right(), group_peace=(led, members)))
    assert found == ({"partitions are shared again"} if wrong else set())


def test_a_group_that_nobody_looked_at_is_a_violation() -> None:
    assert broken_rules(replace(right(), group_peace=None)) == {"partitions are shared again"}
    assert "partitions are shared again" not in broken_rules(replace(right(), group_peace=None, nobody_led=True))
