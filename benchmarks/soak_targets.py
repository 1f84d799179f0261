"""What the soak must find: nothing more than before, and memory that stays level. Values only."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from benchmarks.measure import Counts, Target
from benchmarks.soak_phases import STOPS_WITHIN_S

if TYPE_CHECKING:
    from benchmarks.footprint import Holdings, Memory
    from benchmarks.soak_phases import Tally

TRACED_PER_CYCLE, TRACED_SLACK = 500, 40_000
"""Bytes: half of a leak of one object of a kilobyte in each cycle; and free lists that fill up, once."""
OBJECTS_PER_CYCLE, OBJECTS_SLACK = 0.25, 200
"""A lock, a term or a task that stays is several objects that the garbage collector knows."""
RSS_PER_CYCLE, RSS_SLACK = 2_000, 1_500_000
"""Bytes. The system's view is coarse: allocators keep what they have. It is there for what C libraries leak."""
DESCRIPTORS_SLACK = 3
"""A connection may just be made anew when the others are counted."""


@dataclass(frozen=True, slots=True)
class Found:
    """What one phase left.

    Attributes:
        cycles: after the warm-up.
        half: how many of them are the second half.
        weights: after the warm-up, after the first half, at the end.
        complaints: of the event loop and the garbage collector.
        more: kinds of objects of which there are more at the end than after the warm-up, and modules.
    """

    name: str
    cycles: int
    half: int
    took_s: float
    before: Holdings
    after: Holdings
    weights: tuple[Memory, Memory, Memory]
    tally: Tally
    complaints: tuple[str, ...]
    more: dict[str, int] = field(default_factory=dict)


def judge(found: Found) -> Counts:
    """Hold what was found against what is allowed."""
    more = found.after.more_than(found.before)
    held = asdict(found.after)
    tally = found.tally
    targets = [
        Target("no more than before", not more, _listed(more, "more: ") or _listed(held, "")),
        _level(found, "traced", "traced, kB", 1e3, TRACED_SLACK + TRACED_PER_CYCLE * found.half),
        _level(found, "objects", "objects", 1, OBJECTS_SLACK + OBJECTS_PER_CYCLE * found.half),
        _level(found, "rss", "resident, MB", 1e6, RSS_SLACK + RSS_PER_CYCLE * found.half),
        _level(found, "descriptors", "descriptors while running", 1, DESCRIPTORS_SLACK),
        Target("paired", tally.begun == tally.ended, f"terms begun: {tally.begun}, ended: {tally.ended}"),
        Target("none", not found.complaints, f"complaints: {len(found.complaints)} {' '.join(found.complaints)[:200]}"),
    ]
    if tally.stops:
        targets += [
            Target(
                f"all within {STOPS_WITHIN_S:g} s",
                tally.late == 0,
                f"stops: {tally.stops}, late: {tally.late}, the longest took {tally.worst_stop_s:.3f} s",
            ),
            Target(
                "all heeded",
                tally.swallowed == 0,
                f"cancels: {tally.cancels}, {tally.starts_cancelled} of them of starts, swallowed: {tally.swallowed}",
            ),
        ]
    lost = f", {tally.sessions_lost} sessions lost" if tally.sessions_lost else ""
    title = f"{found.name}: {found.cycles} cycles{lost}, {found.took_s:.1f} s"
    if not all(target.met for target in targets):
        title += f"\n  more than after the warm-up: {', '.join(f'{n} {kind}' for kind, n in found.more.items())}"
    return Counts(title, tuple(targets), asdict(found))


def _level(found: Found, what: str, name: str, unit: float, most: float) -> Target:
    first, middle, end = (getattr(weight, what) for weight in found.weights)
    digits = 0 if unit == 1 else 1
    halves = f"{(middle - first) / unit:+.{digits}f}, then {(end - middle) / unit:+.{digits}f}"
    text = f"{name}: {first / unit:.{digits}f} {halves}"
    added = end - max(first, middle)  # what happens to be low in the middle does not count against the end
    return Target(f"second half <= {most / unit:.{digits}f}", added <= most, text)


def _listed(numbers: dict[str, int], lead: str) -> str:
    return lead + ", ".join(f"{name} {number}" for name, number in numbers.items()) if numbers else ""
