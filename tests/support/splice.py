"""A link whose open connection can be moved to a session of another server, as a floating address or a pooler may do.

The client notices nothing: its connection stays as it is, and from the next statement on another session answers.
Threads, so that a test that blocks its loop does not stop the network.
"""

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from psycopg.conninfo import make_conninfo

from pgelect.testing import Postgres

_READY = b"Z\0\0\0\5I"  # ReadyForQuery, idle: the last bytes of every answer outside a transaction
_PROTOCOL = 196608  # 3.0
_TIMEOUT_S = 10.0


class RawSession:
    """A session on `server`, spoken to byte by byte, so that its socket can be handed to somebody else."""

    def __init__(self, server: Postgres, *statements: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout=_TIMEOUT_S)
        start = struct.pack("!i", _PROTOCOL) + b"user\0postgres\0database\0postgres\0\0"
        self._ask(struct.pack("!i", len(start) + 4) + start)
        for statement in statements:
            text = statement.encode() + b"\0"
            self._ask(b"Q" + struct.pack("!i", len(text) + 4) + text)
        self.socket.settimeout(None)

    def _ask(self, message: bytes) -> None:
        self.socket.sendall(message)
        answer = b""
        while not answer.endswith(_READY):
            more = self.socket.recv(65536)
            answer += more
            if not more:
                raise AssertionError(f"the server ended the session: {answer!r}")


class SpliceableProxy:
    """A proxy on 127.0.0.1 in front of `server`. `splice` moves the newest connection; `upstream` is for new ones."""

    def __init__(self, server: Postgres) -> None:
        self.upstream = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lines: list[_Line] = []
        self._thread = threading.Thread(target=self._accept, name="spliceable-proxy", daemon=True)
        self._thread.start()

    def dsn(self, **params: str | int) -> str:
        """The connection string that leads through this proxy."""
        return make_conninfo(self.upstream.dsn(), port=self._listener.getsockname()[1], **params)

    def splice(self, session: RawSession) -> None:
        """From now on this session answers the newest client; the one that did so until now is closed."""
        self._lines[-1].move(session.socket)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(_TIMEOUT_S)
        self._listener.close()
        for line in self._lines:
            line.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # shut down
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.upstream.port))
            except OSError:
                client.close()
                continue
            self._lines.append(_Line(client, server))


class _Line:
    """One client, and whoever answers it."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self._client = client
        self._server = server
        self._idle = threading.Condition()
        self._is_idle = False
        self._threads: list[threading.Thread] = []
        self._start(self._up)
        self._start(lambda: self._down(server))

    def move(self, to: socket.socket) -> None:
        """Between two statements, have another server answer."""
        with self._idle:
            if not self._idle.wait_for(lambda: self._is_idle, _TIMEOUT_S):
                raise AssertionError("the client was never idle")
            old, self._server = self._server, to
        _end(old)
        self._start(lambda: self._down(to))

    def close(self) -> None:
        """End both sides, and the threads between them."""
        _end(self._client)
        _end(self._server)
        for thread in self._threads:
            thread.join(_TIMEOUT_S)

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name="spliceable-line", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _up(self) -> None:
        while data := _received(self._client):
            with self._idle:
                self._is_idle = False
                server = self._server
            _send(server, data)
        _end(self._server)
        self._client.close()

    def _down(self, server: socket.socket) -> None:
        while data := _received(server):
            with self._idle:  # before the client can ask the next question
                self._is_idle = data.endswith(_READY)
                self._idle.notify_all()
            _send(self._client, data)
        server.close()
        if server is self._server:
            _end(self._client)


def _received(source: socket.socket) -> bytes:
    """What came, or nothing when that end is gone."""
    try:
        return source.recv(65536)
    except OSError:
        return b""


def _send(target: socket.socket, data: bytes) -> None:
    with suppress(OSError):  # that end is gone; whoever reads from it says so
        target.sendall(data)


def _end(one: socket.socket) -> None:
    """Wake whoever reads from it; it closes the socket."""
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
