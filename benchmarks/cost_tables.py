"""What the benchmark of cost found, beside its targets and as tables."""

from __future__ import annotations

from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.measure import Counts, Target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.cost_followers import Point
    from benchmarks.cost_sizes import Size
    from benchmarks.cost_systems import Costs

WAITING_PER_S = 20.0
CRASH_TIMES = 2.0
DEATHS_WITHIN_S = 2.0
_INFORMATION = "for information"

UNITS = """\
round trips are counted on the wire: what a client sends first after the server has sent something
conns: connections that are open; new: made in the window
CPU in milliseconds for each second; server: the whole of it, with what it does when nobody is connected
memory in MB; where processes share pages, each is given its part (PSS), except for the column RSS"""


def judged_followers(points: Sequence[Point]) -> Counts:
    """Put what waiting costs beside its targets."""
    targets = []
    most = max(points, key=lambda point: point.all_followers.trips_per_s)
    trips = most.all_followers.trips_per_s
    said = f"round trips/s of all followers, with {most.followers}: {trips:.1f}"
    targets.append(Target(f"< {WAITING_PER_S:g}, however many wait", trips < WAITING_PER_S, said))
    few, many = points[0], points[-1]
    if few.crash_s and many.crash_s and few is not many:
        times = median(many.crash_s) / median(few.crash_s)
        said = f"crash with {many.followers} followers, in times of that with {few.followers}: {times:.2f}"
        targets.append(Target(f"<= {CRASH_TIMES:g}, by medians", times <= CRASH_TIMES, said))
    deaths = [(deaths, point) for point in points for deaths in point.deaths]
    if deaths:
        worst, point = max(deaths, key=lambda pair: pair[0].leader_s)
        said = f"{worst.died} of {point.followers + 1} die at once, a leader after: {worst.leader_s:.3f} s"
        targets.append(Target(f"< {DEATHS_WITHIN_S:g} s, the worst", worst.leader_s < DEATHS_WITHIN_S, said))
    return Counts("followers on one key", tuple(targets), {"series": [asdict(point) for point in points]})


def judged_systems(found: Sequence[Costs]) -> Counts:
    """Sum up one leader and one follower."""
    targets = [
        Target(
            _INFORMATION,
            True,
            f"{one.system}: leader {one.alone.trips_per_s:.2f}/s, {_role(one)} {one.second.trips_per_s:.2f}/s",
        )
        for one in found
    ]
    return Counts("one leader and one follower", tuple(targets), {"series": [asdict(one) for one in found]})


def judged_sizes(name: str, unit: str, found: Sequence[Size]) -> Counts:
    """Sum up what a process costs that leads the most."""
    most = found[-1]
    said = f"{most.number} {unit}: {most.usage.trips_per_s:.1f} round trips/s, led after {most.started_s:.2f} s"
    return Counts(name, (Target(_INFORMATION, True, said),), {"series": [asdict(one) for one in found]})


def show_followers(points: Sequence[Point]) -> str:
    """Render the series by the number of followers."""
    steady = _table(
        "followers on one key, all together",
        ("followers", "trips/s", "peak", "conns", "new", "client CPU", "server CPU", "WAL B/s", "MB each", "in queue"),
        [
            (
                f"{one.followers}",
                f"{one.all_followers.trips_per_s:.1f}",
                f"{one.all_followers.peak_per_s:.0f}",
                f"{one.all_followers.connections}",
                f"{one.all_followers.connects}",
                f"{one.all_followers.client_ms_per_s:.1f}",
                f"{one.server_ms_per_s:.1f}",
                f"{one.written_per_s:.0f}",
                f"{one.all_followers.sessions.pss / one.followers:.1f}",
                f"{one.waited}",
            )
            for one in points
        ],
    )
    moves = _table(
        "until somebody leads, in ms",
        ("followers", "crashes", "min", "median", "worst", "died at once", "of queue", "median", "worst"),
        [
            (
                f"{one.followers}",
                f"{len(one.crash_s)}",
                *_times(one.crash_s, least=True),
                _range([deaths.died for deaths in one.deaths]),
                _range([deaths.waited for deaths in one.deaths]),
                *_times([deaths.leader_s for deaths in one.deaths]),
            )
            for one in points
        ],
    )
    return f"{steady}\n\n{moves}"


def show_systems(found: Sequence[Costs]) -> str:
    """Render a line for each leader and each follower."""
    rows = []
    for one in found:
        alone, both = one.written_alone_per_s, one.written_both_per_s
        more = None if alone is None or both is None else both - alone
        added = max(0.0, one.server_both_ms_per_s - one.server_alone_ms_per_s)
        for role, usage, server, written in (
            ("leader", one.alone, one.server_alone_ms_per_s, alone),
            (_role(one), one.second, added, more),
        ):
            rows.append(
                (
                    one.system if role == "leader" else "",
                    role,
                    f"{usage.trips_per_s:.2f}",
                    f"{usage.connections}",
                    f"{usage.connects}",
                    f"{usage.client_ms_per_s:.2f}",
                    f"{usage.session_ms_per_s:.2f}" if usage.sessions.pss else "-",
                    f"{server:.2f}",
                    "-" if written is None else f"{written:.0f}",
                    f"{usage.client.rss:.1f}",
                    f"{usage.client.pss:.1f}",
                    f"{usage.sessions.pss:.1f}" if usage.sessions.pss else "-",
                )
            )
    head = ("system", "", "trips/s", "conns", "new", "client CPU", "session CPU", "server CPU", "log B/s")
    return _table("one leader, and one process more", (*head, "client RSS", "client MB", "session MB"), rows, left=2)


def show_sizes(name: str, unit: str, found: Sequence[Size]) -> str:
    """Render the series by the number of locks or partitions."""
    watched = any(one.late_s for one in found)
    rows = []
    for one in found:
        row = (
            f"{one.number}",
            f"{one.started_s:.2f}",
            f"{one.usage.trips_per_s:.2f}",
            f"{one.usage.connections}",
            f"{one.usage.client_ms_per_s:.2f}",
            f"{one.server_ms_per_s:.2f}",
            f"{one.written_per_s:.0f}",
            f"{one.usage.client.rss:.1f}",
            f"{one.usage.client.pss:.1f}",
            f"{one.usage.sessions.pss:.1f}",
        )
        late = (f"{median(one.late_s) * 1000:.2f}", f"{max(one.late_s) * 1000:.1f}") if one.late_s else ("-", "-")
        rows.append((*row, *late) if watched else row)
    head = [unit, "led after s", "trips/s", "conns", "client CPU", "server CPU", "WAL B/s"]
    head += ["client RSS", "client MB", "sessions MB"]
    return _table(name, [*head, "loop late ms", "worst"] if watched else head, rows)


def _role(one: Costs) -> str:
    return "second, leads" if one.second_leads else "follower"


def _times(times_s: Sequence[float], *, least: bool = False) -> tuple[str, ...]:
    if not times_s:
        return ("-",) * (3 if least else 2)
    told = ((min(times_s),) if least else ()) + (median(times_s), max(times_s))
    return tuple(f"{each * 1000:.1f}" for each in told)


def _range(numbers: Sequence[int]) -> str:
    if not numbers:
        return "-"
    return f"{min(numbers)}" if min(numbers) == max(numbers) else f"{min(numbers)} to {max(numbers)}"


def _table(name: str, head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 0) -> str:
    """Align columns: the first ``left`` to the left, numbers to the right."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = [
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    return "\n".join([name, line(head), "-" * len(line(head)), *map(line, rows)])
