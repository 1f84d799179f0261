"""What subcommands print: tables and colour on a terminal, plain lines on a pipe, JSON for programs.

A text that others wrote, such as a holder's identity or metadata, reaches a terminal only through ``clean``.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any

from pgelect._engine.model import LeaderRecord, LockKey
from pgelect._postgres.errors import one_line

if TYPE_CHECKING:
    from rich.console import Console

_GAP = "  "


def terminal() -> Console | None:
    """Give the console to draw on, which heeds NO_COLOR; None where standard output is no terminal that can draw.

    Print on it with ``highlight=False, markup=False``.
    """
    if not sys.stdout.isatty():
        return None
    from rich.console import Console  # noqa: PLC0415 -- on a pipe nobody waits for it

    console = Console()
    return None if console.is_dumb_terminal else console


def say(text: str = "") -> None:
    """Print a line at once, unfolded, in no colour."""
    print(text, flush=True)


def say_table(header: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[str] = ()) -> None:
    """Print a table: on a terminal within its width, folded inside cells; on a pipe a line a row, columns aligned.

    Args:
        header: the names of the columns.
        rows: what stands below; None is shown as ``-``.
        right: names of the columns whose cells stand to the right, as numbers do.
    """
    cells = [[clean(cell) for cell in row] for row in rows]
    console = terminal()
    if console is not None:
        from rich import box  # noqa: PLC0415 -- as above
        from rich.table import Table  # noqa: PLC0415 -- as above
        from rich.text import Text  # noqa: PLC0415 -- as above

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=False)
        for name in header:
            table.add_column(name, justify="right" if name in right else "left", overflow="fold")
        for row in cells:
            table.add_row(*map(Text, row))
        console.print(table, highlight=False, markup=False)
        return
    lines = [list(header), *cells]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        placed = [
            cell.rjust(width) if name in right else cell.ljust(width)
            for name, cell, width in zip(header, line, widths, strict=True)
        ]
        say(_GAP.join(placed).rstrip())


def clean(value: object) -> str:
    """Make a value a text of one line that moves no cursor and colours nothing: control characters are spelled out."""
    if value is None:
        return "-"
    text = str(value)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def when(at: datetime | None) -> str:
    """Show a time in the local zone, to the second, with its offset; ``-`` for None."""
    return "-" if at is None else at.astimezone().isoformat(sep=" ", timespec="seconds")


def say_json(value: object) -> None:
    """Print a value as JSON on one line, at once."""
    say(json.dumps(as_json(value), ensure_ascii=False))


def as_json(value: object) -> Any:
    """Turn values of this library into what JSON can carry, under the same names.

    A dataclass becomes an object of its fields; a ``LockKey`` in it the fields key1, key2 and name beside the others; a
    ``LeaderRecord`` has its ``pid``, too. Times are ISO 8601 in UTC. An error is its text. What is not finite is null.
    """
    if isinstance(value, Mapping):
        return {str(name): as_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [as_json(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return _fields_of(value)
    return _scalar(value)


def _scalar(value: object) -> str | float | None:
    if isinstance(value, Enum):
        return _scalar(value.value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, BaseException):
        return one_line(value)
    if value is None or isinstance(value, str | int):
        return value
    raise TypeError(f"there is no JSON for {type(value).__name__}")


def _fields_of(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for item in fields(value):
        if item.name.startswith("_"):
            continue
        part = getattr(value, item.name)
        if isinstance(part, LockKey) or (item.name == "key" and part is None):
            found |= {name: getattr(part, name, None) for name in ("key1", "key2", "name")}
        else:
            found[item.name] = as_json(part)
    if isinstance(value, LeaderRecord):
        found["pid"] = value.pid
    return found
