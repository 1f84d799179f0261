"""A first look at a DSN, before anything connects. Never shows what is in it: there may be a password."""

from __future__ import annotations

import psycopg
from psycopg.conninfo import conninfo_to_dict


def check_dsn(dsn: object) -> None:
    """Refuse what cannot be a DSN.

    Raises:
        TypeError: neither a str nor callable.
        ValueError: a str that libpq cannot parse.
    """
    if callable(dsn):
        return
    if not isinstance(dsn, str):
        raise TypeError(f"dsn must be a str or a callable that returns one, not {type(dsn).__name__}")
    if not can_parse(dsn):
        raise ValueError(
            "dsn cannot be parsed: it must be 'host=... dbname=...' or 'postgresql://user@host/dbname', with special "
            "characters in a URI percent-encoded"
        )


def can_parse(dsn: str) -> bool:
    """Whether libpq can parse it. What it says when it cannot, which quotes the DSN, is kept in no error's context."""
    try:
        conninfo_to_dict(dsn)
    except (psycopg.Error, UnicodeEncodeError):  # the latter: bytes that are not UTF-8, and a message that quotes them
        return False
    return True
