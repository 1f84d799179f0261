"""pgelect step-down: the leader hands over, and the command says who leads then."""

import pytest

from pgelect import schema_sql
from pgelect.cli import step_down
from tests.support.commands import candidate, pgelect
from tests.support.server import lock_holders, query, terminate
from tests.support.waiting import eventually_sync


def test_the_leader_hands_over_and_the_successor_is_named(database: str) -> None:
    with (
        candidate(database, "invoices", "web-1") as first,
        candidate(database, "invoices", "web-2", leads=False) as second,
    ):
        said = pgelect("step-down", "invoices", dsn=database)
        assert (first.is_leader, second.is_leader) == (False, True)
        assert len(lock_holders(database, first.key.key1, first.key.key2)) == 1
    assert said.code == 0
    assert said.lines[0].startswith("Asked web-1 (token 1) to step down: its term is over after ")
    assert said.lines[1].startswith("web-2 leads invoices with token ")


def test_as_json_it_says_what_became_of_it(database: str) -> None:
    with candidate(database, "invoices", "web-1"), candidate(database, "invoices", "web-2", leads=False):
        said = pgelect("step-down", "invoices", "--json", dsn=database)
    assert said.code == 0
    assert (said.json["outcome"], said.json["asked"]) == ("handed over", 1)
    assert (said.json["before"]["holder"], said.json["now"]["holder"]) == ("web-1", "web-2")


def test_without_a_follower_the_lock_is_released_and_that_is_told(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_down, "SUCCESSOR_S", 0.1)
    with candidate(database, "invoices", "web-1"):
        said = pgelect("step-down", "invoices", dsn=database)
    assert said.code == 0
    assert said.lines[1].startswith("Nobody leads invoices: web-1 gave it up ")
    assert "No follower has taken invoices over" in said.lines[2]


def test_a_request_for_a_term_that_is_over_does_nothing(database: str) -> None:
    with candidate(database, "invoices", "web-1"):
        pass
    with candidate(database, "invoices", "web-2") as leader:
        said = pgelect("step-down", "invoices", "--token", "1", dsn=database)
        assert leader.is_leader
        assert query(database, "SELECT count(*) FROM pgelect.step_down") == [(0,)]
    assert said.code == 1
    assert said.lines[0] == "Nothing done: the term of that token is over."
    assert said.lines[1].startswith("web-2 leads invoices")


def test_nobody_to_ask_is_a_no(database: str) -> None:
    query(database, schema_sql())
    never = pgelect("step-down", "invoices", dsn=database)
    assert (never.code, never.lines[0]) == (1, "Nothing done: there is nobody to ask.")
    with candidate(database, "invoices", "web-1"):
        pass
    released = pgelect("step-down", "invoices", "--json", dsn=database)
    assert (released.code, released.json["outcome"], released.json["asked"]) == (1, "nobody leads", None)


def test_a_leader_that_is_gone_without_a_word_is_over_at_once(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_down, "SUCCESSOR_S", 0.1)
    with candidate(database, "invoices", "web-1", auto_reacquire=False) as leader:
        assert leader.record is not None
        terminate(database, leader.record.pid)
        eventually_sync(lambda: not lock_holders(database, leader.key.key1, leader.key.key2))
        said = pgelect("step-down", "invoices", "--json", dsn=database)
    assert (said.code, said.json["outcome"]) == (0, "released")


def test_a_leader_that_does_not_heed_it_in_time_is_a_no(database: str) -> None:
    with candidate(database, "invoices", "web-1", fencing=True) as leader:
        assert leader.record is not None
        query(database, "DROP FUNCTION pgelect.asked_to_step_down")  # as if its role might not hear of requests
        said = pgelect("step-down", "invoices", "--wait", "0.3", dsn=database)
        asked = pgelect("step-down", "invoices", "--wait", "0", dsn=database)
        assert leader.is_leader
        query(database, schema_sql())
    assert said.code == 1
    assert "it still leads invoices" in said.lines[0]
    assert "--wait" in said.lines[1]
    assert (asked.code, asked.lines[0]) == (0, "Asked web-1 (token 1) to step down.")
