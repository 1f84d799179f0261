"""What a replica does beside its lock: it is a member of a group that shares partitions, and keeps a book of that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.chaos import plan
from benchmarks.chaos.book import Book, now
from pgelect import ExponentialBackoff, LeaderGroup

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgelect import Term

_WRITE_EVERY_S = 0.2  # while nothing changes, so that a killed process has said until when


class Partitions:
    """The group of one replica."""

    def __init__(self, character: plan.Character, process: str, dsn: Callable[[], str], book: Book) -> None:
        self._book = book
        self._last: dict[str, int] = {}
        self._seen: tuple[float, float] = (0.0, 0.0)  # the last look that saw that
        self._written_at = 0.0
        self.group = LeaderGroup(
            dsn,
            names=plan.PARTITIONS,
            group=plan.GROUP_NAME,
            identity=process,
            health_interval_s=plan.HEALTH_INTERVAL_S,
            lease_s=character.lease_s,
            rebalance_interval_s=plan.REBALANCE_S,
            drain_timeout_s=plan.DRAIN_S,
            retry_strategy=ExponentialBackoff(plan.BACKOFF_BASE_S, plan.BACKOFF_MAX_S),
        )
        self.group.on_acquired(lambda term: self._heard("acquired", term))
        self.group.on_lost(lambda term: self._heard("lost", term))
        self.group.on_released(lambda term: self._heard("released", term))

    def look(self) -> None:
        """Look at what it says it leads, and write that down when it has changed, or now and then."""
        before = now()
        tokens = {name: term.token for name, term in self.group.leading.items()}
        after = now()
        if tokens != self._last and self._seen[1] > self._written_at:
            self._write(*self._seen, self._last)
        if tokens != self._last or (tokens and after - self._written_at > _WRITE_EVERY_S):
            self._write(before, after, tokens)
        self._last, self._seen = tokens, (before, after)

    def _write(self, before: float, after: float, tokens: dict[str, int]) -> None:
        self._book.write("partitions", before, after=after, tokens=tokens)
        self._written_at = after

    def _heard(self, kind: str, term: Term) -> None:
        minted_us = round(term.acquired_at.timestamp() * 1e6)
        self._book.write("partition", kind=kind, partition=term.key.name, token=term.token, minted_us=minted_us)
