"""Counts what goes over the wire: a relay between clients and their server, in a process of its own.

A round trip is whatever a client sends first after the server has sent something; what either of them adds before the
other one answers belongs to it. So it is the same for every driver and every protocol, however many statements are sent
at once, and a new connection counts what its greeting takes.

Each lane is a port of its own, so who connects where tells whose traffic it is. The relay's own work is in nobody's
figures; what passes through it is later by about a tenth of a millisecond each way.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from benchmarks.process import STARTS_WITHIN_S, Child, python, report

_BACKLOG = 512


@dataclass(frozen=True, slots=True)
class Traffic:
    """Of one lane, since it was opened.

    Attributes:
        trips: round trips.
        connects: connections made.
        now: connections that are open.
    """

    trips: int
    connects: int
    now: int


class Relay(Child):
    """The program's end: opens lanes, and reads what each has counted."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__("relay", python("benchmarks.relay", "--host", host, "--port", str(port)))

    def lane(self, name: str) -> int:
        """Open a lane; return its port."""
        port: int = self._ask(f"lane {name}")["port"]
        return port

    def read(self) -> dict[str, Traffic]:
        """Return what each lane has counted so far."""
        return {name: Traffic(*counts) for name, counts in self._ask("read")["lanes"].items()}

    def ports(self, name: str) -> list[int]:
        """Return the ports from which the server sees the open connections of a lane."""
        ports: list[int] = self._ask(f"ports {name}")["ports"]
        return ports

    def _ask(self, command: str) -> dict[str, Any]:
        mark = self.mark()
        self.tell(command)
        return self.wait_for(command.split(maxsplit=1)[0], mark, STARTS_WITHIN_S)


@dataclass(slots=True)
class _Lane:
    trips: int = 0
    connects: int = 0
    open: set[_Client] = field(default_factory=set)


class _Upstream(asyncio.Protocol):
    """The connection on to the server."""

    def __init__(self, client: _Client) -> None:
        self._client = client

    def data_received(self, data: bytes) -> None:
        self._client.answered = True
        self._client.transport.write(data)

    def connection_lost(self, _: Exception | None) -> None:
        self._client.transport.close()


class _Client(asyncio.Protocol):
    """A client's connection."""

    transport: asyncio.Transport
    upstream: asyncio.Transport | None = None

    def __init__(self, lane: _Lane, server: tuple[str, int]) -> None:
        self._lane = lane
        self._server = server
        self._early: list[bytes] = []
        self._connecting: asyncio.Task[None] | None = None
        self.answered = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._lane.connects += 1
        self._lane.open.add(self)
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    def data_received(self, data: bytes) -> None:
        self._lane.trips += self.answered
        self.answered = False
        if self.upstream is None:
            self._early.append(data)
        else:
            self.upstream.write(data)

    def connection_lost(self, _: Exception | None) -> None:
        self._lane.open.discard(self)
        if self.upstream is not None:
            self.upstream.close()

    async def _connect(self) -> None:
        try:
            upstream, _ = await asyncio.get_running_loop().create_connection(lambda: _Upstream(self), *self._server)
        except OSError:
            self.transport.close()
            return
        if self.transport.is_closing():
            upstream.close()
            return
        upstream.writelines(self._early)
        self.upstream = upstream


async def relay(server: tuple[str, int]) -> None:
    """Serve until the end of the input."""
    loop = asyncio.get_running_loop()
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    lanes: dict[str, _Lane] = {}
    while words := (await commands.readline()).decode().split():
        match words:
            case ["lane", name]:
                lane = lanes[name] = _Lane()

                def client(lane: _Lane = lane) -> _Client:
                    return _Client(lane, server)

                listening = await loop.create_server(client, "127.0.0.1", 0, backlog=_BACKLOG)
                report("lane", time.monotonic(), port=listening.sockets[0].getsockname()[1])
            case ["ports", name]:
                upstreams = [each.upstream for each in lanes[name].open if each.upstream is not None]
                ports = [each.get_extra_info("sockname")[1] for each in upstreams]
                report("ports", time.monotonic(), ports=ports)
            case _:
                counts = {name: (lane.trips, lane.connects, len(lane.open)) for name, lane in lanes.items()}
                report("read", time.monotonic(), lanes=counts)


def main() -> None:
    """Read the command line, and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # two for each connection
    asyncio.run(relay((options.host, options.port)))


if __name__ == "__main__":
    main()
