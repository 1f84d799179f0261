"""``pgelect init``: create the schema or bring it to this version, and grant roles what they need; or print the SQL."""

from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

import typer
from psycopg import AsyncConnection

from pgelect import install, schema_sql
from pgelect._postgres import install as sql
from pgelect._postgres.client import Client
from pgelect.cli.ending import perform, told
from pgelect.cli.options import AsJson, Dsn
from pgelect.cli.output import say, say_json
from pgelect.fencing import schema_version

WITHIN_S = 60.0
"""An upgrade may have to wait for transactions that use the schema."""


def _roles(option: str, text: str) -> Any:
    return typer.Option(option, metavar="ROLE", show_default=False, help=f"{text} May be repeated.")


Roles: TypeAlias = list[str] | None


def init(
    *,
    electors: Annotated[Roles, _roles("--elector", "Grant what it needs to lead.")] = None,
    writers: Annotated[Roles, _roles("--writer", "Grant what it needs to write fenced transactions.")] = None,
    readers: Annotated[Roles, _roles("--reader", "Grant what it needs to see who leads.")] = None,
    operators: Annotated[Roles, _roles("--operator", "Grant what it needs to ask for a step-down.")] = None,
    print_only: Annotated[bool, typer.Option("--print", help="Print the SQL, and connect to nothing.")] = False,
    dsn: Dsn = "",
    as_json: AsJson = False,
) -> None:
    """Create the schema pgelect, or upgrade it to this version. Safe to run again, and while locks are led.

    A schema of a later version is left alone, with exit code 4. Run it as a role that may create a schema.

    \b
    Examples:
      pgelect init --elector app --reader grafana
      pgelect init --print --elector app | psql -1 service=prod
    """  # noqa: D301 -- the mark by which the lines of a help text are kept apart
    kinds: list[tuple[Roles, Callable[[str], str]]] = [
        (electors, sql.grants_sql),
        (writers, sql.writer_grants_sql),
        (readers, sql.reader_grants_sql),
        (operators, sql.operator_grants_sql),
    ]
    grants = [(role, make(role)) for roles, make in kinds for role in roles or []]
    if print_only and as_json:
        raise typer.BadParameter("--print prints SQL and --json prints JSON; give one of them")
    if not print_only:
        perform("init", _init(dsn, grants, as_json))
    with told("init"):
        say("\n".join([schema_sql().rstrip(), *(granted for _, granted in grants)]))


async def _init(dsn: str, grants: list[tuple[str, str]], as_json: bool) -> None:
    async with Client.connected(dsn) as client:
        before = await client.run(schema_version, "reading the version of the schema")
        await client.run(install, "creating the schema pgelect", WITHIN_S)
        after = await client.run(schema_version, "reading the version of the schema")
        for role, granted in grants:
            await client.run(_granting(granted), f"granting rights to {role}")
    if as_json:
        say_json({"version": after, "previous": before, "granted": sorted({role for role, _ in grants})})
        return
    if before is None:
        say(f"The schema pgelect was created, version {after}.")
    elif before == after:
        say(f"The schema pgelect is up to date, version {after}.")
    else:
        say(f"The schema pgelect was upgraded from version {before} to version {after}.")
    if grants:
        say(f"Rights were granted to {', '.join(sorted({role for role, _ in grants}))}.")


def _granting(granted: str) -> Callable[[AsyncConnection[Any]], Any]:
    async def grant(conn: AsyncConnection[Any]) -> None:
        async with conn.transaction():
            await conn.execute(granted.encode())

    return grant
