"""``pgelect watch``: changes of leadership as they happen, until Ctrl-C.

Exit codes: 130 after Ctrl-C, 3 when the server cannot be reached at the start. A connection that is lost later is told
and made anew, for as long as it takes.
"""

from pgelect._engine.model import LockKey
from pgelect.cli.ending import perform
from pgelect.cli.options import AsJson, Dsn, Key1, Key2, Name, lock_key_or_all


def watch(name: Name = None, key1: Key1 = None, key2: Key2 = None, *, dsn: Dsn = "", as_json: AsJson = False) -> None:
    """Follow who leads, live: all locks, or one.

    Changes are pushed by the server within milliseconds. On a pipe each is a line, with --json an object a line. While
    the connection is lost it says so, and afterwards what has changed meanwhile.

    \b
    Examples:
      pgelect watch
      pgelect watch invoices --json | jq --unbuffered -r .record.holder
    """  # noqa: D301 -- the mark by which the lines of a help text are kept apart
    key = lock_key_or_all(name, key1, key2)
    perform("watch", _watch(dsn, key, as_json=as_json))


async def _watch(dsn: str, key: LockKey | None, *, as_json: bool) -> None:
    from pgelect.cli.readers import while_read  # noqa: PLC0415 -- help must come at once

    await while_read(_follow(dsn, key, as_json=as_json))


async def _follow(dsn: str, key: LockKey | None, *, as_json: bool) -> None:
    from contextlib import aclosing, closing  # noqa: PLC0415 -- as above

    from pgelect.cli.watch_view import View, view  # noqa: PLC0415 -- as above
    from pgelect.observe import observe  # noqa: PLC0415 -- as above

    async with aclosing(observe(dsn, key)) as changes:
        first = await anext(changes)  # before anything is drawn: what goes wrong here is told in one line
        shown: View = view(as_json=as_json)
        with closing(shown):
            shown.show(first)
            async for change in changes:
                shown.show(change)
