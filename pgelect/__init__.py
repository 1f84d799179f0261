"""Leader election on PostgreSQL: one leader, a lease that the server enforces, writes that are fenced."""

try:
    import psycopg as _psycopg  # noqa: F401 -- only to say what to install when it has no libpq
except ImportError as _error:
    raise ImportError(
        "pgelect needs psycopg with a libpq. Install it with: pip install 'pgelect[binary]' "
        "(or install the system's libpq, such as Debian's package libpq5)."
    ) from _error

from pgelect._engine.bounds import Bound, Bounds
from pgelect._engine.model import Backend, LeaderRecord, LockKey, LockState, Term
from pgelect._health import Health
from pgelect.errors import (
    ConfigurationError,
    ConnectionError,  # noqa: A004 -- the public name
    FenceBusyError,
    ForkedError,
    KeyCollisionError,
    LockError,
    NotLeaderError,
    NotPrimaryError,
    PgElectError,
    PoolerError,
    SchemaError,
    SessionLostError,
    ShutdownError,
    StaleTokenError,
    UnsupportedServerError,
)
from pgelect.fencing import guard_table, install, schema_sql, schema_version, unguard_table
from pgelect.group import GroupState, LeaderGroup
from pgelect.lock import LeaderLock
from pgelect.observe import (
    ChangeKind,
    LeadershipChange,
    TermEnding,
    TermRecord,
    get_history,
    get_leader,
    list_leaders,
    observe,
    request_step_down,
)
from pgelect.retry import DecorrelatedJitter, ExponentialBackoff, FixedInterval, RetryContext, RetryStrategy

__version__ = "0.1.0"

__all__ = [
    "Backend",
    "Bound",
    "Bounds",
    "ChangeKind",
    "ConfigurationError",
    "ConnectionError",
    "DecorrelatedJitter",
    "ExponentialBackoff",
    "FenceBusyError",
    "FixedInterval",
    "ForkedError",
    "GroupState",
    "Health",
    "KeyCollisionError",
    "LeaderGroup",
    "LeaderLock",
    "LeaderRecord",
    "LeadershipChange",
    "LockError",
    "LockKey",
    "LockState",
    "NotLeaderError",
    "NotPrimaryError",
    "PgElectError",
    "PoolerError",
    "RetryContext",
    "RetryStrategy",
    "SchemaError",
    "SessionLostError",
    "ShutdownError",
    "StaleTokenError",
    "Term",
    "TermEnding",
    "TermRecord",
    "UnsupportedServerError",
    "get_history",
    "get_leader",
    "guard_table",
    "install",
    "list_leaders",
    "observe",
    "request_step_down",
    "schema_sql",
    "schema_version",
    "unguard_table",
]
