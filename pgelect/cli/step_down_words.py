"""What became of a request to step down, in words, with what to do where nothing did."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from pgelect.cli.ending import Code
from pgelect.cli.output import clean
from pgelect.cli.records import key_text, lock_of, standing

if TYPE_CHECKING:
    from datetime import datetime

    from pgelect._engine.model import LeaderRecord, LockKey


class Outcome(StrEnum):
    """What became of a request."""

    HANDED_OVER = "handed over"
    RELEASED = "released"
    """That term is over, and nobody leads yet."""
    ASKED = "asked"
    """Nobody waited for what becomes of it."""
    NOT_HEEDED = "not heeded"
    """The leader still led when the wait was over."""
    NOBODY_LEADS = "nobody leads"
    TERM_OVER = "term over"
    """The term of the token that was asked for was over before."""

    @property
    def code(self) -> Code:
        """Give the exit code."""
        return Code.OK if self in {Outcome.HANDED_OVER, Outcome.RELEASED, Outcome.ASKED} else Code.NO


@dataclass(frozen=True, slots=True)
class Handover:
    """A request and what became of it.

    Attributes:
        asked: the token of the leader that was asked; None: nobody was.
        took_s: how long it took, or was waited for, in seconds.
        before: who led before the request, or led last.
        now: who leads after it.
    """

    outcome: Outcome
    asked: int | None
    took_s: float
    before: LeaderRecord | None
    now: LeaderRecord | None


def words(key: LockKey, done: Handover, at: datetime) -> list[str]:
    """Give the lines to print; ``at`` is now, by the server's clock."""
    leads = standing(done.now, key, at)
    if done.outcome is Outcome.TERM_OVER:
        return ["Nothing done: the term of that token is over.", leads]
    if done.outcome is Outcome.NOBODY_LEADS:
        return ["Nothing done: there is nobody to ask.", leads]
    asked = done.before if done.before is not None and done.before.token == done.asked else None
    asking = f"Asked {clean(asked.holder) if asked else 'the leader'} (token {done.asked}) to step down"
    if done.outcome is Outcome.ASKED:
        return [f"{asking}.", leads]
    if done.outcome is Outcome.NOT_HEEDED:
        return [
            f"{asking}, and it still leads {key_text(key)} after {done.took_s:.1f} s.",
            "It may still be ending its work: look again with 'pgelect status', or allow more with --wait.",
            "If it never does, it is stuck, or its role may not hear of requests: 'pgelect doctor' as that role.",
        ]
    lines = [f"{asking}: its term is over after {done.took_s:.2f} s.", leads]
    if done.outcome is Outcome.RELEASED and done.now is not None:
        lines.append(f"No follower has taken {lock_of(done.now)} over: who led may lead again after its cooldown.")
    elif asked is not None and done.now is not None and done.now.holder == asked.holder:
        lines.append("That is the same process again: nobody else was waiting.")
    return lines
