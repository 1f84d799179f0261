"""The doctor's examination: connects as the library would, looks around, and leaves nothing behind.

It changes nothing on the server and takes no lock. A look that fails is told as such, and the others go on.
"""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.sql import SQL

from pgelect._engine.clock import SystemClock
from pgelect._engine.model import LockKey
from pgelect._postgres import campaign_sql
from pgelect._postgres.connect import Connector
from pgelect._postgres.errors import server_name
from pgelect._postgres.guards import admit
from pgelect._postgres.link import Deadline, Link
from pgelect._postgres.opened import results
from pgelect._postgres.options import SessionOptions
from pgelect.cli import doctor_queries as queries
from pgelect.cli.doctor_facts import (
    AdvisoryLock,
    Facts,
    Fenced,
    Replication,
    Rights,
    Room,
    Server,
    Setting,
    Timing,
    TokenRow,
    Unseen,
)
from pgelect.cli.ending import describe
from pgelect.errors import NotPrimaryError, PgElectError, SessionLostError, UnsupportedServerError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from typing import TypeAlias, TypeVar

    from psycopg.sql import Composable

    from pgelect._engine.bounds import Bounds
    from pgelect._engine.settings import Settings
    from pgelect._postgres.opened import Facts as SessionFacts
    from pgelect._postgres.opened import Rows

    T = TypeVar("T")
    Entered: TypeAlias = "_Session"

WITHIN_S = 10.0  # for connecting, and for each look
_PROOFS = 10
CLOCK_S = 0.5  # two looks at the clock that are closer would say nothing about its rate
_NONCE = "pgelect doctor"
_GIVEN = ("keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout")


@dataclass(frozen=True, slots=True)
class _Session:
    """A connection, what the library would have said of it, and what it knows of its session if it took it."""

    link: Link
    facts: SessionFacts | None
    refused: PgElectError | None
    passed_over: str = ""

    async def ask(self, query: Composable) -> Rows:
        prelude = SQL("") if self.facts is not None else queries.HERE

        async def work(conn: psycopg.AsyncConnection[Any]) -> Rows:
            return (await results(conn, prelude + query))[-1]

        return await self.link.run(work, Deadline.after(WITHIN_S), "looking around")


async def examine(
    dsn: str, key: LockKey | None, settings: Settings, bounds: Bounds, *, allow_pooler: bool = False
) -> Facts:
    """Look at a server.

    Raises:
        ConfigurationError: the DSN cannot be read, or the server is too old to be asked.
        SessionLostError: the server cannot be reached, or was lost at once.
    """
    options = SessionOptions(
        key=key or LockKey(0, 0, "doctor"),  # for its name in the list of sessions
        identity=settings.identity,
        lease_s=settings.lease_s,
        fencing=False,  # with it the schema would be made
        allow_pooler=allow_pooler,
        dsn=dsn,
    )
    session = await _enter(options)
    with closing(_Dropping(session.link)):
        rights = await _look(lambda: _one(session, queries.RIGHTS, Rights))
        parts = rights.parts if isinstance(rights, Rights) else ()
        return Facts(
            key=key,
            settings=settings,
            bounds=bounds,
            server=await _server(session),
            options=await _look(lambda: _settings(session)),
            rights=rights,
            version=await _version(session) if "schema_version" in parts else None,
            room=await _look(lambda: _one(session, queries.ROOM, Room)),
            tokens=await _tokens(session, rights),
            locks=await _look(lambda: _each(session, queries.locks(key), AdvisoryLock)),
            fenced=await _look(lambda: _each(session, queries.FENCED, Fenced)),
            replication=await _look(lambda: _one(session, queries.REPLICATION, Replication)),
            timing=await _look(lambda: _timing(session, options)),
        )


class _Dropping:
    def __init__(self, link: Link) -> None:
        self.close = link.drop


async def _enter(options: SessionOptions) -> Entered:
    """Connect as a lock does, also in that a standby is passed over for the primary if the DSN has one."""
    first = await _admitted(options, primary=False)
    if not isinstance(first.refused, NotPrimaryError):
        return first
    try:
        second = await _admitted(options, primary=True)
    except SessionLostError:
        return first
    except BaseException:
        first.link.drop()
        raise
    first.link.drop()
    return _Session(second.link, second.facts, second.refused, passed_over=first.refused.server)


async def _admitted(options: SessionOptions, *, primary: bool) -> Entered:
    deadline = Deadline.after(WITHIN_S)
    link = await Connector(options).connect(deadline, primary=primary)
    try:
        facts = await admit(link, options, _NONCE, deadline)
    except UnsupportedServerError:
        link.drop()
        raise
    except PgElectError as refused:
        if link.dropped:
            raise
        return _Session(link, None, refused)
    except BaseException:
        link.drop()
        raise
    return _Session(link, facts, None)


async def _look(at: Callable[[], Awaitable[T]]) -> T | Unseen:
    try:
        return await at()
    except SessionLostError as error:
        return Unseen(describe(error), lost=True)
    except (PgElectError, psycopg.Error, TypeError, ValueError, LookupError) as error:
        return Unseen(describe(error).splitlines()[0].split(". Let an administrator ")[0])


async def _one(session: Entered, query: Composable, kind: Callable[..., T]) -> T:
    return kind(*(await session.ask(query))[0])


async def _each(session: Entered, query: Composable, kind: Callable[..., T]) -> Sequence[T]:
    return [kind(*row) for row in await session.ask(query)]


async def _server(session: Entered) -> Server:
    pid, user, login, database, in_recovery = (await session.ask(queries.WHO))[0]
    conn = session.link.conn
    given = conn.info.get_parameters()
    return Server(
        where=server_name(conn),
        version=conn.info.server_version,
        unix_socket=_is_unix_socket(conn.fileno()),
        given={name: given[name] for name in _GIVEN if name in given},
        told_pid=conn.info.backend_pid,
        pid=pid,
        refused=session.refused,
        passed_over=session.passed_over,
        user=user,
        login=login,
        database=database,
        in_recovery=in_recovery,
    )


def _is_unix_socket(descriptor: int) -> bool:
    with socket.socket(fileno=os.dup(descriptor)) as copy:
        return copy.family not in {socket.AF_INET, socket.AF_INET6}


async def _settings(session: Entered) -> Sequence[Setting]:
    return [Setting(*row) for row in await session.ask(queries.SETTING_ROWS)]


async def _tokens(session: Entered, rights: Rights | Unseen) -> Sequence[TokenRow] | Unseen:
    if isinstance(rights, Rights):
        if "token" not in rights.parts:
            return ()
        if not (rights.schema and rights.tables):
            return Unseen("this role may not read the table of tokens")
    return await _look(lambda: _each(session, queries.TOKENS, TokenRow))


async def _version(session: Entered) -> int | None:
    """Read the version of the schema. An elector has no right to the number, and the catalogs tell it, too."""
    for query in (queries.VERSION, queries.SEEN_VERSION):
        try:
            return int((await session.ask(query))[0][0])
        except (PgElectError, TypeError, IndexError):
            continue
    return None


async def _timing(session: Entered, options: SessionOptions) -> Timing:
    clock = SystemClock()
    proof: Composable = queries.WHO if session.facts is None else campaign_sql.prove(options.key, session.facts)
    began = await _read_clock(session, clock)
    taken = []
    for _ in range(_PROOFS):
        sent = clock.now()
        await session.ask(proof)
        taken.append(clock.now() - sent)
    await asyncio.sleep(max(0.0, began.ours + CLOCK_S - clock.now()))
    ended = await _read_clock(session, clock)
    return Timing(
        proofs_s=taken,
        ours_s=ended.ours - began.ours,
        server_s=ended.server - began.server,
        unsure_s=began.unsure + ended.unsure,
    )


@dataclass(frozen=True, slots=True)
class _Reading:
    ours: float
    server: float
    unsure: float


async def _read_clock(session: Entered, clock: SystemClock) -> _Reading:
    """Read the server's clock: of a few tries the one that came back soonest, as that says best when it was read."""
    readings = []
    for _ in range(3):
        sent = clock.now()
        at = (await session.ask(queries.CLOCK))[0][0]
        back = clock.now()
        readings.append(_Reading((sent + back) / 2, at, (back - sent) / 2))
    return min(readings, key=lambda reading: reading.unsure)
