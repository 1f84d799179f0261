"""What the doctor thinks of the server and of the way to it: version, role, pooler, settings, standbys, keepalives."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pgelect._postgres.settings_sql import keepalive_s, lease_ms
from pgelect.cli.doctor_facts import Finding, Replication, Server, Setting, Severity
from pgelect.errors import NotPrimaryError, PoolerError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_LONG_WAIT_S = 1.0
_SLICE_LEAST_MS = 50 / 0.9  # a follower's wait of nine tenths of deadlock_timeout is no shorter than 50 ms

# What a lock's sessions are not to be born with, and why. They set it themselves; other sessions keep it.
_HARM = {
    "statement_timeout": "would end a wait for the lock, and now and then a proof",
    "lock_timeout": "would end a wait for the lock",
    "transaction_timeout": "would end a wait for the lock",
    "idle_session_timeout": "would end the session of a lock that waits between two proofs",
    "idle_in_transaction_session_timeout": "would be another lease than the lock's own",
    "default_transaction_read_only": "would let no token be written",
    "default_transaction_isolation": "would have tokens read from an old snapshot",
    "default_transaction_deferrable": "would delay statements",
    "synchronous_commit": "would let a crash of the server take a token back",
    "search_path": "would let objects of others be found first",
    "tcp_keepalives_idle": "would decide how soon the server misses a dead client",
    "tcp_keepalives_interval": "would decide how soon the server misses a dead client",
    "tcp_keepalives_count": "would decide how soon the server misses a dead client",
    "tcp_user_timeout": "would decide how soon the server misses a dead client",
}


def check_server(server: Server) -> Iterator[Finding]:
    """Judge version and role: a primary of PostgreSQL 14 or newer."""
    major, minor = divmod(server.version, 10000)
    what = f"PostgreSQL {major}.{minor} at {server.where}, database {server.database}"
    if server.in_recovery:
        yield Finding(
            Severity.ERROR,
            "server",
            f"{what}, is a standby: leadership is never taken there",
            "Point the DSN at the primary, or list all hosts in it: host=a,b target_session_attrs=primary",
        )
        return
    yield Finding(Severity.OK, "server", f"{what}, a primary")
    if server.passed_over:
        yield Finding(
            Severity.NOTE,
            "server",
            f"a standby answered first, {server.passed_over}; locks pass it over at each connection",
            "Put the primary first, or add target_session_attrs=primary to the DSN.",
        )


def check_pooler(server: Server) -> Iterator[Finding]:
    """Judge whether the session is one's own."""
    refused = server.refused
    if isinstance(refused, PoolerError):
        yield Finding(
            Severity.ERROR,
            "pooler",
            f"the connection leads through a pooler in {refused.mode} mode, which shares server sessions"
            if refused.mode != "unknown"
            else "the connection leads through a pooler, of which it cannot be told whether it shares server sessions",
            "Connect to PostgreSQL itself, or to a pool in session mode.",
        )
    elif server.told_pid != server.pid:
        yield Finding(
            Severity.NOTE,
            "pooler",
            "there is a pooler in session mode (or one that was allowed); each candidate keeps one of its connections",
            "Its pool must have room for every candidate. A direct connection is one thing less that can fail.",
        )
    else:
        yield Finding(Severity.OK, "pooler", "none: the connection is direct")
    if refused is not None and not isinstance(refused, PoolerError | NotPrimaryError):
        yield Finding(Severity.ERROR, "session", f"a lock would be refused here: {refused}")


def check_settings(settings: Sequence[Setting], lease_s: float, *, ours: bool) -> Iterator[Finding]:
    """Judge what sessions are born with here, and whether a lock's session has made it harmless.

    Args:
        settings: what was seen.
        lease_s: of the lock.
        ours: the settings of a lock are in force in the session that looked; a pooler or a standby got none.
    """
    by_name = {setting.name: setting for setting in settings}
    harmful = [s for s in settings if s.name in _HARM and s.given != s.boot]
    for setting in harmful:
        origin = setting.origin or "the server's configuration, or the DSN"
        yield Finding(
            Severity.NOTE,
            "settings",
            f"{setting.name} = {setting.shown(setting.given)} (from {origin}) {_HARM[setting.name]}; "
            "sessions of locks override it",
        )
    wrong = list(_not_in_force(by_name, lease_s)) if ours else []
    yield from wrong
    if not harmful and not wrong:
        yield Finding(Severity.OK, "settings", "nothing of role, database or server stands in the way of a lock")
    yield from _of_the_server(by_name, ours=ours)


def _not_in_force(by_name: dict[str, Setting], lease_s: float) -> Iterator[Finding]:
    lease = str(lease_ms(lease_s))
    wanted = {
        "statement_timeout": "0",
        "transaction_timeout": "0",
        "idle_session_timeout": lease,
        "idle_in_transaction_session_timeout": lease,
        "default_transaction_read_only": "off",
        "default_transaction_isolation": "read committed",
        "synchronous_commit": "on",
        "search_path": "pg_catalog, pg_temp",
    }
    for name, value in wanted.items():
        setting = by_name.get(name)
        if setting is not None and setting.in_force != value:
            yield Finding(
                Severity.ERROR,
                "settings",
                f"{name} is {setting.shown(setting.in_force)} although the session has set it to {value}",
                "Something between here and the server, or an extension in it, changes settings; find it.",
            )


def _of_the_server(by_name: dict[str, Setting], *, ours: bool) -> Iterator[Finding]:
    """Judge what a session cannot change."""
    fsync = by_name.get("fsync")
    if fsync is not None and fsync.given == "off":
        yield Finding(
            Severity.WARNING,
            "durability",
            "fsync is off: a crash of the machine can take tokens back, which are then given out twice",
            "Set fsync = on, unless this server is only for tests.",
        )
    deadlock = by_name.get("deadlock_timeout")
    if deadlock is not None and deadlock.given.isdigit() and int(deadlock.given) < _SLICE_LEAST_MS:
        yield Finding(
            Severity.NOTE,
            "settings",
            f"deadlock_timeout = {deadlock.shown(deadlock.given)} is shorter than a follower's wait for the lock: the "
            "server looks for deadlocks at each, and log_lock_waits writes a line",
            "Raise deadlock_timeout; its default is 1s.",
        )
    interval = by_name.get("client_connection_check_interval")
    if ours and interval is not None and interval.in_force == "0":
        yield Finding(
            Severity.NOTE,
            "settings",
            "this server cannot look for dead clients while a statement runs (client_connection_check_interval): a "
            "candidate that dies while it waits for the lock is noticed at the end of that wait, within a second",
        )


def check_standbys(seen: Replication) -> Iterator[Finding]:
    """Judge whether commits, and so tokens, wait for a standby that is not there."""
    if seen.waiting and seen.longest_s >= _LONG_WAIT_S:
        yield Finding(
            Severity.ERROR,
            "standbys",
            f"{seen.waiting} commits wait for a synchronous standby, the longest for {seen.longest_s:.0f} s: "
            "no new term can begin meanwhile",
            "Bring the standby back, or take it out of synchronous_standby_names and reload.",
        )
        return
    if not seen.names.strip():
        yield Finding(Severity.OK, "standbys", "none is waited for: no synchronous_standby_names")
        return
    needed = _needed(seen.names)
    if seen.in_sync >= needed:
        yield Finding(Severity.OK, "standbys", f"{seen.in_sync} synchronous, and {needed} must confirm a token")
    elif seen.in_sync + seen.hidden >= needed:
        yield Finding(
            Severity.NOTE,
            "standbys",
            f"{needed} synchronous standbys must confirm a token; this role may not see whether they are there",
            "Run the doctor as a member of pg_read_all_stats.",
        )
    else:
        yield Finding(
            Severity.ERROR,
            "standbys",
            f"synchronous_standby_names = {seen.names!r} asks for {needed}, and {seen.in_sync + seen.hidden} of them "
            "is there: no new term can begin",
            "Bring the standby back, or take it out of synchronous_standby_names and reload.",
        )


def _needed(names: str) -> int:
    """How many standbys must confirm: ``ANY 2 (a, b)``, ``FIRST 2 (a, b)``, ``2 (a, b)``; one without a number."""
    found = re.match(r"\s*(?:(?:any|first)\s+)?(\d+)\s*\(", names, re.IGNORECASE)
    return int(found[1]) if found else 1


def check_keepalives(server: Server, lease_s: float) -> Iterator[Finding]:
    """Judge how soon a dead peer is noticed below us."""
    if server.unix_socket:
        yield Finding(Severity.OK, "keepalives", "a Unix socket: there is no network that could fall silent")
        return
    given = server.given
    if given.get("keepalives") == "0":
        yield Finding(
            Severity.WARNING,
            "keepalives",
            "the DSN turns TCP keepalives off (keepalives=0): balancers and NAT forget an idle connection, and what a "
            "dead network has swallowed is only noticed by the next proof",
            "Take keepalives=0 out of the DSN.",
        )
        return
    idle, interval, count = keepalive_s(lease_s)
    own = {
        "keepalives_idle": idle,
        "keepalives_interval": interval,
        "keepalives_count": count,
        "tcp_user_timeout": lease_ms(lease_s),
    }
    later = [name for name, value in own.items() if _is_later(given.get(name), value)]
    shown = ", ".join(f"{name}={given[name]}" for name in own if name in given)
    if later:
        yield Finding(
            Severity.NOTE,
            "keepalives",
            f"the DSN has {', '.join(f'{name}={given[name]}' for name in later)}, later than what fits a lease of "
            f"{lease_s:g} s: a leader whose network dies then notices by its proofs alone",
            "Take them out of the DSN; suitable ones are then used.",
        )
    else:
        yield Finding(Severity.OK, "keepalives", f"on, over TCP: {shown}" if shown else "on, over TCP")


def _is_later(given: str | None, fitting: int) -> bool:
    """Whether a value makes a dead peer be noticed later; 0 means the system's own, which is hours."""
    if given is None or not given.lstrip("-").isdigit():
        return False
    return int(given) <= 0 or int(given) > fitting
