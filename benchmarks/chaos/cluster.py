"""The servers: a primary and its streaming standby, one of which takes over from the other, again and again.

Never two primaries: the old one is stopped for good before its standby is promoted; a new standby is then copied from
the new primary, in a thread, while the rest goes on. Replicas log in by password; we ourselves are trusted.
"""

from __future__ import annotations

import secrets
import threading
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from benchmarks.chaos import plan
from benchmarks.chaos.history import position
from benchmarks.closing import Closing
from benchmarks.process import DidNotHappenError
from pgelect.testing import throwaway_postgres
from tests.support.proxy import BreakableProxy

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pgelect.testing import Postgres

_HBA = f"""
local all all trust
host all postgres,{plan.CROWD} 127.0.0.1/32 trust
host replication postgres 127.0.0.1/32 trust
host all {plan.ROLE} 127.0.0.1/32 scram-sha-256
"""
_LEDGER = f"""
CREATE TABLE public.ledger (
    entry bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text NOT NULL,
    process text NOT NULL,
    token bigint NOT NULL,
    n bigint NOT NULL,
    isolation text NOT NULL,
    timeline bigint NOT NULL
);
CREATE INDEX ON public.ledger (n);
GRANT SELECT, INSERT ON public.ledger TO {plan.ROLE};
"""
_CAUGHT_UP_WITHIN_S = 20.0


class Cluster(Closing):
    """Two slots for servers. ``moved`` is told when a slot gets another one."""

    def __init__(self, password_file: Path) -> None:
        self._all = ExitStack()
        self._password_file = password_file
        self._rebuilding: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._standbys: list[Postgres] = []  # all there ever were; the primary may be one of them
        self.moved: Callable[[int, int], None] = lambda _slot, _port: None
        self.primary_slot = 0
        self.version = ""
        try:
            self.primary = self._all.enter_context(throwaway_postgres(settings=plan.SERVER_SETTINGS))
            self._all.callback(self._close_standbys)
            self.replication = self._all.enter_context(BreakableProxy("127.0.0.1", self.primary.port))
            self._set_up()
            self.standby: Postgres | None = self._new_standby(self.primary)
        except BaseException:
            self._all.close()
            raise

    @property
    def ports(self) -> tuple[int, int]:
        """The ports of both slots, at the beginning."""
        assert self.standby is not None
        return self.primary.port, self.standby.port

    def connect(self, **params: Any) -> psycopg.Connection[Any]:
        """Connect to the present primary as an administrator."""
        return psycopg.connect(
            self.primary.dsn(plan.DATABASE, application_name="nemesis", connect_timeout=5, **params), autocommit=True
        )

    def ask(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Run one statement on a connection of its own."""
        with self.connect() as conn:
            cursor = conn.execute(query.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def rotate_password(self) -> None:
        """Change the password, then tell the replicas: for a moment their logins are refused."""
        password = secrets.token_hex(8)
        self._set_password(password)
        replacement = self._password_file.with_suffix(".new")
        replacement.write_text(password, encoding="utf-8")
        replacement.replace(self._password_file)

    def standby_ready(self) -> None:
        """Return when there is a standby that has received what the primary wrote; for all that stops the primary.

        Raises:
            DidNotHappenError: it did not catch up. Whatever made copying the primary fail.
        """
        if self._rebuilding is not None:
            self._rebuilding.join()
            self._rebuilding = None
        if self._failure is not None:
            raise self._failure
        assert self.standby is not None
        written = str(self.ask("SELECT pg_current_wal_flush_lsn()::text")[0][0])
        deadline = time.monotonic() + _CAUGHT_UP_WITHIN_S
        with psycopg.connect(self.standby.dsn(), autocommit=True) as conn:
            while True:
                row = conn.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", (written,)).fetchone()
                if row is not None and row[0]:
                    return
                if time.monotonic() > deadline:
                    raise DidNotHappenError("the standby did not catch up with the primary")
                time.sleep(0.02)

    def promote(self) -> tuple[int, int]:
        """Promote the standby, the primary being stopped for good: the old timeline, and the LSN where it was left."""
        assert self.standby is not None
        assert not self.primary.is_running
        old, new = self.primary, self.standby
        self.replication.cut()
        self.replication.thaw()
        new.promote()
        self.primary, self.standby, self.primary_slot = new, None, 1 - self.primary_slot
        self._set_password(self._password_file.read_text(encoding="utf-8"))  # its change may be in the lost tail
        self.replication.upstream = ("127.0.0.1", new.port)
        self._rebuilding = threading.Thread(target=self._rebuild, args=(old, new), name="rebuilding")
        self._rebuilding.start()
        return self._left_at()

    def close(self) -> None:
        """Stop and remove everything. May be called again."""
        if self._rebuilding is not None:
            self._rebuilding.join()
            self._rebuilding = None
        self._all.close()

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _set_up(self) -> None:
        (self.primary.data_dir / "pg_hba.conf").write_text(_HBA, encoding="utf-8")
        self.primary.reload()
        with psycopg.connect(self.primary.dsn(), autocommit=True) as conn:
            row = conn.execute("SHOW server_version").fetchone()
            self.version = str(row[0]) if row is not None else ""
            conn.execute(f"CREATE ROLE {plan.ROLE} LOGIN".encode())
            conn.execute(f"CREATE ROLE {plan.CROWD} LOGIN".encode())
            conn.execute(f"CREATE DATABASE {plan.DATABASE} OWNER {plan.ROLE}".encode())
        self.ask(_LEDGER)
        self.rotate_password()

    def _set_password(self, password: str) -> None:
        statement = sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(plan.ROLE), sql.Literal(password))
        with self.connect() as conn:
            conn.execute(statement)

    def _new_standby(self, primary: Postgres) -> Postgres:
        """Copy the primary; the copy then streams through the proxy."""
        standby = primary.standby()
        self._standbys.append(standby)
        with psycopg.connect(standby.dsn(), autocommit=True) as conn:
            through = sql.Literal(self.replication.dsn("", user="postgres", application_name="standby"))
            conn.execute(sql.SQL("ALTER SYSTEM SET primary_conninfo = {}").format(through))
            conn.execute("SELECT pg_reload_conf()")
        return standby

    def _rebuild(self, old: Postgres, primary: Postgres) -> None:
        try:
            old.close()
            self.standby = self._new_standby(primary)
            self.moved(1 - self.primary_slot, self.standby.port)
        except Exception as error:  # noqa: BLE001 -- told by the next one who needs the standby
            self._failure = error

    def _left_at(self) -> tuple[int, int]:
        """Read where the timeline before the present one was left, from the server's own history file."""
        with self.connect() as conn:
            row = conn.execute(
                "SELECT pg_read_file('pg_wal/' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) || '.history')"
            ).fetchone()
        assert row is not None
        lines = [line.split() for line in str(row[0]).splitlines() if line.strip() and not line.startswith("#")]
        timeline, lsn = lines[-1][:2]
        return int(timeline), position(lsn)

    def _close_standbys(self) -> None:
        for server in self._standbys:
            with suppress(OSError):
                server.close()
