"""Reads the books of a run into one ``History``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.chaos.book import read
from benchmarks.chaos.history import (
    Acknowledged,
    Failed,
    Fault,
    Glance,
    Heard,
    History,
    Look,
    PartitionHeard,
    PartitionLook,
    Process,
    Refused,
    Remains,
    Row,
    Switch,
    position,
)
from pgelect import FenceBusyError

if TYPE_CHECKING:
    from pathlib import Path

LOSSY = "promote-lossy"
"""The kind of the promotion that may lose what was acknowledged."""


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
            Switch(line["at"], line["timeline"], line["left_at"], lossy=line["kind"] == LOSSY)
            for line in nemesis
            if line["event"] == "switch"
        ),
        stalls=tuple((line["at"], line["until"]) for line in nemesis if line["event"] == "stall"),
        nobody_led=any(line["event"] == "nobody_led" for line in nemesis),
        thwarted=sum(line["event"] == "thwarted" for line in nemesis),
        live=tuple(name for line in nemesis if line["event"] == "peace" for name in line["live"]),
        peace=tuple(_glance(line) for line in nemesis if line["event"] == "glance"),
        group_peace=next(((each["led"], each["members"]) for each in nemesis if each["event"] == "group_peace"), None),
        left=Remains(left["locks"], tuple(left["sessions"]), left["token"], left["released"]),
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
        grace_s=start["grace_s"],
        fence_busy=tuple(
            line["at"] for line in book if line["event"] == "not_acquired" and line["type"] == FenceBusyError.__name__
        ),
        partition_looks=tuple(
            PartitionLook(line["at"], line["after"], line["tokens"]) for line in book if line["event"] == "partitions"
        ),
        partitions_heard=tuple(
            PartitionHeard(line["kind"], line["at"], line["partition"], line["token"], line["minted_us"])
            for line in book
            if line["event"] == "partition"
        ),
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
        thwarted=line["thwarted"],
        held_up_by=None if line["held_up_by"] is None else tuple(line["held_up_by"]),
    )


def _glance(line: dict[str, Any]) -> Glance:
    return Glance(
        at=line["at"],
        elections=tuple((process, pid) for process, pid in line["elections"]),
        holders=tuple(line["holders"]),
        waiters=tuple(line["waiters"]),
        writers=tuple(line["writers"]),
        strangers=tuple(line["strangers"]),
    )
