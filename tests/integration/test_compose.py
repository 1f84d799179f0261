"""What docker-compose.yml runs in its containers, run here without any: its scripts and the replicas' health check."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from pgelect.cli.demo_ledger import KEY
from pgelect.testing import Postgres
from pgelect.testing._places import free_port, private_directory
from pgelect.testing._programs import server_account
from tests.support.processes import Worker
from tests.support.server import eventually_sync, lock_holders, query
from tests.unit.test_compose import COMPOSE, SERVICES

INIT = COMPOSE["configs"]["replication"]["content"]
STANDBY = SERVICES["standby"]["command"]
REPLICA = SERVICES["replica-1"]


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory that the server's user owns."""
    path = private_directory(server_account())
    yield path
    shutil.rmtree(path)


def bash(server: Postgres, arguments: list[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    account = server_account()
    path = os.pathsep.join((str(server.bin_dir), os.environ["PATH"]))
    return subprocess.Popen(
        arguments,
        env={"PATH": path, "LC_ALL": "C", **environment},
        cwd="/",
        user=account.user,
        group=account.gid,
        extra_groups=account.extra_groups,
    )


def prepare(server: Postgres) -> None:
    """Do to a new server what the image's own script does with ours."""
    query(server.dsn(), "CREATE ROLE pgelect LOGIN SUPERUSER")
    query(server.dsn(), "CREATE DATABASE pgelect OWNER pgelect")
    environment = {
        "PGDATA": str(server.data_dir),
        "PGHOST": str(server.socket_dir),
        "PGPORT": str(server.port),
        "POSTGRES_USER": "pgelect",
        "POSTGRES_DB": "pgelect",
        "REPLICATION_PASSWORD": "it's",
    }
    assert bash(server, ["bash", "-eo", "pipefail", "-c", INIT], environment).wait(30) == 0
    server.reload()


@pytest.fixture
def standby(own_server: Postgres, directory: Path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Runs the standby's command; its `postgres` is made to listen where nobody else does."""
    port = free_port()
    programs = directory / "programs"
    programs.mkdir(mode=0o755)
    wrapper = programs / "postgres"
    wrapper.write_text(f'#!/bin/sh\nexec "{own_server.bin_dir}/postgres" -p {port} -k "{directory}" "$@"\n')
    wrapper.chmod(0o755)
    environment = {
        "PGDATA": str(directory / "standby"),
        "PGHOST": "127.0.0.1",
        "PGPORT": str(own_server.port),
        "PGUSER": "replicator",
        "PGPASSWORD": "it's",
        "PATH": os.pathsep.join((str(programs), str(own_server.bin_dir), os.environ["PATH"])),
    }
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        process = bash(own_server, STANDBY, environment)
        started.append(process)
        dsn = f"host=127.0.0.1 port={port} user=postgres dbname=postgres connect_timeout=2"
        eventually_sync(lambda: process.poll() is not None or _answers(dsn), 30, "the standby answers")
        assert process.poll() is None
        assert query(dsn, "SELECT pg_is_in_recovery()") == [(True,)]
        return process

    yield start
    for process in started:
        process.send_signal(signal.SIGQUIT)
        process.wait(30)


def _answers(dsn: str) -> bool:
    try:
        return query(dsn, "SELECT 1") == [(1,)]
    except psycopg.OperationalError:  # it is not there yet
        return False


def streams(server: Postgres) -> bool:
    return query(server.dsn(), "SELECT usename, state FROM pg_stat_replication") == [("replicator", "streaming")]


def test_the_standby_copies_the_primary_streams_and_survives_a_restart(
    own_server: Postgres, standby: Callable[[], subprocess.Popen[bytes]], directory: Path
) -> None:
    prepare(own_server)
    assert "host replication replicator all scram-sha-256" in (own_server.data_dir / "pg_hba.conf").read_text()
    first = standby()
    eventually_sync(lambda: streams(own_server), message="the standby streams")
    first.send_signal(signal.SIGINT)  # as `docker compose restart` does: the image's stop signal is SIGINT
    first.wait(30)
    made = (directory / "standby" / "PG_VERSION").stat().st_ino
    standby()
    eventually_sync(lambda: streams(own_server), message="the standby streams again")
    assert (directory / "standby" / "PG_VERSION").stat().st_ino == made, "it was not copied a second time"


def test_a_copy_that_was_interrupted_is_begun_anew(
    own_server: Postgres, standby: Callable[[], subprocess.Popen[bytes]], directory: Path
) -> None:
    prepare(own_server)
    half = directory / "standby.new"
    half.mkdir()
    (half / "PG_VERSION").write_text("half a copy")
    server_account().own(half)
    standby()
    eventually_sync(lambda: streams(own_server), message="the standby streams")
    assert not half.exists()


def variables(dsn: str) -> dict[str, str]:
    """The environment by which libpq connects as `dsn` says."""
    names = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "dbname": "PGDATABASE"}
    return {names[name]: str(value) for name, value in conninfo_to_dict(dsn).items()}


def healthy(dsn: str) -> bool:
    code = REPLICA["healthcheck"]["test"][-1]
    return subprocess.run([sys.executable, "-c", code], env=os.environ | variables(dsn), check=False).returncode == 0


def test_a_replica_is_healthy_while_it_campaigns_and_not_before_or_after(
    database: str, worker: Callable[..., Worker]
) -> None:
    assert not healthy(database)
    replica = worker(*REPLICA["command"][1:], env=variables(database))
    replica.wait_event(lambda event: event["what"] == "wrote")
    assert healthy(database), f"no session is named after {socket.gethostname()}"
    replica.signal(signal.SIGTERM)
    assert replica.wait() == 0
    assert not healthy(database)


def test_of_replicas_started_at_once_one_leads_and_the_ledger_is_kept(
    database: str, worker: Callable[..., Worker]
) -> None:
    replicas = [worker(*REPLICA["command"][1:], env=variables(database)) for _ in range(3)]
    for replica in replicas:
        replica.wait_event(lambda event: event["what"] == "state")
    eventually_sync(lambda: any(event["what"] == "wrote" for replica in replicas for event in replica.events))
    assert len(lock_holders(database, KEY.key1, KEY.key2)) == 1
    for replica in replicas:
        replica.signal(signal.SIGTERM)
    assert [replica.wait() for replica in replicas] == [0, 0, 0]
    assert query(database, "SELECT count(*) > 0, count(*) = count(DISTINCT seq) FROM pgelect_demo.ledger") == [
        (True, True)
    ]
