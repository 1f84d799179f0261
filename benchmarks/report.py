"""What the last runs of the benchmarks found, as a page to read: RESULTS.md, with plots.

    python -m benchmarks.report                     render what is there
    python -m benchmarks.report --run all           run every benchmark first, one after the other; half an hour
    python -m benchmarks.report --run fence         only this one; may be repeated

Each run leaves its JSON in benchmarks/results, and the page is made of that and of nothing else: it says of each run
what was called, where, and with which versions. Its summary goes into the README as well. The plots need matplotlib,
which is part of the extra "bench".

Exit status: 0 rendered; 1 something is missing to render it; otherwise that of the benchmark that failed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.report_page import page, refreshed

if TYPE_CHECKING:
    from collections.abc import Sequence

RUNS: dict[str, tuple[str, ...]] = {
    "peers": ("benchmarks.failover", "--peers", "all"),
    "failover": ("benchmarks.failover", "--profile"),
    "cost": ("benchmarks.cost", "--rounds", "20"),
    "fence": ("benchmarks.fence",),
    "startup": ("benchmarks.startup",),
    "group": ("benchmarks.group",),
}
"""What is called, by the name of its JSON."""
ALL = "all"
_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Place:
    """Where the page is, the directory of the JSON and the plots beside it, and the README that shows the summary."""

    page: Path
    results: Path
    readme: Path

    @classmethod
    def of(cls, directory: Path) -> Place:
        """Give the places in that directory."""
        return cls(directory / "RESULTS.md", directory / "results", directory.parent / "README.md")


def run(names: Sequence[str], place: Place, *, quick: bool) -> int:
    """Run these benchmarks; return 0, or the exit status of the first that failed."""
    place.results.mkdir(parents=True, exist_ok=True)
    for name in names:
        module, *options = RUNS[name]
        command = [sys.executable, "-m", module, *options, *["--quick"] * quick]
        print(f"\n$ python {' '.join(command[1:])}", flush=True)
        status = subprocess.run([*command, "--json", str(place.results / f"{name}.json")], check=False).returncode
        if status:
            return status
    return 0


def render(place: Place) -> int:
    """Make the page and its plots; return the exit status."""
    if importlib.util.find_spec("matplotlib") is None:
        print("the plots need matplotlib: pip install 'pgelect[bench]'", file=sys.stderr)
        return 1
    from benchmarks import report_plots  # noqa: PLC0415 -- optional

    found: dict[str, Any] = {}
    for name in RUNS:
        path = place.results / f"{name}.json"
        if path.exists():
            found[name] = json.loads(path.read_text(encoding="utf-8"))
    if not found:
        print(f"there is no run in {place.results}: python -m benchmarks.report --run {ALL}", file=sys.stderr)
        return 1
    plots = report_plots.draw(found, place.results)
    text = page(found, plots)
    place.page.write_text(text, encoding="utf-8")
    if place.readme.exists():
        place.readme.write_text(refreshed(place.readme.read_text(encoding="utf-8"), text), encoding="utf-8")
    print(f"{place.page}: {', '.join(found)}; plots: {', '.join(plots) or 'none'}")
    return 0


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.report", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", action="append", choices=(ALL, *RUNS), help="run this one first; may be repeated")
    parser.add_argument("--quick", action="store_true", help="run them to see that they work, not how fast")
    parser.add_argument("--directory", type=Path, default=_HERE, metavar="DIR", help="default: that of the benchmarks")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, render, and return the exit status."""
    options = parse(arguments)
    place = Place.of(options.directory)
    names = options.run or []
    if ALL in names:
        names = list(RUNS)
    return run(names, place, quick=options.quick) or render(place)


if __name__ == "__main__":
    sys.exit(main())
