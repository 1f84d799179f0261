"""The checker: all rules over one history, and whether enough happened for them to mean anything. Pure functions."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from benchmarks.chaos import checks_end, checks_groups, checks_leading, checks_writing, plan
from benchmarks.chaos.belief import all_spans, overlaps
from benchmarks.chaos.faults import KINDS
from benchmarks.chaos.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.chaos.history import History


def nothing_went_wrong_unseen(history: History) -> Iterator[Violation]:
    """Require that no process wrote to standard error, and none logged what only a bug logs."""
    for process in history.processes:
        for complaint in process.complaints:
            yield Violation("nothing goes wrong unseen", f"it said: {complaint[-1500:]}", (process.name,))


_MAY_MISS = 0.2  # of the faults of a kind: a leader may be deposed by something else in the moment it is chosen

RULES: tuple[Callable[[History], Iterator[Violation]], ...] = (
    checks_leading.one_leader,
    checks_leading.tokens_grow,
    checks_leading.callbacks_pair,
    checks_leading.losses_have_a_cause,
    checks_leading.failover_within_bounds,
    checks_leading.maintenance_is_not_held_up,
    checks_writing.tokens_in_commit_order,
    checks_writing.tokens_write_on_their_own_timeline,
    checks_writing.nothing_after_a_newer_token,
    checks_writing.terms_see_what_earlier_ones_wrote,
    checks_writing.acknowledged_is_kept,
    checks_writing.refused_is_not_written,
    checks_groups.tokens_of_partitions_grow,
    checks_groups.callbacks_of_partitions_pair,
    checks_groups.an_old_belief_ends_within_a_lease,
    checks_groups.partitions_are_shared_again,
    checks_end.every_replica_is_back,
    checks_end.ended_cleanly,
    nothing_went_wrong_unseen,
)


def violations(history: History) -> list[Violation]:
    """Apply every rule."""
    found = [violation for rule in RULES for violation in rule(history)]
    return sorted(found, key=lambda each: (each.at is None, each.at or 0.0))


def happened(history: History) -> dict[str, int]:
    """Count what a run without violation must have seen to be worth anything."""
    return {
        "faults": sum(not fault.thwarted for fault in history.faults),
        "terms": len(history.terms),
        "takeovers": len(checks_leading.takeovers(history)),
        "acknowledged writes": len(history.acknowledged),
        "stale writes refused": len(history.refused),
        "terms of partitions": sum(
            heard.kind == "acquired" for process in history.processes for heard in process.partitions_heard
        ),
        "acknowledged writes lost by a promotion": len(checks_writing.lost_by_promotion(history)),
    }


def shortfalls(history: History) -> list[str]:
    """Say what happened too seldom for that length of run. Below plan.FULL_S not every kind of fault has its turn."""
    length_s = history.end - history.begin
    counts = happened(history)
    found = [
        f"{name}: {counts[name]}, fewer than {round(least * length_s / plan.FULL_S)}"
        for name, least in plan.LEAST.items()
        if counts[name] < round(least * length_s / plan.FULL_S)
    ]
    if length_s >= plan.FULL_S:
        seen = Counter(fault.kind for fault in history.faults if not fault.thwarted)
        found += [f"no fault of the kind '{kind}'" for kind in KINDS if not seen[kind]]
        found += [
            f"of {number} faults of the kind '{kind}', {missed} deposed nobody"
            for kind, (number, missed) in checks_leading.unmoved(history).items()
            if missed > number * _MAY_MISS
        ]
        if not counts["acknowledged writes lost by a promotion"]:
            found.append("no promotion lost an acknowledged write: that rule was not tried")
        if not overlaps(all_spans(history)):
            found.append("no two believed they led, after an early end of a session: that rule was not tried")
        for isolation in plan.ISOLATIONS:
            if all(each.isolation != isolation for each in history.acknowledged):
                found.append(f"no write was acknowledged under {isolation}")
            if all(each.isolation != isolation for each in history.refused):
                found.append(f"no stale write was refused under {isolation}")
    return found
