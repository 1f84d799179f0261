"""Whole elections in memory, without PostgreSQL: for the tests of programs that elect a leader.

Inside ``local_election()`` every ``LeaderLock`` and ``LeaderGroup`` that is made or started is the real one, but for
two things: its sessions are with a fake server, whatever its DSN says, and its time is a clock that the test moves.
"""

from __future__ import annotations

import asyncio
import math
import weakref
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pgelect.group
import pgelect.lock
from pgelect._engine.runner import Runner
from pgelect._group.runner import Runner as GroupRunner
from pgelect.testing.clock import FakeClock
from pgelect.testing.fake import FakeServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgelect._engine.model import Term
    from pgelect._postgres.group_sql import Ring
    from pgelect._postgres.options import SessionOptions
    from pgelect.testing.fake_group_session import FakeGroupSession
    from pgelect.testing.fake_session import FakeSession

__all__ = ["LocalElection", "local_election"]

_TURNS = 40
"""So many turns of the event loop are enough for everything that is due at one instant: messages take no time here."""

_GROUP_STEP_S = 0.25
"""Members look at their group about once a second, and more often while it changes."""


class LocalElection:
    """What a test can do with an election in memory.

    Attributes:
        server: the fake server that all locks and groups are connected to. See ``FakeServer`` for all that can go wrong
            with it.
        clock: the time of all locks, groups and leases, in seconds. It stands still until ``advance`` or ``suspend``
            moves it, so leadership lasts for as long as the test likes.
    """

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.server = FakeServer(clock=self.clock, wait_slice_s=0.02)
        self._runners: weakref.WeakSet[Runner | GroupRunner] = weakref.WeakSet()
        self._rivals: dict[tuple[int, int], pgelect.lock.LeaderLock] = {}
        self._adopted: list[tuple[Any, Any]] = []  # made elsewhere, and their own clocks

    async def settle(self) -> None:
        """Let everything happen that is due now: locks that start, terms that begin, callbacks."""
        for _ in range(_TURNS):
            await asyncio.sleep(0)

    async def advance(self, seconds: float) -> None:
        """Let time pass, in small steps, with everything going on as it should: proofs are made, delays end.

        Raises:
            ValueError: ``seconds`` is negative or not finite.
        """
        if not math.isfinite(seconds) or seconds < 0:
            raise ValueError(f"seconds={seconds!r} must be finite and not negative")
        step_s = min((runner.settings.health_interval_s / 2 for runner in self._runners), default=1.0)
        if any(isinstance(runner, GroupRunner) and runner.running for runner in self._runners):
            step_s = min(step_s, _GROUP_STEP_S)
        await self.settle()
        while seconds > 0:
            await self.suspend(min(step_s, seconds))
            seconds -= step_s

    async def suspend(self, seconds: float) -> None:
        """Let time pass at once, as if this whole process had been stopped for so long: nobody proved anything.

        Leadership that was not proved for longer than its lease is over at the very first look afterwards.

        Raises:
            ValueError: ``seconds`` is negative or not finite.
        """
        self.clock.advance(seconds)
        self.server.enforce_leases()
        for runner in tuple(self._runners):
            runner.clock_moved()
        await self.settle()

    async def take_away(self, lock: pgelect.lock.LeaderLock) -> Term:
        """Have somebody else lead in place of ``lock``: its session is ended, and a rival gets the lock.

        Returns:
            The rival's term; its token is greater.

        Raises:
            ValueError: ``lock`` does not lead, or it was taken away before.
        """
        pair = (lock.key.key1, lock.key.key2)
        holders = self.server.holders(lock.key)
        if not lock.is_leader or not holders or pair in self._rivals:
            raise ValueError(f"{lock!r} does not lead: there is nothing to take away")
        rival = pgelect.lock.LeaderLock(key1=lock.key.key1, key2=lock.key.key2, identity="rival")
        self._rivals[pair] = rival
        await rival.start()  # it waits in the queue
        self.server.terminate(holders[0])
        term = await rival.wait_for_leadership()
        await self.settle()
        return term

    async def give_back(self, lock: pgelect.lock.LeaderLock) -> None:
        """Have the rival of ``take_away`` go, so that ``lock`` can lead again.

        Raises:
            KeyError: it was not taken away.
        """
        rival = self._rivals.pop((lock.key.key1, lock.key.key2), None)
        if rival is None:
            raise KeyError(f"{lock!r} was not taken away")
        await rival.shutdown()
        await self.settle()

    def end_session(self, of: pgelect.lock.LeaderLock | pgelect.group.LeaderGroup[Any]) -> None:
        """End the server's session of a lock or a group, as an administrator or a restart would.

        Raises:
            ValueError: it has none.
        """
        backend = of._runner.backend  # noqa: SLF001 -- a friend
        if backend is None or not self.server.terminate(backend.pid):
            raise ValueError(f"{of!r} has no session that could be ended")

    # -- what stands in for the real things ----------------------------------------------------------------------------

    def _session(self, options: SessionOptions) -> FakeSession:
        return self.server.session(
            key=options.key,
            identity=options.identity,
            metadata=options.metadata,
            lease_s=options.lease_s,
            fencing=options.fencing,
        )

    def _group_session(self, options: SessionOptions, _: Ring, weight: float, most: int | None) -> FakeGroupSession:
        return self.server.group_session(
            group=options.key,
            identity=options.identity,
            metadata=options.metadata,
            lease_s=options.lease_s,
            weight=weight,
            max_share=most,
        )

    def _clock(self) -> FakeClock:
        return self.clock

    def _adopting(self, start: Any) -> Any:
        @wraps(start)
        async def begin(elector: Any) -> None:
            if elector._clock is not self.clock and not elector._runner.running:  # noqa: SLF001 -- a friend
                self._adopted.append((elector, elector._clock))  # noqa: SLF001
                _give_clock(elector, self.clock)
            await start(elector)

        return begin

    def _release(self) -> None:
        for elector, clock in self._adopted:
            _give_clock(elector, clock)

    def _watched(self, kind: Any) -> Any:
        def make(*arguments: Any, **more: Any) -> Any:
            runner = kind(*arguments, **more)
            self._runners.add(runner)
            return runner

        return make


def _give_clock(elector: Any, clock: Any) -> None:
    elector._clock = clock  # noqa: SLF001 -- a friend
    if not elector._runner.running:  # noqa: SLF001
        elector._rebuild()  # noqa: SLF001


@contextmanager
def local_election() -> Iterator[LocalElection]:
    """Have every lock and group that is made or started in this block elect in memory, among themselves.

    They must be used, and shut down, inside it, in one event loop at a time; ``pgelect.sync`` is not covered.
    """
    election = LocalElection()
    with ExitStack() as stack:
        for module, name, instead in (
            (pgelect.lock, "PostgresSession", election._session),  # noqa: SLF001 -- the same module
            (pgelect.lock, "SystemClock", election._clock),  # noqa: SLF001
            (pgelect.lock, "Runner", election._watched(Runner)),  # noqa: SLF001
            (pgelect.group, "PostgresGroupSession", election._group_session),  # noqa: SLF001
            (pgelect.group, "SystemClock", election._clock),  # noqa: SLF001
            (pgelect.group, "Runner", election._watched(GroupRunner)),  # noqa: SLF001
            (pgelect.lock.LeaderLock, "start", election._adopting(pgelect.lock.LeaderLock.start)),  # noqa: SLF001
            (pgelect.group.LeaderGroup, "start", election._adopting(pgelect.group.LeaderGroup.start)),  # noqa: SLF001
        ):
            stack.enter_context(patch.object(module, name, instead))
        try:
            yield election
        finally:
            stack.close()  # so that what they are given back is real
            election._release()  # noqa: SLF001
