"""``pgelect guard`` and ``pgelect unguard``: let a table be written only by the leader of a lock."""

from typing import Annotated

import typer

from pgelect import LockKey, guard_table, unguard_table
from pgelect._postgres.client import Client
from pgelect.cli.ending import perform
from pgelect.cli.options import AsJson, Dsn, Key1, Key2, Name, lock_key
from pgelect.cli.output import as_json as jsonable
from pgelect.cli.output import say, say_json

Table = Annotated[
    str, typer.Argument(metavar="TABLE", show_default=False, help="As in SQL: schema.table; capitals in double quotes.")
]


def guard(
    table: Table, name: Name = None, key1: Key1 = None, key2: Key2 = None, *, dsn: Dsn = "", as_json: AsJson = False
) -> None:
    """Refuse every write to a table outside a transaction fenced by the current term of a lock.

    Whoever forgets the fence is refused by the server. Needs the rights to put a trigger on the table.

    \b
    Examples:
      pgelect guard ledger reports
      pgelect guard app.ledger --key1 4 --key2 2
    """  # noqa: D301 -- the mark by which the lines of a help text are kept apart
    perform("guard", _guard(table, lock_key(name, key1, key2), dsn, as_json))


def unguard(table: Table, *, dsn: Dsn = "", as_json: AsJson = False) -> None:
    """Take the guard off a table; nothing happens when it has none.

    \b
    Example:
      pgelect unguard ledger
    """  # noqa: D301 -- the mark by which the lines of a help text are kept apart
    perform("unguard", _unguard(table, dsn, as_json))


async def _guard(table: str, key: LockKey, dsn: str, as_json: bool) -> None:
    async with Client.connected(dsn) as client:
        await client.run(lambda conn: guard_table(conn, table, key), f"guarding {table}")
    if as_json:
        say_json({"table": table, "guarded": True, **jsonable(key)})
    else:
        say(f"{table} can be written only in transactions that are fenced by the current term of {key}.")


async def _unguard(table: str, dsn: str, as_json: bool) -> None:
    async with Client.connected(dsn) as client:
        await client.run(lambda conn: unguard_table(conn, table), f"taking the guard off {table}")
    if as_json:
        say_json({"table": table, "guarded": False})
    else:
        say(f"{table} has no guard.")
