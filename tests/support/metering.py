"""A lock as metrics see it, that is whatever a test says it is; and what an adapter shows of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from pgelect import LockKey, LockState, Term

if TYPE_CHECKING:
    from pgelect.metrics import LockMetrics

BEGAN_AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

Series = tuple[str, frozenset[tuple[str, str]]]


@dataclass(eq=False)
class View:
    """A ``LockView``."""

    key: LockKey = field(default_factory=lambda: LockKey(1, 2, "jobs"))
    identity: str = "a"
    state: LockState = LockState.STOPPED
    is_leader: bool = False
    token: int | None = None
    trust_left_s: float = 0.0

    def lead(self, token: int, trust_left_s: float = 14.0) -> None:
        """Lead from now on."""
        self.state, self.is_leader, self.token, self.trust_left_s = LockState.LEADER, True, token, trust_left_s

    def follow(self) -> None:
        """Lead no more."""
        self.state, self.is_leader, self.token, self.trust_left_s = LockState.FOLLOWER, False, None, 0.0


def term_of(view: View, token: int = 7) -> Term:
    """A term of that lock."""

    async def ended() -> None:
        return None

    return Term(token, view.key, view.identity, BEGAN_AT, {}, lambda: view.is_leader, ended)


def series_of(registry: CollectorRegistry) -> dict[Series, float]:
    """Every series that a scrape shows, and its value; ``_created`` ones left out."""
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def value_of(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    """The value of one series, None if there is none; a trailing underscore in a label is for Python only."""
    wanted = {label.rstrip("_"): value for label, value in labels.items()}
    return series_of(registry).get((name, frozenset({"lock": "jobs", **wanted}.items())))


def tell_everything(metrics: LockMetrics, view: View) -> None:
    """Call every method of the protocol once with something usual."""
    term = term_of(view)
    metrics.transition(LockState.ACQUIRING, LockState.LEADER, "minted")
    metrics.attempt_failed("held")
    metrics.term_began(term, 0.004, after_release=True)
    metrics.proof(0.002, succeeded=True)
    metrics.proof(3.0, succeeded=False)
    metrics.reconnected()
    metrics.followers(2)
    metrics.fence_check(0.003, "ok")
    metrics.fence_check(0.003, "stale")
    metrics.callback_failed("lost")
    metrics.loop_lag(0.02)
    metrics.term_ended(term, 90.0, released=False, cause="expired")
