"""``pgelect demo`` at work: what is shown, its exit codes, and that it ends cleanly.

On Ctrl-C and the like the show is cancelled, and what it opened is closed by somebody who is not.
"""

from __future__ import annotations

import asyncio
import errno
import io
import json
import logging
import signal
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pgelect
from pgelect.cli.demo_ledger import LOCK_NAME, LedgerError
from pgelect.cli.demo_replicas import DemoError
from pgelect.cli.demo_story import Story
from pgelect.cli.demo_terminal import Terminal
from pgelect.cli.demo_view import Plain, Silent, View
from pgelect.cli.ending import Code, caught, code_of, complain, hush
from pgelect.cli.output import terminal

if TYPE_CHECKING:
    from pgelect.cli.demo_results import Results
    from pgelect.cli.demo_stage import Stage

_FAILURES = (DemoError, LedgerError, ValueError, pgelect.PgElectError)


@dataclass(frozen=True, slots=True)
class _Ending:
    """How the show ended, before everything is put away."""

    code: int
    complaint: str = ""
    results: Results | None = None


async def perform(stage: Stage, *, as_json: bool) -> int:
    """Play the show on that stage, clear it, and return the exit code."""
    logging.getLogger("pgelect").addHandler(logging.NullHandler())  # the demo tells it in its own words
    view = _view(stage, as_json=as_json)
    show = asyncio.create_task(_show(stage, view))
    with caught(show) as signals:
        await asyncio.wait({show})
        view.close()
        if signals:
            complain(
                "demo", f"{signals[0].name}: ending the replicas" + (" and the server" if stage.is_private else "")
            )
        problems = await stage.close()
    for problem in problems:
        complain("demo", problem)
    if signals:
        return 128 + signals[0]
    ending = _ending(show)
    if ending.complaint:
        complain("demo", ending.complaint)
    if as_json and ending.results is not None:
        print(json.dumps(ending.results.as_json()), flush=True)
    return ending.code or bool(problems)


async def _show(stage: Stage, view: View) -> Results:
    view.note(f"pgelect {pgelect.__version__}: leader election on PostgreSQL, shown with real processes.")
    if stage.is_private:
        view.note("Starting a private PostgreSQL in a temporary directory ...")
    ledger = await stage.open()
    where = "running" if stage.is_private else f"at {ledger.place}"
    view.note(f"PostgreSQL {ledger.server} is {where}.")
    results = await Story(stage.replicas, ledger, view).play()
    view.results(results)
    if not stage.is_private:
        view.note("The schema pgelect stays in this database, with one row for the demo's lock.")
    return results


def _ending(show: asyncio.Task[Results]) -> _Ending:
    """Tell how the show ended by itself; what is no failure of the demo but a bug is raised."""
    error = show.exception()
    if error is None:
        return _Ending(0 if show.result().held else 1, results=show.result())
    if isinstance(error, OSError) and error.errno in {errno.EPIPE, errno.EIO}:  # nobody looks any more
        hush()
        return _Ending(128 + signal.SIGPIPE)
    if isinstance(error, _FAILURES):
        text = str(error)  # errors of this library hold no password
        code = Code.NO if isinstance(error, DemoError) else code_of(error)
        return _Ending(code, text if isinstance(error, pgelect.SchemaError) else " ".join(text.split()))
    raise error


def _view(stage: Stage, *, as_json: bool) -> View:
    if as_json:
        return Silent()
    console = terminal()
    if console is not None:
        return Terminal(console, f"who leads {LOCK_NAME}", lambda: stage.replicas.all)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a server may speak any language
    return Plain()
