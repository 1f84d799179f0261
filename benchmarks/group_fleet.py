"""The members of the benchmark's group, and who led what when, put together from what each has reported."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from benchmarks.process import STARTS_WITHIN_S, Child, DidNotHappenError, python

if TYPE_CHECKING:
    from types import TracebackType

KEY1 = 71
_POLL_S = 0.005


@dataclass(frozen=True, slots=True)
class Settings:
    """Of every member; durations in seconds."""

    partitions: int
    lease_s: float
    health_interval_s: float
    rebalance_interval_s: float


@dataclass(slots=True)
class Span:
    """A partition was led by a member from one instant to another, by the machine's clock."""

    member: str
    began_at: float
    ended_at: float | None = None


@dataclass(slots=True)
class History:
    """Who led what when."""

    spans: dict[int, list[Span]] = field(default_factory=dict)

    def led_at(self, at: float) -> dict[int, str]:
        """Who led which partition at an instant; the latest where two said so."""
        found: dict[int, str] = {}
        for partition, spans in self.spans.items():
            for span in spans:
                if span.began_at <= at and (span.ended_at is None or at < span.ended_at):
                    found[partition] = span.member
        return found

    def led_again_at(self, partition: int, after: float) -> float | None:
        """When a partition was led anew after an instant."""
        times = [span.began_at for span in self.spans.get(partition, []) if span.began_at > after]
        return min(times, default=None)


class Fleet:
    """All members."""

    def __init__(self, dsn: str, settings: Settings) -> None:
        self.dsn = dsn
        self.settings = settings
        self.running: dict[str, Child] = {}
        self._dead: dict[str, tuple[Child, float]] = {}  # when it was killed
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in (*self.running.values(), *(child for child, _ in self._dead.values())):
            child.close()

    def prepare(self, number: int) -> list[str]:
        """Start so many processes, which wait for a word; their names."""
        names = []
        for _ in range(number):
            name = f"m{self._number}"
            self._number += 1
            s = self.settings
            options = {
                "dsn": self.dsn,
                "name": name,
                "key": KEY1,
                "partitions": s.partitions,
                "lease": s.lease_s,
                "health": s.health_interval_s,
                "rebalance": s.rebalance_interval_s,
            }
            flags = [f"--{option}={value}" for option, value in options.items()]
            self.running[name] = Child(name, python("benchmarks.group_member", *flags))
            names.append(name)
        for name in names:
            self.running[name].wait_for("ready", within_s=STARTS_WITHIN_S)
        return names

    def go(self, names: list[str]) -> float:
        """Have these join, all at once; return when."""
        at = time.monotonic()
        for name in names:
            self.running[name].tell("go")
        return at

    def kill(self, name: str) -> float:
        """Kill one with SIGKILL; return when."""
        child = self.running.pop(name)
        at = child.signal(9)
        self._dead[name] = child, at
        return at

    def history(self) -> History:
        """Put together what was reported so far."""
        history = History()
        ends = {name: at for name, (_, at) in self._dead.items()}
        for name, child in (*self.running.items(), *((name, child) for name, (child, _) in self._dead.items())):
            for event in child.events("changed"):
                for partition, led, at in event["changes"]:
                    spans = history.spans.setdefault(partition, [])
                    if led:
                        spans.append(Span(name, at))
                    else:
                        span = next(one for one in reversed(spans) if one.member == name and one.ended_at is None)
                        span.ended_at = at
            if name in ends:
                for spans in history.spans.values():
                    for span in spans:
                        if span.member == name and span.ended_at is None:
                            span.ended_at = ends[name]
        return history

    def until_balanced(self, since: float, within_s: float) -> float:
        """Wait until every partition is led and nobody has more than its share; return since when.

        Raises:
            DidNotHappenError: not within that time.
        """
        deadline = time.monotonic() + within_s
        while True:
            time.sleep(_POLL_S)
            history = self.history()
            led = history.led_at(time.monotonic())
            if self.is_balanced(led):
                return self._since_when(history, since)
            if time.monotonic() > deadline:
                break
        counts = {name: sum(holder == name for holder in led.values()) for name in self.running}
        raise DidNotHappenError(f"not balanced within {within_s:g} s: {counts}, {len(led)} led")

    def is_balanced(self, led: dict[int, str]) -> bool:
        """Whether every partition is led, and nobody has more than its share."""
        share = -(-self.settings.partitions // len(self.running))
        counts = dict.fromkeys(self.running, 0)
        for name in led.values():
            if name not in counts:
                return False
            counts[name] += 1
        return len(led) == self.settings.partitions and max(counts.values()) <= share

    def _since_when(self, history: History, since: float) -> float:
        """Find the last change: from then on it is as it is now."""
        times = [span.began_at for spans in history.spans.values() for span in spans]
        times += [span.ended_at for spans in history.spans.values() for span in spans if span.ended_at is not None]
        return max([since, *times])
