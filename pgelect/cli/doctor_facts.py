"""What the doctor has seen: values only, so that a judgement needs no server to be tested."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pgelect._engine.bounds import Bounds
    from pgelect._engine.model import LockKey
    from pgelect._engine.settings import Settings
    from pgelect.errors import PgElectError

T = TypeVar("T")


class Severity(StrEnum):
    """How much a finding matters, from least to most."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing; nothing has to be done."""
    WARNING = "warning"
    """Elections work, and something may make them fail or slow."""
    ERROR = "error"
    """No lock with these settings can lead here, or what it promises does not hold."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check has found.

    Attributes:
        severity: how much it matters.
        check: what was looked at, in a word or two.
        said: what was found, in a sentence.
        remedy: what to do about it; lines of SQL or a sentence. Empty: nothing.
    """

    severity: Severity
    check: str
    said: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Unseen:
    """In place of what could not be looked at, and why; ``lost``: the session ended, or did not answer any more."""

    why: str
    lost: bool = False


Seen: TypeAlias = T | Unseen


@dataclass(frozen=True, slots=True)
class Server:
    """Where we are, and as whom.

    Attributes:
        where: host and port.
        version: as PostgreSQL numbers it: 180004.
        unix_socket: connected by that, and not by TCP.
        given: what the DSN says of keepalives and timeouts of the socket.
        told_pid: the server process that libpq was told of; pid: the one that answers. A pooler makes them differ.
        refused: why the library would not campaign here; None when it would.
        passed_over: a standby that was met first.
        user: whose rights count; login: who logged in.
    """

    where: str
    version: int
    unix_socket: bool
    given: Mapping[str, str]
    told_pid: int
    pid: int
    refused: PgElectError | None
    passed_over: str
    user: str
    login: str
    database: str
    in_recovery: bool


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of the server: ``given`` is what a new session starts with, ``in_force`` what ours has now."""

    name: str
    in_force: str
    given: str
    boot: str
    unit: str | None
    origin: str | None

    def shown(self, value: str) -> str:
        """Give a value with its unit."""
        return f"{value}{self.unit}" if self.unit and value.lstrip("-").isdigit() and value != "0" else value


@dataclass(frozen=True, slots=True)
class Rights:
    """What the role may do. None: there is nothing to have a right to.

    Attributes:
        tables, sequence, fence, announcing: of an elector; the last are wanted and not needed.
        advisory: the functions of advisory locks that it may not call.
        creates: may create a schema in this database.
        owns: may act for the owner of the schema.
        looks, asks: may look on, and ask leaders to step down.
        superuser, ends_all, sees_all: of the role in the whole server.
        stranger, intruder: see ``pgelect._postgres.install``.
        parts: which relations and functions of the schema there are.
    """

    schema: bool | None
    tables: bool | None
    sequence: bool | None
    fence: bool | None
    announcing: bool | None
    looks: bool | None
    asks: bool | None
    advisory: Sequence[str]
    creates: bool
    owns: bool | None
    superuser: bool
    ends_all: bool
    sees_all: bool
    stranger: str | None
    intruder: str | None
    parts: Sequence[str]


@dataclass(frozen=True, slots=True)
class Room:
    """How many connections there may be, and are. A limit of -1 is none."""

    most: int
    kept_for_superusers: int
    kept_for_some: int
    may_use_those: bool
    superuser: bool
    used: int
    role_limit: int
    role_used: int
    database_limit: int
    database_used: int
    lock_table: int
    locks: int


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A lock that was led in this database."""

    key1: int
    key2: int
    name: str | None
    pid: int


@dataclass(frozen=True, slots=True)
class AdvisoryLock:
    """An advisory lock that is held somewhere on the server.

    Attributes:
        classid, objid, objsubid: as in ``pg_locks``; objsubid is 2 for a pair of keys, 1 for one 64-bit key.
        database: by name; here: whether it is ours.
        pid: None for a prepared transaction, whose name is ``gid`` then.
        shared: in shared mode.
    """

    classid: int
    objid: int
    objsubid: int
    database: str | None
    here: bool
    pid: int | None
    shared: bool
    application_name: str | None
    gid: str | None


@dataclass(frozen=True, slots=True)
class Fenced:
    """A transaction that holds the rows of tokens: the next token of its lock waits for it.

    Attributes:
        gid: of a prepared transaction; None for a session, whose ``pid`` it is then.
        open_s: how long it has been open; None where that is hidden.
    """

    gid: str | None
    pid: int | None
    user: str | None
    open_s: float | None


@dataclass(frozen=True, slots=True)
class Replication:
    """Synchronous standbys: what is asked for, what is there, and who waits for them now.

    Attributes:
        names: ``synchronous_standby_names``.
        in_sync: standbys that confirm commits; hidden: those of which this role may not see that.
        waiting: sessions whose commit waits; longest_s: how long the one that waits longest has done so.
    """

    names: str
    in_sync: int
    hidden: int
    waiting: int
    longest_s: float


@dataclass(frozen=True, slots=True)
class Timing:
    """Round trips, and the server's clock against ours.

    Attributes:
        proofs_s: how long each proof took, in seconds.
        ours_s, server_s: how long the examination took by either clock.
        unsure_s: how far that comparison may be off, as the clock is read over a network.
    """

    proofs_s: Sequence[float]
    ours_s: float
    server_s: float
    unsure_s: float


@dataclass(frozen=True, slots=True)
class Facts:
    """All that was seen of one server, and the settings to be judged."""

    key: LockKey | None
    settings: Settings
    bounds: Bounds
    server: Server
    rights: Seen[Rights]  # looked at first: where the session was lost then, it says why
    version: int | None
    options: Seen[Sequence[Setting]]
    room: Seen[Room]
    tokens: Seen[Sequence[TokenRow]]
    locks: Seen[Sequence[AdvisoryLock]]
    fenced: Seen[Sequence[Fenced]]
    replication: Seen[Replication]
    timing: Seen[Timing]
