"""Make one new connection: the user's conninfo, plus only what nobody has set. A failure is a lost session."""

from __future__ import annotations

import asyncio
import inspect
import os
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import AsyncConnection, pq
from psycopg.conninfo import conninfo_to_dict

from pgelect._postgres.dsn import can_parse
from pgelect._postgres.errors import empty_frames, one_line, secrets_of
from pgelect._postgres.link import Deadline, Link, forks, is_forking
from pgelect._postgres.settings_sql import keepalive_s, lease_ms
from pgelect.errors import ConfigurationError, PgElectError, SessionLostError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgelect._postgres.options import SessionOptions

_CONNECT_TIMEOUT_S = 5
_CLOSING_S = 1.0


class Connector:
    """One attempt to connect, which may be given up at any moment."""

    def __init__(self, options: SessionOptions) -> None:
        self._options = options
        self._task: asyncio.Task[AsyncConnection[Any]] | None = None

    async def connect(self, deadline: Deadline, *, primary: bool = False, beside: Link | None = None) -> Link:
        """Make a new connection: autocommit, idle, nothing prepared. Cancelled or late: nothing is left behind.

        Args:
            deadline: for all of it.
            primary: pass standbys over, unless the user has said whom to connect to.
            beside: connect to where that one is, whatever the DSN says now; a ``connect_fn`` cannot be told.

        Raises:
            ConfigurationError: the DSN cannot be read, or ``connect_fn`` gave a connection that is not idle.
            SessionLostError: no connection; may succeed later.
        """
        before, forking = forks(), is_forking()
        making = _connection(self._options, deadline, primary=primary, beside=beside)
        task = asyncio.get_running_loop().create_task(making)
        self._task = task
        came = False
        try:
            await asyncio.wait({task}, timeout=deadline.left_s())
            came = task.done()
        finally:
            if not came:  # late, or we are cancelled, maybe in the moment it came
                self.abandon()
                await asyncio.wait({task}, timeout=_CLOSING_S)
        self._task = None
        if not came:
            raise SessionLostError("connect", f"no connection within {deadline.within_s:.3g} s")
        link = _link_of(task)
        if forking or forks() != before:
            link.drop()  # with a message to the server: the child's copy of the socket would keep the session alive
            raise SessionLostError("connect", "the process was forked while it was connecting; it connects anew")
        return link

    def abandon(self) -> None:
        """Give up without waiting. Harmless afterwards."""
        task, self._task = self._task, None
        if task is not None:
            task.add_done_callback(_close_late)
            task.cancel()


def _link_of(task: asyncio.Task[AsyncConnection[Any]]) -> Link:
    try:
        conn = task.result()
    except asyncio.CancelledError as error:
        empty_frames(error)
    else:
        if not conn.closed:
            return Link(conn)
    raise SessionLostError("closed", "the session was closed while it was connecting")


def _close_late(task: asyncio.Task[AsyncConnection[Any]]) -> None:
    """Close a connection that came although nobody wants it any more."""
    try:
        task.result().pgconn.finish()
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 -- it did not come: all the better
        empty_frames(error)


async def _connection(
    options: SessionOptions, deadline: Deadline, *, primary: bool, beside: Link | None
) -> AsyncConnection[Any]:
    if options.connect_fn is not None:
        return await _from_user(options)
    dsn = await _dsn(options)
    if not can_parse(dsn):
        raise _unreadable(options, "it cannot be parsed")
    if _has_loose_secret(dsn):
        raise _unreadable(options, "its password has a character such as @ or / that is not percent-encoded")
    added = additions(conninfo_to_dict(dsn), options.lease_s, deadline, primary=primary)
    if beside is not None:
        added.update(_place_of(beside))
    # Raised outside the handlers: an error that somebody keeps must not keep the half-made connection of its context.
    try:
        conn = await AsyncConnection.connect(dsn, autocommit=True, prepare_threshold=None, **added)
        return await _in_utf8(conn)
    except psycopg.InterfaceError as error:
        # psycopg on Windows' default loop: time does not mend it
        problem: PgElectError = ConfigurationError(
            f"psycopg cannot run on this event loop: {one_line(error)}. On Windows, use "
            "asyncio.run(main(), loop_factory=asyncio.SelectorEventLoop)."
        )
        empty_frames(error)
    except (psycopg.Error, OSError) as error:
        problem = SessionLostError(
            "connect", f"cannot connect: {one_line(_with_host(str(error), dsn), secrets_of(dsn))}"
        )
        empty_frames(error)
    raise problem


def _with_host(text: str, dsn: str) -> str:
    """Name the host where nothing does: psycopg before 3.3 passes on what the system says, without the name."""
    hosts = str(conninfo_to_dict(dsn).get("host") or "")
    return text if not hosts or any(host in text for host in hosts.split(",")) else f"{text} (host {hosts})"


async def _in_utf8(conn: AsyncConnection[Any]) -> AsyncConnection[Any]:
    """Have names of any language fit into the first statement: psycopg encodes it as the session is when it is sent."""
    if conn.info.encoding != "utf-8":
        try:
            await conn.execute("SET client_encoding TO 'UTF8'")
        except BaseException:
            conn.pgconn.finish()
            raise
    return conn


async def _dsn(options: SessionOptions) -> str:
    if isinstance(options.dsn, str):
        return options.dsn
    _, dsn = await _asked(options.dsn, "the dsn callable")
    if not isinstance(dsn, str):
        raise ConfigurationError(f"the dsn callable must return a str, not {type(dsn).__name__}")
    return dsn


async def _asked(call: Callable[[], object], what: str) -> tuple[object, object]:
    """Call user code: its answer, and what that gives when it is awaited, or else the same again."""
    try:
        answer = call()
        return answer, await answer if inspect.isawaitable(answer) else answer
    except PgElectError:
        raise
    except Exception as error:  # noqa: BLE001 -- user code; whatever it is, the next attempt may go better
        text = f"{what} failed: {type(error).__name__}: {one_line(error)}"
    raise SessionLostError("connect", text)  # outside the handler: an error with a password is nobody's context


async def _from_user(options: SessionOptions) -> AsyncConnection[Any]:
    assert options.connect_fn is not None  # noqa: S101 -- for the type checker; the caller looked
    answer, conn = await _asked(options.connect_fn, "connect_fn")
    if not isinstance(conn, AsyncConnection) or answer is conn:
        raise ConfigurationError(
            f"connect_fn must be an async callable that returns a psycopg.AsyncConnection, not {type(answer).__name__} "
            f"that gives {type(conn).__name__}"
        )
    if conn.closed:
        raise SessionLostError("connect", "connect_fn returned a closed connection")
    if conn.info.transaction_status != pq.TransactionStatus.IDLE:
        conn.pgconn.finish()
        raise ConfigurationError(
            "connect_fn must return a connection that is idle and used by nobody else; it returned one inside a "
            "transaction. Commit before returning it; a pool's connection will not do."
        )
    try:
        if not conn.autocommit:
            await conn.set_autocommit(True)
        conn.prepare_threshold = None
        await _in_utf8(conn)
    except psycopg.Error as error:
        conn.pgconn.finish()
        raise SessionLostError("connect", f"the connection of connect_fn does not work: {one_line(error)}") from None
    return conn


def additions(given: dict[str, Any], lease_s: float, deadline: Deadline, *, primary: bool = False) -> dict[str, Any]:
    """Choose connection parameters that neither the DSN nor the environment sets.

    A service file's values cannot be seen from here and explicit ones would override them: then nothing is added.
    """
    if _set_by_user("service", "PGSERVICE", given):
        return {}
    hosts = str(given.get("host") or given.get("hostaddr") or os.environ.get("PGHOST", "")).count(",") + 1
    added: dict[str, Any] = {}
    if not _set_by_user("connect_timeout", "PGCONNECT_TIMEOUT", given):
        # for each host: the last one must have its turn within the deadline; libpq's least is 2 s
        added["connect_timeout"] = max(2, min(_CONNECT_TIMEOUT_S, int(deadline.left_s() / hosts)))
    if (primary or hosts > 1) and not _set_by_user("target_session_attrs", "PGTARGETSESSIONATTRS", given):
        added["target_session_attrs"] = "primary" if pq.version() >= 140000 else "read-write"
    idle, interval, count = keepalive_s(lease_s)
    keepalives = {
        "keepalives_idle": idle,
        "keepalives_interval": interval,
        "keepalives_count": count,
        "tcp_user_timeout": lease_ms(lease_s),
    }
    added.update({name: value for name, value in keepalives.items() if name not in given})
    return added


def _place_of(link: Link) -> dict[str, Any]:
    info = link.conn.info
    return {"host": info.host, "hostaddr": info.hostaddr or None, "port": info.port}


def _set_by_user(name: str, variable: str, given: dict[str, Any]) -> bool:
    return name in given or bool(os.environ.get(variable))


def _has_loose_secret(dsn: str) -> bool:
    """Whether libpq would read a part of the password as host or database, and print it."""
    scheme, separator, rest = dsn.partition("://")
    if not separator or scheme not in {"postgresql", "postgres"}:
        return False
    before, at, after = rest.partition("?")[0].partition("@")
    return bool(at) and ("/" in before or "@" in after)


def _unreadable(options: SessionOptions, why: str) -> PgElectError:
    """Refuse a DSN that is no DSN. What it says is withheld: parts of it may be the password."""
    text = f"the DSN is not usable: {why} (it is not shown, for it may hold a password). "
    text += "Write postgresql://user:password@host/db with special characters percent-encoded, or key=value pairs."
    if isinstance(options.dsn, str):
        return ConfigurationError(text)
    return SessionLostError("connect", text)  # a callable may do better the next time
