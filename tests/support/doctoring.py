"""What the doctor might have seen: facts of a server on which all is well, to be changed by a test."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from pgelect._engine.bounds import bounds_of
from pgelect._engine.model import LockKey
from pgelect._engine.settings import Settings
from pgelect._postgres import install
from pgelect.cli.doctor_facts import Facts, Finding, Replication, Rights, Room, Server, Setting, Severity, Timing

OK, NOTE, WARNING, ERROR = Severity

SERVER = Server(
    where="db:5432", version=160004, unix_socket=False, given={}, told_pid=7, pid=7, refused=None, passed_over="",
    user="app", login="app", database="app", in_recovery=False,
)  # fmt: skip
RIGHTS = Rights(
    schema=True, tables=True, sequence=True, fence=True, announcing=True, looks=True, asks=True, advisory=[],
    creates=False, owns=False, superuser=False, ends_all=True, sees_all=True, stranger=None, intruder=None,
    parts=[*install.RELATIONS, *install.FUNCTIONS],
)  # fmt: skip
ROOM = Room(
    most=100, kept_for_superusers=3, kept_for_some=0, may_use_those=False, superuser=False, used=20, role_limit=-1,
    role_used=5, database_limit=-1, database_used=10, lock_table=6400, locks=50,
)  # fmt: skip
TIMING = Timing(proofs_s=[0.001] * 9 + [0.004], ours_s=0.5, server_s=0.5001, unsure_s=0.001)
NO_STANDBYS = Replication(names="", in_sync=0, hidden=0, waiting=0, longest_s=0.0)
SETTINGS = Settings(key=LockKey(1, 2), identity="doctor")


def setting(name: str, given: str, *, boot: str = "0", in_force: str = "0", unit: str | None = None) -> Setting:
    """A setting that new sessions are given, and what it is in ours."""
    return Setting(name=name, in_force=in_force, given=given, boot=boot, unit=unit, origin=None)


def facts(**changed: Any) -> Facts:
    """All that was seen, with some of it changed."""
    well = Facts(
        key=None, settings=SETTINGS, bounds=bounds_of(SETTINGS, None), server=SERVER, options=(), rights=RIGHTS,
        version=install.SCHEMA_VERSION, room=ROOM, tokens=(), locks=(), fenced=(), replication=NO_STANDBYS,
        timing=TIMING,
    )  # fmt: skip
    return replace(well, **changed)


def severities(found: Iterable[Finding]) -> list[Severity]:
    """How much each of them matters."""
    return [finding.severity for finding in found]


def only(found: Iterable[Finding]) -> Finding:
    """The one finding that there is."""
    (finding,) = found
    return finding
