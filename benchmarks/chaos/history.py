"""All that the books of a run say, as values; ``reading`` reads them. Times are seconds of the books' clock.

Times that end in ``_us`` are the server's, in microseconds since 1970; the two clocks are never compared. A position in
the WAL is a number of bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

EVERYBODY = "*"


@dataclass(frozen=True, slots=True)
class Look:
    """One look at ``lock.token``, between two times; None: it did not lead."""

    before: float
    after: float
    token: int | None


@dataclass(frozen=True, slots=True)
class Heard:
    """One callback: acquired, lost or released."""

    kind: str
    at: float
    token: int
    minted_us: int = 0


@dataclass(frozen=True, slots=True)
class PartitionLook:
    """One look at what a process says that it leads of its group: tokens by partition."""

    before: float
    after: float
    tokens: dict[str, int]


@dataclass(frozen=True, slots=True)
class PartitionHeard:
    """One callback of a partition: acquired, lost or released."""

    kind: str
    at: float
    partition: str
    token: int
    minted_us: int = 0


@dataclass(frozen=True, slots=True)
class Process:
    """One life of a replica.

    Attributes:
        bounds: of ``lock.bounds()``, in seconds, by name.
        grace_s: its ``reconnect_grace_s``; 0 where it has none.
        status: exit status; None: it was killed.
        complaints: what it wrote to standard error, and what was logged that must never be.
        fence_busy: when it did not lead although it had the lock, for an open transaction held the token's row.
    """

    name: str
    lease_s: float
    bounds: dict[str, float]
    looks: tuple[Look, ...] = ()
    heard: tuple[Heard, ...] = ()
    status: int | None = 0
    complaints: tuple[str, ...] = ()
    grace_s: float = 0.0
    fence_busy: tuple[float, ...] = ()
    partition_looks: tuple[PartitionLook, ...] = ()
    partitions_heard: tuple[PartitionHeard, ...] = ()


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A fenced write whose commit was acknowledged at ``at``.

    Attributes:
        low, high: positions in the WAL of that timeline: its commit is after the first and before the second. ``high``
            None: nobody asked in time.
    """

    id: str
    at: float
    token: int
    n: int
    timeline: int
    low: int
    high: int | None
    isolation: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """A fenced write that was refused as stale."""

    id: str
    at: float
    token: int
    isolation: str = ""
    stubborn: bool = False


@dataclass(frozen=True, slots=True)
class Failed:
    """A write that failed otherwise; ``unknown``: the commit was sent, and nobody knows what became of it."""

    id: str
    at: float
    unknown: bool


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the ledger, as the last primary has it."""

    id: str
    token: int
    n: int
    timeline: int
    committed_us: int


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of the nemesis. See ``stage.Fault``.

    Attributes:
        leader, token: who led when it began, and with which token.
        targets: the processes that it hit, or EVERYBODY.
        thwarted: why it did not happen as it should have; empty when it did. What it broke nevertheless is excused, but
            it does not count.
        held_up_by: of ``index`` and ``vacuum``: they did not end by themselves, and these sessions had been in a
            transaction for long. None: they did.
    """

    kind: str
    begun: float
    until: float
    leader: str
    token: int
    targets: tuple[str, ...] = ()
    ended: tuple[tuple[str, float, float], ...] = ()
    deaf: tuple[tuple[str, float, float], ...] = ()
    thwarted: str = ""
    held_up_by: tuple[str, ...] | None = None

    def hits(self, process: str) -> bool:
        """Whether it hit that process."""
        return process in self.targets or EVERYBODY in self.targets


@dataclass(frozen=True, slots=True)
class Switch:
    """A promotion: that timeline was left at that position of the WAL; what came after it on it is lost.

    Attributes:
        lossy: the standby had been cut off before. An orderly one loses nothing that was acknowledged.
    """

    at: float
    timeline: int
    left_at: int
    lossy: bool = True


@dataclass(frozen=True, slots=True)
class Glance:
    """One look at the server, when the faults are over and before the replicas are told to end.

    Attributes:
        elections: the sessions that campaign: process, and process ID of the server process.
        holders, waiters: the processes whose sessions hold the lock, or wait for it.
        writers: the processes whose writers are connected, once for each connection.
        strangers: the names of all other sessions of the replicas' role, and of all others at the lock.
    """

    at: float
    elections: tuple[tuple[str, int], ...] = ()
    holders: tuple[str, ...] = ()
    waiters: tuple[str, ...] = ()
    writers: tuple[str, ...] = ()
    strangers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Remains:
    """What was on the server when all replicas had ended, and it had had a moment to notice.

    Attributes:
        locks: entries of the lock in pg_locks.
        sessions: the names of the sessions of the replicas' role.
        token, released: of the row of the lock: the last token, and whether its term is marked as given up.
    """

    locks: int = 0
    sessions: tuple[str, ...] = ()
    token: int = 0
    released: bool = True


@dataclass(frozen=True, slots=True)
class History:
    """All of it.

    Attributes:
        begin, end: when the faults began, and when the replicas were told to shut down.
        stalls: times in which the machine was too busy for failover times to mean anything (see ``stalls``).
        thwarted: how many faults did not happen as they should have.
        nobody_led: the nemesis gave up, for the server said that nobody led.
        live, peace: the processes that lived when the faults were over, and what the server then said of them, over and
            over until all was well, or it had taken too long.
        left: what remained in the end.
    """

    begin: float
    end: float
    processes: tuple[Process, ...] = ()
    acknowledged: tuple[Acknowledged, ...] = ()
    refused: tuple[Refused, ...] = ()
    failed: tuple[Failed, ...] = ()
    rows: tuple[Row, ...] = ()
    faults: tuple[Fault, ...] = ()
    switches: tuple[Switch, ...] = ()
    stalls: tuple[tuple[float, float], ...] = ()
    thwarted: int = 0
    nobody_led: bool = False
    live: tuple[str, ...] = ()
    peace: tuple[Glance, ...] = ()
    left: Remains = field(default_factory=Remains)
    group_peace: tuple[dict[str, int], int] | None = None  # partitions led by process, and the number of members
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def terms(self) -> list[tuple[Process, Heard]]:
        """All terms, in the order in which they were heard of."""
        found = [(each, heard) for each in self.processes for heard in each.heard if heard.kind == "acquired"]
        return sorted(found, key=lambda pair: pair[1].at)

    def stalled_s(self, since: float, until: float) -> float:
        """For how long the machine was too busy in that time."""
        total_s, counted_to = 0.0, since
        for at, to in sorted(self.stalls):  # they may overlap
            begin, end = max(at, counted_to), min(to, until)
            if end > begin:
                total_s, counted_to = total_s + end - begin, end
        return total_s


def position(lsn: str) -> int:
    """Give an LSN as a number."""
    high, low = lsn.split("/")
    return (int(high, 16) << 32) + int(low, 16)
