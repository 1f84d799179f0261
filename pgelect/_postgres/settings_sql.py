"""The first statement of a session: apply every setting the lock relies on, and look at the server.

Nothing that a role, a database, a DSN or a search_path has set is relied on. The settings are applied after connecting,
because startup options break behind poolers, and only if the backend that answers is the one that libpq was told of:
SET through a transaction pooler leaks to other clients. What must hold for this very query is set locally first.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from psycopg.sql import SQL, Composable, Composed, Literal

from pgelect._postgres.install import ANNOUNCING, INTRUDER, SCHEMA_VERSION, STRANGER
from pgelect._postgres.schema_version import OWNED, SEEN

if TYPE_CHECKING:
    from pgelect._postgres.options import SessionOptions

_APPLICATION_NAME_BYTES = 63
_CHECK_INTERVAL_MS = 250
_KEEPALIVE_IDLE_MAX_S, _KEEPALIVE_COUNT = 60, 3
_KEEPALIVE_INTERVAL_MAX_S = 32767  # Linux takes no more
_SLICE_MIN_MS, _SLICE_MAX_MS = 50, 1000


def application_name(options: SessionOptions) -> str:
    """``pgelect:<name>:<identity>``, cut to what the server keeps without breaking a character."""
    key = options.key
    whole = f"pgelect:{key.name or f'{key.key1}/{key.key2}'}:{options.identity}"
    return whole.encode()[:_APPLICATION_NAME_BYTES].decode(errors="ignore")


def lease_ms(lease_s: float) -> int:
    """Give the lease as the server takes it; never 0, which would mean no limit."""
    return max(1, round(lease_s * 1000))


def keepalive_s(lease_s: float) -> tuple[int, int, int]:
    """TCP keepalive (idle, interval, count) that gives up on a silent peer soon after a lease, in whole seconds.

    Not before: a server that does so frees the lock of a leader that still trusts itself. However long the lease, no
    flow is idle for as long as load balancers and NAT remember one.
    """
    idle = max(1, min(_KEEPALIVE_IDLE_MAX_S, math.ceil(lease_s / 3)))
    interval = max(1, math.ceil((lease_s - idle) / _KEEPALIVE_COUNT))
    return idle, min(_KEEPALIVE_INTERVAL_MAX_S, interval), _KEEPALIVE_COUNT


def _lease(lease_s: float) -> dict[str, str]:
    """Everything on the server that follows from the lease."""
    idle, interval, count = keepalive_s(lease_s)
    lease = f"{lease_ms(lease_s)}ms"
    return {
        "idle_session_timeout": lease,
        "idle_in_transaction_session_timeout": lease,
        "tcp_keepalives_idle": f"{idle}s",
        "tcp_keepalives_interval": f"{interval}s",
        "tcp_keepalives_count": str(count),
        "tcp_user_timeout": lease,
    }


def lease_in_force(lease_s: float) -> Composed:
    """Put another lease in force, before what follows in the same query."""
    settings = [_set(name, Literal(value), local=False) for name, value in _lease(lease_s).items()]
    return SQL("SELECT {}; ").format(SQL(", ").join(settings))


def _values(options: SessionOptions, nonce: str, server_version: int) -> dict[str, str]:
    values = {
        "application_name": application_name(options),
        "search_path": "pg_catalog, pg_temp",
        "client_encoding": "UTF8",
        "DateStyle": "ISO, YMD",
        "TimeZone": "UTC",
        "extra_float_digits": "1",
        "statement_timeout": "0",
        **_lease(options.lease_s),
        "synchronous_commit": "on",
        "default_transaction_isolation": "read committed",
        "default_transaction_read_only": "off",
        "default_transaction_deferrable": "off",
        "pgelect.nonce": nonce,
    }
    if server_version >= 170000:
        values["transaction_timeout"] = "0"
    return values


def _set(name: str, value: Composable, *, local: bool) -> Composed:
    return SQL("pg_catalog.set_config({}, {}, {})").format(Literal(name), value, Literal(local))


def opening(  # the longest statement of the library, so it has a file of its own
    options: SessionOptions, nonce: str, server_version: int, only_on_pid: int | None
) -> Composed:
    """Several statements in one round trip. Last result: the columns of ``guards.Facts``.

    ``only_on_pid``: apply the settings only if that backend answers; None: whichever answers.
    """
    local = {"statement_timeout": "0", "search_path": "pg_catalog, pg_temp", "lock_timeout": "0"}
    if server_version >= 170000:
        local["transaction_timeout"] = "0"
    here: Composable = SQL("true")
    if only_on_pid is not None:
        here = SQL("pg_catalog.pg_backend_pid() = {}").format(Literal(only_on_pid))
    settings = [
        _set(name, Literal(value), local=False) for name, value in _values(options, nonce, server_version).items()
    ]
    settings.append(_set("lock_timeout", SQL("{}::pg_catalog.text || 'ms'").format(_SLICE_MS), local=False))
    return SQL(
        "SELECT {local}; SELECT {settings} WHERE {here}; "
        # Some platforms refuse any other value than 0; there the server just notices a dead client later.
        "DO $pgelect$ BEGIN IF {here} THEN PERFORM {check}; END IF; "
        "EXCEPTION WHEN invalid_parameter_value THEN NULL; END $pgelect$; "
        "SELECT {facts}"
    ).format(
        local=SQL(", ").join(_set(n, Literal(v), local=True) for n, v in local.items()),
        settings=SQL(", ").join(settings),
        here=here,
        check=_set("client_connection_check_interval", Literal(f"{_CHECK_INTERVAL_MS}ms"), local=False),
        facts=FACTS,
    )


# Below deadlock_timeout a wait triggers neither the deadlock check nor a line of log_lock_waits.
_SLICE_MS = SQL(
    "(SELECT greatest({least}, least({most}, s.setting::pg_catalog.int8) * 9 / 10) FROM pg_catalog.pg_settings AS s "
    "WHERE s.name = 'deadlock_timeout')"
).format(least=Literal(_SLICE_MIN_MS), most=Literal(_SLICE_MAX_MS))

# A session that has taken another role may not see its own start: then any time will do, as nobody could end it either.
# The catalogs, not to_regclass(): that fails on a schema which the role may not use.
FACTS = SQL(
    "pg_catalog.pg_backend_pid(), "
    "(SELECT (extract(epoch FROM coalesce(a.backend_start, pg_catalog.clock_timestamp())) * 1000000)::pg_catalog.int8 "
    "FROM pg_catalog.pg_stat_activity AS a "
    "WHERE a.pid = pg_catalog.pg_backend_pid()), "
    "(SELECT d.oid::pg_catalog.int8 FROM pg_catalog.pg_database AS d "
    "WHERE d.datname = pg_catalog.current_database()), "
    "pg_catalog.pg_is_in_recovery(), {slice_ms}, current_user::pg_catalog.text, "
    "(SELECT pg_catalog.has_schema_privilege(n.oid, 'USAGE') FROM pg_catalog.pg_namespace AS n "
    "WHERE n.nspname = 'pgelect'), "
    "(SELECT CASE WHEN count(*) = 2 THEN bool_and(pg_catalog.has_table_privilege(c.oid, 'SELECT') "
    "AND pg_catalog.has_table_privilege(c.oid, 'INSERT') AND pg_catalog.has_table_privilege(c.oid, 'UPDATE')) END "
    "FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace "
    "WHERE n.nspname = 'pgelect' AND c.relname IN ('token', 'closed')), "
    "(SELECT pg_catalog.has_sequence_privilege(c.oid, 'USAGE') FROM pg_catalog.pg_class AS c "
    "JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace "
    "WHERE n.nspname = 'pgelect' AND c.relname = 'token_seq'), "
    "(SELECT count(*) = 2 FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace "
    "WHERE n.nspname = 'pgelect' AND p.proname IN ('check_token', 'guard')), "
    "(SELECT CASE WHEN count(*) = {count} THEN bool_and(pg_catalog.has_function_privilege(p.oid, 'EXECUTE')) END "
    "FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace "
    "WHERE n.nspname = 'pgelect' AND p.proname IN ({announcing})), "
    "(SELECT {seen} < {version} AND {owned} FROM pg_catalog.pg_namespace AS n WHERE n.nspname = 'pgelect'), "
    "{stranger}, {intruder}"
).format(
    slice_ms=_SLICE_MS,
    count=Literal(len(ANNOUNCING)),
    announcing=SQL(", ").join(map(Literal, ANNOUNCING)),
    seen=SEEN,
    version=Literal(SCHEMA_VERSION),
    owned=OWNED,
    stranger=STRANGER,
    intruder=INTRUDER,
)
