"""How findings are shown: in columns and colour on a terminal, a line each on a pipe, one object as JSON."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pgelect.cli.doctor_checks import worst
from pgelect.cli.doctor_facts import Severity
from pgelect.cli.output import clean, say, say_json, terminal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from pgelect.cli.doctor_facts import Facts, Finding

_STYLES = {Severity.OK: "green", Severity.NOTE: "cyan", Severity.WARNING: "yellow", Severity.ERROR: "bold red"}
_NAMES = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}
_DO = "do: "


def show(found: Sequence[Finding]) -> None:
    """Print all findings, and a last line that counts them."""
    console = terminal()
    if console is None:
        _plain(found)
    else:
        _drawn(console, found)


def show_json(facts: Facts, found: Sequence[Finding]) -> None:
    """Print one object: the gravest severity, the server, the findings, and what the settings promise."""
    server = facts.server
    say_json(
        {
            "severity": worst(found),
            "server": {"where": server.where, "version": server.version, "database": server.database},
            "findings": found,
            "bounds": facts.bounds,
        }
    )


def verdict(found: Sequence[Finding]) -> str:
    """Say in one line how it is."""
    counts = Counter(finding.severity for finding in found)
    parts = [f"{counts[kind]} {name}{'s' * (counts[kind] != 1)}" for kind, name in _NAMES.items() if counts[kind]]
    if not parts:
        return f"All is well, in all of {len(found)} findings."
    return f"{', '.join(parts)}; all else is well."


def _plain(found: Sequence[Finding]) -> None:
    checks = max((len(finding.check) for finding in found), default=0)
    kinds = max(map(len, Severity))
    for finding in found:
        say(f"{finding.severity:<{kinds}}  {finding.check:<{checks}}  {clean(finding.said)}")
        for line in _remedy(finding):
            say(" " * (kinds + checks + 4) + line)
    say(verdict(found))


def _remedy(finding: Finding) -> list[str]:
    lines = [clean(line) for line in finding.remedy.splitlines()]
    return [(_DO if number == 0 else " " * len(_DO)) + line for number, line in enumerate(lines)]


def _drawn(console: Console, found: Sequence[Finding]) -> None:
    from rich.table import Table  # noqa: PLC0415 -- on a pipe nobody waits for it
    from rich.text import Text  # noqa: PLC0415 -- as above

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in found:
        style = _STYLES[finding.severity]
        table.add_row(Text(finding.severity, style), Text(finding.check), Text(clean(finding.said)))
        for line in _remedy(finding):
            table.add_row("", "", Text(line, "bold"))
    console.print(table, highlight=False, markup=False)
    console.print(Text(f"\n{verdict(found)}", _STYLES[worst(found)]), highlight=False, markup=False)
