"""The promises, looked at after everything that happens.

- A leader holds the lock on the server. If the server has ended its session early, it may believe for the rest of its
  trust that it leads, as `bounds().overlap_session` says; if the session ended by its lease, not for an instant.
- Two lead at once only within that window.
- While a leader holds the lock, the token row is that of its term.
- Trust that ran out does not come back within a term, but through a grace.
- Tokens grow: each one that is committed is greater than all that ever were, whatever a promotion lost.
- A fenced write is committed only under the token of the row, never under a smaller one than an earlier write, and not
  after a newer term has begun, even if a promotion lost that term.
- Each on_acquired is followed by one end of the same term; a release is told only when the server freed the lock.
- Who does not lead says so wherever it is asked: is_leader, term, token, and Term.is_current of its last term.
- A term does not go on across a promotion.
- The lock is freed in a release only after the duty has stopped, or its drain is over.

What is promised of progress is looked at in `progress.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgelect import LockState

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from pgelect import LockKey
    from pgelect._engine.model import Backend, LeaderRecord
    from pgelect.testing import FakeServer
    from pgelect.testing._fake_cluster import FakeBackend
    from pgelect.testing._fake_data import Commit
    from tests.simulation.process import Process
    from tests.simulation.progress import Progress
    from tests.simulation.world import World

LEASE_OVER = "idle-session timeout"
FREED = "unlocked"


class ViolationError(Exception):
    """A promise was broken."""


@dataclass(frozen=True, slots=True)
class Fate:
    """How a session stopped to hold the lock, and when."""

    at: float
    how: str


class Checks:
    """Looks at one simulation."""

    def __init__(
        self,
        world: World,
        server: FakeServer,
        key: LockKey,
        processes: Callable[[], list[Process]],
        progress: Progress,
    ) -> None:
        self.progress = progress
        self.terms = 0
        self.overlaps = 0
        self.writes = 0
        self.lost_values: set[int] = set()
        self._world = world
        self._server = server
        self._cluster = server._cluster
        self._key = key
        self._processes = processes
        self._fates: dict[Backend, Fate] = {}
        self._holder: FakeBackend | None = None
        self._greatest_token = 0
        self._greatest_began: datetime | None = None
        self._last_written = 0
        self._began: dict[Process, tuple[int, float]] = {}  # the term of a process by number, and since when it leads
        self._lapsed: dict[Process, int] = {}  # the number of a term that was seen not trusted any more
        self._recovering_since: float | None = None
        self._found: str | None = None  # raised after the step in which it was found
        self._cluster.on_end = self._ended
        self._cluster.on_unlock = self._unlocked
        self._cluster.data.on_commit = self._committed

    # What is told

    def violate(self, what: str) -> None:
        """Record a broken promise."""
        self._found = self._found or what

    def told(self, process: Process, what: str, token: int) -> None:
        """Hear of a callback."""
        terms = process.told
        before = terms[-2] if len(terms) > 1 else None
        if what == "acquired":
            self.terms += 1
            if before is not None and before[0] == "acquired":
                self.violate(f"{process}: on_acquired {token} without an end of term {before[1]}")
        elif before != ("acquired", token):
            self.violate(f"{process}: on_{what} {token} without its on_acquired, after {before}")
        if what == "released":
            self._check_released(process, token)

    def failed(self, process: Process, what: str) -> None:
        """Hear of an error that nobody handled."""
        self.violate(f"{process}: {what}")

    def lost(self, values: set[int]) -> None:
        """Hear what a promotion or crash has lost; writes that remain decide what may be written from now on."""
        self.lost_values |= values
        self._last_written = max((written.token for written in self._server.ledger()), default=0)

    def stripped(self, backend: FakeBackend | None) -> None:
        """Hear that the nemesis has taken the lock from a session behind its back."""
        if backend is not None:
            self._fates.setdefault(backend.id, Fate(self._world.now(), "stripped of its lock"))

    def _ended(self, backend: FakeBackend, why: str) -> None:
        self._fates.setdefault(backend.id, Fate(self._world.now(), why))

    def _unlocked(self, backend: FakeBackend) -> None:
        if backend.id not in self._fates:
            self._fates[backend.id] = Fate(self._world.now(), FREED)
            self._look_at_drain(backend)

    def _committed(self, commit: Commit) -> None:
        if commit.row is not None and commit.row.released_at is None:
            self._check_row(commit.row)
        for written in commit.ledger:
            self.writes += 1
            row = self._server.row(self._key)
            if row is None or written.token != row.token or row.released_at is not None:
                now = "nobody" if row is None else f"term {row.token}, released {row.released_at}"
                self.violate(f"a write fenced by token {written.token} was committed in the time of {now}")
            if written.token < self._greatest_token:
                self.violate(f"a write of token {written.token} was committed after term {self._greatest_token} began")
            if written.token < self._last_written:
                self.violate(f"a write of token {written.token} came after one of token {self._last_written}")
            self._last_written = max(self._last_written, written.token)

    def _check_row(self, row: LeaderRecord) -> None:
        if row.token > self._greatest_token:
            self._greatest_token, self._greatest_began = row.token, row.acquired_at
        elif row.token != self._greatest_token or row.acquired_at != self._greatest_began:
            # (The same term once more: a grace names its new session.)
            self.violate(f"token {row.token} was minted, but {self._greatest_token} was there before")

    def _check_released(self, process: Process, token: int) -> None:
        backend = process.granted.get(token)
        fate = self._fates.get(backend) if backend is not None else None
        if process.plan.settings["fencing"] and (fate is None or fate.how != FREED):
            self.violate(f"{process}: on_released {token}, but the server says: {fate.how if fate else 'not freed'}")

    # What is seen

    def look(self) -> None:
        """Look at everything."""
        self._look_at_holder()
        leaders = [process for process in self._processes() if process.alive and self._look_at_trust(process)]
        if (wrong := self.progress.look(leaders, self._holder)) is not None:
            self.violate(wrong)
        for process in leaders:
            self._look_at_leader(process)
        if len(leaders) > 1:
            self._look_at_overlap(leaders)
        if self._found is not None:
            raise ViolationError(self._found)

    def _look_at_holder(self) -> None:
        holder = self._cluster.locks.holder(self._key)
        before = self._holder
        if before is not None and holder is not before and before.alive:
            self._unlocked(before)  # a release has told of it: its session may end in the same step
        self._holder = holder
        if not self._cluster.in_recovery:
            self._recovering_since = None
        elif self._recovering_since is None:
            self._recovering_since = self._world.now()

    def _look_at_drain(self, backend: FakeBackend) -> None:
        for process in self._processes():
            machine = process.lock._runner._machine
            grant = machine.grant
            if grant is None or grant.backend != backend.id or process.working != machine.number or not process.alive:
                continue
            since = process.releasing_since
            drain_s = process.plan.settings["drain_timeout_s"] / process.clock.rate
            if since is None or self._world.now() - since < drain_s - 1e-6:
                self.violate(f"{process}: the lock was freed while the duty of term {grant.token} still worked")

    def _look_at_trust(self, process: Process) -> bool:
        """Whether it leads."""
        snapshot, leads = process.lock._runner.snapshot, process.lock.is_leader
        is_new = snapshot is not process.seen
        if is_new:
            process.seen = snapshot
            self._look_at_state(process, snapshot.state)
        if not leads:
            if snapshot.state is LockState.LEADER:
                self._lapsed[process] = snapshot.number
            if is_new or snapshot.term is not None:
                self._look_at_term(process)
        elif snapshot.state is not LockState.LEADER:
            self.violate(f"{process} says that it leads, but is {snapshot.state}")
        elif self._lapsed.get(process) == snapshot.number:
            self.violate(f"{process}: trust that had run out came back")
        return leads

    def _look_at_state(self, process: Process, state: LockState) -> None:
        if state is not LockState.LEADER:
            self._lapsed.pop(process, None)
        if state is not LockState.RELEASING:
            process.releasing_since = None
        elif process.releasing_since is None:
            process.releasing_since = self._world.now()

    def _look_at_term(self, process: Process) -> None:
        lock = process.lock
        if lock.term is not None or lock.token is not None:
            self.violate(f"{process} does not lead, but speaks of a present term, token {lock.token}")
        if process.term is not None and process.term.is_current:
            self.violate(f"{process} does not lead, but its term of token {process.term.token} says it is current")

    def _look_at_leader(self, process: Process) -> None:
        machine = process.lock._runner._machine
        grant = machine.grant
        if grant is None:
            self.violate(f"{process} leads without a token")
            return
        if self._began.get(process, (0, 0.0))[0] != machine.number:
            self._began[process] = machine.number, self._world.now()
        process.granted[grant.token] = grant.backend
        trust_s = process.settings.trust_s / process.clock.rate
        if self._recovering_since is not None and self._world.now() - self._recovering_since > trust_s:
            self.violate(f"{process} leads on a server in recovery")
        holder = self._holder
        if holder is not None and holder.id == grant.backend:
            if grant.timeline != self._server.timeline:
                self.violate(f"{process} leads in a term of timeline {grant.timeline} after a promotion")
            row = self._server.row(self._key)
            if grant.record is not None and (row is None or row.token != grant.token or row.released_at is not None):
                self.violate(
                    f"{process} leads with token {grant.token}, the row says {row.token if row else 'nothing'}"
                )
            return
        fate = self._fates.get(grant.backend)
        if fate is None:
            self.violate(f"{process} leads, but its session never held the lock")
        elif fate.how == LEASE_OVER:
            self.violate(f"{process} still leads when its lease is over on the server")
        elif fate.how == FREED:
            self.violate(f"{process} still leads when it has freed the lock itself")
        elif self._world.now() - fate.at > trust_s:
            self.violate(f"{process} leads {self._world.now() - fate.at:.3f} s after its session ended: {fate.how}")

    def _look_at_overlap(self, leaders: list[Process]) -> None:
        self.overlaps += 1
        leaders.sort(key=lambda process: self._began[process][1])
        since = self._began[leaders[-1]][1]
        for older in leaders[:-1]:
            settings = older.settings
            # bounds().overlap_session, for clocks that run at other rates.
            trust_s = settings.trust_s / older.clock.rate
            delay_s = settings.takeover_delay_s / leaders[-1].clock.rate
            if self._world.now() - since > max(0.0, trust_s - delay_s) or delay_s > trust_s:
                self.violate(f"{older} and {leaders[-1]} lead at once for longer than the bound")
