"""What the doctor thinks of a role's rights and of the schema; a remedy is SQL that can be pasted."""

from dataclasses import replace

from pgelect._postgres import install
from pgelect.cli.doctor_checks_schema import check_advisory, check_rights, check_schema
from tests.support.doctoring import ERROR, NOTE, OK, RIGHTS, SERVER, WARNING, only, severities

OF_VERSION_1 = ("schema_version", "token", "token_seq", "closed", "check_token", "guard")
MISSING = replace(
    RIGHTS, schema=None, tables=None, sequence=None, fence=None, announcing=None, looks=None, asks=None, parts=[]
)  # fmt: skip


def test_a_role_that_may_do_all_is_well() -> None:
    assert severities(check_rights(RIGHTS, SERVER)) == [OK]
    assert severities(check_advisory(RIGHTS, SERVER)) == [OK]
    assert severities(check_schema(RIGHTS, install.SCHEMA_VERSION)) == [OK]


def test_a_role_that_may_not_lock_is_told_the_grants() -> None:
    found = only(check_advisory(replace(RIGHTS, advisory=["pg_try_advisory_lock(integer, integer)"]), SERVER))
    assert found.severity is ERROR
    assert 'GRANT EXECUTE ON FUNCTION pg_catalog.pg_try_advisory_lock(integer, integer) TO "app";' in found.remedy


def test_that_a_role_works_as_another_is_a_note() -> None:
    assert severities(check_advisory(RIGHTS, replace(SERVER, login="deploy"))) == [OK, NOTE]


def test_a_missing_schema_is_a_note_for_whom_it_may_be_made_by_and_an_error_otherwise() -> None:
    assert severities(check_rights(replace(MISSING, creates=True), SERVER)) == [NOTE]
    found = only(check_rights(MISSING, SERVER))
    assert found.severity is ERROR
    assert found.remedy.endswith(install.grants_sql("app"))
    assert severities(check_schema(MISSING, None)) == []  # said once


def test_missing_rights_are_an_error_that_names_them() -> None:
    found = only(check_rights(replace(RIGHTS, tables=False, sequence=False), SERVER))
    assert found.severity is ERROR
    assert "the tables token and closed, use the sequence" in found.said
    assert found.remedy == install.grants_sql("app")


def test_rights_that_an_election_can_do_without_are_told_as_what_is_lost() -> None:
    found = list(check_rights(replace(RIGHTS, announcing=False, fence=False, ends_all=False), SERVER))
    assert severities(found) == [OK, NOTE, WARNING, NOTE]
    assert "no step-down on request" in found[2].said


def test_a_schema_of_an_earlier_or_a_later_version_is_a_warning() -> None:
    old = replace(RIGHTS, parts=OF_VERSION_1, announcing=None)
    assert severities(check_schema(old, 1)) == [WARNING]
    assert "without history" in only(check_schema(old, 1)).said
    assert "without what is newer" in only(check_schema(RIGHTS, 2)).said
    assert "pgelect init" in only(check_schema(old, None)).remedy
    assert "Upgrade pgelect" in only(check_schema(RIGHTS, install.SCHEMA_VERSION + 1)).remedy


def test_strangers_and_intruders_are_errors_with_what_to_do() -> None:
    found = list(check_schema(replace(RIGHTS, stranger="mallory", intruder="DROP TRIGGER t ON pgelect.token"), None))
    assert severities(found) == [ERROR, ERROR]
    assert "mallory" in found[0].said
    assert "DROP TRIGGER t ON pgelect.token;" in found[1].remedy
    assert not any("Let an administrator" in finding.said for finding in found)
