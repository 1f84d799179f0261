"""The words of ``pgelect run``: what stands after ``--`` is the command, and nothing that stands before it.

Without that rule a forgotten NAME would make the command the name of a lock, and nothing would ever be run; and of a
command without ``--`` in front our own options would be taken away without a word.
"""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand

DASHES = "--"


class CommandAfterDashes(TyperCommand):
    """A subcommand whose parameter ``command`` is what follows ``--``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse what stands before ``--`` as always, and take the rest as it is.

        Raises:
            typer.BadParameter: words of a command before ``--``, or none after it.
        """
        if ctx.resilient_parsing:  # for completion
            return super().parse_args(ctx, args)
        at = args.index(DASHES) if DASHES in args else len(args)
        command = args[at + 1 :]
        rest = super().parse_args(ctx, args[:at])
        if words := ctx.params.get("command"):
            raise typer.BadParameter(f"{words[0]!r} stands before --; a command and its options follow it", ctx)
        if not command and at < len(args):
            raise typer.BadParameter("no command follows --; leave -- out to campaign without one", ctx)
        ctx.params["command"] = command
        return rest
