"""Where leaders are elected: a server, and what only it can tell of itself."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import ExitStack
from typing import TYPE_CHECKING

from benchmarks.closing import Closing
from benchmarks.looking import Observer
from benchmarks.peers import stores as peers
from pgelect.testing import throwaway_postgres

if TYPE_CHECKING:
    from collections.abc import Sequence

QUIET = {
    "autovacuum": "off",
    "checkpoint_timeout": "1d",
    "wal_level": "minimal",
    "max_wal_senders": "0",
}
"""The server writes no WAL of its own accord."""
_SESSIONS = """
SELECT pid FROM pg_catalog.pg_stat_activity WHERE backend_type = 'client backend' AND client_port = ANY (%s)
"""
_LSN = "SELECT (pg_catalog.pg_current_wal_insert_lsn() - '0/0')::pg_catalog.int8"


class Store(Closing):
    """A server of its own, and our look into it."""

    host: str
    port: int
    pid: int
    """Of the process whose children do the work."""
    version: str

    @abstractmethod
    def address(self, port: int) -> str:
        """Say how a client gets there, by way of a port of a relay."""

    @abstractmethod
    def written(self) -> int | None:
        """Return how many bytes of log it has written, or None where it keeps none."""

    @abstractmethod
    def sessions(self, ports: Sequence[int]) -> list[int]:
        """Return the processes that serve the connections from these ports; none where one process serves all."""


class PostgresStore(Store):
    """An embedded PostgreSQL that writes no WAL of its own accord."""

    def __init__(self, *, connections: int = 50, durable: bool = False, **settings: str) -> None:
        self.server = throwaway_postgres(
            settings={**QUIET, "max_connections": str(connections), **settings}, durable=durable
        )
        try:
            self.host, self.port, self.pid = "127.0.0.1", self.server.port, self.server.postmaster_pid
            self.observer = Observer(self.server.dsn())
            self.version = str(self.observer.value("SHOW server_version"))
        except BaseException:
            self.server.close()
            raise

    def address(self, port: int) -> str:
        """Give the URL, as all drivers read it."""
        return f"postgresql://postgres@{self.host}:{port}/postgres"

    def written(self) -> int:
        """Give the place where WAL is written next."""
        return int(self.observer.value(_LSN))

    def sessions(self, ports: Sequence[int]) -> list[int]:
        """Give the backends."""
        return [pid for (pid,) in self.observer.ask(_SESSIONS, list(ports))]

    def close(self) -> None:
        """Close our session, and end the server."""
        self.observer.close()
        self.server.close()


class RedisStore(Store):
    """A Redis in memory. It keeps no log, and one process serves all."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._redis = self._stack.enter_context(peers.redis())
        self.host, self.port, self.pid = "127.0.0.1", self._redis.port, self._redis.pid
        self.version = self._redis.version()

    def address(self, port: int) -> str:
        """Give the URL."""
        return self._redis.url("", port)

    def written(self) -> None:
        """Give nothing."""

    def sessions(self, ports: Sequence[int]) -> list[int]:  # noqa: ARG002 -- of another store
        """Give none."""
        return []

    def close(self) -> None:
        """End it."""
        self._stack.close()
