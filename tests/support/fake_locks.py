"""LeaderLocks on a fake server, with short times, and what their callbacks were told."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pgelect import FixedInterval, LeaderLock, LockKey, Term
from pgelect._engine.clock import SystemClock
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pgelect._engine.clock import Clock
    from pgelect.testing.fake import FakeServer

KEY = LockKey(5001, 1)
QUICK: dict[str, Any] = {
    "lease_s": 5.0,
    "health_interval_s": 0.1,
    "drain_timeout_s": 2.0,
    "retry_strategy": FixedInterval(0.05),
}
SHORT_LEASE_S = 1.0
"""For tests that wait for a lease to run out; in others a busy machine would end it."""


class Elector:
    """One process, as it were: its lock, and all that it was told, in order."""

    def __init__(
        self,
        server: FakeServer,
        identity: str = "a",
        *,
        key: LockKey = KEY,
        clock: Clock | None = None,
        **settings: Any,
    ) -> None:
        named: dict[str, Any] = {"name": key.name} if key.name else {"key1": key.key1, "key2": key.key2}
        self.server = server
        self.lock = LeaderLock(**named, identity=identity, **{**QUICK, **settings})
        checked = self.lock._settings
        sessions = partial(
            server.session,
            key=key,
            identity=identity,
            metadata=checked.metadata,
            lease_s=checked.lease_s,
            fencing=checked.fencing,
        )
        self.lock._build(checked, sessions, clock or SystemClock())
        self.terms: list[tuple[str, int]] = []  # what was told of terms, with the token
        self.states: list[str] = []
        self.errors: list[Exception] = []
        self.lock.on_acquired(lambda term: self.terms.append(("acquired", term.token)))
        self.lock.on_lost(lambda term: self.terms.append(("lost", term.token)))
        self.lock.on_released(lambda term: self.terms.append(("released", term.token)))
        self.lock.on_state_change(lambda before, after: self.states.append(after.value))
        self.lock.on_error(self.errors.append)

    async def leads(self, *, above: int = 0) -> Term:
        """Wait until it leads with a token above that, and was told so; the server agrees."""
        await eventually(
            lambda: (self.lock.token or 0) > above and self.terms and self.terms[-1][0] == "acquired",
            message=f"{self.lock!r} leads",
        )
        term = self.lock.term
        assert term is not None
        assert len(self.server.holders(self.lock.key)) == 1
        return term

    async def waits(self) -> None:
        """Wait until it is in the server's queue."""
        await eventually(lambda: self.server.waiters(self.lock.key), message=f"{self.lock!r} waits in the queue")

    async def is_told(self, what: str, token: int) -> None:
        """Wait until a callback was told this of the term with that token."""
        await eventually(lambda: (what, token) in self.terms, message=f"{self.lock!r} is told {what} {token}")

    def heard(self, kind: type[Exception]) -> list[Exception]:
        """The errors of this kind that on_error was told."""
        return [error for error in self.errors if isinstance(error, kind)]
