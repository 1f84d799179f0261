"""What the fake server keeps for onlookers: terms that were announced, requests to step down, and who hears of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from pgelect._engine.model import Grant, LockKey, LostTerm
    from pgelect.testing._fake_cluster import Cluster, FakeBackend
    from pgelect.testing._fake_transactions import Tables

ASKED_BY = "operator"
"""Who asks a leader of the fake server to step down."""


@dataclass(frozen=True, slots=True)
class FakeTerm:
    """One line of the history: a term that was announced.

    Attributes:
        token: of the term.
        holder: who led.
        began_at: when, by the server's clock.
        ending: ``released``, ``superseded`` or ``lost``; None: nobody has told of an end.
        reason: why it was lost.
    """

    token: int
    holder: str
    began_at: datetime
    ending: str | None = None
    reason: str | None = None


class News:
    """The history and the requests of all locks. Nothing of it is lost, nor needed for anything."""

    def __init__(self, cluster: Cluster, tables: Tables) -> None:
        self._cluster = cluster
        self._tables = tables
        self._history: dict[LockKey, dict[int, FakeTerm]] = {}
        self._requests: dict[LockKey, int] = {}

    def history(self, key: LockKey) -> list[FakeTerm]:
        """Return the terms of a lock, the oldest first."""
        return [term for _, term in sorted(self._history.get(key, {}).items())]

    def announce(self, backend: FakeBackend, key: LockKey, grant: Grant) -> None:
        """Write down that a term has begun, and how the one before it ended; hear calls from now on."""
        backend.listens_to.add(key)
        self.write_down(key, grant)

    def write_down(self, key: LockKey, grant: Grant) -> None:
        """Write down that a term has begun, and how the one before it ended."""
        row = self._tables.row(key)
        if row is None or row.token != grant.token:
            return
        terms, prior = self._history.setdefault(key, {}), grant.prior
        if prior is not None and prior.token < grant.token:
            before = terms.get(prior.token) or FakeTerm(prior.token, prior.holder, prior.acquired_at)
            if before.ending is None:
                ending = "superseded" if prior.released_at is None else "released"
                terms[prior.token] = replace(before, ending=ending)
        terms.setdefault(row.token, FakeTerm(row.token, row.holder, row.acquired_at))

    def report_lost(self, key: LockKey, lost: LostTerm) -> None:
        """Write down that a term was lost, and why."""
        term = self._history.get(key, {}).get(lost.token)
        if term is not None and term.ending != "released":
            self._history[key][lost.token] = replace(term, ending="lost", reason=lost.reason)

    def request_step_down(self, key: LockKey, token: int | None) -> int | None:
        """Ask the leader of that token, or whoever leads, to step down; return the token that was asked."""
        row = self._tables.row(key)
        if row is None or row.released_at is not None or token not in {None, row.token}:
            return None
        self._requests[key] = row.token
        self.call(key)
        return row.token

    def call(self, key: LockKey) -> None:
        """Notify whoever listens: that alone says nothing."""
        for backend in tuple(self._cluster.backends.values()):
            if key in backend.listens_to and backend.heard_call is not None:
                backend.wire.tell(backend.heard_call)

    def asked(self, key: LockKey, token: int) -> str | None:
        """Say who has asked the term of that token to end."""
        return ASKED_BY if self._requests.get(key) == token else None
