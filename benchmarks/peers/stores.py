"""The servers at which candidates meet: where they are, and how an administrator ends a session there."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import psycopg

from benchmarks.process import STARTS_WITHIN_S, DidNotHappenError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgelect.testing import Postgres

SERVER = {"max_connections": "600"}
"""A pool of ten for each candidate of some electors."""
_END = "SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity WHERE application_name LIKE %s"


class Store(Protocol):
    """A server."""

    port: int

    def url(self, name: str, port: int) -> str:
        """Return where a candidate of that name finds it, behind that port."""

    def end_sessions(self, name: str) -> float:
        """End all sessions of that candidate; return the time just before. For use by one thread at a time."""


class PostgresStore:
    """The embedded PostgreSQL."""

    def __init__(self, server: Postgres) -> None:
        self.port = server.port
        self._conn = psycopg.connect(server.dsn(), autocommit=True, application_name="benchmark")
        self._conn.execute(_END, ["nobody has this name"])  # the first one takes longer

    def url(self, name: str, port: int) -> str:
        """Return a URL, as all drivers read it."""
        return f"postgresql://postgres@127.0.0.1:{port}/postgres?application_name={name}"

    def end_sessions(self, name: str) -> float:
        """Terminate its backends."""
        at = time.monotonic()
        if not self._conn.execute(_END, [f"%{name}"]).fetchall():
            raise DidNotHappenError(f"{name} had no session to terminate")
        return at

    def close(self) -> None:
        """Close the session."""
        self._conn.close()


class RedisStore:
    """A Redis of its own."""

    def __init__(self, port: int, pid: int) -> None:
        from redis import Redis  # noqa: PLC0415 -- optional

        self.port = port
        self.pid = pid
        self._redis: Any = Redis(host="127.0.0.1", port=port)

    def url(self, name: str, port: int) -> str:  # noqa: ARG002 -- a candidate says its name by itself
        """Return a URL."""
        return f"redis://127.0.0.1:{port}/0"

    def version(self) -> str:
        """Return what it is."""
        return f"redis {self._redis.info('server')['redis_version']}"

    def end_sessions(self, name: str) -> float:
        """Kill its connections."""
        clients = [client["id"] for client in self._redis.client_list() if client["name"] == name]
        at = time.monotonic()
        if not sum(self._redis.client_kill_filter(_id=client) for client in clients):
            raise DidNotHappenError(f"{name} had no connection to kill")
        return at

    def until_ready(self) -> None:
        """Return when it answers."""
        from redis.exceptions import ConnectionError as NotThereError  # noqa: PLC0415 -- optional

        deadline = time.monotonic() + STARTS_WITHIN_S
        while True:
            try:
                self._redis.ping()
                return
            except NotThereError:
                if time.monotonic() > deadline:
                    raise DidNotHappenError(f"redis-server did not start within {STARTS_WITHIN_S:g} s") from None
                time.sleep(0.01)

    def close(self) -> None:
        """Close the session."""
        self._redis.close()


@contextmanager
def redis() -> Iterator[RedisStore]:
    """Start a Redis in memory, on a port and in a directory of its own."""
    program = shutil.which("redis-server")
    if program is None:
        raise DidNotHappenError("redis-server is not installed")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as directory:
        command = [program, "--bind", "127.0.0.1", "--port", str(port), "--dir", directory, "--save", ""]
        process = subprocess.Popen([*command, "--appendonly", "no"], stdout=subprocess.DEVNULL)
        try:
            store = RedisStore(port, process.pid)
            store.until_ready()
            yield store
            store.close()
        finally:
            process.kill()
            process.wait()
