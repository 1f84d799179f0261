"""The plots of the page of results. Readable on a white page and on a dark one: each is a light card of its own.

The colours are those of Okabe and Ito, which colour-blind people can tell apart; marks differ as well.
"""

from __future__ import annotations

import random
from statistics import median
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.patheffects import withStroke

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Run = Mapping[str, Any]

mpl.use("Agg")

_COLOURS = ("#0072B2", "#56B4E9", "#E69F00", "#D55E00", "#CC79A7", "#009E73")
_FLOOR = "#6b6b6b"
_CARD, _INK, _LINES = "#fbfbf9", "#222222", "#d8d8d4"
_MARKS = "osD^vP"
_STYLE: dict[Any, Any] = {
    "figure.facecolor": _CARD,
    "axes.facecolor": _CARD,
    "savefig.facecolor": _CARD,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "grid.color": _LINES,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 10,
    "svg.hashsalt": "pgelect",
}
_DPI = 130
_SCENARIOS = {
    "crash": "killed",
    "step-down": "gives up cleanly",
    "stopped": "stopped (SIGSTOP)",
    "frozen": "link frozen",
    "terminated": "session ended by the server",
}


def draw(found: Mapping[str, Run], into: Path) -> dict[str, list[str]]:
    """Draw what there is data for; return the names of the plots by that of the run."""
    drawn: dict[str, list[str]] = {}
    random.seed(1)  # of the jitter: the same plot each time
    with mpl.rc_context(_STYLE):
        for run, plot, figure in (
            ("peers", "failover", _failover),
            ("peers", "faults", _faults),
            ("cost", "followers", _followers),
            ("fence", "fence", _fence),
        ):
            if run in found:
                made = figure(found[run])
                made.savefig(into / f"{plot}.png", dpi=_DPI, metadata={"Software": None})
                plt.close(made)
                drawn.setdefault(run, []).append(plot)
    return drawn


def _takeovers(run: Run, scenario: str) -> list[Run]:
    return [one for one in run["results"] if (one["scenario"], one["figure"]) == (scenario, "takeover")]


def _looks(run: Run) -> dict[str, tuple[str, str]]:
    """Give each system its colour and its mark."""
    systems = [name for name in dict.fromkeys(one["system"] for one in run["results"]) if name != "floor"]
    looks = {name: (_COLOURS[i % len(_COLOURS)], _MARKS[i % len(_MARKS)]) for i, name in enumerate(systems)}
    return {"floor": (_FLOOR, "|"), **looks}


def _failover(run: Run) -> Figure:
    """Draw every crash of every elector."""
    rows, looks = _takeovers(run, "crash"), _looks(run)
    figure: Figure
    figure, axes = plt.subplots(figsize=(9, 0.42 * len(rows) + 1.4), layout="constrained")
    for y, row in enumerate(reversed(rows)):
        colour, mark = looks[row["system"]]
        _dots(axes, y, row["times"], colour, mark)
    labels = [row["system"] if row["system"] == "floor" else f"{row['system']}, {row['settings']}" for row in rows]
    axes.set_yticks(range(len(rows)), list(reversed(labels)))
    axes.set_ylim(-0.7, len(rows) - 0.3)
    axes.set_title("A leader is killed: time until another leads", loc="left", fontweight="bold")
    _milliseconds(axes)
    return figure


def _dots(axes: Axes, y: float, times: Run | None, colour: str, mark: str) -> None:
    if times is None:
        return
    seen = [each for each in times["times_ms"] if each is not None]
    heights = [y + random.uniform(-0.18, 0.18) for _ in seen]
    axes.scatter(seen, heights, s=16, color=colour, marker=mark, alpha=0.6, linewidths=1)
    if times["median_ms"] is not None:
        axes.plot([times["median_ms"]] * 2, [y - 0.32, y + 0.32], color=_INK, linewidth=1.6)
    if times["not_within"]:
        _never(axes, y, times, colour)


def _never(axes: Axes, y: float, times: Run, colour: str) -> None:
    at = times["watched_s"] * 1000
    axes.scatter([at], [y], s=46, color=colour, marker=">")
    axes.annotate(f" not within {times['watched_s']:.0f} s", (at, y), va="center", fontsize=8)


def _faults(run: Run) -> Figure:
    """Draw medians and ranges, with the fast settings, by kind of fault."""
    looks = _looks(run)
    systems = list(looks)
    figure: Figure
    figure, all_axes = plt.subplots(
        len(_SCENARIOS), 1, figsize=(9, 8.6), sharex=True, layout="constrained", gridspec_kw={"hspace": 0.08}
    )
    for axes, (scenario, title) in zip(all_axes, _SCENARIOS.items(), strict=True):
        rows = {r["system"]: r for r in _takeovers(run, scenario) if r["settings"] == "fast" or r["system"] == "floor"}
        for y, system in enumerate(reversed(systems)):
            times = rows[system]["times"] if system in rows else None
            colour, mark = looks[system]
            if times is None:
                notes = rows[system]["notes"] if system in rows else []
                said = " ".join(notes) or "not measured"
                axes.text(0.01, y, said, transform=axes.get_yaxis_transform(), va="center", fontsize=8, color=_FLOOR)
            elif times["median_ms"] is None:
                _never(axes, y, times, colour)
            else:
                worst = max(each for each in times["times_ms"] if each is not None)
                axes.plot([times["min_ms"], worst], [y, y], color=colour, linewidth=2.2, alpha=0.6)
                axes.scatter([times["median_ms"]], [y], s=40, color=colour, marker=mark, zorder=3)
        axes.set_yticks(range(len(systems)), list(reversed(systems)), fontsize=8.5)
        axes.set_ylim(-0.7, len(systems) - 0.3)
        axes.set_title(f"The leader: {title}", loc="left", fontsize=10, fontweight="bold")
        axes.set_xscale("log")
    _milliseconds(all_axes[-1], "until another leads, in milliseconds (log): median, and from the least to the worst")
    return figure


def _followers(run: Run) -> Figure:
    """Draw round trips, and failover, by the number of followers."""
    series = next(one["series"] for one in run["results"] if one["name"] == "followers on one key")
    numbers = [one["followers"] for one in series]
    figure: Figure
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
    trips = [one["all_followers"]["trips_per_s"] for one in series]
    left.plot(numbers, numbers, color=_FLOOR, linestyle=":", label="each asking once a second")
    left.plot(numbers, trips, color=_COLOURS[0], marker="o", label="all followers together")
    left.axhline(20, color=_COLOURS[3], linestyle="--", linewidth=1.2, label="the limit: 20")
    left.set_ylabel("round trips a second (log)")
    left.set_title("Waiting", loc="left", fontweight="bold")
    for key, label, colour, mark in (
        ("crash_s", "the leader is killed", _COLOURS[0], "o"),
        ("deaths", "with all who wait in the queue", _COLOURS[2], "s"),
    ):
        points = [(one["followers"], _seconds(one[key])) for one in series if one[key]]
        xs = [number for number, _ in points]
        right.plot(xs, [median(each) * 1000 for _, each in points], color=colour, marker=mark, label=label)
        least, worst = ([end(each) * 1000 for _, each in points] for end in (min, max))
        right.fill_between(xs, least, worst, color=colour, alpha=0.18, linewidth=0)
    right.set_ylabel("until another leads, ms (log)")
    right.set_title("Failover: median, and the range", loc="left", fontweight="bold")
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(numbers, [str(number) for number in numbers])
        axes.minorticks_off()
        axes.set_xlabel("followers of one lock (log)")
        axes.legend(fontsize=8.5, frameon=False)
    return figure


def _seconds(given: Sequence[Any]) -> list[float]:
    return [each["leader_s"] if isinstance(each, dict) else each for each in given]


def _fence(run: Run) -> Figure:
    """Draw the rate of each way of writing beside the bare one of its kind."""
    (costs,) = (one["costs"] for one in run["results"] if "costs" in one)
    ways = [way for way in dict.fromkeys(one["way"] for one in costs) if not way.endswith("bare")]
    connections = sorted({one["connections"] for one in costs})
    figure: Figure
    figure, axes = plt.subplots(figsize=(9, 3.8), layout="constrained")
    width = 0.8 / len(ways)
    for i, way in enumerate(ways):
        shares = {one["connections"]: one["share"] for one in costs if one["way"] == way}
        xs = [x + (i - (len(ways) - 1) / 2) * width for x in range(len(connections))]
        bars = axes.bar(xs, [shares[number] for number in connections], width * 0.92, label=way)
        for bar in bars:
            bar.set_color(_COLOURS[i % len(_COLOURS)])
        labels = axes.bar_label(bars, fmt="%.2f", fontsize=8, zorder=4)
        plt.setp(labels, path_effects=[withStroke(linewidth=3, foreground=_CARD)])  # the line at 1 crosses some
    axes.axhline(1, color=_INK, linewidth=1, zorder=3)
    axes.set_xticks(range(len(connections)), [f"{n} connection{'s' * (n > 1)}" for n in connections])
    axes.grid(visible=False, axis="x")
    axes.set_ylabel("transactions a second, beside bare")
    axes.set_title("One insert, fenced: share of the bare rate", loc="left", fontweight="bold")
    axes.legend(fontsize=8.5, frameon=False, ncols=2)
    axes.set_ylim(0, 1.35)
    return figure


def _milliseconds(axes: Axes, label: str = "milliseconds (log)") -> None:
    axes.set_xscale("log")
    axes.set_xlabel(label)
    axes.grid(visible=False, axis="y")
