"""What a group knows of itself, read-only and safe from any thread, and fencing by its terms."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pgelect._engine.home import Owned
from pgelect._engine.model import LockState
from pgelect._group.state import GroupState
from pgelect._group_partitions import key_of
from pgelect._health import Facts, Health, health_of
from pgelect.errors import NotLeaderError
from pgelect.fencing import check_token, fenced

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Mapping

    from psycopg import AsyncConnection

    from pgelect._engine.model import LockKey, Term
    from pgelect._engine.settings import Settings
    from pgelect._group.runner import Runner

P = TypeVar("P", str, tuple[int, int])

_AS_A_LOCK = {
    GroupState.STOPPED: LockState.STOPPED,
    GroupState.CONNECTING: LockState.FOLLOWER,
    GroupState.MEMBER: LockState.LEADER,  # whose proofs are due
    GroupState.LEAVING: LockState.RELEASING,
}


class GroupStatus(Owned, Generic[P]):
    """The half of a group that changes nothing."""

    _settings: Settings
    _runner: Runner
    _group: str
    _partitions: dict[LockKey, Any]
    _named: bool
    _loop: asyncio.AbstractEventLoop | None

    @property
    def group(self) -> str:
        """The name of the group."""
        return self._group

    @property
    def identity(self) -> str:
        """The identity of this process."""
        return self._settings.identity

    @property
    def partitions(self) -> tuple[P, ...]:
        """The partitions that this process campaigns for."""
        return tuple(self._partitions.values())

    @property
    def state(self) -> GroupState:
        """What this member is doing."""
        return self._runner.snapshot.state if self._owns() else GroupState.STOPPED

    @property
    def leading(self) -> Mapping[P, Term]:
        """The terms of the partitions that this process leads at this very instant. Safe from any thread."""
        runner = self._runner
        seen = runner.snapshot
        if not runner.is_trusted():
            return MappingProxyType({})
        return MappingProxyType({self._shown(key): term for key, (_, term) in seen.terms.items()})

    def is_leader(self, partition: P) -> bool:
        """Tell whether this process leads that partition at this very instant. Safe from any thread."""
        return self._runner.is_trusted(self._key(partition))

    @property
    def members(self) -> int:
        """How many live members the group has, as last seen; 0 while this process is none."""
        return self._runner.snapshot.members

    @property
    def share(self) -> int:
        """How many partitions this process is to lead, as last computed."""
        return self._runner.snapshot.share

    @property
    def trust_left_s(self) -> float:
        """For how many seconds the last proof can still be trusted; 0 while this process leads nothing."""
        return self._runner.trust_left_s()

    def health(self) -> Health:
        """Tell whether this member is well, for an orchestrator that restarts what hangs. Safe from any thread.

        It is healthy while it is connecting, also while the server is away, and as a member while its proofs are in
        time. It is not when it has stopped by itself, or its task or event loop has ended. It is ready as a member.
        """
        runner, settings = self._runner, self._settings
        seen, pulse = runner.snapshot, runner.pulse()
        is_dead = not runner.is_ending or (self._loop is not None and self._loop.is_closed())
        found = health_of(
            Facts(
                state=_AS_A_LOCK[seen.state],
                now=pulse.now,
                running=runner.running,
                started=self._loop is not None,
                dead=runner.running and seen.state is not GroupState.STOPPED and is_dead,
                forked=not self._owns(),
                failure=runner.failure,
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
        if found.healthy and found.ready:
            of = f"{len(self._partitions)} partitions (share: {seen.share})"
            return replace(found, reason=f"leading {len(seen.terms)} of {of}, {found.reason.partition(', ')[2]}")
        return found

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._group!r} {self.identity!r} {self.state.value} {len(self.leading)} led>"

    @asynccontextmanager
    async def fence(self, conn: AsyncConnection[Any], partition: P) -> AsyncIterator[Term]:
        """Open a transaction on ``conn`` that commits only under the token of this partition's term.

        Raises:
            NotLeaderError: this process does not lead that partition; nothing was sent.
            StaleTokenError: a newer term has begun; the transaction is rolled back.
            SessionLostError: ``conn`` ended during the check.
        """
        term = self._term(partition)
        async with fenced(conn, term.key, term.token):
            yield term

    async def check_fence(self, conn: AsyncConnection[Any], partition: P) -> None:
        """Check the token of this partition's term in the open transaction of ``conn``, and bind it to that.

        Raises:
            NotLeaderError: this process does not lead that partition; nothing was sent.
            StaleTokenError: a newer term has begun; roll back.
            SessionLostError: ``conn`` ended during the check.
        """
        term = self._term(partition)
        await check_token(conn, term.key, term.token)

    def _term(self, partition: P) -> Term:
        self._check_pid()
        key = self._own(partition)
        found = self._runner.snapshot.terms.get(key)
        if found is None or not self._runner.is_trusted(key, found[0]):
            raise NotLeaderError(key, self.state, "do the work of a partition inside lead()")
        return found[1]

    def _key(self, partition: P) -> LockKey:
        if isinstance(partition, str) is not self._named:
            kind = "names" if self._named else "pairs of numbers"
            raise TypeError(f"the partitions of this group are {kind}, not {partition!r}")
        return key_of(partition)

    def _own(self, partition: P) -> LockKey:
        key = self._key(partition)
        if key not in self._partitions:
            raise KeyError(f"{partition!r} is no partition of this group")
        return key

    def _shown(self, key: LockKey) -> Any:
        return key.name if self._named else (key.key1, key.key2)
