"""pgelect doctor on real servers: what it finds, its exit codes, and that it leaves nothing behind."""

from collections.abc import Callable

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from pgelect import LockKey, schema_sql
from pgelect._postgres.install import grants_sql
from pgelect.cli import doctor_looks
from pgelect.testing import Postgres
from tests.support.commands import Said, candidate, pgelect
from tests.support.pgbouncer import PgBouncer
from tests.support.roles import Roles
from tests.support.server import query, sessions
from tests.support.waiting import eventually_sync

OF_TEST_SERVERS = "durability"  # they run without fsync, and the doctor minds


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for the clocks: what they say is of no interest to most tests."""
    monkeypatch.setattr(doctor_looks, "CLOCK_S", 0.02)


def found(said: Said, *severities: str) -> dict[str, str]:
    """What a run with --json found of these severities, by check; nothing of the way test servers are."""
    return {
        finding["check"]: f"{finding['said']}\n{finding['remedy']}"
        for finding in said.json["findings"]
        if finding["severity"] in severities and finding["check"] != OF_TEST_SERVERS
    }


def test_on_each_server_all_is_well_but_that_it_is_a_test_server(
    any_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_looks, "CLOCK_S", 0.5)
    with candidate(any_database, "invoices", "web-1"):
        said = pgelect("doctor", "--json", dsn=any_database)
    assert found(said, "note", "warning", "error") == {}
    assert said.code == 1
    assert [f["check"] for f in said.json["findings"] if f["severity"] == "warning"] == [OF_TEST_SERVERS]
    checks = {f["check"] for f in said.json["findings"]}
    assert checks >= {"server", "pooler", "locking", "rights", "schema", "keys", "transactions", "settings", "standbys"}
    assert checks >= {"connections", "keepalives", "latency", "clock", "promise"}


def test_it_changes_nothing_takes_no_lock_and_leaves_no_session(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        catalog = (
            "SELECT (SELECT count(*) FROM pg_class), (SELECT count(*) FROM pg_namespace), pg_current_wal_insert_lsn()"
        )

        def changes_nothing() -> bool:
            before = conn.execute(catalog).fetchone()
            said = pgelect("doctor", "invoices", dsn=database)
            assert "the schema pgelect is not there yet" in said.out
            return conn.execute(catalog).fetchone() == before

        assert any(changes_nothing() for _ in range(5)), "the server itself writes to its WAL too, but now and then"
        eventually_sync(lambda: len(sessions(database, "%")) == 1)


def test_settings_that_would_hurt_are_told_with_who_made_them_and_do_not_hurt_the_doctor(database: str) -> None:
    query(database, schema_sql())
    with Roles(database) as roles:
        role = roles.make("app")
        roles.run(
            f"{grants_sql(role.name)} ALTER ROLE {role.name} SET statement_timeout = '1ms';"
            f"ALTER ROLE {role.name} IN DATABASE {roles.dbname} SET search_path = nowhere;"
            f"ALTER DATABASE {roles.dbname} SET default_transaction_read_only = on;"
        )
        said = pgelect("doctor", dsn=role.dsn)
        query(f"{database} options='-c default_transaction_read_only=off'", f"ALTER DATABASE {roles.dbname} RESET ALL")
        notes = " ".join(said.out.split())
    assert f"statement_timeout = 1ms (from ALTER ROLE {role.name})" in notes
    assert f"search_path = nowhere (from ALTER ROLE {role.name} IN DATABASE {roles.dbname})" in notes
    assert f"default_transaction_read_only = on (from ALTER DATABASE {roles.dbname})" in notes
    assert "could not be" not in said.out
    assert said.code == 1


def test_a_role_without_rights_is_told_the_grants_that_mend_it(database: str) -> None:
    query(database, schema_sql())
    with Roles(database) as roles:
        role = roles.make("app", "CONNECTION LIMIT 3")
        poor = pgelect("doctor", "--json", dsn=role.dsn)
        errors = found(poor, "error")
        roles.run(errors["rights"].split("\n", 1)[1])
        mended = pgelect("doctor", "--json", dsn=role.dsn)
    assert (poor.code, mended.code) == (4, 1)
    assert {*errors} == {"rights"}
    assert "of 3 connections of the role are in use" in found(poor, "warning")["connections"]
    assert found(mended, "error") == {}


def test_a_transaction_pooler_is_an_error_and_a_session_pool_a_note(
    database: str, pgbouncer: Callable[..., PgBouncer]
) -> None:
    dbname = str(conninfo_to_dict(database)["dbname"])
    shared = pgelect("doctor", "--json", dsn=pgbouncer("transaction").dsn(dbname))
    assert shared.code == 4
    assert "transaction mode" in found(shared, "error")["pooler"]
    own = pgelect("doctor", "--json", dsn=pgbouncer("session").dsn(dbname))
    assert "session mode" in found(own, "note")["pooler"]
    assert found(own, "error") == {}


def test_who_else_holds_the_key_is_told(database: str) -> None:
    key = LockKey.from_name("invoices")
    with psycopg.connect(database, autocommit=True, application_name="cron") as conn:
        conn.execute(f"SELECT pg_advisory_lock({key.key1}, {key.key2})".encode())
        held = pgelect("doctor", "invoices", dsn=database)
        assert f"is held by pid {conn.info.backend_pid} ('cron')" in held.out
        conn.execute(
            f"SELECT pg_advisory_unlock_all(), pg_advisory_lock(({key.key1}::bigint << 32) + {key.objid})".encode()
        )
        assert "one 64-bit key of the same bits" in pgelect("doctor", "invoices", dsn=database).out
    assert "nothing else uses the key" in pgelect("doctor", "invoices", dsn=database).out


def test_a_prepared_transaction_and_a_missing_standby_are_errors_with_their_remedies(own_server: Postgres) -> None:
    own_server.configure(max_prepared_transactions="2", synchronous_standby_names="gone")
    own_server.restart()
    dsn, key = own_server.dsn(), LockKey.from_name("invoices")
    with psycopg.connect(dsn, autocommit=True, options="-c synchronous_commit=local") as conn:
        conn.execute(schema_sql().encode())
        conn.execute(
            f"BEGIN; SELECT pg_advisory_xact_lock({key.key1}, {key.key2}); SELECT FROM pgelect.token FOR SHARE; "
            "PREPARE TRANSACTION 'forgotten'".encode()
        )
        said = pgelect("doctor", "invoices", "--json", dsn=dsn)
    errors = found(said, "error")
    assert said.code == 4
    assert {*errors} == {"keys", "transactions", "standbys"}
    assert "ROLLBACK PREPARED 'forgotten';" in errors["keys"]
    assert "ROLLBACK PREPARED 'forgotten';" in errors["transactions"]
    assert "synchronous_standby_names = 'gone'" in errors["standbys"]


def test_a_standby_is_an_error_unless_the_dsn_leads_on_to_the_primary(standby_pair: tuple[Postgres, Postgres]) -> None:
    primary, standby = standby_pair
    said = pgelect("doctor", "--json", dsn=standby.dsn())
    assert said.code == 4
    assert "is a standby" in found(said, "error")["server"]
    both = f"host=127.0.0.1,127.0.0.1 port={standby.port},{primary.port} dbname=postgres user=postgres"
    assert found(pgelect("doctor", "--json", dsn=both), "error") == {}
    alone = pgelect("status", dsn=standby.dsn())
    assert alone.code in {0, 4}  # as far as the schema has come there
    assert "Traceback" not in alone.err


def test_settings_that_contradict_each_other_are_a_usage_error() -> None:
    said = pgelect("doctor", "--lease", "5")
    assert said.code == 2
    assert "lease_s (5)" in " ".join(said.err.split())


def test_settings_of_the_environment_count_as_they_do_for_a_lock(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGELECT_INVOICES_LEASE_S", "40")
    said = pgelect("doctor", "invoices", "--json", "--drain", "0", dsn=database)
    assert said.json["bounds"]["failover_silent"]["seconds"] == 41.7
    assert said.json["bounds"]["failover_clean"]["seconds"] == 2.6
    monkeypatch.setenv("PGELECT_INVOICES_LEASE_S", "forty")
    wrong = pgelect("doctor", "invoices", dsn=database)
    assert wrong.code == 2
    assert "PGELECT_INVOICES_LEASE_S" in wrong.err


@pytest.mark.parametrize("longest", ["nan", "inf", "-5", "0"])
def test_a_longest_wait_that_is_none_promises_nothing(longest: str) -> None:
    said = pgelect("doctor", "--acquire", "poll", "--retry-max", longest)
    assert said.code == 2
    assert f"retry_max_s={float(longest)!r} must be a finite number greater than 0" in said.err


def test_a_dsn_that_cannot_be_parsed_is_a_usage_error() -> None:
    said = pgelect("doctor", "--dsn", "hush-hush")
    assert said.code == 2
    assert said.err.startswith("pgelect doctor: dsn cannot be parsed")
    assert "hush" not in said.err
