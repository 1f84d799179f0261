"""What every benchmark prints, and writes as JSON: where it ran, what was found, and which targets were missed."""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from benchmarks.measure import missed, table
from benchmarks.process import DidNotHappenError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.measure import Counts, Timing


def told(measure: Callable[[], int]) -> int:
    """Run ``measure``, and return its exit status, or that of a benchmark that was cut short."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does: nothing is left running
    try:
        return measure()
    except DidNotHappenError as error:
        print(f"did not happen: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def where(about: Mapping[str, Any]) -> dict[str, Any]:
    """Add to what is known of a run on what it ran."""
    return {
        **about,
        "python": platform.python_version(),
        "psycopg": f"{psycopg.__version__} ({psycopg.pq.__impl__})",
        "machine": _machine(),
        "load": f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores",
    }


def _machine() -> str:
    """Name the processor, the memory and the system."""
    processor = platform.machine()
    with suppress(OSError), Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
        processor = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), processor)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{processor} with {memory:.0f} GiB, {platform.system()}"


def _command() -> str:
    """Give the command that runs, without where it writes its JSON."""
    words = iter(sys.orig_argv[1:])
    kept = [word for word in words if word != "--json" or not next(words, "")]
    return " ".join(["python", *kept])


def tell(
    about: Mapping[str, Any],
    found: Sequence[Timing | Counts],
    *,
    shown: str | None = None,
    more: str = "",
    write: Path | None = None,
    check: bool = False,
    met: str = "all targets met",
) -> int:
    """Print the table, write the JSON, and return the exit status: 1 when a target is missed and ``check`` is set.

    What is ``shown`` stands in place of the table, where that of targets does not fit.
    """
    about = where(about)
    number = missed(found)
    parts = [shown if shown is not None else table(found).lstrip("\n"), more]
    printed = "\n\n".join([*filter(None, parts), met if number == 0 else f"TARGETS MISSED: {number}"])
    print(", ".join(f"{name}: {value}" for name, value in about.items()), printed, sep="\n\n")
    if write is not None:
        results = [each.as_json() for each in found]
        named = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "command": _command(), "printed": printed}
        write.write_text(json.dumps({**about, **named, "results": results}, indent=1) + "\n")
    return 1 if number and check else 0


def progress(what: str) -> None:
    """Say what is being done."""
    print(f"... {what}", file=sys.stderr, flush=True)
