"""What the demo shows: the words it is told with, as plain lines or not at all. A terminal's is in demo_terminal."""

from __future__ import annotations

import io
import textwrap
from typing import TYPE_CHECKING, Protocol

from rich import box
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from pgelect.cli.demo_results import Results

_WIDTH = 80


class View(Protocol):
    """How the demo talks to its user. A BrokenPipeError means that nobody listens any more."""

    breath_s: float
    """How long a reader gets between two acts."""

    def note(self, text: str) -> None:
        """Say something about the demo itself."""

    def headline(self, text: str) -> None:
        """Say what comes next."""

    def say(self, text: str) -> None:
        """Say what is done or seen."""

    def quote(self, text: str) -> None:
        """Show the server's own words."""

    def results(self, results: Results) -> None:
        """Show what was found."""

    def close(self) -> None:
        """Give the screen back. May be repeated, and never raises."""


class Silent:
    """Shows nothing."""

    breath_s = 0.0

    def note(self, text: str) -> None:
        """Say nothing."""

    def headline(self, text: str) -> None:
        """Say nothing."""

    def say(self, text: str) -> None:
        """Say nothing."""

    def quote(self, text: str) -> None:
        """Say nothing."""

    def results(self, results: Results) -> None:
        """Say nothing."""

    def close(self) -> None:
        """Do nothing."""


class Plain:
    """Lines of at most 80 columns: no colour, no control characters, ASCII only."""

    breath_s = 0.2

    def note(self, text: str) -> None:
        """Print a sentence."""
        self._print(textwrap.fill(text, _WIDTH))

    def headline(self, text: str) -> None:
        """Print a line after an empty one."""
        self._print(f"\n{text}")

    def say(self, text: str) -> None:
        """Print an indented sentence."""
        self._print(textwrap.fill(text, _WIDTH, initial_indent="  ", subsequent_indent="    "))

    def quote(self, text: str) -> None:
        """Print the server's words, indented further."""
        self._print(textwrap.fill(text, _WIDTH, initial_indent="    ", subsequent_indent="      "))

    def results(self, results: Results) -> None:
        """Print the table and the claims."""
        paper = io.StringIO()
        console = Console(file=paper, width=_WIDTH, color_system=None, force_terminal=False, legacy_windows=False)
        console.print(acts_table(results, box.ASCII2))
        self._print("\n" + "\n".join(line.rstrip() for line in paper.getvalue().splitlines()))
        self._print("\nChecked at the end:")
        for claim in results.claims:
            word = "ok" if claim.held else "FAILED"
            self._print(textwrap.fill(claim.text, _WIDTH, initial_indent=f"{word:>6}  ", subsequent_indent=" " * 8))
        self._print(f"\n{verdict(results)}")

    def close(self) -> None:
        """Do nothing: nothing was taken."""

    def _print(self, text: str) -> None:
        print(text, flush=True)


def acts_table(results: Results, frame: box.Box) -> Table:
    """Lay out who followed whom, and how fast."""
    table = Table(box=frame)
    table.add_column("What happened")
    table.add_column("Leader")
    table.add_column("Next leader")
    table.add_column("Token", justify="right")
    table.add_column("Leads after", justify="right")
    for act in results.acts:
        tokens = f"{act.old_token} -> {act.new_token}"
        table.add_row(act.title, act.old, act.new, tokens, f"{act.took_s * 1000:.1f} ms")
    return table


def verdict(results: Results) -> str:
    """Sum it up in one line."""
    if results.held:
        return f"All of it held, in {results.took_s:.1f} s on PostgreSQL {results.server}."
    failed = sum(not claim.held for claim in results.claims)
    return f"{failed} of {len(results.claims)} claims did NOT hold (PostgreSQL {results.server})."
