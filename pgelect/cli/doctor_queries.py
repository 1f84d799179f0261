"""What the doctor asks a server. Each statement only reads, and runs under any search_path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg.sql import SQL, Composed, Literal

from pgelect._postgres.install import ADVISORY, ANNOUNCING, FUNCTIONS, INTRUDER, RELATIONS, STRANGER
from pgelect._postgres.schema_version import SEEN

if TYPE_CHECKING:
    from psycopg.sql import Composable

    from pgelect._engine.model import LockKey

# For a session in which no settings of ours are in force, behind a pooler for one: within one query only.
HERE = SQL(
    "SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true), "
    "pg_catalog.set_config('statement_timeout', '0', true); "
)

WHO = SQL(
    "SELECT pg_catalog.pg_backend_pid(), current_user::pg_catalog.text, session_user::pg_catalog.text, "
    "pg_catalog.current_database()::pg_catalog.text, pg_catalog.pg_is_in_recovery()"
)

SETTINGS = (
    "statement_timeout",
    "lock_timeout",
    "transaction_timeout",
    "idle_session_timeout",
    "idle_in_transaction_session_timeout",
    "search_path",
    "default_transaction_read_only",
    "default_transaction_isolation",
    "default_transaction_deferrable",
    "synchronous_commit",
    "tcp_keepalives_idle",
    "tcp_keepalives_interval",
    "tcp_keepalives_count",
    "tcp_user_timeout",
    "client_connection_check_interval",
    "deadlock_timeout",
    "fsync",
)

# Where a value comes from is said by the catalog: pg_settings.source is 'session' for all that we have overridden.
SETTING_ROWS = SQL(
    "SELECT s.name, s.setting, s.reset_val, s.boot_val, s.unit, (SELECT CASE "
    "WHEN r.setrole = 0 AND r.setdatabase = 0 THEN 'ALTER ROLE ALL' "
    "WHEN r.setrole = 0 THEN pg_catalog.format('ALTER DATABASE %I', pg_catalog.current_database()) "
    "WHEN r.setdatabase = 0 THEN pg_catalog.format('ALTER ROLE %I', session_user) "
    "ELSE pg_catalog.format('ALTER ROLE %I IN DATABASE %I', session_user, pg_catalog.current_database()) END "
    "FROM pg_catalog.pg_db_role_setting AS r CROSS JOIN LATERAL pg_catalog.unnest(r.setconfig) AS c (line) "
    "WHERE r.setrole IN (0, (SELECT u.oid FROM pg_catalog.pg_roles AS u WHERE u.rolname = session_user)) "
    "AND r.setdatabase IN (0, (SELECT d.oid FROM pg_catalog.pg_database AS d "
    "WHERE d.datname = pg_catalog.current_database())) "
    "AND pg_catalog.lower(pg_catalog.split_part(c.line, '=', 1)) = pg_catalog.lower(s.name) "
    "ORDER BY r.setrole > 0 DESC, r.setdatabase > 0 DESC LIMIT 1) "
    "FROM pg_catalog.pg_settings AS s WHERE s.name IN ({})"
).format(SQL(", ").join(map(Literal, SETTINGS)))

_OURS = SQL("n.nspname = 'pgelect'")


def _relations(*names: str, rights: tuple[str, ...]) -> Composed:
    """Whether the role has all these rights on all these tables; NULL where one is missing."""
    has = SQL(" AND ").join(SQL("pg_catalog.has_table_privilege(c.oid, {})").format(Literal(right)) for right in rights)
    return SQL(
        "(SELECT CASE WHEN count(*) = {count} THEN bool_and({has}) END FROM pg_catalog.pg_class AS c "
        "JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace WHERE {ours} AND c.relname IN ({names}))"
    ).format(count=Literal(len(names)), has=has, ours=_OURS, names=SQL(", ").join(map(Literal, names)))


def _functions(*names: str) -> Composed:
    return SQL(
        "(SELECT CASE WHEN count(*) = {count} THEN bool_and(pg_catalog.has_function_privilege(p.oid, 'EXECUTE')) END "
        "FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace "
        "WHERE {ours} AND p.proname IN ({names}))"
    ).format(count=Literal(len(names)), ours=_OURS, names=SQL(", ").join(map(Literal, names)))


RIGHTS = SQL(
    "SELECT (SELECT pg_catalog.has_schema_privilege(n.oid, 'USAGE') FROM pg_catalog.pg_namespace AS n WHERE {ours}), "
    "{tables}, (SELECT pg_catalog.has_sequence_privilege(c.oid, 'USAGE') FROM pg_catalog.pg_class AS c "
    "JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace WHERE {ours} AND c.relname = 'token_seq'), "
    "{fence}, {announcing}, {looks}, {asks}, "
    "(SELECT coalesce(pg_catalog.array_agg(f.name), '{{}}') FROM pg_catalog.unnest({advisory}::pg_catalog.text[]) "
    "AS f (name) WHERE NOT pg_catalog.has_function_privilege('pg_catalog.' || f.name, 'EXECUTE')), "
    "pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE'), "
    "(SELECT pg_catalog.pg_has_role(n.nspowner, 'USAGE') FROM pg_catalog.pg_namespace AS n WHERE {ours}), "
    "(SELECT r.rolsuper FROM pg_catalog.pg_roles AS r WHERE r.rolname = current_user), "
    "pg_catalog.pg_has_role('pg_signal_backend', 'USAGE'), pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE'), "
    "{stranger}, {intruder}, "
    "(SELECT coalesce(pg_catalog.array_agg(o.name::pg_catalog.text), '{{}}') FROM pg_catalog.pg_namespace AS n "
    "CROSS JOIN LATERAL (SELECT c.relname FROM pg_catalog.pg_class AS c WHERE c.relnamespace = n.oid "
    "AND c.relname = ANY ({relations}) UNION SELECT p.proname FROM pg_catalog.pg_proc AS p "
    "WHERE p.pronamespace = n.oid AND p.proname = ANY ({functions})) AS o (name) WHERE {ours})"
).format(
    ours=_OURS,
    tables=_relations("token", "closed", rights=("SELECT", "INSERT", "UPDATE")),
    fence=_functions("check_token"),
    announcing=_functions(*ANNOUNCING),
    looks=_relations("leaders", "history", rights=("SELECT",)),
    asks=_functions("request_step_down"),
    advisory=Literal(list(ADVISORY)),
    stranger=STRANGER,
    intruder=INTRUDER,
    relations=Literal(list(RELATIONS)),
    functions=Literal(list(FUNCTIONS)),
)

VERSION = SQL("SELECT pg_catalog.max(v.version) FROM pgelect.schema_version AS v")
SEEN_VERSION = SQL("SELECT {} FROM pg_catalog.pg_namespace AS n WHERE {}").format(SEEN, _OURS)

# pg_stat_activity hides the kind of other roles' sessions; those of clients are the ones with a database.
ROOM = SQL(
    "SELECT pg_catalog.current_setting('max_connections')::pg_catalog.int4, "
    "pg_catalog.current_setting('superuser_reserved_connections')::pg_catalog.int4, "
    "coalesce(pg_catalog.current_setting('reserved_connections', true)::pg_catalog.int4, 0), "
    "EXISTS (SELECT 1 FROM pg_catalog.pg_roles AS g WHERE g.rolname = 'pg_use_reserved_connections' "
    "AND pg_catalog.pg_has_role(g.oid, 'USAGE')), r.rolsuper, "
    "(SELECT count(*) FROM pg_catalog.pg_stat_activity AS a WHERE a.datid IS NOT NULL), "
    "r.rolconnlimit, (SELECT count(*) FROM pg_catalog.pg_stat_activity AS a WHERE a.usesysid = r.oid "
    "AND a.datid IS NOT NULL), "
    "d.datconnlimit, (SELECT count(*) FROM pg_catalog.pg_stat_activity AS a WHERE a.datid = d.oid), "
    "pg_catalog.current_setting('max_locks_per_transaction')::pg_catalog.int8 "
    "* (pg_catalog.current_setting('max_connections')::pg_catalog.int8 "
    "+ pg_catalog.current_setting('max_prepared_transactions')::pg_catalog.int8), "
    "(SELECT count(*) FROM pg_catalog.pg_locks AS l WHERE NOT l.fastpath) "
    "FROM pg_catalog.pg_roles AS r, pg_catalog.pg_database AS d "
    "WHERE r.rolname = session_user AND d.datname = pg_catalog.current_database()"
)

# A prepared transaction has no session. It is known by its number, on which it has a lock as well.
_PREPARED = SQL(
    "LEFT JOIN pg_catalog.pg_locks AS x ON l.pid IS NULL AND x.pid IS NULL AND x.locktype = 'transactionid' "
    "AND x.granted AND x.mode = 'ExclusiveLock' AND x.virtualtransaction = l.virtualtransaction "
    "LEFT JOIN pg_catalog.pg_prepared_xacts AS p ON p.transaction = x.transactionid"
)
_MANY = 10_000  # rows that one look reads at most

TOKENS = SQL("SELECT t.key1, t.key2, t.name, t.backend_pid FROM pgelect.token AS t LIMIT {}").format(Literal(_MANY))


def locks(key: LockKey | None) -> Composed:
    """Advisory locks that are held, of one key or of all; also as a 64-bit key, which is another lock."""
    which: Composable = SQL("true")
    if key is not None:
        which = SQL("l.classid = {}::pg_catalog.oid AND l.objid = {}::pg_catalog.oid").format(
            Literal(str(key.classid)), Literal(str(key.objid))
        )
    return SQL(
        "SELECT l.classid::pg_catalog.int8, l.objid::pg_catalog.int8, l.objsubid, d.datname::pg_catalog.text, "
        "d.datname IS NOT DISTINCT FROM pg_catalog.current_database(), l.pid, l.mode <> 'ExclusiveLock', "
        "a.application_name, p.gid FROM pg_catalog.pg_locks AS l "
        "LEFT JOIN pg_catalog.pg_database AS d ON d.oid = l.database "
        "LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid "
        "{} WHERE l.locktype = 'advisory' AND l.granted AND {} LIMIT {}"
    ).format(_PREPARED, which, Literal(_MANY))


FENCED = SQL(
    "SELECT DISTINCT p.gid, l.pid, coalesce(a.usename, p.owner)::pg_catalog.text, "
    "extract(epoch FROM pg_catalog.clock_timestamp() - coalesce(a.xact_start, p.prepared))::pg_catalog.float8 "
    "FROM pg_catalog.pg_locks AS l "
    "JOIN pg_catalog.pg_class AS c ON c.oid = l.relation AND c.relname = 'token' "
    "JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace AND n.nspname = 'pgelect' "
    "LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid "
    "{} "
    "WHERE l.locktype = 'relation' AND l.granted AND l.mode = 'RowShareLock' AND l.database = "
    "(SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database()) LIMIT 100"
).format(_PREPARED)

# A role without pg_read_all_stats sees that there are standbys, and nothing else of them, nor who waits.
REPLICATION = SQL(
    "SELECT pg_catalog.current_setting('synchronous_standby_names'), "
    "(SELECT count(*) FROM pg_catalog.pg_stat_replication AS s WHERE s.sync_state IN ('sync', 'quorum')), "
    "(SELECT count(*) FROM pg_catalog.pg_stat_replication AS s WHERE s.sync_state IS NULL), "
    "count(*), coalesce(max(extract(epoch FROM pg_catalog.clock_timestamp() - a.state_change)), 0)"
    "::pg_catalog.float8 FROM pg_catalog.pg_stat_activity AS a WHERE a.wait_event = 'SyncRep'"
)

CLOCK = SQL("SELECT extract(epoch FROM pg_catalog.clock_timestamp())::pg_catalog.float8")
