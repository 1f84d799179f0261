"""What is printed in the end, and what is written as JSON: plain text from one history."""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from benchmarks.chaos import checker, plan
from benchmarks.chaos.allowance import BESIDE, SLACK_S, Allowances
from benchmarks.chaos.belief import all_spans, gaps, overlaps
from benchmarks.chaos.checks_leading import takeovers
from benchmarks.chaos.faults import KINDS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.chaos.history import Fault, History
    from benchmarks.chaos.violation import Violation

_HEAD = f"{'fault':<18}{'n':>5}{'takeovers':>11}{'median':>9}{'p99':>9}{'worst':>9}{'bound':>9}   milliseconds"


def results(history: History) -> dict[str, Any]:
    """Compute all that is shown, as plain values. Times are milliseconds."""
    allowances = Allowances(history)
    times: dict[str, list[float]] = {}
    for fault, _, took_s in takeovers(history):
        times.setdefault(fault.kind, []).append(took_s * 1000)
    return {
        "about": history.about,
        "happened": checker.happened(history),
        "faults": [_kind(kind, history, allowances, times) for kind in KINDS],
        "all_faults": _summary("all", history.faults, allowances, [each for took in times.values() for each in took]),
        "longest_without_leader": _longest(history, allowances),
        "acknowledged": {each: sum(w.isolation == each for w in history.acknowledged) for each in plan.ISOLATIONS},
        "refused": {each: sum(w.isolation == each for w in history.refused) for each in plan.ISOLATIONS},
        "stubborn_refused": sum(write.stubborn for write in history.refused),
        "overlaps": _overlaps(history),
        "thwarted": history.thwarted,
        "busy_ms": history.stalled_s(history.begin, history.end) * 1000,
        "lasted_ms": (history.end - history.begin) * 1000,
        "shortfalls": checker.shortfalls(history),
        "violations": [asdict(each) for each in checker.violations(history)],
    }


def _kind(kind: str, history: History, allowances: Allowances, times: dict[str, list[float]]) -> dict[str, Any]:
    faults = [fault for fault in history.faults if fault.kind == kind]
    return _summary(kind, faults, allowances, times.get(kind, []))


def _summary(kind: str, faults: Sequence[Fault], allowances: Allowances, times: list[float]) -> dict[str, Any]:
    took = sorted(times)
    return {
        "kind": kind,
        "n": sum(not fault.thwarted for fault in faults),
        "takeovers": len(took),
        "median_ms": statistics.median(took) if took else None,
        "p99_ms": took[math.ceil(0.99 * len(took)) - 1] if took else None,
        "worst_ms": took[-1] if took else None,
        "bound_ms": max((_bound_ms(fault, allowances) for fault in faults), default=None),
    }


def _bound_ms(fault: Fault, allowances: Allowances) -> float:
    return (allowances.deadline(fault) - fault.begun) * 1000


def _longest(history: History, allowances: Allowances) -> dict[str, Any] | None:
    found = gaps(all_spans(history), history.end)
    if not found:
        return None
    since, until = max(found, key=lambda gap: gap[1] - gap[0])
    before = [fault.kind for fault in history.faults if fault.begun <= since + 0.1 and fault.kind not in BESIDE]
    return {
        "ms": (until - since) * 1000,
        "bound_ms": (allowances.limit(since, until) - since) * 1000,
        "after": before[-1] if before else None,
    }


def _overlaps(history: History) -> dict[str, Any]:
    found = overlaps(all_spans(history))
    windows = [process.bounds["overlap_session"] for process in history.processes]
    return {
        "n": len(found),
        "longest_ms": max((both.until - both.since for both in found), default=0.0) * 1000,
        "bound_ms": max(windows, default=0.0) * 1000,
    }


def table(found: dict[str, Any]) -> str:
    """Render it."""
    lines = [_HEAD, "-" * len(_HEAD)]
    for each in (*found["faults"], found["all_faults"]):
        numbers = (
            each["median_ms"],
            each["p99_ms"],
            each["worst_ms"],
            None if each["kind"] in BESIDE else each["bound_ms"],
        )
        columns = "".join(f"{'-' if number is None else round(number):>9}" for number in numbers)
        if each is found["all_faults"]:  # at the number of faults of one kind, its p99 is hardly more than its worst
            lines.append("-" * len(_HEAD))
        lines.append(f"{each['kind']:<18}{each['n']:>5}{each['takeovers']:>11}{columns}")
    counts, overlap, longest = found["happened"], found["overlaps"], found["longest_without_leader"]
    lines.append("")
    lines.append(
        _line("faults", counts["faults"], f"{found['thwarted']} more were thwarted by another one, and do not count")
    )
    lines.append(_line("terms", counts["terms"]))
    if longest is not None:
        lines.append(
            _line(
                "longest without a leader",
                f"{longest['ms']:.0f} ms",
                f"bound {longest['bound_ms']:.0f} ms, after '{longest['after']}'; {SLACK_S * 1000:.0f} ms of it for "
                "a busy machine",
            )
        )
    lines.append(
        _line(
            "two believed they led",
            f"{overlap['n']} times",
            f"longest {overlap['longest_ms']:.0f} ms, bound {overlap['bound_ms']:.0f} ms, and only after the server "
            "ended a session early",
        )
    )
    lines.append(_line("terms of partitions", counts["terms of partitions"], "of the group that the replicas form"))
    lines.append(_line("acknowledged writes", counts["acknowledged writes"], _each(found["acknowledged"])))
    lines.append(_line("  lost by a promotion", counts["acknowledged writes lost by a promotion"], "as documented"))
    lines.append(
        _line(
            "stale writes refused",
            counts["stale writes refused"],
            f"{_each(found['refused'])}; {found['stubborn_refused']} of stubborn writers, the rest of believers",
        )
    )
    lines.append(
        _line(
            "machine too busy",
            f"{found['busy_ms']:.0f} ms",
            f"of {found['lasted_ms']:.0f} ms; failover may be late then",
        )
    )
    lines.append(_line("violations", len(found["violations"])))
    return "\n".join(lines)


def _each(counts: dict[str, int]) -> str:
    return ", ".join(f"{number} {name.replace('_', ' ').lower()}" for name, number in counts.items())


def _line(name: str, value: object, more: str = "") -> str:
    return f"{name:<28}{value!s:>10}" + (f"   {more}" if more else "")


def accusation(violation: Violation, begin: float, seed: int, kept: Path) -> str:
    """Say all about one violation."""
    when = f"{violation.at - begin:.3f} s from the beginning" if violation.at is not None else "seen in the end"
    who = ", ".join(violation.processes) or "nobody in particular"
    return (
        f"VIOLATION: {violation.rule}\n  {violation.what}\n  when: {when}\n  processes: {who}\n"
        f"  seed: {seed}\n  history: {kept}"
    )
