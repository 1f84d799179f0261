"""Five replicas, a primary and its standby, and everything that can go wrong with them; then a checker looks at it.

    python -m benchmarks.chaos                          90 seconds: every kind of fault has its turn
    python -m benchmarks.chaos --minutes 15 --seed 7    longer, and in another order
    python -m benchmarks.chaos --recheck DIRECTORY      check a history that was kept
    python -m benchmarks.chaos --break trust            a library that is broken on purpose: to be found

The servers are embedded PostgreSQLs, reached through breakable proxies; the replicas are processes that use the public
API and write fenced entries to a ledger. The seed decides which faults come in which order and what the writers choose;
real processes and clocks do the rest, so a run is repeatable in kind and not in every detail. What is checked, and
against which bounds, is said in benchmarks/chaos/checks_leading.py, checks_writing.py,
checks_end.py and allowance.py.

Exit status: 0 no violation; 1 a violation, or too little happened for the run to mean anything; 2 it could not be run;
130 interrupted. What remains is printed, and nothing else: no process, and no directory unless there was a violation.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from benchmarks.chaos import checker, plan, report
from benchmarks.chaos.broken import BROKEN
from benchmarks.chaos.reading import load
from benchmarks.chaos.run import perform
from benchmarks.process import DidNotHappenError
from benchmarks.telling import where

if TYPE_CHECKING:
    from collections.abc import Sequence

_SHOWN = 20


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, metavar="M", help="how long faults go on; default 1.5")
    length.add_argument("--seconds", type=float, metavar="S", help="the same in seconds")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the schedule; default 1")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="keep the history there in any case")
    parser.add_argument("--recheck", type=Path, metavar="DIRECTORY", help="run nothing; check that history again")
    parser.add_argument(
        "--break",
        dest="broken",
        choices=tuple(BROKEN),
        default="",
        metavar="NAME",
        help="break the library on purpose, which a run has to find: "
        + "; ".join(f"{name} ({what})" for name, what in BROKEN.items()),
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help=f"exit with 1 when too little happened, in runs shorter than {plan.FULL_S:g} s too",
    )
    options = parser.parse_args(arguments)
    options.for_s = 60 * options.minutes if options.minutes is not None else options.seconds
    if options.for_s is None:
        options.for_s = plan.FULL_S
    if not 1 <= options.for_s <= 86_400:
        parser.error("a run takes 1 second to 24 hours")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, check, print, and return the exit status."""
    options = parse(arguments)
    if options.recheck is not None:
        return judge(options.recheck, options, kept=True)
    for number in (signal.SIGTERM, signal.SIGHUP):  # they end it as Ctrl-C does: nothing is left running
        signal.signal(number, signal.default_int_handler)
    directory = Path(tempfile.mkdtemp(prefix="pgelect-chaos-"))
    status = 2
    try:
        perform(directory, options.seed, options.for_s, _progress, options.broken)
        status = judge(directory, options, kept=False)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        status = 130
    except (DidNotHappenError, OSError, psycopg.Error, RuntimeError, ImportError) as error:
        print(f"could not be run: {type(error).__name__}: {error}", file=sys.stderr)
    except Exception:  # noqa: BLE001 -- a bug of this program is no violation
        traceback.print_exc()
    finally:
        if status != 1 or options.keep is not None:
            _keep(directory, options.keep)
    return status


def judge(directory: Path, options: argparse.Namespace, *, kept: bool) -> int:
    """Check a history and print what is found."""
    try:
        history = load(directory)
    except (OSError, ValueError, KeyError) as error:
        print(f"the history in {directory} cannot be read: {error!r}", file=sys.stderr)
        return 2
    found = report.results(history)
    about = where(history.about)
    print(", ".join(f"{name}: {value}" for name, value in about.items() if name not in {"event", "at"}), end="\n\n")
    print(report.table(found))
    place = directory if kept or options.keep is None else options.keep
    guilty = checker.violations(history)
    for violation in guilty[:_SHOWN]:
        print(f"\n{report.accusation(violation, history.begin, history.about['seed'], place)}")
    if len(guilty) > _SHOWN:
        print(f"\nand {len(guilty) - _SHOWN} more")
    too_little = checker.shortfalls(history)
    for shortfall in too_little:
        print(f"too little happened: {shortfall}")
    if options.json is not None:
        options.json.write_text(json.dumps({**found, "about": about}, indent=2) + "\n", encoding="utf-8")
    full = history.end - history.begin >= plan.FULL_S or options.check
    if not guilty and not (too_little and full):
        return 0
    print(f"\nthe history is kept in {place}")
    return 1


def _keep(directory: Path, place: Path | None) -> None:
    """Move the history to where it is wanted, or remove it."""
    if place is None:
        shutil.rmtree(directory, ignore_errors=True)
    else:
        shutil.rmtree(place, ignore_errors=True)
        shutil.move(directory, place)


_begun = time.monotonic()


def _progress(what: str) -> None:
    print(f"... {time.monotonic() - _begun:6.1f} s  {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
