"""``pgelect status``: who leads, of all locks of a database or of one.

Exit codes, with a lock: 0 it is led, 1 nobody leads it or it was never led, 3 the server is away or only a standby.
"""

from pgelect._engine.model import LockKey
from pgelect.cli.ending import Code, perform
from pgelect.cli.options import AsJson, Dsn, Key1, Key2, Name, lock_key_or_all


def status(name: Name = None, key1: Key1 = None, key2: Key2 = None, *, dsn: Dsn = "", as_json: AsJson = False) -> None:
    """Show who leads: all locks of a database, or one in detail.

    Times are ages by the server's clock on a terminal. With a lock, the exit code is 0 when it is led and 1 when nobody
    leads it; without one it is 0.

    \b
    Examples:
      pgelect status
      pgelect status invoices
      pgelect status --json | jq -r '.[] | select(.alive | not) | .name'
    """  # noqa: D301 -- the mark by which the lines of a help text are kept apart
    key = lock_key_or_all(name, key1, key2)
    perform("status", _all(dsn, as_json=as_json) if key is None else _one(dsn, key, as_json=as_json))


async def _all(dsn: str, *, as_json: bool) -> int:
    from pgelect.cli.lookers import looking  # noqa: PLC0415 -- help must come at once
    from pgelect.cli.output import say, say_json  # noqa: PLC0415 -- as above
    from pgelect.cli.status_view import show_all  # noqa: PLC0415 -- as above
    from pgelect.observe import list_leaders  # noqa: PLC0415 -- as above

    async with looking(dsn) as looker:
        records, now = await looker.ask(list_leaders), await looker.now()
    if as_json:
        say_json(records)
    elif records:
        show_all(records, now)
    else:
        say("No lock was ever led in this database.")
    return Code.OK


async def _one(dsn: str, key: LockKey, *, as_json: bool) -> int:
    from pgelect.cli.lookers import looking  # noqa: PLC0415 -- as above
    from pgelect.cli.output import say, say_json  # noqa: PLC0415 -- as above
    from pgelect.cli.records import standing  # noqa: PLC0415 -- as above
    from pgelect.cli.status_view import show_one  # noqa: PLC0415 -- as above
    from pgelect.observe import get_leader  # noqa: PLC0415 -- as above

    async with looking(dsn) as looker:
        record, now = await looker.ask(lambda conn: get_leader(conn, key)), await looker.now()
    if as_json:
        say_json(record)
    elif record is None:
        say(standing(None, key, now))
    else:
        show_one(record, now)
    if record is not None and record.alive is None:
        return Code.UNREACHABLE
    return Code.OK if record is not None and record.alive else Code.NO
