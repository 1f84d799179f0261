"""What every fault needs: who leads, who is where, and a book in which each fault is written down with its times."""

from __future__ import annotations

import signal
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg

from benchmarks.chaos import plan
from benchmarks.chaos.book import Book, now
from benchmarks.process import DidNotHappenError
from pgelect import LockKey

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from benchmarks.chaos.children import Replica, Troop
    from benchmarks.chaos.cluster import Cluster
    from tests.support.proxy import Direction

KEY = LockKey.from_name(plan.LOCK_NAME)
_POLL_S = 0.01
_LED_ANEW_WITHIN_S = 15.0
_LEADER = """
SELECT a.pid, t.holder, t.token FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid) CROSS JOIN pgelect.token AS t
WHERE l.locktype = 'advisory' AND l.mode = 'ExclusiveLock' AND l.granted AND l.objsubid = 2
AND l.classid = %s::int8::oid AND l.objid = %s::int8::oid AND t.released_at IS NULL
AND a.application_name = 'pgelect:' || t.name || ':' || t.holder
"""
_SESSIONS = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE %s AND backend_type = 'client backend'"


class ThwartedError(Exception):
    """A fault did not happen as it should have: it does not count."""


class NobodyLedError(DidNotHappenError):
    """Nobody led for so long that there is no point in further faults."""


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads, as the server says."""

    process: str
    token: int
    pid: int


@dataclass(slots=True)
class Fault:
    """One fault while it is in force; what the checker needs to know of it.

    Attributes:
        ended: sessions that the fault ended early on the server: process or EVERYBODY, and between which times.
        deaf: processes that could not hear of it: process, from when, until when.
        thwarted: why it did not happen as it should have.
        held_up_by: names of the sessions for which it waited in vain; see ``history.Fault``.
        notes: anything else for the reader of the book.
    """

    kind: str
    begun: float
    ended: list[tuple[str, float, float]] = field(default_factory=list)
    deaf: list[tuple[str, float, float]] = field(default_factory=list)
    thwarted: str = ""
    held_up_by: list[str] | None = None
    notes: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def ending(self, process: str) -> Iterator[None]:
        """Say that the sessions of a process end within this block."""
        begin = now()
        try:
            yield
        finally:
            self.ended.append((process, begin, now()))

    @contextmanager
    def unheard_by(self, process: str) -> Iterator[None]:
        """Say that a process cannot hear of anything within this block."""
        begin = now()
        try:
            yield
        finally:
            self.deaf.append((process, begin, now()))


class Stage:
    """The servers, the replicas, chance, and the book."""

    def __init__(self, cluster: Cluster, troop: Troop, book: Book, rng: Random) -> None:
        self.cluster = cluster
        self.troop = troop
        self.book = book
        self.rng = rng
        self.happened: Counter[str] = Counter()  # faults, by kind
        self._conn: psycopg.Connection[Any] | None = None

    # -- faults --------------------------------------------------------------------------------------------------------

    @contextmanager
    def fault(self, kind: str, leader: Leader, *targets: str) -> Iterator[Fault]:
        """Write a fault down: it is in force within this block. An error of psycopg, or ThwartedError, thwarts it."""
        begun = now()
        fault = Fault(kind, begun)
        try:
            yield fault
            self.happened[kind] += 1
        except (psycopg.Error, ThwartedError) as error:
            fault.thwarted = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise
        finally:
            self.book.write(
                "fault",
                begun,
                kind=kind,
                until=now(),
                leader=leader.process,
                token=leader.token,
                targets=list(targets),
                ended=fault.ended,
                deaf=fault.deaf,
                thwarted=fault.thwarted,
                held_up_by=fault.held_up_by,
                notes=fault.notes,
            )

    @contextmanager
    def stopped(self, replica: Replica, fault: Fault) -> Iterator[None]:
        """Stop a process with SIGSTOP for the length of the block."""
        process = replica.process
        with fault.unheard_by(process.name):
            process.signal(signal.SIGSTOP)
            try:
                yield
            finally:
                process.signal(signal.SIGCONT)

    @contextmanager
    def frozen(
        self, replica: Replica, fault: Fault, direction: Direction, *, election_only: bool = False
    ) -> Iterator[None]:
        """Freeze the links of a replica for the length of the block."""
        process = replica.process.name
        begin = now()
        try:
            replica.links.freeze(("election",) if election_only else ("election", "writer"), direction)
            yield
        finally:
            replica.links.thaw()
            if direction != "up":
                fault.deaf.append((process, begin, now()))

    def a_moment(self, least_s: float, most_s: float) -> None:
        """Let some time pass."""
        time.sleep(self.rng.uniform(least_s, most_s))

    # -- the server's view ---------------------------------------------------------------------------------------------

    def ask(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Run one statement on the present primary; no rows when that cannot be asked now."""
        try:
            if self._conn is None or self._conn.closed:
                self._conn = self.cluster.connect()
            return self._conn.execute(query.encode(), values or None).fetchall()
        except psycopg.Error:
            self.forget_connection()
            return []

    def forget_connection(self) -> None:
        """Connect anew for the next question."""
        if self._conn is not None:
            with suppress(psycopg.Error):
                self._conn.close()
        self._conn = None

    def seen_leader(self) -> Leader | None:
        """Look once who leads: the server says so, and so has the process (the token may still be to be minted)."""
        for pid, process, token in self.ask(_LEADER, KEY.classid, KEY.objid):
            life = self.troop.of(process).process
            if life.name == process and life.last_token == token:
                return Leader(process, token, pid)
        return None

    def leader(self) -> Leader:
        """Wait until somebody leads.

        Raises:
            NobodyLedError: nobody did.
        """
        deadline = time.monotonic() + plan.LEADER_WITHIN_S
        while (found := self.seen_leader()) is None:
            if time.monotonic() > deadline:
                raise NobodyLedError(f"nobody led for {plan.LEADER_WITHIN_S:g} s")
            time.sleep(_POLL_S)
        return found

    def until_led_anew(self, before: Leader) -> Leader | None:
        """Wait until somebody leads on another session than before; not for ever: that is for the checker to judge."""
        deadline = time.monotonic() + _LED_ANEW_WITHIN_S
        while time.monotonic() < deadline:
            found = self.seen_leader()
            if found is not None and (found.pid, found.token) != (before.pid, before.token):
                return found
            time.sleep(_POLL_S)
        return None

    def election_sessions(self, process: str = "%") -> list[int]:
        """Find the server processes of the election sessions of a process, or of all."""
        return [pid for (pid,) in self.ask(_SESSIONS, f"pgelect:{plan.LOCK_NAME}:{process}")]

    def group_sessions(self, process: str = "%") -> list[int]:
        """Give the sessions of the group, of one process or of all."""
        return [pid for (pid,) in self.ask(_SESSIONS, f"pgelect:{plan.GROUP_NAME}:{process}")]

    def writer_sessions(self, process: str) -> list[int]:
        """Find the server processes of its writer's sessions."""
        return [pid for (pid,) in self.ask(_SESSIONS, f"chaos-writer:{process}")]

    def terminate(self, pids: list[int]) -> None:
        """End sessions, and return when they are gone."""
        for pid in pids:
            self.ask("SELECT pg_terminate_backend(%s)", pid)
        for pid in pids:
            self.ask("SELECT pg_terminate_backend(%s, 2000)", pid)

    def followers(self, leader: Leader) -> list[Replica]:
        """All replicas but the leader's."""
        return [replica for replica in self.troop.replicas if replica.process.name != leader.process]
