"""``pgelect history``: the terms of a lock, newest first, and how each of them ended.

Exit codes: 0 there are terms, 1 the lock was never led.
"""

from typing import Annotated

import typer

from pgelect.cli.ending import Code, perform
from pgelect.cli.options import AsJson, Dsn, Key1, Key2, Name, lock_key


def history(
    name: Name = None,
    key1: Key1 = None,
    key2: Key2 = None,
    *,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="How many terms at most.")] = 20,
    dsn: Dsn = "",
    as_json: AsJson = False,
) -> None:
    """Show the last terms of a lock, and how they ended.

    \b
    released    given up cleanly
    lost        the leader has said afterwards that it lost it, and why
    superseded  another took over, and nothing was heard of this leader since
    unknown     it is over, and nobody has told how
    lasts       it is the present term

    \b
    Examples:
      pgelect history invoices
      pgelect history invoices --limit 100 --json
    """  # noqa: D301 -- the mark by which the lines of a help text are kept apart
    from pgelect.cli.history_view import show_terms  # noqa: PLC0415 -- help must come at once
    from pgelect.cli.lookers import looking  # noqa: PLC0415 -- as above
    from pgelect.cli.output import say, say_json  # noqa: PLC0415 -- as above
    from pgelect.cli.records import standing  # noqa: PLC0415 -- as above
    from pgelect.observe import get_history  # noqa: PLC0415 -- as above

    key = lock_key(name, key1, key2)

    async def work() -> int:
        async with looking(dsn) as looker:
            terms = await looker.ask(lambda conn: get_history(conn, key, limit=limit))
            now = await looker.now()
        if as_json:
            say_json(terms)
        elif terms:
            show_terms(terms, now)
        else:
            say(standing(None, key, now))
        return Code.OK if terms else Code.NO

    perform("history", work())
