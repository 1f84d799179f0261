"""What the doctor thinks of keys and who holds them, of open transactions, and of the room on a server."""

from dataclasses import replace

import pytest

from pgelect import LockKey
from pgelect.cli.doctor_checks_locks import check_fenced, check_keys, check_room
from pgelect.cli.doctor_facts import AdvisoryLock, Fenced, TokenRow
from tests.support.doctoring import ERROR, OK, ROOM, WARNING, only, severities

KEY = LockKey.from_name("invoices")
ROW = TokenRow(KEY.key1, KEY.key2, "invoices", 42)
HELD = AdvisoryLock(KEY.classid, KEY.objid, 2, "app", True, 42, False, "pgelect:invoices:web-1", None)


@pytest.mark.parametrize("key", [KEY, None])
def test_a_lock_that_an_elector_holds_is_well(key: LockKey | None) -> None:
    assert severities(check_keys(key, [ROW], [HELD])) == [OK]


@pytest.mark.parametrize("key", [KEY, None])
@pytest.mark.parametrize(
    ("changes", "severity", "said"),
    [
        ({"application_name": "psql"}, WARNING, "pid 42 ('psql')"),
        ({"application_name": ""}, WARNING, "held by pid 42, which is no session of pgelect"),
        ({"shared": True}, WARNING, "no session of pgelect"),
        ({"objsubid": 1}, WARNING, "one 64-bit key"),
        ({"here": False, "database": "other"}, WARNING, "in the database other"),
        ({"pid": None, "application_name": None, "gid": "it's"}, ERROR, "prepared transaction"),
    ],
)
def test_other_holders_of_the_key_are_told(
    key: LockKey | None, changes: dict[str, object], severity: object, said: str
) -> None:
    found = only(check_keys(key, [ROW], [replace(HELD, **changes)]))  # type: ignore[arg-type]  # of each its own type
    assert found.severity is severity
    assert said in found.said
    assert found.remedy


def test_the_remedy_for_a_prepared_transaction_can_be_pasted() -> None:
    held = replace(HELD, pid=None, application_name=None, gid="it's")
    assert only(check_keys(KEY, [], [held])).remedy == "ROLLBACK PREPARED 'it''s';"


def test_a_name_that_meets_another_on_its_keys_is_an_error() -> None:
    found = list(check_keys(KEY, [replace(ROW, name="other")], []))
    assert found[0].severity is ERROR
    assert "'other'" in found[0].said


def test_a_name_that_does_not_map_to_the_keys_of_its_row_is_a_warning() -> None:
    found = only(check_keys(None, [TokenRow(1, 2, "invoices", 42)], []))
    assert found.severity is WARNING
    assert "pgelect did not write it" in found.said
    assert severities(check_keys(None, [TokenRow(1, 2, None, 42)], [])) == [OK]


def test_negative_keys_meet_their_locks() -> None:
    """pg_locks shows a key of -1 as 4294967295."""
    row, held = TokenRow(-1, -2, None, 1), replace(HELD, classid=2**32 - 1, objid=2**32 - 2, application_name="psql")
    assert severities(check_keys(None, [row], [held])) == [WARNING]


def test_long_fenced_transactions_and_prepared_ones_are_told() -> None:
    found = list(check_fenced([Fenced(None, 9, "writer", 61.0), Fenced("g", None, "writer", 1.0)]))
    assert severities(found) == [WARNING, ERROR]
    assert "pg_terminate_backend(9)" in found[0].remedy
    assert found[1].remedy == "ROLLBACK PREPARED 'g';"
    assert severities(check_fenced([Fenced(None, 9, "writer", 0.1), Fenced(None, 10, None, None)])) == [OK]


def test_room_for_more_candidates_is_that_of_the_tightest_limit() -> None:
    assert "77 more can connect: 20 of 97" in only(check_room(ROOM)).said
    tight = only(check_room(replace(ROOM, role_limit=6)))
    assert tight.severity is WARNING
    assert "1 more can connect: 5 of 6 connections of the role" in tight.said
    assert severities(check_room(replace(ROOM, database_limit=11))) == [WARNING]
    assert severities(check_room(replace(ROOM, used=95))) == [WARNING]


def test_connections_that_are_kept_for_others_are_not_ours() -> None:
    kept = replace(ROOM, kept_for_some=70)
    assert severities(check_room(kept)) == [WARNING]
    assert severities(check_room(replace(kept, may_use_those=True))) == [OK]
    assert severities(check_room(replace(kept, superuser=True, role_limit=1))) == [OK]


def test_a_lock_table_that_is_nearly_full_is_a_warning() -> None:
    assert severities(check_room(replace(ROOM, locks=6000))) == [OK, WARNING]
