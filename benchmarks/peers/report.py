"""What was seen, put together by scenario and system: the numbers, and how they are printed.

What had not happened when watching ended counts as longer than all that had. So a median is "> 10 s" where most of the
rounds did not get there.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from benchmarks.measure import Counts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.peers.beliefs import Length
    from benchmarks.peers.elector import Scenario
    from benchmarks.peers.match import Match, Seen

_HEAD = f"{'milliseconds':<28}{'n':>4}{'min':>9}{'median':>9}{'p95':>9}{'worst':>9}{'x floor':>9}"
_HEAD_BOTH = f"   {'both lead: median':>17}{'worst':>9}"


@dataclass(frozen=True, slots=True)
class Spread:
    """Times of one kind, of which some may not have ended."""

    lengths: tuple[Length, ...]

    @property
    def watched_s(self) -> float:
        """How long those that did not end were watched, at least."""
        return min((each.seconds for each in self.lengths if not each.over), default=math.inf)

    @property
    def least(self) -> float:
        """The shortest, in seconds; infinite where it did not end."""
        return min(self._sorted())

    @property
    def median(self) -> float:
        """The median."""
        return statistics.median(self._sorted())

    @property
    def p95(self) -> float:
        """The time that 95 of 100 do not exceed (nearest rank)."""
        return self._sorted()[math.ceil(0.95 * len(self.lengths)) - 1]

    @property
    def worst(self) -> float:
        """The longest."""
        return max(self._sorted())

    def as_json(self) -> dict[str, Any]:
        """Give all of it; null is what did not end within ``watched_s``."""
        numbers = {"min": self.least, "median": self.median, "p95": self.p95, "worst": self.worst}
        return {
            "n": len(self.lengths),
            **{f"{name}_ms": _json_ms(value) for name, value in numbers.items()},
            "not_within": sum(not each.over for each in self.lengths),
            "watched_s": None if math.isinf(self.watched_s) else self.watched_s,
            "times_ms": [each.seconds * 1000 if each.over else None for each in self.lengths],
        }

    def shown(self, seconds: float) -> str:
        """Render one of its numbers."""
        if math.isinf(seconds):
            return f"> {math.floor(self.watched_s * 10) / 10:.3g} s"
        return f"{seconds * 1000:.2f}" if seconds < 0.1 else f"{seconds * 1000:.0f}"

    def _sorted(self) -> list[float]:
        return sorted(each.seconds if each.over else math.inf for each in self.lengths)


@dataclass(frozen=True, slots=True)
class Kind:
    """A figure of a scenario."""

    scenario: Scenario
    figure: Literal["takeover", "heard"]
    title: str


_KINDS = (
    Kind("crash", "takeover", "crash: the leader is killed (SIGKILL), until another leads"),
    Kind("step-down", "takeover", "step-down: the leader gives up cleanly, until another leads"),
    Kind(
        "stopped",
        "takeover",
        "stopped: the leader is stopped (SIGSTOP), until another leads; both lead: from SIGCONT on",
    ),
    Kind("frozen", "takeover", "frozen: the leader's link forwards nothing any more, until another leads"),
    Kind("terminated", "takeover", "terminated: the server ends the leader's session, until one of the two leads anew"),
    Kind("terminated", "heard", "terminated: the same, until the old leader does not believe any more that it leads"),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One system with one of its settings in one scenario: one figure, and the overlap.

    Attributes:
        floor_s: the median of the floor in the same scenario.
        notes: why there is nothing, or less than one would think.
    """

    kind: Kind
    name: str
    settings: str
    times: Spread
    overlaps: Spread
    floor_s: float | None
    notes: tuple[str, ...]

    @property
    def label(self) -> str:
        """How it is shown."""
        return self.name if self.name == "floor" else f"{self.name} ({self.settings})"

    @property
    def floors(self) -> float | None:
        """The median in floors of the same run."""
        if not self.times.lengths or self.floor_s is None or math.isinf(self.times.median):
            return None
        return self.times.median / self.floor_s

    def found(self) -> Counts:
        """Give all of it, to be told."""
        raw: dict[str, Any] = {
            "scenario": self.kind.scenario,
            "figure": self.kind.figure,
            "system": self.name,
            "settings": self.settings,
            "times_floor": self.floors,
            "times": self.times.as_json() if self.times.lengths else None,
            "overlap": self.overlaps.as_json() if self.overlaps.lengths else None,
            "notes": list(self.notes),
        }
        return Counts(f"{self.kind.title}: {self.name}, {self.settings}", (), raw)

    def line(self) -> str:
        """Render it."""
        times, overlaps = self.times, self.overlaps
        floors = f"{self.floors:.{1 if self.floors < 100 else 0}f}" if self.floors is not None else ""
        numbers = ["-"] * 4
        if times.lengths:
            numbers = [times.shown(each) for each in (times.least, times.median, times.p95, times.worst)]
        line = f"{self.label:<28}{len(times.lengths):>4}{''.join(f'{each:>9}' for each in numbers)}{floors:>9}"
        if overlaps.lengths:
            line += f"   {overlaps.shown(overlaps.median):>17}{overlaps.shown(overlaps.worst):>9}"
        return line.rstrip()


def rows(seen: Sequence[tuple[Match, Seen]], order: Sequence[tuple[str, str]]) -> list[Row]:
    """Put together what belongs together, by scenario; ``order`` names systems and settings, the floor first."""
    made: list[Row] = []
    for kind in _KINDS:
        floor_s: float | None = None
        groups: dict[tuple[str, str], list[Seen]] = {}
        for match, each in sorted(seen, key=lambda pair: pair[0].number):
            if match.scenario == kind.scenario and not (kind.figure == "heard" and match.system.is_floor):
                groups.setdefault((match.system.name, match.settings.name), []).append(each)
        for name, settings in sorted(groups, key=order.index):
            these = groups[name, settings]
            times = Spread(tuple(length for each in these if (length := getattr(each, kind.figure)) is not None))
            if name == "floor" and times.lengths:
                floor_s = times.median
            both = [each.overlap for each in these if each.overlap is not None and kind.figure == "takeover"]
            made.append(Row(kind, name, settings, times, Spread(tuple(both)), floor_s, _notes(kind, these)))
    return made


def _notes(kind: Kind, these: list[Seen]) -> tuple[str, ...]:
    notes = [reason for reason, _ in Counter(each.reason for each in these if each.reason).most_common()]
    if kept := sum(not each.reason and each.takeover is None for each in these):
        notes.append(f"the leader kept the lead: {kept} of {len(these)}")
    if (itself := sum(each.by_itself for each in these)) and kind.figure == "takeover":
        notes.append(f"the old leader led anew itself: {itself} of {len(these)}")
    return tuple(notes)


def table(made: Sequence[Row]) -> str:
    """Render all of it."""
    lines: list[str] = []
    for title in dict.fromkeys(row.kind.title for row in made):
        these = [row for row in made if row.kind.title == title]
        head = _HEAD + _HEAD_BOTH * any(row.overlaps.lengths for row in these)
        lines += ["", title, "", head, "-" * len(head), *(row.line() for row in these)]
        lines += [f"  {row.label}: {_brief(note)}" for row in these for note in row.notes]
    return "\n".join(lines[1:])


def _brief(note: str) -> str:
    """Leave out the middle of a traceback; the JSON has all of it."""
    lines = note.splitlines()
    return note if len(lines) == 1 else f"{lines[0]} ... {lines[-1]}"


def _json_ms(seconds: float) -> float | None:
    return None if math.isinf(seconds) else seconds * 1000
