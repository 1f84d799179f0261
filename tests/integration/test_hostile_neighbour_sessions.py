"""A hostile role and the electors' sessions: what it sees of them, and that it cannot end, slow or change them."""

import asyncio
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgelect.testing import Postgres
from tests.support.electors import Elector, one_leads
from tests.support.roles import READER, Roles, refused_all
from tests.support.server import lock_holders, lock_waiters, query, terminate
from tests.support.waiting import eventually

Key = tuple[int, int]
PATIENT: Mapping[str, Any] = {"lease_s": 10.0, "health_interval_s": 0.2}  # the neighbours block this event loop
HIDDEN = "only in the metadata"
SEEN = "SELECT * FROM pg_stat_activity WHERE application_name LIKE 'pgelect:%%' AND usename = %s"


def everything(conn: psycopg.Connection, who: str) -> str:
    """All that pg_stat_activity shows of the electors of that role, as text."""
    return str(conn.execute(SEEN, (who,)).fetchall())


# Looking


@pytest.mark.parametrize("elsewhere", [False, True], ids=["same database", "another database"])
async def test_a_neighbour_sees_name_and_identity_of_an_elector_and_not_what_it_says(
    any_roles: Roles, elsewhere: bool
) -> None:
    """`application_name` is for everybody on the server to read: a name or an identity is no place for a secret."""
    elector, writer = any_roles.electors_and_writers()
    neighbour = any_roles.neighbour()
    conn = any_roles.connect(neighbour, **({"dbname": "postgres"} if elsewhere else {}))
    async with Elector(elector.dsn, "a name", identity="an identity", metadata={"note": HIDDEN}) as a:
        await a.leads()
        seen = everything(conn, elector.name)
        assert "pgelect:a name:an identity" in seen
        assert seen.count("<insufficient privilege>") == 1
        assert HIDDEN not in seen
        assert "advisory" not in seen
        assert elector.name in everything(any_roles.connect(writer), elector.name)
        with psycopg.connect(elector.dsn, autocommit=True) as same_role:
            # who has the same role, sees it: nobody but electors should have it
            assert "insufficient" not in everything(same_role, elector.name)


# Ending and slowing


async def test_a_neighbour_or_writer_cannot_end_or_cancel_an_elector(any_roles: Roles, key: Key) -> None:
    elector, writer = any_roles.electors_and_writers()
    neighbour = any_roles.neighbour()
    async with Elector(elector.dsn, key, **PATIENT) as a, Elector(elector.dsn, key, **PATIENT) as b:
        leader = await one_leads(a, b)
        await eventually(lambda: lock_waiters(any_roles.database, *key), message="one waits in the queue")
        pids = query(any_roles.database, "SELECT pid FROM pg_stat_activity WHERE usename = %s", elector.name)
        assert len(pids) == 2
        for role in (neighbour, writer):
            conn = any_roles.connect(role)
            for (pid,) in pids:
                for end in ("pg_terminate_backend", "pg_cancel_backend"):
                    with pytest.raises(psycopg.errors.InsufficientPrivilege):
                        conn.execute(f"SELECT {end}({pid})".encode())
        await leader.proved(1)
        assert len(a.terms + b.terms) == 1
        assert a.errors == b.errors == []


@pytest.mark.parametrize("grant", ["{elector}", "pg_signal_backend"])
async def test_who_is_made_a_member_of_the_electors_role_or_may_signal_can_end_a_term_and_no_more(
    roles: Roles, key: Key, grant: str
) -> None:
    """What must not be granted to neighbours. Even so no second token is valid, and the electors go on."""
    elector, _ = roles.electors_and_writers()
    neighbour = roles.neighbour()
    roles.run(f"GRANT {grant.format(elector=elector.name)} TO {neighbour.name}")
    conn = roles.connect(neighbour)
    async with Elector(elector.dsn, key) as a:
        term = await a.leads()
        (pid,) = lock_holders(roles.database, *key)
        assert conn.execute("SELECT pg_terminate_backend(%s)", (pid,)).fetchone() == (True,)
        await a.leads(above=term.token)
        a.check_pairs()


async def test_a_flood_of_notifications_moves_no_elector(server: Postgres, roles: Roles, key: Key) -> None:
    """Any role may notify on any channel. A leader listens to one, and asks the server what was asked of it."""
    elector, _ = roles.electors_and_writers()
    roles.run(f"ALTER ROLE {elector.name} SET log_statement = 'all'")
    logged = len(server.log_text())
    conn = roles.connect(roles.neighbour())
    listens = f"pgelect_step_down_{key[0] % 2**32}_{key[1] % 2**32}"
    async with Elector(elector.dsn, key, **PATIENT) as a, Elector(elector.dsn, key, **PATIENT) as b:
        leader = await one_leads(a, b)
        await eventually(lambda: lock_waiters(roles.database, *key))
        for channel in ("pgelect", f"pgelect_{key[0]}_{key[1]}", "step_down", listens):
            conn.execute("SELECT pg_notify(%s, n || repeat('x', 500)) FROM generate_series(1, 5000) AS n", (channel,))
        await leader.proved(2)
        assert len(a.terms + b.terms) == 1
        assert a.errors == b.errors == []
        assert await leader.lock.step_down()
        await eventually(lambda: len(a.terms + b.terms) >= 3)
    said = [line for line in server.log_text()[logged:].splitlines() if f"pgelect:{key[0]}" in line]
    assert any("pg_advisory" in line for line in said), "it is logged"
    channels = [re.search(r"\blisten\s+\W?(\w+)", line, re.IGNORECASE) for line in said]
    assert {found[1] for found in channels if found} == {listens}
    asked = [line for line in said if "asked_to_step_down" in line]
    assert len(asked) < 100, "once for many notifications"


# Changing


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER ROLE {elector} SET search_path = evil",
        "ALTER ROLE {elector} PASSWORD 'x'",
        "ALTER ROLE {elector} NOLOGIN",
        "ALTER ROLE {elector} CONNECTION LIMIT 0",
        "ALTER ROLE ALL SET statement_timeout = 1",
        "ALTER DATABASE {dbname} SET search_path = evil",
        "ALTER DATABASE {dbname} CONNECTION LIMIT 0",
        "ALTER DATABASE {dbname} RENAME TO mine",
        "DROP DATABASE {dbname}",
        "ALTER SYSTEM SET idle_session_timeout = 1",
        "SET ROLE {elector}",
        "SET SESSION AUTHORIZATION {elector}",
        "GRANT {elector} TO {neighbour}",
        "DROP ROLE {elector}",
        "REASSIGN OWNED BY {elector} TO {neighbour}",
        "CHECKPOINT",
        "SELECT pg_reload_conf()",
        "SELECT pg_promote()",
        "CREATE EVENT TRIGGER mine ON ddl_command_start EXECUTE FUNCTION nothing()",
    ],
)
def test_a_neighbour_cannot_change_the_electors_role_database_or_server(roles: Roles, statement: str) -> None:
    elector, _ = roles.electors_and_writers()
    neighbour = roles.neighbour()
    names = {"elector": elector.name, "neighbour": neighbour.name, "dbname": roles.dbname}
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        roles.connect(neighbour).execute(statement.format(**names).encode())


async def test_what_a_neighbour_sets_for_itself_stays_with_it(roles: Roles, key: Key) -> None:
    elector, _ = roles.electors_and_writers()
    neighbour = roles.neighbour()
    async with Elector(elector.dsn, key) as a:
        await a.leads()
        conn = roles.connect(neighbour)
        conn.execute(f"ALTER ROLE {neighbour.name} SET idle_session_timeout = '1ms'".encode())
        for name in ("pgelect.nonce", f"pgelect.fence_{key[0] % 2**32}_{key[1] % 2**32}"):
            conn.execute("SELECT set_config(%s, 'mine', false)", (name,))
        await a.proved(2)
        assert a.errors == []


def test_a_role_that_may_make_roles_has_the_electors_rights_before_postgresql_16_and_not_since(
    any_server: Postgres, any_roles: Roles
) -> None:
    elector, _ = any_roles.electors_and_writers()
    maker = any_roles.neighbour("CREATEROLE")
    conn = any_roles.connect(maker)
    statements = [f"ALTER ROLE {elector.name} SET work_mem = '1MB'", f"GRANT {elector.name} TO {maker.name}"]
    for statement in statements:
        if any_server.version < 16:
            conn.execute(statement.encode())
        else:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(statement.encode())


# What the server's own roles open


@pytest.mark.parametrize(
    ("role", "opened"),
    [
        ("pg_read_all_data", {"metadata"}),
        ("pg_write_all_data", {"tokens"}),
        ("pg_read_all_stats", {"queries"}),
        ("pg_monitor", {"queries"}),
        ("pg_signal_backend", {"sessions"}),
        ("pg_maintain", {"locks"}),
    ],
)
async def test_roles_of_the_server_pass_the_grants_by(roles: Roles, key: Key, role: str, opened: set[str]) -> None:
    """So that who grants one of them knows what it opens."""
    elector, _ = roles.electors_and_writers()
    neighbour = roles.neighbour()
    roles.run(f"GRANT {role} TO {neighbour.name}")
    conn = roles.connect(neighbour)
    found = set()
    async with Elector(elector.dsn, key, metadata={"note": HIDDEN}) as a:
        await a.leads()
        (pid,) = lock_holders(roles.database, *key)
        attempts = {
            "metadata": "SELECT metadata FROM pgelect.token",
            "tokens": "UPDATE pgelect.token SET holder = 'me'",
            "locks": "REINDEX SCHEMA pgelect",  # no transaction of anybody may have locked a row meanwhile
            "schema": "ALTER TABLE pgelect.token SET (fillfactor = 50)",
            "sessions": f"SELECT pg_cancel_backend({pid})",  # of an idle session: harmless
        }
        for what, statement in attempts.items():
            try:
                conn.execute(statement.encode())
            except psycopg.errors.InsufficientPrivilege:
                continue
            found.add(what)
        if "insufficient" not in everything(conn, elector.name):
            found.add("queries")
    assert found == opened


async def test_a_role_that_may_replicate_reads_everything(own_server: Postgres, key: Key, tmp_path: Path) -> None:
    """A copy of the files of the server, whatever rights there are in it."""
    with Roles(own_server.dsn()) as roles:
        elector, _ = roles.electors_and_writers()
        async with Elector(elector.dsn, key, metadata={"note": HIDDEN}) as a:
            await a.leads()
            for options, may in (("", False), ("REPLICATION", True)):
                role = roles.neighbour(options)
                refused_all(roles.connect(role), ["SELECT metadata FROM pgelect.token"])
                copied = await asyncio.to_thread(copy_of_the_files, own_server, role.dsn, tmp_path / role.name)
                assert (HIDDEN.encode() in copied) == may


def copy_of_the_files(server: Postgres, dsn: str, to: Path) -> bytes:
    """A base backup, as far as the role may make one: what is in its files."""
    options = ["--checkpoint=fast", "--no-sync", "--wal-method=none", f"--pgdata={to}", f"--dbname={dsn}"]
    program = str(server.bin_dir / "pg_basebackup")
    subprocess.run([program, *options], check=False, capture_output=True, timeout=60)
    return b"".join(path.read_bytes() for path in to.rglob("*") if path.is_file())


async def test_a_role_for_looking_sees_the_leaders_and_nothing_else(roles: Roles, key: Key) -> None:
    elector, _ = roles.electors_and_writers()
    reader = roles.make("reader")
    roles.run(READER, app_reader=reader.name)
    async with Elector(elector.dsn, key, metadata={"note": HIDDEN}) as a:
        term = await a.leads()
        conn = roles.connect(reader)
        seen = conn.execute("SELECT token, metadata, alive FROM pgelect.leaders").fetchall()
        assert seen == [(term.token, {"note": HIDDEN}, True)]
        assert HIDDEN not in everything(conn, elector.name)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            terminate(reader.dsn, lock_holders(reader.dsn, *key)[0])


async def test_a_neighbour_with_a_connection_limit_leaves_room_for_electors(roles: Roles, key: Key) -> None:
    """Each candidate needs one connection; whoever may open any number can use all of them up."""
    elector, _ = roles.electors_and_writers()
    neighbour = roles.neighbour("CONNECTION LIMIT 2")
    for database in (roles.dbname, "postgres"):  # it holds for the whole server
        roles.connect(neighbour, dbname=database)
    with pytest.raises(psycopg.OperationalError, match="too many connections for role"):
        roles.connect(neighbour)
    async with Elector(elector.dsn, key) as a:
        await a.leads()
