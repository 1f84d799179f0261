"""``pgelect key``: the pair of numbers that a name stands for, and how the server's own views show it."""

from typing import Annotated

import typer

from pgelect import LockKey
from pgelect.cli.ending import told
from pgelect.cli.options import AsJson
from pgelect.cli.output import as_json as jsonable
from pgelect.cli.output import clean, say, say_json


def key(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="The lock's name.")],
    as_json: AsJson = False,
) -> None:
    """Show the keys of a lock's name, and where pg_locks shows it. Needs no server.

    \b
    Examples:
      pgelect key reports
      pgelect key reports --json
    """  # noqa: D301 -- the mark by which the lines of a help text are kept apart
    with told("key"):
        found = LockKey.from_name(name)
        if as_json:
            say_json({**jsonable(found), "classid": found.classid, "objid": found.objid})
            return
        for label, value in (("name", clean(name)), ("key1", found.key1), ("key2", found.key2)):
            say(f"{label}  {value}")
        say()
        say(f"In pg_locks: classid = {found.classid} AND objid = {found.objid} AND objsubid = 2")
        say(f"In another program: pg_try_advisory_lock({found.key1}, {found.key2})")
