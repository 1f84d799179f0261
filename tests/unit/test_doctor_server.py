"""What the doctor thinks of a server and of the way to it."""

from dataclasses import replace

import pytest

from pgelect import NotPrimaryError, PoolerError
from pgelect.cli.doctor_checks_server import (
    check_keepalives,
    check_pooler,
    check_server,
    check_settings,
    check_standbys,
)
from pgelect.cli.doctor_facts import Replication, Setting
from pgelect.errors import PgElectError
from tests.support.doctoring import ERROR, NO_STANDBYS, NOTE, OK, SERVER, WARNING, only, setting, severities


def test_a_primary_is_well_and_its_version_is_told() -> None:
    found = only(check_server(SERVER))
    assert found.severity is OK
    assert "PostgreSQL 16.4 at db:5432" in found.said


def test_a_standby_is_an_error_with_what_to_write_in_the_dsn() -> None:
    found = only(check_server(replace(SERVER, in_recovery=True)))
    assert found.severity is ERROR
    assert "target_session_attrs=primary" in found.remedy


def test_a_standby_that_was_passed_over_is_a_note() -> None:
    assert severities(check_server(replace(SERVER, passed_over="db2:5432"))) == [OK, NOTE]


@pytest.mark.parametrize("mode", ["transaction", "unknown"])
def test_a_pooler_that_shares_sessions_is_an_error(mode: str) -> None:
    found = only(check_pooler(replace(SERVER, told_pid=1, refused=PoolerError(mode))))
    assert found.severity is ERROR
    assert "pooler" in found.said
    assert "session mode" in found.remedy


def test_a_pooler_in_session_mode_is_a_note_and_none_is_well() -> None:
    assert severities(check_pooler(replace(SERVER, told_pid=1))) == [NOTE]
    assert severities(check_pooler(SERVER)) == [OK]


def test_another_refusal_is_told_once() -> None:
    found = list(check_pooler(replace(SERVER, refused=PgElectError("the server refused a statement"))))
    assert severities(found) == [OK, ERROR]
    assert "refused a statement" in found[1].said
    assert severities(check_pooler(replace(SERVER, refused=NotPrimaryError("db")))) == [OK]  # said of the server


def test_settings_that_would_have_hurt_are_notes_with_their_origin() -> None:
    given = Setting("statement_timeout", "0", "5000", "0", "ms", "ALTER ROLE app")
    found = only(check_settings([given], 15.0, ours=True))
    assert found.severity is NOTE
    assert "statement_timeout = 5000ms (from ALTER ROLE app)" in found.said
    assert "override" in found.said


def test_a_setting_that_did_not_take_is_an_error() -> None:
    found = list(check_settings([setting("idle_session_timeout", "0", in_force="60000", unit="ms")], 15.0, ours=True))
    assert severities(found) == [ERROR]
    assert "idle_session_timeout is 60000ms although the session has set it to 15000" in found[0].said


def test_in_a_session_that_is_not_a_locks_nothing_is_expected_to_be_in_force() -> None:
    assert severities(
        check_settings([setting("synchronous_commit", "on", boot="on", in_force="off")], 15, ours=False)
    ) == [OK]


def test_fsync_off_is_a_warning() -> None:
    found = list(check_settings([setting("fsync", "off", boot="on", in_force="off")], 15.0, ours=True))
    assert severities(found) == [OK, WARNING]
    assert found[1].check == "durability"


def test_a_deadlock_timeout_below_a_followers_wait_and_no_check_for_dead_clients_are_notes() -> None:
    short = setting("deadlock_timeout", "20", boot="1000", in_force="20", unit="ms")
    blind = setting("client_connection_check_interval", "0", in_force="0")
    assert severities(check_settings([short, blind], 15.0, ours=True)) == [OK, NOTE, NOTE]
    assert severities(check_settings([setting("deadlock_timeout", "1000", boot="1000")], 15.0, ours=True)) == [OK]


@pytest.mark.parametrize(
    ("seen", "severity"),
    [
        (NO_STANDBYS, OK),
        (Replication("s1", 1, 0, 0, 0.0), OK),
        (Replication("s1", 0, 0, 0, 0.0), ERROR),
        (Replication("s1", 0, 1, 0, 0.0), NOTE),
        (Replication("ANY 2 (s1, s2, s3)", 1, 0, 0, 0.0), ERROR),
        (Replication("first 2 (s1, s2)", 2, 0, 0, 0.0), OK),
        (Replication("2 (s1, s2)", 1, 0, 0, 0.0), ERROR),
        (Replication("*", 1, 0, 3, 12.0), ERROR),
        (Replication("*", 1, 0, 3, 0.01), OK),
    ],
)
def test_synchronous_standbys_that_are_not_there_are_an_error(seen: Replication, severity: object) -> None:
    assert severities(check_standbys(seen)) == [severity]


@pytest.mark.parametrize(
    ("given", "severity"),
    [
        ({}, OK),
        ({"keepalives_idle": "5", "tcp_user_timeout": "15000"}, OK),
        ({"keepalives": "0"}, WARNING),
        ({"keepalives_idle": "7200"}, NOTE),
        ({"tcp_user_timeout": "0"}, NOTE),
    ],
)
def test_keepalives_that_the_dsn_turns_off_or_stretches_are_told(given: dict[str, str], severity: object) -> None:
    assert severities(check_keepalives(replace(SERVER, given=given), 15.0)) == [severity]


def test_a_unix_socket_needs_no_keepalives() -> None:
    assert (
        "Unix socket" in only(check_keepalives(replace(SERVER, unix_socket=True, given={"keepalives": "0"}), 15)).said
    )
