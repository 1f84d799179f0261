"""Each change of leadership in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgelect.cli.output import clean
from pgelect.cli.records import key_text, lock_of, standing
from pgelect.observe import ChangeKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgelect._engine.model import LeaderRecord
    from pgelect.observe import LeadershipChange


def words(change: LeadershipChange) -> str:
    """Say what has happened."""
    return _WORDS[change.kind](change)


def _present(change: LeadershipChange) -> str:
    if change.record is not None and change.key is not None:
        return standing(change.record, change.key, change.seen_at).removesuffix(".")
    return f"{key_text(change.key)} was never led" if change.key else "no lock was ever led in this database"


def _began(change: LeadershipChange) -> str:
    record, before = change.record, change.previous
    if record is None:
        return "a term began"
    after = f", after {_holder(before)}" if before is not None and before.token != record.token else ""
    return f"{_holder(record)} leads {lock_of(record)} with token {record.token}{after}{_unseen(change.missed_terms)}"


def _released(change: LeadershipChange) -> str:
    record = change.record
    if record is None:
        return "a term was given up"
    return f"{_holder(record)} gave {lock_of(record)} up (token {record.token}); nobody leads it yet"


def _lost(change: LeadershipChange) -> str:
    record = change.record
    if record is None:
        return "a leader is gone"
    return f"the session of {_holder(record)} is gone (token {record.token}); nobody leads {lock_of(record)} yet"


def _resumed(change: LeadershipChange) -> str:
    record = change.record
    if record is None:
        return "a term goes on"
    return f"{_holder(record)} goes on leading {lock_of(record)} with token {record.token}, on a new session"


def _blind(change: LeadershipChange) -> str:
    return f"BLIND: changes may be missed until the connection is back: {clean(change.error)}"


def _back(change: LeadershipChange) -> str:
    missed = change.missed_terms
    if missed == 0:
        return "the connection is back; no term has begun meanwhile"
    return f"the connection is back; {missed} term{'s' * (missed != 1)} began meanwhile"


def _holder(record: LeaderRecord) -> str:
    return clean(record.holder)


def _unseen(terms: int) -> str:
    return f" ({terms} term{'s' * (terms != 1)} in between not seen)" if terms else ""


_WORDS: dict[ChangeKind, Callable[[LeadershipChange], str]] = {
    ChangeKind.PRESENT: _present,
    ChangeKind.BEGAN: _began,
    ChangeKind.RELEASED: _released,
    ChangeKind.LOST: _lost,
    ChangeKind.RESUMED: _resumed,
    ChangeKind.BLIND: _blind,
    ChangeKind.BACK: _back,
}
