"""Options and arguments that several subcommands share, so that they are named, read and explained alike.

A command takes them as types, ``def status(dsn: Dsn = "", name: Name = None, key1: Key1 = None, ...)``, in a file
without ``from __future__ import annotations``: typer looks at what the annotations are.
"""

from math import isnan
from typing import Annotated, Any, TypeAlias

import typer

from pgelect._engine.model import LockKey
from pgelect._engine.settings import key_of

DSN_VARIABLES = ["PGELECT_DSN", "PG_DSN"]  # the first that is set and not empty counts

Dsn: TypeAlias = Annotated[
    str,
    typer.Option(
        "--dsn",
        envvar=DSN_VARIABLES,
        show_default=False,
        help="Connection string or URI; without any, libpq's environment counts (PGHOST and so on).",
    ),
]
"""Which server. The empty default leaves it to libpq; a variable keeps a password out of the list of processes."""

DsnOfALock: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        show_default=False,
        help="Connection string or URI; else PGELECT_DSN, PG_DSN, or libpq's environment.",
    ),
]
"""The same for a command that reads all settings of a lock as the lock itself would, its own variables among them."""

AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, with the same names as the Python API.")]

Name: TypeAlias = Annotated[
    str | None, typer.Argument(metavar="NAME", show_default=False, help="The lock's name; or give --key1 and --key2.")
]
Key1: TypeAlias = Annotated[
    int | None, typer.Option("--key1", show_default=False, help="First half of the lock's key, instead of a name.")
]
Key2: TypeAlias = Annotated[
    int | None, typer.Option("--key2", show_default=False, help="Second half of the lock's key, instead of a name.")
]


def seconds(option: str, text: str) -> Any:
    """Make an option that is a duration; what stands for its default is said in ``text``."""
    return typer.Option(option, metavar="SECONDS", show_default=False, help=text)


def a_number(value: float) -> float:
    """Refuse what is no number, which is neither below the least of an option nor above its greatest.

    Raises:
        typer.BadParameter: it is "nan".
    """
    if isnan(value):
        raise typer.BadParameter("it must be a number of seconds")
    return value


def lock_key(name: str | None, key1: int | None, key2: int | None) -> LockKey:
    """Make the key that the options name.

    Raises:
        typer.BadParameter: both forms, neither, half of one, or out of range.
    """
    if name is None and key1 is None and key2 is None:
        raise typer.BadParameter("say which lock: its NAME, or --key1 and --key2")
    if name is not None and (key1 is not None or key2 is not None):
        raise typer.BadParameter("a lock has either a NAME or --key1 and --key2; give one of them")
    if name is None and (key1 is None or key2 is None):
        raise typer.BadParameter("a lock without a name needs both --key1 and --key2")
    try:
        return key_of(key1, key2, name)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def lock_key_or_all(name: str | None, key1: int | None, key2: int | None) -> LockKey | None:
    """Make the key that the options name; None when they name none, which means all locks.

    Raises:
        typer.BadParameter: as ``lock_key``.
    """
    return None if name is None and key1 is None and key2 is None else lock_key(name, key1, key2)
