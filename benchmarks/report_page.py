"""The page of the last runs, in Markdown: what was called and where, the plots, and what each run printed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Run = Mapping[str, Any]
    Plots = Mapping[str, Sequence[str]]

SUMMARY_BEGINS, SUMMARY_ENDS = "<!-- summary -->", "<!-- /summary -->"
"""Around the table that the README shows, too."""

_ABOUT = {
    "peers": (
        "Failover beside other electors",
        """\
The same faults for all of them, on one server, in turns. *both lead*: for how long two processes at once had reason to
believe that they lead. *fast*: the shortest lease or interval that each of them works with.""",
    ),
    "failover": ("Failover", "Beside a floor: what the server and a bare connection need without any library."),
    "cost": ("What leading and waiting cost", "And how that grows with the number of followers, locks and partitions."),
    "fence": ("What a fence costs", "A transaction of one insert, bare and fenced; each share is taken turn by turn."),
    "startup": ("Import and start", ""),
    "group": ("A group of partitions", ""),
}
_PICTURES = {
    "failover": "time from the death of a leader until another leads, by elector",
    "faults": "time until another leads, by kind of fault and by elector",
    "followers": "round trips and failover by the number of followers",
    "fence": "rate of fenced transactions beside bare ones",
}
_SCENARIOS = {"crash": "crash", "step-down": "handover", "stopped": "stopped", "frozen": "link frozen"}
_UNSAID = frozenset({"results", "printed", "command", "seconds"})


def page(found: Mapping[str, Run], plots: Plots) -> str:
    """Render it."""
    lines = [
        "# Results",
        "",
        "Made by `python -m benchmarks.report` of the runs named here, and of nothing else. The machine is shared and",
        "noisy: compare what stands in one table, and trust ratios and medians more than single numbers.",
    ]
    for name, run in found.items():
        title, about = _ABOUT[name]
        lines += ["", f"## {title}", ""]
        if about:
            lines += [about, ""]
        lines += ["```sh", run["command"], "```", "", _where(run), ""]
        if name == "peers":
            lines += [SUMMARY_BEGINS, *summary(run), SUMMARY_ENDS, ""]
        for plot in plots.get(name, ()):
            lines += [f"![{_PICTURES[plot]}](results/{plot}.png)", ""]
        lines += ["```text", run["printed"].strip("\n"), "```"]
    return "\n".join(lines) + "\n"


def summary(run: Run) -> Iterator[str]:
    """Give the lines of the table that sums up the comparison: medians, with the fast settings of each."""
    head = [*(f"{word}, ms" for word in _SCENARIOS.values()), "both lead: after a stop", "... on a frozen link"]
    yield f"| {' | '.join(['elector', *head])} |"
    yield f"|{'|'.join(['---', *['---:'] * len(head)])}|"
    rows = {
        (one["system"], one["scenario"]): one
        for one in run["results"]
        if one["figure"] == "takeover" and (one["settings"] == "fast" or one["system"] == "floor")
    }
    for system in dict.fromkeys(system for system, _ in rows):
        cells = [_shown(rows.get((system, scenario)), "times") for scenario in _SCENARIOS]
        cells += [_shown(rows.get((system, scenario)), "overlap", unit=" ms") for scenario in ("stopped", "frozen")]
        yield f"| {' | '.join([system, *cells])} |"


def refreshed(readme: str, results: str) -> str:
    """Put the summary of a page into a README, between its markers; without both in both, the README stays as it is."""
    marks = re.compile(f"{SUMMARY_BEGINS}.*{SUMMARY_ENDS}", re.DOTALL)
    found = marks.search(results)
    return readme if found is None else marks.sub(lambda _: found[0], readme)


def _shown(one: Run | None, what: str, unit: str = "") -> str:
    times = one[what] if one is not None else None
    if not times:
        return "-"
    median = times["median_ms"]
    if median is None:
        return f"> {times['watched_s']:.0f} s"
    return "0" if median == 0 else f"{median:.{0 if median >= 100 else 1}f}{unit}"


def _where(run: Run) -> str:
    return ", ".join(f"{name}: {value}" for name, value in run.items() if name not in _UNSAID)
