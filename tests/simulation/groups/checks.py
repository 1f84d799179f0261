"""What is promised of a group, looked at after every step.

- A partition's tokens only grow, across promotions too.
- No fenced write commits once a newer term of its partition has begun.
- A partition is unlocked when its handler has ended, or the time for that is over.
- Two processes say that they lead a partition only while the session of the older one has ended before its lease did,
  and for no longer than that lease; under the lease alone never.
- Every on_acquired is followed by exactly one on_lost or on_released of its token before the next one.
- In peace every partition is led, nobody has more than its share, and then nothing changes any more.
- When one of several members leaves in peace, the others keep what they have; when it dies, another one leads what it
  had at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.checks import ViolationError

if TYPE_CHECKING:
    from pgelect import LockKey
    from pgelect.testing._fake_cluster import FakeBackend
    from pgelect.testing._fake_data import Commit
    from tests.simulation.groups.process import GroupProcess, Pair
    from tests.simulation.groups.simulation import GroupSimulation

BY_LEASE = "idle-session timeout"


class GroupChecks:
    """Watches one simulation."""

    def __init__(self, sim: GroupSimulation) -> None:
        self.terms = 0
        self.writes = 0
        self.overlaps = 0
        self._sim = sim
        self._minted: dict[Pair, int] = {}  # the greatest token so far
        self._keys: dict[int, Pair] = {}  # of what is written, by value
        self._ended: dict[int, tuple[float, str]] = {}  # sessions, by pid: when and why
        self._violation = ""
        self._overlapping: set[tuple[Pair, int]] = set()
        sim.cluster.data.on_commit = self._committed
        sim.cluster.on_end = self._session_ended

    def new_value(self, key: LockKey) -> int:
        """A value for a partition's ledger that nobody else writes."""
        value = next(self._sim.plan.values)
        self._keys[value] = (key.key1, key.key2)
        return value

    def failed(self, process: GroupProcess, what: str) -> None:
        """Note that a process did what it must not. Raised by ``look``: who notes it may be a callback."""
        self._violation = self._violation or f"{process}: {what}"

    def stripped(self, backend: FakeBackend) -> None:
        """Note that a session has lost its locks, and goes on."""
        self._ended[backend.id.pid] = self._sim.world.now(), "stripped"

    def told(self, process: GroupProcess, pair: Pair, told: list[tuple[str, int]]) -> None:
        """Look at the callbacks of a partition, the last of which has just come."""
        what, token = told[-1]
        before = told[-2] if len(told) > 1 else None
        if what == "acquired":
            self.terms += 1
            if before is not None and before[0] == "acquired":
                self.failed(process, f"{pair}: on_acquired {token} without an end of {before[1]}")
        elif before != ("acquired", token):
            self.failed(process, f"{pair}: on_{what} {token} after {before}")
        elif what == "released" and process.working.get(pair) == token:
            asked_at = process.asked_at.get(pair, self._sim.world.now())
            if self._sim.world.now() - asked_at < 0.8 * self._sim.plan.settings["drain_timeout_s"]:
                self.failed(process, f"{pair} was unlocked while its handler still worked")

    def look(self) -> None:
        """Look at who says that it leads what."""
        if self._violation:
            raise ViolationError(self._violation)
        claims: dict[Pair, list[tuple[int, GroupProcess]]] = {}
        for process in self._sim.processes:
            for pair, token in process.claims.items():
                claims.setdefault(pair, []).append((token, process))
        for pair, claimants in claims.items():
            if len(claimants) > 1:
                for token, process in sorted(claimants, key=lambda claim: claim[0])[:-1]:
                    self._look_at_old(pair, token, process)

    def _look_at_old(self, pair: Pair, token: int, process: GroupProcess) -> None:
        if (pair, token) not in self._overlapping:
            self._overlapping.add((pair, token))
            self.overlaps += 1
        backend = process.group._runner._machine.backend
        ended = self._ended.get(backend.pid) if backend is not None else None
        if ended is None:
            raise ViolationError(f"{process} leads {pair} by token {token}, and so does a newer one")
        at, why = ended
        if why == BY_LEASE:
            raise ViolationError(f"{process} leads {pair} by token {token} although its lease is over")
        if self._sim.world.now() - at > self._sim.plan.lease_s:
            raise ViolationError(f"{process} leads {pair} by token {token} a lease after its session ended: {why}")

    def _committed(self, commit: Commit) -> None:
        if commit.row is not None:
            pair, token = (commit.row.key1, commit.row.key2), commit.row.token
            last = self._minted.get(pair, 0)
            if token < last or (token == last and commit.row.released_at is None):
                raise ViolationError(f"token {token} of {pair} was minted after {last}")
            self._minted[pair] = token
        for written in commit.ledger:
            pair = self._keys[written.value]
            row = self._sim.server.row(self._sim.key_of(pair))
            if row is None or row.token != written.token:
                raise ViolationError(f"a write fenced by token {written.token} of {pair} was committed under {row}")
            self.writes += 1

    def _session_ended(self, backend: FakeBackend, why: str) -> None:
        self._sim.trace("server", f"session {backend.id.pid} ends: {why}")
        self._ended[backend.id.pid] = self._sim.world.now(), why
        if why == BY_LEASE:
            for process in self._sim.processes:
                if process.claims and process.group._runner._machine.backend == backend.id:
                    self.failed(process, f"it says that it leads {sorted(process.claims)} although its lease is over")
