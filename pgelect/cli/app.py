"""What the command ``pgelect`` offers: its subcommands and its own options."""

from typing import Annotated

import typer

import pgelect
from pgelect.cli.demo import demo

app = typer.Typer(
    help="Leader election on PostgreSQL: one leader, a lease that the server enforces, writes that are fenced.",
    epilog="Example: pgelect demo",
    no_args_is_help=True,
    rich_markup_mode=None,  # it would take [demo] for markup
    add_completion=False,
    pretty_exceptions_enable=False,  # they show local variables, and so passwords
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"pgelect {pgelect.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Take the options that stand before a subcommand; its presence also keeps `demo` a subcommand."""


app.command()(demo)
