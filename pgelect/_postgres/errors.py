"""The one place where errors of the driver become errors of this library, and where text is cleaned of secrets.

A connection that ended is ``SessionLostError``; on a live one the SQLSTATE decides. Errors of *connecting* carry no
SQLSTATE (psycopg), so nothing here switches on it for them.
"""

from __future__ import annotations

import re
import traceback
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from pgelect._postgres.install import grants_sql, lock_grants_sql, schema_sql
from pgelect.errors import NotPrimaryError, PgElectError, SchemaError, SessionLostError

if TYPE_CHECKING:
    from collections.abc import Iterable

# The server ends the session after these, even when the end of the stream has not arrived yet.
_ENDED = frozenset({"57P01", "57P02", "57P03", "57P04", "57P05", "25P03", "25P04"})
_READ_ONLY = "25006"
_NO_RIGHT = "42501"
_MISSING = frozenset({"3F000", "42P01", "42883", "42703", "42704"})

_SECRETS = ("password", "sslpassword", "scram_client_key", "scram_server_key", "oauth_client_secret")
_URI_SECRET = re.compile(r"(://)[^\s/?@]*:[^\s]*@")
# As libpq, environments, mappings and calls write it: password='x', PGPASSWORD=x, "password": "x".
_WORD_SECRET = re.compile(
    r"""(?i)(\w*(?:passw(?:or)?d|pwd|secret|scram_\w+_key)["']?\s*[=:]\s*)"""
    r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|(?:\\.|\S)+)"""
)


def one_line(text: object, secrets: Iterable[str] = ()) -> str:
    """Text on one line, with passwords replaced by ``***``."""
    line = str(text)
    for secret in secrets:
        if secret:
            line = line.replace(secret, "***")
    line = " ".join(line.split())
    line = _URI_SECRET.sub(r"\1***@", line)
    return _WORD_SECRET.sub(r"\1***", line)


def secrets_of(dsn: str) -> tuple[str, ...]:
    """Find the passwords in a DSN that parses; nothing for one that does not."""
    try:
        given = conninfo_to_dict(dsn)
    except psycopg.Error:
        return ()
    return tuple(str(given[name]) for name in _SECRETS if given.get(name))


def server_name(conn: psycopg.BaseConnection[Any]) -> str:
    """Host and port, as far as known, and the address, which is one of several where a name has more."""
    try:
        host, address, port = conn.info.host, conn.info.hostaddr, conn.info.port
    except psycopg.Error:
        return "(unknown)"
    return f"{host}:{port}" if address in {"", host} else f"{host}:{port} ({address})"


def is_lost(error: psycopg.Error, conn: psycopg.BaseConnection[Any]) -> bool:
    """Whether this error means that the session is gone."""
    state = error.sqlstate
    if conn.closed or state in _ENDED or (state is not None and state.startswith("08")):
        return True
    return state is None and isinstance(error, psycopg.OperationalError)


def mapped(error: psycopg.Error, conn: psycopg.BaseConnection[Any], doing: str) -> PgElectError:
    """Make the error of this library that says what a driver error means while ``doing`` something on ``conn``."""
    text = one_line(error)
    if is_lost(error, conn):
        return SessionLostError("closed", f"the session ended while {doing}: {text}")
    state = error.sqlstate
    if state == _READ_ONLY:
        return NotPrimaryError(server_name(conn))
    if state == _NO_RIGHT and "pg_" in text and "advisory" in text:  # names of functions, whatever lc_messages is
        return SchemaError(f"this role may not use advisory locks: {text}", lock_grants_sql(conn.info.user))
    if state == _NO_RIGHT or state in _MISSING:
        grants = grants_sql(conn.info.user)
        whole = grants if state == _NO_RIGHT else f"{schema_sql()}\n{grants}"
        return SchemaError(f"the schema pgelect cannot be used while {doing}: {text}", whole)
    return PgElectError(f"the server refused a statement while {doing}: {text} (SQLSTATE {state or 'none'})")


def empty_frames(error: BaseException | None) -> None:
    """Let go of the half-made connection, and its socket, that the frames of a traceback keep as long as the error."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__
