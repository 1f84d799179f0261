"""Roles with few rights, on a real server: electors, writers, readers, and neighbours that mean harm.

The SQL at the top is what the README tells administrators to run, word for word.
"""

import secrets
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgelect import LeaderLock, SchemaError, schema_sql

GRANTS = """\
GRANT USAGE ON SCHEMA pgelect TO app_elector;
GRANT SELECT, INSERT, UPDATE ON pgelect.token, pgelect.closed TO app_elector;
GRANT USAGE ON SEQUENCE pgelect.token_seq TO app_elector;
GRANT EXECUTE ON FUNCTION pgelect.announce, pgelect.report_lost, pgelect.asked_to_step_down TO app_elector;

GRANT USAGE ON SCHEMA pgelect TO app_writer;
GRANT EXECUTE ON FUNCTION pgelect.check_token(integer, integer, bigint) TO app_writer;
"""
READER = """\
GRANT USAGE ON SCHEMA pgelect TO app_reader;
GRANT SELECT ON pgelect.leaders, pgelect.history TO app_reader;
"""
OPERATOR = """\
GRANT USAGE ON SCHEMA pgelect TO app_operator;
GRANT EXECUTE ON FUNCTION pgelect.request_step_down TO app_operator;
"""
MAY_END_WRITERS = """\
GRANT app_writer TO app_elector;
"""
OWN_DATABASE = """\
REVOKE CONNECT ON DATABASE app FROM PUBLIC;
GRANT CONNECT ON DATABASE app TO app_elector, app_writer;
"""
HAND_OVER = """\
ALTER SCHEMA pgelect OWNER TO app_owner;
ALTER TABLE pgelect.schema_version OWNER TO app_owner;
ALTER TABLE pgelect.token OWNER TO app_owner;
ALTER TABLE pgelect.closed OWNER TO app_owner;
ALTER TABLE pgelect.history OWNER TO app_owner;
ALTER TABLE pgelect.step_down OWNER TO app_owner;
ALTER VIEW pgelect.leaders OWNER TO app_owner;
ALTER SEQUENCE pgelect.token_seq OWNER TO app_owner;
ALTER FUNCTION pgelect.check_token OWNER TO app_owner;
ALTER FUNCTION pgelect.guard OWNER TO app_owner;
ALTER FUNCTION pgelect.announce OWNER TO app_owner;
ALTER FUNCTION pgelect.report_lost OWNER TO app_owner;
ALTER FUNCTION pgelect.asked_to_step_down OWNER TO app_owner;
ALTER FUNCTION pgelect.request_step_down OWNER TO app_owner;
"""
RESTORED = """\
SELECT pg_catalog.setval('pgelect.token_seq',
    greatest(s.last_value, (SELECT max(t.token) FROM pgelect.token AS t)) + 1099511627776)
FROM pgelect.token_seq AS s;
"""
LOCK_FUNCTIONS = """\
REVOKE EXECUTE ON FUNCTION
    pg_catalog.pg_advisory_lock(integer, integer), pg_catalog.pg_advisory_lock(bigint),
    pg_catalog.pg_advisory_lock_shared(integer, integer), pg_catalog.pg_advisory_lock_shared(bigint),
    pg_catalog.pg_advisory_xact_lock(integer, integer), pg_catalog.pg_advisory_xact_lock(bigint),
    pg_catalog.pg_advisory_xact_lock_shared(integer, integer), pg_catalog.pg_advisory_xact_lock_shared(bigint),
    pg_catalog.pg_try_advisory_lock(integer, integer), pg_catalog.pg_try_advisory_lock(bigint),
    pg_catalog.pg_try_advisory_lock_shared(integer, integer), pg_catalog.pg_try_advisory_lock_shared(bigint),
    pg_catalog.pg_try_advisory_xact_lock(integer, integer), pg_catalog.pg_try_advisory_xact_lock(bigint),
    pg_catalog.pg_try_advisory_xact_lock_shared(integer, integer), pg_catalog.pg_try_advisory_xact_lock_shared(bigint)
    FROM PUBLIC;

GRANT EXECUTE ON FUNCTION
    pg_catalog.pg_try_advisory_lock(integer, integer),
    pg_catalog.pg_advisory_xact_lock(integer, integer),
    pg_catalog.pg_try_advisory_lock_shared(integer, integer),
    pg_catalog.pg_try_advisory_lock_shared(bigint),
    pg_catalog.pg_advisory_xact_lock_shared(integer, integer)
    TO app_elector;
"""


def as_administrator(dsn: str, statements: str) -> None:
    """Run SQL as a superuser would paste it: all of it at once."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(statements.encode())


def refused_all(conn: psycopg.Connection[Any], statements: Iterable[str]) -> None:
    """Each of these statements is refused for lack of a right, and for nothing else."""
    for statement in statements:
        with pytest.raises(psycopg.Error) as refused, conn.transaction():
            conn.execute(statement.encode())
        assert refused.value.sqlstate == "42501", f"{statement}: {refused.value}"


@dataclass(frozen=True, slots=True)
class Role:
    """A login role: its name, which needs no quoting, and how to connect as it."""

    name: str
    dsn: str


class Roles:
    """Makes the roles of one test, and drops them at its end with all that they own and may do in its database."""

    def __init__(self, database: str) -> None:
        self.database = database
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def make(self, kind: str, options: str = "") -> Role:
        """A role that may log in, and nothing else but by `options` of CREATE ROLE."""
        name = f"{kind}_{secrets.token_hex(4)}"
        self.run(f"CREATE ROLE {name} LOGIN {options}")
        self._stack.callback(self.run, f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}")
        return Role(name, make_conninfo(self.database, user=name))

    def neighbour(self, options: str = "") -> Role:
        """Somebody else in the same database."""
        return self.make("neighbour", options)

    def electors_and_writers(self) -> tuple[Role, Role]:
        """Two roles with the grants of the README, in a schema that an administrator made."""
        elector, writer = self.make("elector"), self.make("writer")
        self.run(schema_sql())
        self.run(GRANTS, app_elector=elector.name, app_writer=writer.name)
        return elector, writer

    def connect(self, role: Role, **options: Any) -> psycopg.Connection[Any]:
        """Connect as that role, in autocommit mode, until the test ends; `dbname` leads to another database."""
        conn = psycopg.connect(make_conninfo(role.dsn, **options), autocommit=True)
        self._stack.callback(conn.close)
        return conn

    def give_schema(self, role: Role) -> None:
        """A schema of the role's own, first on its search_path: it bears the name of the role."""
        self.run(f"CREATE SCHEMA {role.name} AUTHORIZATION {role.name}")

    def run(self, statements: str, **names: str) -> None:
        """Run SQL as an administrator, with these names in place of those that it gives."""
        for placeholder, name in {**names, "DATABASE app": f"DATABASE {self.dbname}"}.items():
            statements = statements.replace(placeholder, name)
        as_administrator(self.database, statements)

    @property
    def dbname(self) -> str:
        """The name of the database."""
        return str(conninfo_to_dict(self.database)["dbname"])


async def refused(dsn: str, key: tuple[int, int]) -> SchemaError:
    """Start a lock that must not start, for what the schema is like; why it did not."""
    lock = LeaderLock(dsn, *key)
    try:
        with pytest.raises(SchemaError) as caught:
            await lock.start()
    finally:
        await lock.shutdown()
    return caught.value
