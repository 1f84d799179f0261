"""How changes are shown as they come: lines on a pipe, JSON lines, or lines above a live table on a terminal."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from pgelect.cli.output import say, say_json, terminal, when
from pgelect.cli.watch_words import words
from pgelect.observe import ChangeKind

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from pgelect._engine.model import LeaderRecord, LockKey
    from pgelect.observe import LeadershipChange

_STYLES = {
    ChangeKind.BEGAN: "green",
    ChangeKind.RESUMED: "green",
    ChangeKind.RELEASED: "yellow",
    ChangeKind.LOST: "bold red",
    ChangeKind.BLIND: "bold red",
    ChangeKind.BACK: "green",
}
_KIND_WIDTH = max(map(len, ChangeKind))


class View(Protocol):
    """Shows one change after another."""

    def show(self, change: LeadershipChange) -> None:
        """Show a change."""

    def close(self) -> None:
        """Put the terminal back as it was; harmless when repeated."""


def view(*, as_json: bool) -> View:
    """Choose how to show them."""
    if as_json:
        return Json()
    console = terminal()
    return Lines() if console is None else Live(console)


class Json:
    """One object a line."""

    def show(self, change: LeadershipChange) -> None:
        """Print a change."""
        say_json(change)

    def close(self) -> None:
        """There is nothing to put back."""


class Lines:
    """One line a change."""

    def show(self, change: LeadershipChange) -> None:
        """Print a change."""
        say(line(change))

    def close(self) -> None:
        """There is nothing to put back."""


def line(change: LeadershipChange) -> str:
    """Give the line of a change."""
    return f"{when(change.seen_at)}  {change.kind:<{_KIND_WIDTH}}  {words(change)}"


class Live:
    """On a terminal: lines that stay, and below them who leads now."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live as Drawn  # noqa: PLC0415 -- on a pipe nobody waits for it

        self._console = console
        self._records: dict[LockKey, LeaderRecord] = {}
        self._blind_since: datetime | None = None
        self._live = Drawn(
            get_renderable=self._draw,
            console=console,
            refresh_per_second=2,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()

    def show(self, change: LeadershipChange) -> None:
        """Print a change above the table, and note it there."""
        from rich.text import Text  # noqa: PLC0415 -- as above

        if change.kind is ChangeKind.BLIND:
            self._blind_since = change.seen_at
        elif change.kind is ChangeKind.BACK:
            self._blind_since = None
        if change.key is not None and change.record is not None:
            self._records[change.key] = change.record
        at = f"{change.seen_at.astimezone():%H:%M:%S}"
        text = Text(f"{at}  {words(change)}", _STYLES.get(change.kind, ""))
        self._console.print(text, highlight=False, markup=False, soft_wrap=False)
        self._live.refresh()

    def close(self) -> None:
        """Take the table away and show the cursor again."""
        with suppress(OSError):  # the terminal may be gone
            self._live.stop()

    def _draw(self) -> RenderableType:
        from rich.console import Group  # noqa: PLC0415 -- as above
        from rich.text import Text  # noqa: PLC0415 -- as above

        from pgelect.cli.records import age  # noqa: PLC0415 -- as above
        from pgelect.cli.status_view import table_of  # noqa: PLC0415 -- as above

        now = datetime.now(UTC)
        records = sorted(self._records.values(), key=lambda r: (r.name is None, r.name or "", r.key1, r.key2))
        if self._blind_since is None:
            state = Text("watching; Ctrl-C ends it", "dim")
        else:
            state = Text(f"BLIND for {age(self._blind_since, now)}: what the table says may be over", "bold red")
        return Group("", *([table_of(records, now, watched=True)] if records else []), state)
