"""How every subcommand ends: its exit code, one clear line where it failed, and nothing left behind.

    0    done; the answer is yes
    1    the answer is no: nobody leads, not healthy, nobody was asked, a claim did not hold
    2    the command line is wrong, or what it names does not exist
    3    no connection: the server is away, does not let us in (password, role, database), or is no primary
    4    the server is there, and something about it has to be mended first: schema, rights, a pooler, its version
    129, 130, 143   ended by SIGHUP, Ctrl-C (SIGINT), SIGTERM
    141  nobody reads the output any more

``pgelect run`` returns the code of its command, or 127 and 126 where that cannot be started.
"""

from __future__ import annotations

import asyncio
import errno
import io
import logging
import os
import signal
import socket
import sys
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import psycopg
import typer

import pgelect
from pgelect._postgres.errors import one_line

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FAILURES = (pgelect.PgElectError, psycopg.Error, ValueError, OSError, ImportError)
"""What a user or a server can bring about. Anything else is a bug of ours, and shows its traceback."""

_LONGEST_SQL = 12  # lines of a remedy that a terminal still shows together with what it is for


class Code(IntEnum):
    """Exit codes of every subcommand."""

    OK = 0
    NO = 1
    USAGE = 2
    UNREACHABLE = 3
    REFUSED = 4
    BROKEN_PIPE = 128 + signal.SIGPIPE


def perform(command: str, work: Coroutine[Any, Any, int | None]) -> NoReturn:
    """Run what a subcommand does, and end with its exit code: what it returns, or what its error means.

    Ctrl-C, SIGTERM and SIGHUP cancel the work, which cleans up after itself; one more signal cancels that, too.

    Args:
        command: the subcommand's name, which stands before what is told on standard error.
        work: returns an exit code; None: 0.

    Raises:
        typer.Exit: always, except for a bug.
    """
    with told(command):
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until there is somebody who can clean up
        raise typer.Exit(asyncio.run(_perform(work)))


async def _perform(work: Coroutine[Any, Any, int | None]) -> int:
    task = asyncio.create_task(work)
    with caught(task) as signals:
        await asyncio.wait({task})
    if not signals:
        return task.result() or Code.OK
    if not task.cancelled():
        task.exception()  # it was to end, and did
    return 128 + signals[0]


@contextmanager
def caught(task: asyncio.Task[Any]) -> Iterator[list[signal.Signals]]:
    """Have signals that would end the process cancel the task instead; give those that came."""
    came: list[signal.Signals] = []

    def catch(number: signal.Signals) -> None:
        task.cancel()
        came.append(number)

    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, catch, number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    try:
        yield came
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


@contextmanager
def told(command: str) -> Iterator[None]:
    """Tell of a failure of the block in one line, and end with the exit code that says what kind it is.

    Raises:
        typer.Exit: in place of one of FAILURES, with its exit code.
    """
    logging.getLogger("pgelect").addHandler(logging.NullHandler())  # a command tells it in its own words
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a server may speak any language
    try:
        try:
            yield
        finally:
            sys.stdout.flush()  # here, where it can still be told from success that nobody reads
    except FAILURES as error:
        code = code_of(error)
        if code is Code.BROKEN_PIPE:
            hush()
        else:
            complain(command, describe(error))
        raise typer.Exit(code) from None


def code_of(error: BaseException) -> Code:
    """Say which exit code an error means."""
    if isinstance(error, OSError) and error.errno in {errno.EPIPE, errno.EIO}:  # EIO: the terminal is gone
        return Code.BROKEN_PIPE
    if isinstance(error, ConnectionError | TimeoutError | socket.gaierror):
        return Code.UNREACHABLE
    # A port that is taken, a disk that is full, an extra that is not installed: it is here, and not the server.
    if isinstance(error, OSError | ValueError | ImportError):
        return Code.USAGE
    if isinstance(error, pgelect.SessionLostError | pgelect.ConnectionError | pgelect.NotPrimaryError):
        return Code.UNREACHABLE
    if isinstance(error, psycopg.OperationalError) and error.sqlstate is None:
        return Code.UNREACHABLE
    return Code.REFUSED


def describe(error: BaseException) -> str:
    """Put an error into one line, without a password. SQL for an administrator follows it, unless that is long."""
    if not isinstance(error, pgelect.SchemaError):
        return one_line(error) or type(error).__name__
    problem = one_line(str(error).removesuffix(error.sql))
    if len(error.sql.splitlines()) <= _LONGEST_SQL:
        return f"{problem}\n\n{error.sql}"
    problem = problem.partition(" Let an administrator")[0]
    return f"{problem} Let an administrator run 'pgelect init', or what 'pgelect init --print --elector ROLE' prints."


def complain(command: str, text: str) -> None:
    """Tell of a failure on standard error, if there is anybody."""
    try:
        print(f"pgelect {command}: {text}", file=sys.stderr, flush=True)
    except OSError:
        sys.stderr = io.StringIO()


def hush() -> None:
    """Send what is still to be printed nowhere: nobody reads it, and the interpreter would complain of that."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
