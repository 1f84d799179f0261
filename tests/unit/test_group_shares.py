"""Who is to lead how many partitions, and which."""

import random
from itertools import pairwise

import pytest

from pgelect import LockKey
from pgelect._group.shares import Member, Plan, View, by_preference, plan, score, shares_of, successor

KEYS = tuple(LockKey(5, number) for number in range(100))


def members(*weights: float, most: int | None = None) -> tuple[Member, ...]:
    return tuple(
        Member(number * 10, 1000 + number, weight, most if number == 1 else None)
        for number, weight in enumerate(weights, 1)
    )


@pytest.mark.parametrize(
    ("partitions", "weights", "most", "shares"),
    [
        (100, (1.0,), None, [100]),
        (100, (1.0, 1.0, 1.0), None, [34, 34, 34]),
        (1000, (0.1,) * 10, None, [100] * 10),  # 0.1 is no binary fraction
        (1, (1.0, 1.0, 1.0), None, [1, 1, 1]),
        (0, (1.0, 2.0), None, [0, 0]),
        (90, (1.0, 2.0), None, [30, 60]),
        (100, (1.0, 1.0, 1.0), 10, [10, 45, 45]),
        (100, (3.0, 1.0), 10, [10, 90]),
        (100, (1.0, 1.0), 80, [50, 50]),  # a limit that does not bind
        (100, (1.0,), 40, [40]),
        (100, (1.0, 1.0), 0, [0, 100]),
    ],
)
def test_each_is_to_lead_its_part_rounded_up(
    partitions: int, weights: tuple[float, ...], most: int | None, shares: list[int]
) -> None:
    assert list(shares_of(partitions, members(*weights, most=most)).values()) == shares


@pytest.mark.parametrize("seed", range(40))
def test_the_shares_are_enough_for_all_partitions(seed: int) -> None:
    chance = random.Random(seed)
    them = [
        Member(number, number, chance.uniform(0.1, 5.0), chance.choice([None, None, chance.randrange(30)]))
        for number in range(chance.randrange(1, 12))
    ]
    them.append(Member(99, 99))  # one without a limit
    partitions = chance.randrange(0, 500)
    shares = shares_of(partitions, them)
    assert sum(shares.values()) >= partitions
    assert sum(shares.values()) < partitions + len(them)
    assert all(shares[one.id] <= one.most for one in them if one.most is not None)


def test_the_ring_is_one_circle_of_all() -> None:
    them = members(*[1.0] * 7)
    seen, at = [], 10
    for _ in them:
        at = successor(at, them) or 0
        seen.append(at)
    assert seen == [20, 30, 40, 50, 60, 70, 10]
    assert successor(10, members(1.0)) is None
    assert successor(15, members(1.0, 1.0)) == 20  # one that is not in it yet


def test_the_score_never_changes() -> None:
    """Processes of any version and machine have to agree on nothing of it, but must not change their own mind."""
    assert score("host:1", LockKey(1, 2)) == 14085445715322154618
    assert score("host:1", LockKey(-1, 2)) != score("host:1", LockKey(1, -2))


def test_two_members_prefer_different_partitions() -> None:
    first, second = by_preference("a", KEYS), by_preference("b", KEYS)
    assert set(first) == set(second) == set(KEYS)
    assert len(set(first[:20]) & set(second[:20])) < 12
    assert by_preference("a", reversed(KEYS)) == first


def view_of(them: tuple[Member, ...], held: dict[int, int]) -> View:
    """`held`: by the number of a partition, the place of its holder in the row of members, from 1."""
    return View(them, {(5, number): 1000 + place for number, place in held.items()})


def test_whoever_is_alone_takes_everything() -> None:
    assert plan(view_of(members(1.0), {}), 10, KEYS, leading=[]) == Plan(100, take=KEYS)


def test_what_a_stranger_holds_is_not_taken() -> None:
    found = plan(view_of(members(1.0), {0: 77, 3: 88}), 10, KEYS, leading=[])
    assert found.take == tuple(key for key in KEYS if key.key2 not in {0, 3})


def test_no_more_is_taken_than_the_share_and_the_most_preferred_first() -> None:
    found = plan(view_of(members(1.0, 1.0), {}), 10, KEYS, leading=[])
    assert found.take == KEYS[:50]


def test_what_is_too_much_is_given_up_the_youngest_first() -> None:
    leading = [KEYS[number] for number in (5, 1, 9, 7)]
    view = view_of(members(1.0, 1.0), dict.fromkeys((5, 1, 9, 7), 1))
    assert plan(view, 10, KEYS[:4], leading=leading).give == (KEYS[9], KEYS[7])


def test_what_is_being_given_up_already_counts_no_longer() -> None:
    view = view_of(members(1.0, 1.0), dict.fromkeys(range(4), 1))
    found = plan(view, 10, KEYS[:4], leading=KEYS[:2], going=KEYS[2:4])
    assert (found.give, found.take, found.expecting) == ((), (), False)


def test_whoever_finds_a_member_dead_takes_all_that_is_free_and_gives_nothing_up() -> None:
    them = members(1.0, 1.0, 1.0)[:2]
    held = {**dict.fromkeys(range(40), 1), **dict.fromkeys(range(40, 70), 2)}
    found = plan(view_of(them, held), 10, KEYS, leading=KEYS[:40], orphaned=True)
    assert found.take == KEYS[70:]
    assert found.give == ()
    limited = (Member(10, 1001, most=45), them[1])
    assert plan(view_of(limited, held), 10, KEYS, leading=KEYS[:40], orphaned=True).take == KEYS[70:75]


def test_what_is_barred_is_left_alone() -> None:
    found = plan(view_of(members(1.0), {}), 10, KEYS[:3], leading=[], barred=[KEYS[1]])
    assert found.take == (KEYS[0], KEYS[2])


def test_a_newcomer_expects_what_others_have_too_much_of() -> None:
    them = members(1.0, 1.0)
    full = view_of(them, dict.fromkeys(range(100), 1))
    assert plan(full, 20, KEYS, leading=[]).expecting
    half = view_of(them, {**dict.fromkeys(range(50), 1), **dict.fromkeys(range(50, 100), 2)})
    assert not plan(half, 20, KEYS, leading=KEYS[50:]).expecting


@pytest.mark.parametrize("seed", range(60))
def test_looking_in_turn_balances_any_group_and_then_nothing_moves(seed: int) -> None:
    """Whoever starts from whatever: after everybody has looked twice it is even, and it stays so."""
    chance = random.Random(seed)
    them = members(*(chance.choice((1.0, 1.0, 2.0, 0.5)) for _ in range(chance.randrange(1, 7))))
    keys = KEYS[: chance.randrange(1, 60)]
    led: dict[int, list[LockKey]] = {one.id: [] for one in them}
    for key in keys:
        if chance.random() < 0.7:
            led[chance.choice(them).id].append(key)

    def everybody_looks() -> int:
        moved = 0
        for one in chance.sample(them, len(them)):
            pids = {other.id: other.pid for other in them}
            holders = {(key.key1, key.key2): pids[me] for me, mine in led.items() for key in mine}
            found = plan(View(them, holders), one.id, by_preference(str(one.id), keys), leading=led[one.id])
            led[one.id] = [key for key in led[one.id] if key not in found.give] + list(found.take)
            moved += len(found.give) + len(found.take)
        return moved

    shares = shares_of(len(keys), them)
    over = sum(max(0, len(led[one.id]) - shares[one.id]) for one in them)
    free = len(keys) - sum(map(len, led.values()))
    moves = everybody_looks() + everybody_looks()
    assert sorted(key.key2 for mine in led.values() for key in mine) == [key.key2 for key in keys]
    assert all(len(led[one.id]) <= shares[one.id] for one in them)
    assert moves == 2 * over + free  # nothing moved that did not have to
    assert everybody_looks() == 0


@pytest.mark.parametrize("fleet", [2, 3, 5, 10])
def test_a_change_of_membership_moves_about_one_share(fleet: int) -> None:
    them = members(*[1.0] * fleet)
    led = {one.id: list(KEYS[place::fleet]) for place, one in enumerate(them)}
    newcomer = Member(999, 1999)
    given = 0
    for one in them:
        holders = {(key.key1, key.key2): other.pid for other in them for key in led[other.id]}
        given += len(plan(View((*them, newcomer), holders), one.id, KEYS, leading=led[one.id]).give)
    assert given <= -(-len(KEYS) // (fleet + 1))
    assert all(earlier != later for earlier, later in pairwise(sorted(led)))
