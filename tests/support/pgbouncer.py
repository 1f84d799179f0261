"""A private PgBouncer in front of a server."""

import os
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import psycopg
from psycopg.conninfo import make_conninfo

from pgelect.testing import Postgres
from pgelect.testing._places import free_port, private_directory
from pgelect.testing._programs import server_account
from pgelect.testing._watch import Watch
from tests.support.waiting import eventually_sync

PoolMode = Literal["session", "transaction", "statement"]


def find_pgbouncer() -> str | None:
    """The program, also where only root's PATH has it."""
    return shutil.which("pgbouncer", path=os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin")))


class PgBouncer:
    """One PgBouncer; `settings` are further lines of its section [pgbouncer]. Every listed user is trusted."""

    def __init__(
        self,
        upstream: Postgres,
        pool_mode: PoolMode = "transaction",
        pool_size: int = 20,
        *,
        users: Sequence[str] = ("postgres",),
        settings: dict[str, str] | None = None,
    ) -> None:
        program = find_pgbouncer()
        if program is None:
            raise FileNotFoundError("pgbouncer is not installed")
        self.port = free_port()
        account = server_account()
        self._root = private_directory(account)
        self._write("users", "".join(f'"{user}" ""\n' for user in users))
        lines = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            "pool_mode": pool_mode,
            "default_pool_size": str(pool_size),
            "max_client_conn": "500",
            "auth_type": "trust",
            "auth_file": str(self._root / "users"),
            "admin_users": "postgres",
            "pidfile": str(self._root / "pid"),
            **(settings or {}),
        }
        section = "".join(f"{name} = {value}\n" for name, value in lines.items())
        server = f"* = host=127.0.0.1 port={upstream.port}\n"
        self._write("ini", f"[databases]\n{server}[pgbouncer]\n{section}")
        self._watch = Watch(self._root / "pid", self._root)
        with (self._root / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [program, self._root / "ini"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
                user=account.user,
                group=account.gid,
                extra_groups=account.extra_groups,
            )
        try:
            eventually_sync(self._listens, message="pgbouncer listens")
        except BaseException as failed:
            failed.add_note(self.log_text())
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The pid of PgBouncer."""
        return self._process.pid

    def dsn(self, dbname: str = "postgres", user: str = "postgres", **params: str | int) -> str:
        """A connection string that leads through PgBouncer."""
        return make_conninfo("", host="127.0.0.1", port=self.port, dbname=dbname, user=user, **params)

    def through(self, base: str, **params: str | int) -> str:
        """Return the connection string `base`, leading through PgBouncer; its user must be one of `users`."""
        return make_conninfo(base, host="127.0.0.1", port=self.port, **params)

    def admin(self, command: str) -> list[tuple[Any, ...]]:
        """Run a command of the admin console, as SHOW POOLS, PAUSE, RECONNECT, KILL."""
        # The console speaks the simple protocol only, which is what a ClientCursor uses.
        with psycopg.connect(self.dsn("pgbouncer"), autocommit=True, cursor_factory=psycopg.ClientCursor) as conn:
            cursor = conn.execute(command.encode())
            return cursor.fetchall() if cursor.description else []

    def log_text(self) -> str:
        """All that PgBouncer has logged."""
        return (self._root / "log").read_text(errors="replace")

    def close(self) -> None:
        """End PgBouncer and remove its directory. May be called again."""
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._root, ignore_errors=True)
        self._watch.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, name: str, text: str) -> Path:
        path = self._root / name
        path.write_text(text)
        path.chmod(0o644)  # readable by the user it runs as; the directory is private
        return path

    def _listens(self) -> bool:
        if self._process.poll() is not None:
            raise RuntimeError(f"pgbouncer ended with status {self._process.returncode}")
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0
