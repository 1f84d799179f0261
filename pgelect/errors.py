"""Every exception of this library.

    PgElectError
    ├── ConnectionError          the retry strategy gave up; the lock has stopped
    ├── SessionLostError         the dedicated session ended or did not answer in time (heard by on_error)
    ├── LockError                the server said that the lock it was to free was not held
    ├── FenceBusyError           a transaction of an earlier term holds up the new token (heard by on_error)
    ├── ShutdownError            a shutdown took longer than its timeout; the socket was closed instead
    ├── StaleTokenError          a write was fenced off: the token is not that of the current term
    ├── NotLeaderError           the call needs leadership and this process does not lead
    ├── NotPrimaryError          the server is a standby; the lock is never taken there
    ├── ForkedError              the lock belongs to the parent of this process
    └── ConfigurationError       a mistake that time does not mend; ``start()`` raises it
        ├── PoolerError          the connection goes through a transaction or statement pooler
        ├── SchemaError          the schema is missing and may not be created; carries the SQL
        ├── KeyCollisionError    two names meet on one pair of keys
        └── UnsupportedServerError  the server is older than PostgreSQL 14

A wrong argument is a plain ``ValueError`` or ``TypeError``. No message, repr or field ever holds a password.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgelect._engine.model import LockKey, LockState
    from pgelect._group.state import GroupState

__all__ = [
    "ConfigurationError",
    "ConnectionError",
    "FenceBusyError",
    "ForkedError",
    "KeyCollisionError",
    "LockError",
    "NotLeaderError",
    "NotPrimaryError",
    "PgElectError",
    "PoolerError",
    "SchemaError",
    "SessionLostError",
    "ShutdownError",
    "StaleTokenError",
    "UnsupportedServerError",
]


class PgElectError(Exception):
    """Base of all exceptions of this library."""


class ConnectionError(PgElectError):  # noqa: A001 -- the public name users expect; import it by module to be clear
    """The retry strategy returned None: no further attempt will be made and the lock has stopped.

    Attributes:
        attempts: attempts made in a row without success.
        last_error: the error of the last attempt; None when the lock was merely held by somebody else.
    """

    def __init__(self, attempts: int, last_error: Exception | None) -> None:
        self.attempts = attempts
        self.last_error = last_error
        why = f"the last one failed with: {last_error}" if last_error else "the lock was held by another process"
        super().__init__(
            f"gave up after {attempts} attempt(s) as the retry strategy asked; {why}. "
            "Mend the cause and call start() again, or use a retry strategy that does not give up."
        )


class SessionLostError(PgElectError):
    """The dedicated session ended, or the server did not answer within a deadline and the link was dropped.

    Attributes:
        reason: a short, stable word: ``closed``, ``timeout``, ``disproved``, ``expired`` or ``connect``.
    """

    def __init__(self, reason: str, detail: str) -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(detail)


class LockError(PgElectError):
    """``pg_advisory_unlock`` returned false: the session did not hold the lock that it was to free.

    Attributes:
        key: the key of the lock.
    """

    def __init__(self, key: LockKey) -> None:
        self.key = key
        super().__init__(
            f"the server says that this session did not hold the advisory lock {key}. Something else unlocked it "
            "on this session (DISCARD ALL, pg_advisory_unlock_all, a pooler); the session has been closed."
        )


_NAMED = 5  # blockers in the text of one error


class FenceBusyError(PgElectError):
    """Transactions fenced by an earlier term are still open and hold up the minting of the next token.

    Attributes:
        key: the key of the lock.
        blockers: server process ids of all transactions that were seen in the way; the text names the first few.
    """

    def __init__(self, key: LockKey, blockers: tuple[int, ...]) -> None:
        self.key = key
        self.blockers = blockers
        pids = ", ".join(map(str, blockers[:_NAMED])) or "not visible to this role"
        if len(blockers) > _NAMED:
            pids += f" and {len(blockers) - _NAMED} more"
        super().__init__(
            f"fence_busy: no token could be minted for {key}: a transaction holds the token row (pid {pids}). "
            "It will be tried again; to end it now, run pg_terminate_backend on that pid."
        )


class ShutdownError(PgElectError):
    """A shutdown did not finish in time. The session's socket has been closed, so the lock is free.

    Attributes:
        timeout_s: the timeout in seconds.
    """

    def __init__(self, timeout_s: float, waiting_for: str, *, is_closed: bool = True) -> None:
        self.timeout_s = timeout_s
        self.waiting_for = waiting_for
        super().__init__(
            f"shutdown did not finish within {timeout_s:g} s: it was waiting for {waiting_for}. "
            + (
                "The session was closed and the lock is free; allow more time with timeout_s, or end the work sooner."
                if is_closed
                else "The lock will be freed when that goes on; it may wait for what a signal handler has interrupted."
            )
        )


class StaleTokenError(PgElectError):
    """A fenced write was refused, and its transaction rolled back: the token is not that of the current term.

    Attributes:
        key: the key of the lock.
        token: the token that was refused.
    """

    def __init__(self, key: LockKey, token: int) -> None:
        self.key = key
        self.token = token
        super().__init__(
            f"token {token} of {key} is stale: that term is over and another may have begun. "
            "Nothing was written. Stop the work of this term; it must not be tried again."
        )


class NotLeaderError(PgElectError):
    """The call needs leadership, and this process does not lead now.

    Attributes:
        key: the key of the lock.
        state: the state the lock, or the group, was in.
    """

    def __init__(self, key: LockKey, state: LockState | GroupState, detail: str = "") -> None:
        self.key = key
        self.state = state
        super().__init__(
            f"this process does not lead {key} (state: {state.value})"
            + (f": {detail}" if detail else ". Wait with wait_for_leadership(), or do the work inside lead().")
        )


class NotPrimaryError(PgElectError):
    """The server is in recovery (a standby). Advisory locks there are not those of the primary.

    Attributes:
        server: host and port as far as known.
    """

    def __init__(self, server: str) -> None:
        self.server = server
        super().__init__(
            f"the server {server} is a standby (in recovery); leadership is never taken there. "
            "Point the DSN at the primary, or list all hosts in it: host=a,b target_session_attrs=primary."
        )


class ForkedError(PgElectError):
    """The lock was made or started in a parent of this process. A forked child must make its own.

    Attributes:
        owner_pid: the process that owns the lock.
    """

    def __init__(self, owner_pid: int) -> None:
        self.owner_pid = owner_pid
        super().__init__(
            f"this lock belongs to process {owner_pid}, from which this one was forked. "
            "Make a new LeaderLock after the fork."
        )


class ConfigurationError(PgElectError):
    """A mistake that trying again does not mend. The first ``start()`` raises it."""


class PoolerError(ConfigurationError):
    """The connection goes through a pooler that shares server sessions between clients.

    Attributes:
        mode: ``transaction`` (or statement) when that was proved, ``unknown`` otherwise.
    """

    def __init__(self, mode: str) -> None:
        self.mode = mode
        super().__init__(
            f"the connection goes through a pooler in {mode} mode, which hands one server session to several "
            "clients: a session lock would belong to all of them. Connect to PostgreSQL directly, or to a pool in "
            "session mode; allow_pooler=True overrides this check for poolers that only look like one."
        )


class SchemaError(ConfigurationError):
    """The schema ``pgelect`` is missing or incomplete, and this role may not create it.

    Attributes:
        sql: what an administrator has to run.
    """

    def __init__(self, problem: str, sql: str) -> None:
        self.sql = sql
        super().__init__(f"{problem}. Let an administrator run this once in the same database:\n\n{sql}")


class KeyCollisionError(ConfigurationError):
    """Another name already uses this pair of keys.

    Attributes:
        key: the pair.
        name: the name asked for.
        other_name: the name that the token row carries.
    """

    def __init__(self, key: LockKey, name: str, other_name: str) -> None:
        self.key = key
        self.name = name
        self.other_name = other_name
        super().__init__(
            f"the name {name!r} maps to the keys ({key.key1}, {key.key2}), which {other_name!r} already uses in this "
            "database. Choose another name, or give key1 and key2 that nobody else uses."
        )


class UnsupportedServerError(ConfigurationError):
    """The server is older than PostgreSQL 14, which brought ``idle_session_timeout``.

    Attributes:
        server_version: as the server reports it, such as 130012.
    """

    def __init__(self, server_version: int) -> None:
        self.server_version = server_version
        super().__init__(
            f"PostgreSQL 14 or newer is needed (idle_session_timeout enforces the lease); this server is "
            f"{server_version // 10000}.{server_version % 10000}. Upgrade the server."
        )
