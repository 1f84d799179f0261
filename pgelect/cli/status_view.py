"""The table of locks: who leads each, since when, whether alive. On a terminal also what ``pgelect watch`` shows live.

Nothing is cut: where 80 columns are too few, locks and holders are folded inside their cells. Numbers and ages are not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgelect.cli.output import clean, say, say_table, terminal, when
from pgelect.cli.records import age, alive_of, details, lock_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from rich.table import Table

    from pgelect._engine.model import LeaderRecord

STYLES = {"yes": "green", "no": "bold red", "released": "yellow", "unknown": "dim"}
_COLUMNS = ("lock", "leader", "since", "token", "alive", "terms", "followers", "last contact")
_UNTOLD = ("followers", "last contact")
_NUMBERS = ("token", "terms", "followers")
_FOLDED = ("lock", "leader")


def show_all(records: Sequence[LeaderRecord], now: datetime) -> None:
    """Print all locks."""
    console = terminal()
    if console is not None:
        console.print(table_of(records, now), highlight=False, markup=False)
        return
    rows = [
        (
            lock_of(r),
            _leader(r),
            when(r.acquired_at),
            r.token,
            alive_of(r),
            r.terms,
            r.followers,
            when(r.last_contact_at),
        )
        for r in records
    ]
    say_table(_COLUMNS, rows, right=_NUMBERS)


def show_one(record: LeaderRecord, now: datetime) -> None:
    """Print all that is known of a lock."""
    lines = details(record, now)
    width = max(len(what) for what, _ in lines)
    console = terminal()
    if console is None:
        for what, value in lines:
            say(f"{what:<{width}}  {value}")
        return
    from rich.table import Table  # noqa: PLC0415 -- on a pipe nobody waits for it
    from rich.text import Text  # noqa: PLC0415 -- as above

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for what, value in lines:
        style = STYLES[alive_of(record)] if what in {"alive", "leader", "last leader"} else ""
        table.add_row(Text(what, "dim"), Text(value, style))
    console.print(table, highlight=False, markup=False)


def table_of(records: Sequence[LeaderRecord], now: datetime, *, watched: bool = False) -> Table:
    """Draw the table for a terminal, with ages for times.

    ``watched``: only what is told whenever it changes; followers and contacts come and go without a word.
    """
    from rich import box  # noqa: PLC0415 -- as above
    from rich.table import Table  # noqa: PLC0415 -- as above
    from rich.text import Text  # noqa: PLC0415 -- as above

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), expand=False)
    for name in _COLUMNS[: -len(_UNTOLD)] if watched else _COLUMNS:
        folded = name in _FOLDED
        header = name.replace(" ", "\n")
        table.add_column(
            header,
            justify="right" if name in _NUMBERS else "left",
            no_wrap=not folded,
            overflow="fold" if folded else "ellipsis",
            min_width=8 if folded else None,
        )
    for r in records:
        alive = alive_of(r)
        style = STYLES[alive]
        cells = [
            Text(lock_of(r)),
            Text(_leader(r), style if r.alive else ""),
            Text(age(r.acquired_at, now)),
            Text(str(r.token)),
            Text(alive, style),
            Text(str(r.terms)),
            Text(clean(r.followers)),
            Text(age(r.last_contact_at, now)),
        ]
        table.add_row(*cells[: len(table.columns)])
    return table


def _leader(record: LeaderRecord) -> str:
    holder = clean(record.holder)
    return f"nobody (was {holder})" if record.alive is False else holder
