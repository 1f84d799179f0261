"""Checks on what was written: the ledger, as the last primary has it, against what the writers were told.

The order of commits is the server's own: the commit timestamp of each row's transaction (``track_commit_timestamp``).
A number that a transaction takes while it holds the fence would not do: a stale transaction may have taken it early,
and commit late.

Lost by a promotion: the new primary's history file says at which position its predecessor's timeline was left. A writer
asks for the position in its transaction, before the commit, and again after the acknowledgement. So a commit that was
acknowledged before the position at which its timeline was left must be in the ledger; only one whose second position is
behind it may be missing; and one whose first position is behind it cannot be there, or the books are wrong.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING

from benchmarks.chaos.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.chaos.history import Acknowledged, History, Row, Switch

_TIMELINE_BITS = 40


def timeline_of(token: int) -> int:
    """Tell on which timeline a token was minted."""
    return (token >> _TIMELINE_BITS) + 1


def tokens_in_commit_order(history: History) -> Iterator[Violation]:
    """Every fenced write's token is at least that of all commits before it."""
    times = _acknowledged_at(history)
    greatest: Row | None = None
    for row in sorted(history.rows, key=lambda row: (row.committed_us, row.token)):
        if greatest is not None and row.token < greatest.token:
            yield Violation(
                "no stale write commits",
                f"write {row.id} of token {row.token} committed {row.committed_us - greatest.committed_us} us after "
                f"write {greatest.id} of token {greatest.token}",
                (_process(row), _process(greatest)),
                times.get(row.id),
            )
        if greatest is None or row.token > greatest.token:
            greatest = row


def tokens_write_on_their_own_timeline(history: History) -> Iterator[Violation]:
    """Allow no token on another timeline than that of its minting: the row of a later term may have been lost."""
    times = _acknowledged_at(history)
    for row in history.rows:
        if timeline_of(row.token) != row.timeline:
            yield Violation(
                "a token writes on its own timeline",
                f"write {row.id} of token {row.token}, minted on timeline {timeline_of(row.token)}, is on timeline "
                f"{row.timeline}",
                (_process(row),),
                times.get(row.id),
            )


def nothing_after_a_newer_token(history: History) -> Iterator[Violation]:
    """No fenced write commits after a newer token was minted on the same timeline, whether or not that one wrote.

    One on another timeline may have been lost with the tail. That its predecessor writes no more is the rule before.
    """
    terms = sorted(
        ((heard.minted_us, heard.token, process.name) for process, heard in history.terms),
        key=lambda term: term[0],
    )
    times = _acknowledged_at(history)
    for row in history.rows:
        for minted_us, token, process in terms:
            if token > row.token and timeline_of(token) == row.timeline and minted_us < row.committed_us:
                yield Violation(
                    "no stale write commits",
                    f"write {row.id} of token {row.token} committed {row.committed_us - minted_us} us after token "
                    f"{token} was minted",
                    (_process(row), process),
                    times.get(row.id),
                )
                break


def terms_see_what_earlier_ones_wrote(history: History) -> Iterator[Violation]:
    """Transactions of a term read all that earlier terms have committed: they number on from there."""
    times = _acknowledged_at(history)
    last: Row | None = None
    ordered = sorted(history.rows, key=lambda row: (row.token, row.n))
    for _, group in groupby(ordered, key=lambda row: row.token):
        rows = list(group)
        if last is not None and rows[0].n <= last.n:
            yield Violation(
                "a term sees what earlier terms wrote",
                f"write {rows[0].id} of token {rows[0].token} took number {rows[0].n}, though write {last.id} of token "
                f"{last.token} had taken {last.n}",
                (_process(rows[0]), _process(last)),
                times.get(rows[0].id),
            )
        if last is None or rows[-1].n > last.n:
            last = rows[-1]


def acknowledged_is_kept(history: History) -> Iterator[Violation]:
    """Every acknowledged write is in the ledger once, as it was made, unless a promotion that may lose some lost it."""
    rows = {row.id: row for row in history.rows}
    switches = {switch.timeline: switch for switch in history.switches}
    for write in history.acknowledged:
        row = rows.get(write.id)
        switch = switches.get(write.timeline)
        left = None if switch is None else switch.left_at
        if row is None and not may_be_lost(write, switch):
            orderly = "" if switch is None or switch.lossy else ", in an orderly way"
            yield Violation(
                "acknowledged writes are kept",
                f"write {write.id} of token {write.token}, acknowledged on timeline {write.timeline} before position "
                f"{write.high}, is not in the ledger; that timeline was left at {left}{orderly}",
                (write.id.partition(":")[0],),
                write.at,
            )
        if row is not None and (row.token, row.n, row.timeline) != (write.token, write.n, write.timeline):
            yield Violation("acknowledged writes are kept", f"write {write.id} is in the ledger, but changed: {row}")
        if row is not None and left is not None and write.low >= left:
            yield Violation(
                "the books agree",
                f"write {write.id} committed after position {write.low}, and is in the ledger, though its timeline "
                f"was left at {left}",
            )
    for ident, number in Counter(row.id for row in history.rows).items():
        if number > 1:
            yield Violation("acknowledged writes are kept", f"write {ident} is in the ledger {number} times")


def refused_is_not_written(history: History) -> Iterator[Violation]:
    """No write that was refused, or failed before its commit was sent, is in the ledger."""
    told = {each.id: "refused" for each in history.refused}
    told |= {each.id: "failed" for each in history.failed if not each.unknown}
    for row in history.rows:
        if row.id in told:
            yield Violation(
                "a refused write is not written",
                f"write {row.id} of token {row.token} was {told[row.id]}, and is in the ledger",
                (_process(row),),
            )


def may_be_lost(write: Acknowledged, switch: Switch | None) -> bool:
    """Whether the promotion that left its timeline may have lost this write. An orderly one loses nothing."""
    return switch is not None and switch.lossy and (write.high is None or write.high > switch.left_at)


def lost_by_promotion(history: History) -> list[Acknowledged]:
    """Find the acknowledged writes that are missing because a promotion lost them."""
    rows = {row.id for row in history.rows}
    switches = {switch.timeline: switch for switch in history.switches}
    return [
        write
        for write in history.acknowledged
        if write.id not in rows and may_be_lost(write, switches.get(write.timeline))
    ]


def _acknowledged_at(history: History) -> dict[str, float]:
    return {write.id: write.at for write in history.acknowledged}


def _process(row: Row) -> str:
    return row.id.partition(":")[0]
