"""What was measured, against its targets: values only, and how they are printed."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Target:
    """One thing that was promised.

    Attributes:
        text: the promise, as "median < 6".
        met: whether it was kept.
        measured: what to compare with it, where no other column of the row says so.
    """

    text: str
    met: bool
    measured: str = ""


@dataclass(frozen=True, slots=True)
class Timing:
    """The times of one scenario, in seconds."""

    name: str
    times_s: tuple[float, ...]
    targets: tuple[Target, ...] = ()
    floor_s: float | None = None

    @property
    def median_ms(self) -> float:
        """The median."""
        return statistics.median(self.times_s) * 1000

    @property
    def worst_ms(self) -> float:
        """The longest."""
        return max(self.times_s) * 1000

    @property
    def p95_ms(self) -> float:
        """The time that 95 of 100 do not exceed (nearest rank)."""
        return sorted(self.times_s)[math.ceil(0.95 * len(self.times_s)) - 1] * 1000

    @property
    def floors(self) -> float | None:
        """The median in floors of the same run."""
        return self.median_ms / (self.floor_s * 1000) if self.floor_s else None

    def as_json(self) -> dict[str, Any]:
        """Give all of it."""
        return {
            "name": self.name,
            "n": len(self.times_s),
            "min_ms": min(self.times_s) * 1000,
            "median_ms": self.median_ms,
            "p95_ms": self.p95_ms,
            "worst_ms": self.worst_ms,
            "times_floor": self.floors,
            "times_ms": [t * 1000 for t in self.times_s],
            "targets": [target_json(t) for t in self.targets],
        }


@dataclass(frozen=True, slots=True)
class Counts:
    """What was counted in the steady state."""

    name: str
    targets: tuple[Target, ...]
    raw: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Give all of it."""
        return {"name": self.name, **self.raw, "targets": [target_json(t) for t in self.targets]}


def target_json(target: Target) -> dict[str, Any]:
    """Give a target."""
    return {"target": target.text, "measured": target.measured or None, "met": target.met}


_HEAD = f"{'milliseconds':<44}{'n':>4}{'min':>9}{'median':>9}{'p95':>9}{'worst':>9}{'x floor':>9}   {'target':<37}met"


def table(found: Sequence[Timing | Counts]) -> str:
    """Render the results, a line for each target."""
    lines = [_HEAD, "-" * len(_HEAD)] if any(isinstance(each, Timing) for each in found) else []
    for each in found:
        if isinstance(each, Timing):
            lines += _timing_lines(each)
        else:
            lines += ["", *_counts_lines(each)]
    return "\n".join(lines)


def _timing_lines(timing: Timing) -> list[str]:
    floors = f"{timing.floors:>9.1f}" if timing.floors is not None else " " * 9
    numbers = (min(timing.times_s) * 1000, timing.median_ms, timing.p95_ms, timing.worst_ms)
    row = f"{timing.name:<44}{len(timing.times_s):>4}{''.join(f'{n:>9.2f}' for n in numbers)}{floors}"
    if not timing.targets:
        return [row]
    rows = [row] + [" " * len(row)] * (len(timing.targets) - 1)
    return [f"{left}   {_told(target):<37}{_yes(target)}" for left, target in zip(rows, timing.targets, strict=True)]


def _counts_lines(counts: Counts) -> list[str]:
    return [counts.name] + [f"  {t.measured:<60}{t.text:<73}{_yes(t)}" for t in counts.targets]


def _told(target: Target) -> str:
    return f"{target.text}: {target.measured}" if target.measured else target.text


def _yes(target: Target) -> str:
    return "yes" if target.met else "NO"


def missed(found: Sequence[Timing | Counts]) -> int:
    """Count the targets that were missed."""
    return sum(not target.met for each in found for target in each.targets)
