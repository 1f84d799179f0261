"""The locks that are measured, and what can be read of each at this moment: for the gauges, which age by themselves.

Locks are only weakly referred to. One that is gone leaves its label behind, and leads no more. Safe from any thread.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgelect._engine.model import LockState
from pgelect.metrics import _series as series

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pgelect._engine.meter import LockView
    from pgelect._engine.model import LockKey
    from pgelect.metrics._series import Series


def label_of(key: LockKey) -> str:
    """Return the value of the label ``lock``: the name, or both keys where there is none."""
    return key.name or f"{key.key1}/{key.key2}"


@dataclass(slots=True)
class Present:
    """What a lock has told of its present term, and does not show itself."""

    followers: int = 0
    began_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Reading:
    """One value of a gauge."""

    of: Series
    lock: str
    labels: tuple[str, ...]
    value: float


class Locks:
    """All locks of one adapter, by label."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._seen: dict[str, list[tuple[weakref.ref[LockView], Present]]] = {}

    def add(self, label: str, lock: LockView) -> Present:
        """Begin to read a lock; return what it is to fill in."""
        present = Present()
        with self._guard:
            others = [entry for entry in self._seen.get(label, ()) if entry[0]() is not None]
            self._seen[label] = [*others, (weakref.ref(lock), present)]
        return present

    def read(self) -> list[Reading]:
        """Read every gauge of every lock now."""
        with self._guard:
            seen = dict(self._seen)  # its lists are replaced, never changed
        return [reading for label, entries in seen.items() for reading in _read(label, entries)]


def _read(label: str, entries: Iterable[tuple[weakref.ref[LockView], Present]]) -> Iterable[Reading]:
    """Read all locks of a label. There is mostly one; of several, each that leads counts."""
    states: Counter[LockState] = Counter()
    leading: list[tuple[int, float, Present]] = []
    for refer, present in entries:
        lock = refer()
        if lock is None:
            continue
        states[lock.state] += 1
        trust_left_s = lock.trust_left_s
        token = lock.token
        if lock.is_leader:  # asked last: what was read before is then that of a leader, or 0
            leading.append((token or 0, trust_left_s, present))
    yield Reading(series.IS_LEADER, label, (), len(leading))
    for state in LockState:
        yield Reading(series.STATE, label, (state.value,), states[state])
    yield Reading(series.TOKEN, label, (), max((token for token, _, _ in leading), default=0))
    yield Reading(series.TRUST_LEFT, label, (), min((left_s for _, left_s, _ in leading), default=0.0))
    yield Reading(series.TERM_START, label, (), max((present.began_at for _, _, present in leading), default=0.0))
    yield Reading(series.FOLLOWERS, label, (), max((present.followers for _, _, present in leading), default=0))
