"""pgelect init, guard, unguard and key, as an administrator uses them; also with the server away."""

import json
import os
import secrets
import signal
import subprocess
import sys

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgelect import LockKey
from pgelect._postgres.install import SCHEMA_VERSION
from tests.support.commands import Said, pgelect
from tests.support.runs import ROOT
from tests.support.server import query


def out(done: Said) -> str:
    assert (done.code, done.err) == (0, "")
    return done.out


def test_init_creates_the_schema_and_says_so_and_does_nothing_more_the_next_time(database: str) -> None:
    assert out(pgelect("init", dsn=database)) == f"The schema pgelect was created, version {SCHEMA_VERSION}.\n"
    assert out(pgelect("init", dsn=database)) == f"The schema pgelect is up to date, version {SCHEMA_VERSION}.\n"
    assert json.loads(out(pgelect("init", "--json", dsn=database))) == {
        "version": SCHEMA_VERSION,
        "previous": SCHEMA_VERSION,
        "granted": [],
    }


@pytest.mark.parametrize("before", range(1, SCHEMA_VERSION))
def test_init_upgrades_the_schema_of_an_earlier_version(database: str, before: int) -> None:
    query(database, (ROOT / "tests" / "data" / f"schema_v{before}.sql").read_text(encoding="utf-8"))
    upgraded = f"The schema pgelect was upgraded from version {before} to version {SCHEMA_VERSION}.\n"
    assert out(pgelect("init", dsn=database)) == upgraded
    assert out(pgelect("init", dsn=database)) == f"The schema pgelect is up to date, version {SCHEMA_VERSION}.\n"


def test_init_leaves_a_later_version_alone(database: str) -> None:
    out(pgelect("init", dsn=database))
    query(database, f"INSERT INTO pgelect.schema_version (version) VALUES ({SCHEMA_VERSION + 1})")
    done = pgelect("init", dsn=database)
    assert done.code == 4
    assert f"is of version {SCHEMA_VERSION + 1}" in done.err
    assert len(done.err.splitlines()) == 1
    assert query(database, "SELECT max(version) FROM pgelect.schema_version") == [(SCHEMA_VERSION + 1,)]


def test_init_grants_roles_what_they_need_and_no_more(database: str) -> None:
    roles = {kind: f"{kind}_{secrets.token_hex(4)}" for kind in ("elector", "writer", "reader", "operator")}
    for role in roles.values():
        query(database, f"CREATE ROLE {role}")
    try:
        options = [word for kind, role in roles.items() for word in (f"--{kind}", role)]
        done = out(pgelect("init", *options, dsn=database))
        assert done.splitlines()[-1] == f"Rights were granted to {', '.join(sorted(roles.values()))}."
        rights = {
            "elector": "has_table_privilege('{}', 'pgelect.token', 'UPDATE')",
            "writer": "has_function_privilege('{}', 'pgelect.check_token(int, int, bigint)', 'EXECUTE')",
            "reader": "has_table_privilege('{}', 'pgelect.leaders', 'SELECT')",
            "operator": "has_function_privilege('{}', 'pgelect.request_step_down(int, int, bigint)', 'EXECUTE')",
        }
        has = {
            kind: [right for right, test in rights.items() if query(database, f"SELECT {test.format(role)}")[0][0]]
            for kind, role in roles.items()
        }
        assert has["writer"] == ["writer"]
        assert has["reader"] == ["reader"]
        assert has["operator"] == ["operator"]
        assert "elector" in has["elector"]
        assert "operator" not in has["elector"]
    finally:
        for role in roles.values():
            query(database, f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_init_prints_sql_that_does_the_same_without_a_server(database: str) -> None:
    role = f"role_{secrets.token_hex(4)}"
    printed = out(pgelect("init", "--print", "--elector", role, dsn="host=127.0.0.1 port=1"))
    query(database, f"CREATE ROLE {role}")
    try:
        with psycopg.connect(database) as conn:
            conn.execute(printed.encode())
        assert out(pgelect("init", dsn=database)) == f"The schema pgelect is up to date, version {SCHEMA_VERSION}.\n"
        assert query(database, f"SELECT has_table_privilege('{role}', 'pgelect.token', 'UPDATE')") == [(True,)]
    finally:
        query(database, f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_init_by_a_role_that_may_not_is_told_in_one_line(database: str) -> None:
    role = f"role_{secrets.token_hex(4)}"
    query(database, f"CREATE ROLE {role} LOGIN")
    try:
        done = pgelect("init", dsn=make_conninfo(database, user=role))
    finally:
        query(database, f"DROP ROLE {role}")
    assert done.code == 4
    assert len(done.err.splitlines()) == 1
    assert "pgelect init --print" in done.err


def test_a_guarded_table_is_written_only_under_the_fence_until_it_is_unguarded(database: str) -> None:
    out(pgelect("init", dsn=database))
    query(database, 'CREATE TABLE "Ledger" (line text)')
    assert '"Ledger" can be written only' in out(pgelect("guard", '"Ledger"', "reports", dsn=database))
    with pytest.raises(psycopg.Error, match="fenc"):
        query(database, "INSERT INTO \"Ledger\" VALUES ('x')")
    assert out(pgelect("unguard", '"Ledger"', dsn=database)) == '"Ledger" has no guard.\n'
    query(database, "INSERT INTO \"Ledger\" VALUES ('x')")


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (("guard", "nothing", "reports"), 2, "there is no table 'nothing'"),
        (("guard", "nothing"), 2, "say which lock"),
        (("init", "--elector", "nobody_at_all"), 4, 'role "nobody_at_all" does not exist'),
    ],
)
def test_a_mistake_is_told_in_one_line(database: str, arguments: tuple[str, ...], code: int, complaint: str) -> None:
    done = pgelect(*arguments, dsn=database)
    assert done.code == code
    assert complaint in done.err
    assert "Traceback" not in done.err


def test_a_server_that_is_away_is_told_in_one_line_without_the_password() -> None:
    done = pgelect("init", dsn="postgresql://me:hush-hush@127.0.0.1:1/x")
    assert done.code == 3
    assert len(done.err.splitlines()) == 1
    assert "refused" in done.err
    assert "hush" not in done.err


def test_a_key_is_shown_as_the_server_shows_it(database: str) -> None:
    key = LockKey.from_name("my job")
    shown = json.loads(out(pgelect("key", "my job", "--json")))
    assert shown == {
        "key1": key.key1, "key2": key.key2, "name": "my job", "classid": key.classid, "objid": key.objid
    }  # fmt: skip
    where = next(line for line in out(pgelect("key", "my job")).splitlines() if "pg_locks" in line).partition(": ")[2]
    with psycopg.connect(database) as conn:
        conn.execute("SELECT pg_advisory_lock(%s, %s)", (key.key1, key.key2))
        assert query(database, f"SELECT count(*) FROM pg_locks WHERE {where}") == [(1,)]


def test_nobody_reading_is_no_complaint() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "pgelect", "key", "x"], cwd=ROOT, stdout=write, stderr=subprocess.PIPE, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")
