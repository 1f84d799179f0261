"""How leaders and terms are put into words: who leads, since when, whether alive. Pure; times are passed in.

All that others wrote (holders, names, metadata) goes through ``clean``: it moves no cursor of whoever looks on.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pgelect._engine.model import LockKey
from pgelect.cli.output import clean, when

if TYPE_CHECKING:
    from datetime import datetime

    from pgelect._engine.model import LeaderRecord
    from pgelect.observe import TermRecord

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_LONGEST_METADATA = 2000


def age(since: datetime | None, now: datetime) -> str:
    """How long ago that was, in its two greatest units: ``8s``, ``3m``, ``2h05m``, ``4d07h``; ``-`` for None."""
    return "-" if since is None else duration((now - since).total_seconds())


def duration(seconds: float) -> str:
    """Show a number of seconds in its two greatest units. The clocks of two machines may differ: never below 0."""
    whole = max(0, int(seconds))
    if whole < _MINUTE:
        return f"{whole}s"
    if whole < _HOUR:
        return f"{whole // _MINUTE}m{whole % _MINUTE:02}s"
    if whole < _DAY:
        return f"{whole // _HOUR}h{whole % _HOUR // _MINUTE:02}m"
    return f"{whole // _DAY}d{whole % _DAY // _HOUR:02}h"


def lock_of(record: LeaderRecord | TermRecord | LockKey) -> str:
    """Show a lock by its name, or by its keys where it has none."""
    return clean(record.name) if record.name is not None else f"({record.key1}, {record.key2})"


def key_text(key: LockKey) -> str:
    """Show a lock by its name and keys."""
    pair = f"({key.key1}, {key.key2})"
    return f"{clean(key.name)} {pair}" if key.name else pair


def alive_of(record: LeaderRecord) -> str:
    """Say in a word whether somebody leads: ``yes``, ``no`` (the session is gone), ``released``, or ``unknown``."""
    if record.alive is None:
        return "unknown"
    if record.alive:
        return "yes"
    return "released" if record.released_at is not None else "no"


def standing(record: LeaderRecord | None, key: LockKey, now: datetime) -> str:
    """Say in a sentence who leads."""
    if record is None:
        return f"{key_text(key)} was never led in this database."
    name, holder, token = lock_of(record), clean(record.holder), record.token
    if record.alive:
        return f"{holder} leads {name} with token {token}, for {age(record.acquired_at, now)} now."
    if record.alive is None:
        return f"{holder} led {name} last, with token {token}. Whether it still does is known to the primary only."
    if record.released_at is not None:
        ago = age(record.released_at, now)
        return f"Nobody leads {name}: {holder} gave it up {ago} ago (token {token})."
    return f"Nobody leads {name}: the session of {holder} is gone (token {token})."


def details(record: LeaderRecord, now: datetime) -> list[tuple[str, str]]:
    """Give all that is known of a lock, a line each: what, and its value."""
    heard = record.last_contact_at
    facts: list[tuple[str, str | None]] = [
        ("lock", key_text(LockKey(record.key1, record.key2, record.name))),
        ("leader" if record.alive else "last leader", clean(record.holder)),
        ("alive", _alive_words(record)),
        ("since", _at(record.acquired_at, now)),
        ("released", _at(record.released_at, now) if record.released_at is not None else None),
        ("token", str(record.token)),
        ("terms", str(record.terms)),
        ("lease", f"{record.lease_s:g} s"),
        ("last contact", _at(heard, now) if heard is not None else None),
        ("session", _session_of(record)),
        ("database", clean(record.database) if record.database is not None else None),
        ("followers", _followers_of(record)),
        ("metadata", _metadata_of(record)),
    ]
    return [(what, value) for what, value in facts if value is not None]


def _at(at: datetime, now: datetime) -> str:
    return f"{when(at)} ({age(at, now)} ago)"


def _alive_words(record: LeaderRecord) -> str:
    return {
        "yes": "yes: its session holds the lock at this moment",
        "no": "no: its session is gone, and nobody has taken over yet",
        "released": "no: it gave the lock up, and nobody has taken over yet",
        "unknown": "unknown: this server is a standby, and only the primary knows",
    }[alive_of(record)]


def _session_of(record: LeaderRecord) -> str:
    if record.alive is False:
        return f"was server process {record.pid}"
    origin = f" from {clean(record.client_addr)}" if record.client_addr is not None else ""
    called = f", {clean(record.application_name)}" if record.application_name else ""
    return f"server process {record.pid}{origin}{called}"


def _followers_of(record: LeaderRecord) -> str | None:
    return None if record.followers is None else f"{record.followers} waiting"


def _metadata_of(record: LeaderRecord) -> str | None:
    if not record.metadata:
        return None
    text = clean(json.dumps(dict(record.metadata), ensure_ascii=False))
    return text if len(text) <= _LONGEST_METADATA else f"{text[:_LONGEST_METADATA]} ... (--json shows all)"


def ending_of(term: TermRecord) -> str:
    """Say in a word how a term ended; ``lasts`` while it does."""
    return "lasts" if term.ending is None else str(term.ending)


def lasted(term: TermRecord, now: datetime) -> str:
    """How long a term lasted, or lasts; ``-`` where nobody knows its end."""
    if term.ending is None:
        return age(term.began_at, now)
    return "-" if term.ended_at is None else age(term.began_at, term.ended_at)
