"""The demo on a terminal: the story above, and below it, live, who leads."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from pgelect.cli.demo_view import acts_table, verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pgelect.cli.demo_replicas import Replica
    from pgelect.cli.demo_results import Results

_STYLES = {"leader": "bold green", "stopped": "red", "killed": "red", "ended": "dim"}
_NUMBERS = r"\b[\d.]+ m?s\b"
_REFRESH_PER_S = 10


class Terminal:
    """Draws with rich, which heeds NO_COLOR."""

    breath_s = 1.5

    def __init__(self, console: Console, title: str, replicas: Callable[[], Sequence[Replica]]) -> None:
        self._console = console
        self._title = title
        self._replicas = replicas
        self._began = time.monotonic()
        self._live = Live(
            get_renderable=self._panel,
            console=console,
            refresh_per_second=_REFRESH_PER_S,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()

    def note(self, text: str) -> None:
        """Print a sentence."""
        self._print(text)

    def headline(self, text: str) -> None:
        """Print a bold line after an empty one."""
        self._print(Text(f"\n{text}", style="bold"))

    def say(self, text: str) -> None:
        """Print an indented sentence, its durations in colour."""
        said = Text(text)
        said.highlight_regex(_NUMBERS, "bold cyan")
        self._print(Padding(said, (0, 0, 0, 2)))

    def quote(self, text: str) -> None:
        """Print the server's words, indented further."""
        self._print(Padding(Text(text, style="red"), (0, 0, 0, 4)))

    def results(self, results: Results) -> None:
        """Replace the panel by the table and the claims."""
        self._live.stop()
        self._print("")
        self._print(acts_table(results, box.ROUNDED))
        self._print(Text("\nChecked at the end:", style="bold"))
        for claim in results.claims:
            mark, style = ("ok", "green") if claim.held else ("FAILED", "bold red")
            self._print(Padding(Text.assemble((f"{mark}  ", style), claim.text), (0, 0, 0, 2)))
        self._print(Text(f"\n{verdict(results)}", style="bold green" if results.held else "bold red"))

    def close(self) -> None:
        """Take the panel away and show the cursor again."""
        with suppress(OSError):  # the terminal may be gone
            self._live.stop()

    def _print(self, what: RenderableType) -> None:
        self._console.print(what, highlight=False, markup=False)

    def _panel(self) -> RenderableType:
        table = Table(box=None, padding=(0, 2, 0, 0), expand=False)
        for name, side in (("replica", "left"), ("pid", "right"), ("state", "left"), ("token", "right")):
            table.add_column(name, justify="right" if side == "right" else "left", min_width=9)
        table.add_column("writes", justify="right", min_width=6)
        for replica in tuple(self._replicas()):
            state = replica.fate or replica.state
            shown = "LEADER" if state == "leader" else state
            token = "" if replica.token is None else str(replica.token)
            table.add_row(
                replica.name, str(replica.pid), shown, token, str(len(replica.writes)), style=_STYLES.get(state, "")
            )
        elapsed = f"{time.monotonic() - self._began:.1f} s"
        return Group("", Panel(table, title=self._title, subtitle=elapsed, box=box.ROUNDED, expand=False))
