"""Before a session may campaign: the right server, no transaction pooler, own settings, a usable schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import psycopg
from psycopg.sql import SQL

from pgelect._engine.model import Backend
from pgelect._postgres import install, settings_sql
from pgelect._postgres.connect import Connector
from pgelect._postgres.errors import server_name
from pgelect._postgres.link import Deadline, Link
from pgelect._postgres.opened import Facts, results
from pgelect._postgres.sql import instant
from pgelect.errors import NotPrimaryError, PoolerError, SchemaError, SessionLostError, UnsupportedServerError

if TYPE_CHECKING:
    from psycopg import AsyncConnection
    from psycopg.sql import Composed

    from pgelect._postgres.options import SessionOptions

    _Backend: TypeAlias = tuple[int, str | None]

_OLDEST_SERVER = 140000
_PROBE_S = 1.0  # a second connection that gets no server within this waits for ours: session pooling, full pool
_PROBES, _PROBE_ROUNDS = 8, 2
_OPENING_TRIES = 3
_BACKEND = SQL("SELECT pg_catalog.pg_backend_pid(), pg_catalog.inet_client_addr()::pg_catalog.text")


async def admit(link: Link, options: SessionOptions, nonce: str, deadline: Deadline) -> Facts:
    """Apply the settings and pass the guards, in one round trip when nothing is unusual.

    Raises:
        UnsupportedServerError, PoolerError, SchemaError: time does not mend it.
        NotPrimaryError: the server is a standby.
        SessionLostError: lost on the way.
    """
    info = link.conn.info
    version, told_pid = info.server_version, info.backend_pid
    if version < _OLDEST_SERVER:
        raise UnsupportedServerError(version)
    only_on = None if options.allow_pooler else told_pid
    row = await _open(link, settings_sql.opening(options, nonce, version, only_on), deadline)
    if row[0] != told_pid and not options.allow_pooler:
        await _refuse_shared_sessions(link, options, deadline)
        row = await _open(link, settings_sql.opening(options, nonce, version, None), deadline)
    pid, start, database, in_recovery, slice_ms, role, *schema = row
    if in_recovery:
        raise NotPrimaryError(server_name(link.conn))
    announces = options.fencing and await _have_schema(link, role, schema, deadline)
    return Facts(Backend(pid, instant(start)), nonce, database, slice_ms / 1000, announces)


async def _open(link: Link, query: Composed, deadline: Deadline) -> tuple[Any, ...]:
    async def ask(conn: AsyncConnection[Any]) -> tuple[Any, ...]:
        # A hostile statement_timeout can strike before the first word of this very query has set it to 0.
        for _ in range(_OPENING_TRIES - 1):
            try:
                return (await results(conn, query))[-1][0]
            except psycopg.errors.QueryCanceled:
                continue
        return (await results(conn, query))[-1][0]

    return await link.run(ask, deadline, "opening the session")


async def _refuse_shared_sessions(link: Link, options: SessionOptions, deadline: Deadline) -> None:
    """Find out, as the backend is not the one libpq was told of, whether the pooler shares server sessions.

    A second connection is handed ours, if it does. But behind a balancer, or one port of several processes, it may meet
    another pooler than we did: so there are several of them, one after another.
    """
    ours: set[_Backend] = set()
    beside_us = False  # one came from where ours comes from: the host of our pooler
    for _ in range(_PROBES):
        second = await Connector(options).connect(deadline, beside=link)
        try:
            for _ in range(_PROBE_ROUNDS):
                ours.add(await _backend(link, deadline))
                if len(ours) > 1:
                    raise PoolerError("transaction")
                try:
                    other = await _backend(second, Deadline.after(min(_PROBE_S, deadline.left_s())))
                except SessionLostError as error:
                    if error.reason != "timeout":
                        raise
                    return
                if other in ours:
                    raise PoolerError("transaction")
                beside_us = beside_us or other[1] in {address for _, address in ours}
        finally:
            second.drop()
    if not beside_us:
        raise PoolerError("unknown")


async def _backend(link: Link, deadline: Deadline) -> _Backend:
    """Ask which server process answers, and where it sees its client."""

    async def ask(conn: AsyncConnection[Any]) -> _Backend:
        pid, address = (await results(conn, _BACKEND))[0][0]
        return int(pid), address

    return await link.run(ask, deadline, "looking for a pooler")


async def _have_schema(link: Link, role: str, found: list[Any], deadline: Deadline) -> bool:
    """See to the schema; whether this role may write down there who leads, which no election depends on.

    ``found``: rights on schema, tables, sequence (None: missing), whether the functions of the fence exist, the right
    to the functions that announce (None: missing), whether it is of an earlier version and this role may change all of
    it, strangers' traces.
    """
    *rights, functions, announcing, upgradable, stranger, intruder = found
    install.check_untouched(stranger, intruder)
    incomplete = None in rights or not functions
    # An earlier version of the schema is enough to lead. Who may not upgrade it does not try at each connection.
    if incomplete or upgradable:

        async def make(conn: AsyncConnection[Any]) -> None:
            await install.create(conn, wait_ms=5000)

        await link.run(make, deadline, "creating the schema pgelect")
        return True
    if not all(rights):
        raise SchemaError(f"the role {role!r} may not use the schema pgelect", install.grants_sql(role))
    return bool(announcing)
