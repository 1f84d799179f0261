"""The table of a lock's terms. Holders and reasons are folded where the terminal is narrow; nothing is cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgelect.cli.output import clean, say_table, terminal, when
from pgelect.cli.records import ending_of, lasted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from pgelect.observe import TermRecord

_COLUMNS = ("token", "holder", "begun", "lasted", "ended", "reason")
_NUMBERS = ("token", "lasted")
_FOLDED = ("holder", "reason")
_STYLES = {"lasts": "green", "released": "", "lost": "bold red", "superseded": "red", "unknown": "yellow"}


def show_terms(terms: Sequence[TermRecord], now: datetime) -> None:
    """Print terms as they come."""
    console = terminal()
    if console is None:
        rows = [(t.token, t.holder, when(t.began_at), lasted(t, now), ending_of(t), t.reason) for t in terms]
        say_table(_COLUMNS, rows, right=_NUMBERS)
        return
    from rich import box  # noqa: PLC0415 -- on a pipe nobody waits for it
    from rich.table import Table  # noqa: PLC0415 -- as above
    from rich.text import Text  # noqa: PLC0415 -- as above

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), expand=False)
    for name in _COLUMNS:
        folded = name in _FOLDED
        table.add_column(
            name,
            justify="right" if name in _NUMBERS else "left",
            no_wrap=not folded,
            overflow="fold" if folded else "ellipsis",
            min_width=8 if folded else None,
        )
    for term in terms:
        ending = ending_of(term)
        begun = f"{term.began_at.astimezone():%Y-%m-%d %H:%M:%S}"  # local, and without the offset: there is no room
        table.add_row(
            Text(str(term.token)),
            Text(clean(term.holder)),
            Text(begun),
            Text(lasted(term, now)),
            Text(ending, _STYLES.get(ending, "")),
            Text(clean(term.reason)),
        )
    console.print(table, highlight=False, markup=False)
