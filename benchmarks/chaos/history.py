"""All that the books of a run say, as values; and how they are read. Times are seconds of the books' clock.

Times that end in ``_us`` are the server's, in microseconds since 1970; the two clocks are never compared. A position in
the WAL is a number of bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.chaos.book import read

if TYPE_CHECKING:
    from pathlib import Path

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
class Process:
    """One life of a replica.

    Attributes:
        bounds: of ``lock.bounds()``, in seconds, by name.
        status: exit status; None: it was killed.
        complaints: what it wrote to standard error, and what was logged that must never be.
    """

    name: str
    lease_s: float
    bounds: dict[str, float]
    looks: tuple[Look, ...] = ()
    heard: tuple[Heard, ...] = ()
    status: int | None = 0
    complaints: tuple[str, ...] = ()


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
    """

    kind: str
    begun: float
    until: float
    leader: str
    token: int
    targets: tuple[str, ...] = ()
    ended: tuple[tuple[str, float, float], ...] = ()
    deaf: tuple[tuple[str, float, float], ...] = ()

    def hits(self, process: str) -> bool:
        """Whether it hit that process."""
        return process in self.targets or EVERYBODY in self.targets


@dataclass(frozen=True, slots=True)
class Switch:
    """A promotion: that timeline was left at that position of the WAL; what came after it on it is lost."""

    at: float
    timeline: int
    left_at: int


@dataclass(frozen=True, slots=True)
class History:
    """All of it.

    Attributes:
        begin, end: when the faults began, and when the replicas were told to shut down.
        stalls: times in which the machine was too busy for failover times to mean anything (see ``stalls``).
        nobody_led: the nemesis gave up, for the server said that nobody led.
        locks, sessions: what was left on the server in the end.
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
    locks: int = 0
    sessions: int = 0
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


def load(directory: Path) -> History:
    """Read all books of a run.

    Raises:
        OSError, ValueError, KeyError: a book is missing or cannot be read: the run was not brought to its end.
    """
    nemesis = read(directory / "nemesis.jsonl")
    books = {path.name.removesuffix(".jsonl"): read(path) for path in sorted(directory.glob("r*.*.jsonl"))}
    fates: dict[str, int | None] = {line["process"]: line["status"] for line in nemesis if line["event"] == "exited"}
    fates |= {line["process"]: None for line in nemesis if line["event"] == "killed"}
    said = {line["process"]: line["said"] for line in nemesis if line["event"] in {"exited", "killed"}}
    lines = [line for book in books.values() for line in book]
    left = _only(nemesis, "left")
    return History(
        begin=_only(nemesis, "begin")["at"],
        end=_only(nemesis, "end")["at"],
        processes=tuple(_process(name, book, fates[name], said[name]) for name, book in books.items()),
        acknowledged=_acknowledged(lines),
        refused=tuple(
            Refused(line["id"], line["at"], line["token"], line["isolation"], line["stubborn"])
            for line in lines
            if line["event"] == "refused"
        ),
        failed=tuple(Failed(line["id"], line["at"], line["unknown"]) for line in lines if line["event"] == "failed"),
        rows=tuple(
            Row(line["id"], line["token"], line["n"], line["timeline"], line["committed_us"])
            for line in read(directory / "ledger.jsonl")
        ),
        faults=tuple(sorted((_fault(line) for line in nemesis if line["event"] == "fault"), key=lambda f: f.begun)),
        switches=tuple(
            Switch(line["at"], line["timeline"], line["left_at"]) for line in nemesis if line["event"] == "switch"
        ),
        stalls=tuple((line["at"], line["until"]) for line in nemesis if line["event"] == "stall"),
        nobody_led=any(line["event"] == "nobody_led" for line in nemesis),
        thwarted=sum(line["event"] == "thwarted" for line in nemesis),
        locks=left["locks"],
        sessions=left["sessions"],
        about=_only(nemesis, "about"),
    )


def _only(lines: list[dict[str, Any]], event: str) -> dict[str, Any]:
    for line in lines:
        if line["event"] == event:
            return line
    raise ValueError(f"the book has no line '{event}'")


def _process(name: str, book: list[dict[str, Any]], status: int | None, said: str) -> Process:
    start = _only(book, "start")
    return Process(
        name=name,
        lease_s=start["lease_s"],
        bounds=start["bounds"],
        looks=tuple(Look(line["at"], line["after"], line["token"]) for line in book if line["event"] == "look"),
        heard=tuple(
            Heard(line["event"], line["at"], line["token"], line.get("minted_us", 0))
            for line in book
            if line["event"] in {"acquired", "lost", "released"}
        ),
        status=status,
        complaints=(*filter(None, [said.strip()]), *(line["text"] for line in book if _is_complaint(line))),
    )


def _is_complaint(line: dict[str, Any]) -> bool:
    """Tell a log line of a bug: of asyncio (a task destroyed, an exception never retrieved), or a critical one."""
    return line["event"] == "log" and bool(line["logger"] == "asyncio" or line["level"] == "CRITICAL")


def _acknowledged(lines: list[dict[str, Any]]) -> tuple[Acknowledged, ...]:
    positions = [line for line in lines if line["event"] == "position"]
    own = {line["id"]: position(line["lsn"]) for line in positions}

    def high(line: dict[str, Any]) -> int | None:
        """Its own question, or anybody's on that timeline that was asked after the acknowledgement."""
        if line["id"] in own:
            return own[line["id"]]
        later = [
            position(each["lsn"])
            for each in positions
            if each["timeline"] == line["timeline"] and each["asked_at"] >= line["at"]
        ]
        return min(later, default=None)

    return tuple(
        Acknowledged(
            id=line["id"],
            at=line["at"],
            token=line["token"],
            n=line["n"],
            timeline=line["timeline"],
            low=position(line["low"]),
            high=high(line),
            isolation=line["isolation"],
        )
        for line in lines
        if line["event"] == "acked"
    )


def _fault(line: dict[str, Any]) -> Fault:
    return Fault(
        kind=line["kind"],
        begun=line["at"],
        until=line["until"],
        leader=line["leader"],
        token=line["token"],
        targets=tuple(line["targets"]),
        ended=tuple((process, since, until) for process, since, until in line["ended"]),
        deaf=tuple((process, since, until) for process, since, until in line["deaf"]),
    )
