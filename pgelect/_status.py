"""What a lock knows of itself: read-only, computed on each read, safe from any thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgelect._engine.bounds import Bounds, bounds_of
from pgelect._engine.home import Owned
from pgelect._engine.model import LockState
from pgelect._engine.settings import check_argument_s
from pgelect._health import Facts, Health, health_of

if TYPE_CHECKING:
    import asyncio

    from pgelect._engine.model import LeaderRecord, LockKey, Term
    from pgelect._engine.runner import Runner
    from pgelect._engine.settings import Settings
    from pgelect.retry import RetryStrategy


class Status(Owned):
    """The read-only half of a lock."""

    _settings: Settings
    _runner: Runner
    _strategy: RetryStrategy
    _loop: asyncio.AbstractEventLoop | None

    @property
    def key(self) -> LockKey:
        """The key of the lock."""
        return self._settings.key

    @property
    def identity(self) -> str:
        """The identity of this process."""
        return self._settings.identity

    @property
    def state(self) -> LockState:
        """What the lock is doing. Whether this process leads is said by ``is_leader``."""
        return self._runner.snapshot.state if self._owns() else LockState.STOPPED

    @property
    def is_leader(self) -> bool:
        """True while this process leads, as far as the last proof can be trusted at this very instant.

        Computed on each read, from a clock that also counts suspended time where the system has one. Safe from any
        thread; False in a forked child.
        """
        return self._runner.is_trusted()

    def is_leader_confirmed_within(self, seconds: float) -> bool:
        """Tell whether this process leads and the last proof was sent no longer than ``seconds`` ago."""
        check_argument_s("seconds", seconds)
        return self._runner.is_trusted_within(seconds)

    @property
    def term(self) -> Term | None:
        """The present term; None while this process does not lead."""
        runner = self._runner  # once: a start in another event loop replaces it
        seen = runner.snapshot
        return seen.term if runner.is_trusted(seen.number) else None

    @property
    def token(self) -> int | None:
        """The fencing token of the present term, for systems outside the database; None while not leading."""
        term = self.term
        return term.token if term is not None else None

    @property
    def record(self) -> LeaderRecord | None:
        """The token row as last seen by this lock: who leads, or led; None before it was seen, or without fencing."""
        return self._runner.record

    @property
    def trust_left_s(self) -> float:
        """For how many seconds the last proof can still be trusted; 0 while this process does not lead."""
        return self._runner.trust_left_s()

    def health(self) -> Health:
        """Tell whether this lock is well, for an orchestrator that restarts what hangs. Safe from any thread.

        A follower is healthy, also while the server is away: a restart would not bring that back. A leader whose proofs
        are overdue is not, nor is a lock that has stopped by itself or whose task or event loop has ended. It is ready
        while it leads, or stands by with a connection.
        """
        runner, settings = self._runner, self._settings
        seen, pulse = runner.snapshot, runner.pulse()
        is_dead = not runner.is_ending or (self._loop is not None and self._loop.is_closed())
        return health_of(
            Facts(
                state=seen.state,
                now=pulse.now,
                running=runner.running,
                started=self._loop is not None,
                dead=runner.running and seen.state is not LockState.STOPPED and is_dead,
                forked=not self._owns(),
                failure=runner.failure,
                ended=runner.stop_reason if runner.failure is None else None,
                connected=pulse.connected,
                proved_at=seen.proved_at,
                trusted_until=seen.trusted_until,
                due_at=pulse.due_at,
                trouble=pulse.trouble,
                trouble_since=pulse.trouble_since,
                health_interval_s=settings.health_interval_s,
                proof_timeout_s=settings.proof_timeout_s,
                margin_s=settings.margin_s,
            )
        )

    def bounds(self) -> Bounds:
        """Return the worst-case failover and overlap in seconds that follow from the settings, each with its reason."""
        longest = getattr(self._strategy, "max_s", getattr(self._strategy, "interval_s", None))
        return bounds_of(self._settings, longest if isinstance(longest, int | float) else None)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key} {self.identity!r} {self.state.value}>"
