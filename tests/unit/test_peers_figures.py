"""What is made of the beliefs that the processes of `benchmarks.failover --peers` report, and who is asked to play."""

import math
import statistics
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.failover import parse
from benchmarks.peers import rounds, run
from benchmarks.peers.beliefs import Change, Length, believes, changes, first, overlap
from benchmarks.peers.elector import SCENARIOS, Scenario, System
from benchmarks.peers.match import Match, Seen
from benchmarks.peers.report import Row, Spread, rows, table

FLOOR, QUEUE = rounds.FLOORS[0], rounds.SYSTEMS[0]
ORDER = [(system.name, settings.name) for system, settings in rounds.ways((FLOOR, QUEUE))]


def led(*times: float) -> list[Change]:
    """It begins to lead at the first of the times, ceases at the second, and so on."""
    return [Change(at, number % 2 == 0) for number, at in enumerate(times)]


def played(system: System, scenario: Scenario, *seen: Seen) -> list[tuple[Match, Seen]]:
    return [(Match(system, system.settings[-1], scenario, number, number), each) for number, each in enumerate(seen)]


def only_row(system: System, scenario: Scenario, *seen: Seen) -> Row:
    return rows(played(system, scenario, *seen), ORDER)[0]


# Beliefs


@pytest.mark.parametrize(
    ("one", "other", "length"),
    [
        (led(0.0, 5.0), led(5.0), Length(0.0)),
        (led(0.0, 5.0), led(4.0), Length(1.0)),
        (led(0.0, 5.0), led(6.0), Length(0.0)),
        (led(0.0), led(4.0), Length(6.0, over=False)),
        (led(0.0, 3.0, 4.0, 8.0), led(2.0, 5.0, 7.0, 9.0), Length(3.0)),
        (led(0.0), led(), Length(0.0)),
        ([], [], Length(0.0)),
    ],
)
def test_the_overlap_is_the_time_in_which_both_believe(one: list[Change], other: list[Change], length: Length) -> None:
    assert overlap(one, other, 1.0, 10.0) == length
    assert overlap(other, one, 1.0, 10.0) == length


def test_only_what_is_between_the_two_times_counts() -> None:
    assert overlap(led(0.0, 5.0), led(0.0, 5.0), 2.0, 4.0) == Length(2.0, over=False)
    assert overlap(led(0.0, 5.0), led(0.0, 5.0), 6.0, 9.0) == Length(0.0)


def test_what_a_stopped_process_believed_does_not_count() -> None:
    """It did not act on it: its belief begins anew with the first look after it went on."""
    told = [
        {"event": "ready", "at": 0.5},
        {"event": "acquired", "at": 1.0},
        {"event": "look", "at": 9.0, "leads": True},
        {"event": "lost", "at": 9.5},
    ]
    assert overlap(changes(told, since=9.0), led(3.0), 9.0, 12.0) == Length(0.5)
    modest = [*told[:2], {"event": "look", "at": 9.0, "leads": False}]
    assert overlap(changes(modest, since=9.0), led(3.0), 9.0, 12.0) == Length(0.0)


def test_beliefs_are_read_in_the_order_of_their_times() -> None:
    told: list[dict[str, Any]] = [{"event": "lost", "at": 2.0}, {"event": "acquired", "at": 1.0}]
    seen = changes(told)
    assert seen == led(1.0, 2.0)
    assert [believes(seen, at) for at in (0.5, 1.0, 1.5, 2.0)] == [False, True, True, False]


def test_to_go_on_leading_is_not_to_lead_anew() -> None:
    assert first(led(1.0), 3.0, leads=True) is None
    assert first(led(1.0, 4.0, 6.0), 3.0, leads=True) == 6.0
    assert first(led(1.0, 4.0, 6.0), 3.0, leads=False) == 4.0
    assert first([*led(1.0), Change(5.0, leads=True)], 3.0, leads=True) is None, "it said again what it had said"
    assert first([], 3.0, leads=True) is None


# What is told of them


def test_what_did_not_happen_counts_as_longer_than_all_that_did() -> None:
    some = Spread((Length(0.2), Length(10.0, over=False), Length(0.1), Length(0.3), Length(11.0, over=False)))
    assert (some.least, some.median, some.worst) == (0.1, 0.3, math.inf)
    assert some.shown(some.median) == "300"
    assert some.shown(some.worst) == "> 10 s", "all that were watched in vain were watched for at least that long"
    assert some.as_json()["times_ms"] == [200.0, None, 100.0, 300.0, None]
    assert some.as_json()["not_within"] == 2
    assert some.as_json()["worst_ms"] is None
    most = Spread((Length(0.2), Length(10.0, over=False), Length(10.0, over=False)))
    assert most.shown(most.median) == "> 10 s"
    half = Spread((Length(0.2), Length(10.0, over=False)))
    assert half.median == math.inf, "no number is between one and none"


def test_the_numbers_are_those_of_the_times() -> None:
    times = [number / 100 for number in range(1, 41)]
    spread = Spread(tuple(Length(each) for each in reversed(times)))
    assert (spread.least, spread.worst, spread.p95) == (0.01, 0.40, 0.38)
    assert spread.median == statistics.median(times)
    assert spread.shown(0.00712) == "7.12"


def test_a_row_is_held_against_the_floor_of_its_own_scenario() -> None:
    seen = [
        *played(QUEUE, "crash", Seen(Length(0.03)), Seen(Length(0.05))),
        *played(FLOOR, "crash", Seen(Length(0.01)), Seen(Length(0.03))),
        *played(QUEUE, "step-down", Seen(Length(0.03))),
    ]
    floor, crash, step_down = rows(seen, ORDER)
    assert (floor.name, floor.floors) == ("floor", 1.0)
    assert crash.floors == pytest.approx(2.0)
    assert step_down.floors is None


def test_where_there_is_nothing_the_reason_is_told() -> None:
    row = only_row(FLOOR, "frozen", Seen(reason="it cannot"), Seen(reason="it cannot"))
    assert row.notes == ("it cannot",)
    assert (row.found().as_json()["times"], row.found().as_json()["overlap"]) == (None, None)
    assert "floor: it cannot" in table([row])
    broken = only_row(QUEUE, "crash", Seen(reason="did not happen: it ended\nTraceback\n  here\nOSError: no"))
    assert "pgelect-queue (fast): did not happen: it ended ... OSError: no\n" in table([broken]) + "\n"
    assert "Traceback" in broken.found().as_json()["notes"][0]


def test_a_leader_that_keeps_the_lead_is_no_takeover() -> None:
    kept, anew = Seen(overlap=Length(0.0)), Seen(Length(0.5), Length(0.0), Length(0.1), by_itself=True)
    takeover, heard = rows(played(QUEUE, "terminated", kept, anew, kept), ORDER)
    assert [len(row.times.lengths) for row in (takeover, heard)] == [1, 1]
    assert takeover.notes == ("the leader kept the lead: 2 of 3", "the old leader led anew itself: 1 of 3")
    assert takeover.overlaps.worst == 0.0
    assert not heard.overlaps.lengths, "the overlap is told once"


# Who plays, and in which order


def test_each_round_has_all_systems_in_an_order_of_its_own() -> None:
    plan = rounds.Plan((QUEUE,), SCENARIOS, 5, seed=7, is_quick=False)
    by_kind = plan.matches()
    assert {kind: len(matches) for kind, matches in by_kind.items()} == {"fast": 5 * 2 * 5, "defaults": 2 * 1 * 5}
    orders = [
        [(match.system.name, match.scenario) for match in by_kind["fast"] if match.round == number]
        for number in range(5)
    ]
    assert all(sorted(order) == sorted(orders[0]) for order in orders)
    assert len({tuple(order) for order in orders}) == 5
    assert plan.matches() == by_kind, "the same seed, the same order"
    assert replace(plan, seed=8).matches() != by_kind
    assert [*replace(plan, is_quick=True).matches()] == ["fast"]


def test_every_system_can_be_asked_for_and_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name in {"grelmicro", "asyncpg"} else name)
    monkeypatch.setattr("shutil.which", lambda _: None)
    who = run.chosen("all")
    assert [system.name for system in who.systems] == ["pgelect-queue", "pgelect-poll"]
    assert [*who.absent] == ["grelmicro", "asyncpg-lock", "notifelect", "redis"]
    assert "pip install 'pgelect[bench]'" in who.absent["grelmicro"]
    assert "redis-server" in who.absent["redis"]
    with pytest.raises(ValueError, match=r"grelmicro: asyncpg, grelmicro not installed"):
        run.chosen("pgelect-queue,grelmicro")
    assert [system.name for system in run.chosen("pgelect-poll, pgelect-queue").systems] == [
        "pgelect-queue",
        "pgelect-poll",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--peers", "nonsense"], "there is no 'nonsense'; there are: all, pgelect-queue,"),
        (["--peers", ""], "there is no ''"),
        (["--peers", "all,redis"], "there is no 'all'"),
        (["--peers", "pgelect-queue", "--check"], "--check does not go with --peers"),
        (["--peers", "pgelect-queue", "--lease", "2"], "--lease does not go with --peers"),
        (["--peers", "pgelect-queue", "--only", "steady"], "--only steady does not go with --peers"),
        (["--peers", "pgelect-queue", "--rounds", "0"], "--rounds must be 1 or more"),
        (["--only", "frozen"], "go with --peers"),
        (["--seed", "1"], "go with --peers"),
    ],
)
def test_nonsense_is_refused(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(arguments)
    assert said in capsys.readouterr().err


def test_what_goes_with_peers_is_accepted() -> None:
    options = parse(["--peers", "pgelect-queue", "--only", "frozen", "--only", "crash", "--seed", "3"])
    assert [system.name for system in options.peers.systems] == ["pgelect-queue"]
    assert options.rounds is None
