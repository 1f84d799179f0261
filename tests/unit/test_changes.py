"""What an observer makes of two looks at one lock."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from pgelect import Backend, LeaderRecord
from pgelect._changes import ChangeKind, is_led, kinds_of, terms_between

T0 = datetime(2026, 1, 1, tzinfo=UTC)
LED = LeaderRecord(
    key1=1,
    key2=-2,
    name=None,
    token=7,
    holder="a",
    metadata={},
    acquired_at=T0,
    released_at=None,
    terms=3,
    lease_s=15.0,
    backend=Backend(100, T0),
    alive=True,
)
RELEASED = replace(LED, released_at=T0 + timedelta(seconds=1), alive=False)
LOST = replace(LED, alive=False)
RESUMED = replace(LED, backend=Backend(101, T0))
NEXT = replace(LED, token=8, terms=4, holder="b")
NEXT_RELEASED = replace(NEXT, released_at=T0, alive=False)
NEXT_LOST = replace(NEXT, alive=False)
UNKNOWN = replace(LED, alive=None)  # as a standby tells


@pytest.mark.parametrize(
    ("before", "now", "kinds"),
    [
        (None, LED, ["began"]),
        (None, RELEASED, ["began", "released"]),
        (None, LOST, ["began", "lost"]),
        (LED, LED, []),
        (LED, RELEASED, ["released"]),
        (LED, LOST, ["lost"]),
        (LED, RESUMED, ["resumed"]),
        (LED, NEXT, ["began"]),
        (LED, NEXT_RELEASED, ["began", "released"]),
        (LED, NEXT_LOST, ["began", "lost"]),
        (RELEASED, RELEASED, []),
        (RELEASED, NEXT, ["began"]),
        (LOST, LOST, []),
        (LOST, LED, ["resumed"]),
        (LOST, RESUMED, ["resumed"]),
        (LOST, RELEASED, ["released"]),
        (LOST, NEXT, ["began"]),
        (UNKNOWN, UNKNOWN, []),
        (UNKNOWN, RELEASED, ["released"]),
        (UNKNOWN, LED, []),  # the standby was promoted
        (UNKNOWN, LOST, ["lost"]),
    ],
)
def test_each_pair_of_looks_has_its_changes(before: LeaderRecord | None, now: LeaderRecord, kinds: list[str]) -> None:
    assert list(kinds_of(before, now)) == [ChangeKind(kind) for kind in kinds]


def test_a_follower_that_comes_or_an_address_that_is_seen_is_no_change() -> None:
    assert list(kinds_of(LED, replace(LED, followers=3, last_contact_at=T0, lease_s=5.0))) == []


def test_on_a_standby_a_term_that_was_not_given_up_counts_as_led() -> None:
    assert [is_led(record) for record in (LED, RELEASED, LOST, UNKNOWN)] == [True, False, False, True]


def test_terms_are_counted_and_never_below_zero() -> None:
    """A database that was restored from an old copy has had fewer terms than were seen."""
    assert [terms_between(*pair) for pair in ((None, LED), (LED, LED), (LED, NEXT), (NEXT, LED))] == [3, 0, 1, 0]
    assert terms_between(LED, None) == 0
