"""What the command ``pgelect`` offers: its subcommands and its own options."""

from typing import Annotated

import typer

import pgelect
from pgelect.cli.dashes import CommandAfterDashes
from pgelect.cli.demo import demo
from pgelect.cli.doctor import doctor
from pgelect.cli.guard import guard, unguard
from pgelect.cli.health import health
from pgelect.cli.history import history
from pgelect.cli.init import init
from pgelect.cli.key import key
from pgelect.cli.metrics import metrics
from pgelect.cli.run import run
from pgelect.cli.status import status
from pgelect.cli.step_down import step_down
from pgelect.cli.watch import watch

app = typer.Typer(
    help="Leader election on PostgreSQL: one leader, a lease that the server enforces, writes that are fenced.",
    epilog="Example: pgelect demo. Exit codes: 0 yes, 1 no, 2 usage, 3 server unreachable, 4 refused by the server.",
    no_args_is_help=True,
    rich_markup_mode=None,  # it would take [demo] for markup
    # Subcommands import what is heavy or optional where they use it: help and completion must come at once.
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
app.command(cls=CommandAfterDashes)(run)
app.command()(status)
app.command()(watch)
app.command()(history)
app.command("step-down")(step_down)
app.command()(health)
app.command()(doctor)
app.command()(init)
app.command()(guard)
app.command()(unguard)
app.command()(key)
app.add_typer(metrics, name="metrics")
