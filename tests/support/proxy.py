"""A TCP proxy that can be broken on purpose: frozen, slowed, cut, closed to newcomers, or forgetful of idle flows.

It lives in a thread and event loop of its own, so that a test that blocks its loop does not stop the network. Every
control may be called from any thread and is in force when it returns. "up" is client to server, "down" the way back.
"""

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Literal, Self, TypeVar

from psycopg.conninfo import make_conninfo

T = TypeVar("T")
Direction = Literal["up", "down", "both"]
Forgetting = Literal["silent", "reset"]

_CHUNK = 65536
_CONTROL_TIMEOUT_S = 10.0


class _Way:
    """One direction of traffic, of all connections alike."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.open = asyncio.Event()
        self.open.set()


class _Pair:
    """One client's connection and its way on to the server."""

    def __init__(self, client: socket.socket, now: float) -> None:
        self.sockets = [client]
        self.task: asyncio.Task[None] | None = None
        self.last_at = now  # of traffic, either way
        self.is_forgotten = False

    def close(self) -> None:
        """Close as usual, once both ends have said FIN."""
        for end in self.sockets:
            end.close()

    def reset(self) -> None:
        """Close with RST, not with FIN."""
        for end in self.sockets:
            _reset(end)


def _reset(end: socket.socket) -> None:
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()


class BreakableProxy:
    """A proxy on 127.0.0.1 in front of `host`:`port`."""

    def __init__(self, host: str, port: int) -> None:
        self.upstream = (host, port)  # may be changed: new connections go there
        self.host = "127.0.0.1"
        self.total_connections = 0  # ever accepted, refused ones included
        self.total_forgotten = 0  # flows that were found to be forgotten, by the traffic that came after
        self._pairs: set[_Pair] = set()
        self._refusing = False
        self._forget_after_s = float("inf")
        self._forget_with: Forgetting = "silent"
        self._ways = {"up": _Way(), "down": _Way()}
        self._listener = socket.create_server((self.host, 0), backlog=200)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="breakable-proxy", daemon=True)
        self._thread.start()

    def dsn(self, base: str, **params: str | int) -> str:
        """The connection string `base`, leading through this proxy."""
        return make_conninfo(base, host=self.host, port=self.port, **params)

    @property
    def connections(self) -> int:
        """How many connections are open now."""
        return len(self._pairs)

    def freeze(self, direction: Direction = "both") -> None:
        """Forward nothing any more. Sockets stay open and acknowledge; what is sent meanwhile arrives after `thaw`.

        New connections are accepted and then hear nothing. A close, too, is not passed on while frozen.
        """
        self._for_each(direction, lambda way: way.open.clear())

    def thaw(self, direction: Direction = "both") -> None:
        """Forward again."""
        self._for_each(direction, lambda way: way.open.set())

    def delay(self, seconds: float, direction: Direction = "both") -> None:
        """Hold each piece of traffic back for so long; 0 ends it."""
        self._for_each(direction, lambda way: setattr(way, "delay_s", seconds))

    @property
    def delay_up_s(self) -> float:
        """The delay from client to server."""
        return self._ways["up"].delay_s

    @delay_up_s.setter
    def delay_up_s(self, seconds: float) -> None:
        self.delay(seconds, "up")

    @property
    def delay_down_s(self) -> float:
        """The delay from server to client."""
        return self._ways["down"].delay_s

    @delay_down_s.setter
    def delay_down_s(self, seconds: float) -> None:
        self.delay(seconds, "down")

    def cut(self) -> int:
        """Reset all open connections at both ends, frozen or not; how many there were."""
        return self._control(self._cut)

    def refuse(self, refusing: bool = True) -> None:
        """Close new connections at once; those that are open stay."""

        def set_refusing() -> None:
            self._refusing = refusing

        self._control(set_refusing)

    def forget_idle(self, after_s: float, how: Forgetting = "silent") -> None:
        """Forget each flow that is idle for so long, as a load balancer does; neither end is told.

        What either end sends or closes afterwards goes nowhere ("silent"), or is answered with an RST to that end alone
        ("reset"). `inf` ends it, but not for flows that were found to be forgotten. Keep-alive packets do not count as
        traffic here.
        """

        def set_forgetting() -> None:
            self._forget_after_s, self._forget_with = after_s, how

        self._control(set_forgetting)

    def close(self) -> None:
        """Cut everything and stop listening. May be called again."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_CONTROL_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _for_each(self, direction: Direction, action: Callable[[_Way], None]) -> None:
        def act() -> None:
            for way in self._ways.values() if direction == "both" else [self._ways[direction]]:
                action(way)

        self._control(act)

    def _control(self, action: Callable[[], T]) -> T:
        async def act() -> T:
            return action()

        return asyncio.run_coroutine_threadsafe(act(), self._loop).result(_CONTROL_TIMEOUT_S)

    def _run(self) -> None:
        accepting = self._loop.create_task(self._accept())
        self._loop.run_forever()
        self._cut()
        tasks = asyncio.all_tasks(self._loop) | {accepting}
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._listener.close()
        self._loop.close()

    def _cut(self) -> int:
        pairs = list(self._pairs)
        for pair in pairs:
            if pair.task is not None:
                pair.task.cancel()
            # The RST has to be out when `cut` returns. The loop must not watch a descriptor beyond its close: the
            # number may be given to a new connection before the cancelled task gets to clean up.
            for end in pair.sockets:
                if end.fileno() < 0:
                    continue  # reset by itself, being forgotten
                self._loop.remove_reader(end)
                self._loop.remove_writer(end)
            pair.reset()
        self._pairs.clear()
        return len(pairs)

    async def _accept(self) -> None:
        while True:
            client, _ = await self._loop.sock_accept(self._listener)
            self.total_connections += 1
            pair = _Pair(client, self._loop.time())
            if self._refusing:
                pair.reset()
                continue
            self._pairs.add(pair)
            pair.task = self._loop.create_task(self._serve(pair, client))

    async def _serve(self, pair: _Pair, client: socket.socket) -> None:
        up, down = self._ways["up"], self._ways["down"]
        try:
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await up.open.wait()
            server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            pair.sockets.append(server)
            server.setblocking(False)
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.sock_connect(server, self.upstream)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(pair, client, server, up))
                both.create_task(self._pump(pair, server, client, down))
            pair.close()
        except* OSError:
            # One end broke; the other hears of it when the network lets it.
            await up.open.wait()
            await down.open.wait()
        finally:
            if pair in self._pairs:  # else `cut` was here
                self._pairs.discard(pair)
                pair.reset()

    async def _pump(self, pair: _Pair, source: socket.socket, target: socket.socket, way: _Way) -> None:
        while True:
            await way.open.wait()
            data = await self._received(pair, source)
            if self._is_forgotten(pair):
                if data and self._forget_with == "silent":
                    continue
                if data:
                    _reset(source)
                return
            pair.last_at = self._loop.time()
            if way.delay_s:
                await asyncio.sleep(way.delay_s)
            await way.open.wait()  # it may have frozen while we waited for the data
            if not data:
                target.shutdown(socket.SHUT_WR)
                return
            await self._loop.sock_sendall(target, data)

    async def _received(self, pair: _Pair, source: socket.socket) -> bytes:
        try:
            return await self._loop.sock_recv(source, _CHUNK)
        except OSError:
            if self._is_forgotten(pair):
                return b""  # an RST is not passed on either
            raise

    def _is_forgotten(self, pair: _Pair) -> bool:
        if not pair.is_forgotten and self._loop.time() - pair.last_at > self._forget_after_s:
            pair.is_forgotten = True
            self.total_forgotten += 1
        return pair.is_forgotten
