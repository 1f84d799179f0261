"""The links of one replica: proxies of its own to each server, for its election and for its writes, to be broken."""

from __future__ import annotations

import socket
import struct
from contextlib import ExitStack, suppress
from typing import Literal

from typing_extensions import override

from benchmarks.closing import Closing
from tests.support.proxy import BreakableProxy, Direction

End = Literal["client", "server"]
Which = Literal["election", "writer"]
SLOTS = (0, 1)
"""Two servers at most: the primary is in one of them, its standby in the other."""


class LossyProxy(BreakableProxy):
    """A breakable proxy that can also cut only one end: the other one never hears of it."""

    def __init__(self, host: str, port: int) -> None:
        self._silent: list[socket.socket] = []  # acknowledge, and hear nothing any more
        super().__init__(host, port)

    def cut_end(self, end: End) -> int:
        """Reset one end of all open connections; the other stays open and dumb. Returns how many there were."""

        def act() -> int:
            pairs = [pair for pair in self._pairs if len(pair.sockets) == 2]
            for pair in pairs:
                if pair.task is not None:
                    pair.task.cancel()
                for each in pair.sockets:
                    self._loop.remove_reader(each)
                    self._loop.remove_writer(each)
                self._pairs.discard(pair)
                client, server = pair.sockets
                victim, other = (client, server) if end == "client" else (server, client)
                with suppress(OSError):
                    victim.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                victim.close()
                self._silent.append(other)
            return len(pairs)

        return self._control(act)

    def end_silence(self) -> None:
        """Close the ends that were left open and dumb."""
        for each in self._silent:
            each.close()
        self._silent.clear()

    @override
    def close(self) -> None:
        super().close()
        self.end_silence()


class Links(Closing):
    """All links of one replica."""

    def __init__(self, ports: tuple[int, int]) -> None:
        self._all = ExitStack()
        self._proxies: dict[Which, list[LossyProxy]] = {
            which: [self._all.enter_context(LossyProxy("127.0.0.1", port)) for port in ports]
            for which in ("election", "writer")
        }

    def ports(self, which: Which, *, reverse: bool) -> list[int]:
        """Give the ports of the proxies, in the order of the servers, or the other way round."""
        ports = [proxy.port for proxy in self._proxies[which]]
        return ports[::-1] if reverse else ports

    def lead_to(self, slot: int, port: int) -> None:
        """Have new connections of that slot go to another server."""
        for proxies in self._proxies.values():
            proxies[slot].upstream = ("127.0.0.1", port)

    def freeze(self, which: tuple[Which, ...], direction: Direction) -> None:
        """Forward nothing any more in that direction."""
        for proxy in self._of(which):
            proxy.freeze(direction)

    def delay_answers(self, seconds: float) -> None:
        """Hold back each piece of what the servers say."""
        for proxy in self._of(("election", "writer")):
            proxy.delay_down_s = seconds

    def thaw(self) -> None:
        """Forward everything again, at once."""
        for proxy in self._of(("election", "writer")):
            proxy.delay(0.0)
            proxy.thaw()

    def mend(self) -> None:
        """Let nothing be broken any more: both ends of what was cut hear of it."""
        self.thaw()
        for proxy in self._of(("election", "writer")):
            proxy.end_silence()

    def cut(self, which: tuple[Which, ...]) -> None:
        """Reset the connections at both ends."""
        for proxy in self._of(which):
            proxy.cut()

    def cut_end(self, which: tuple[Which, ...], end: End) -> None:
        """Reset one end; the other never hears of it."""
        for proxy in self._of(which):
            proxy.cut_end(end)

    def close(self) -> None:
        """Cut everything. May be called again."""
        self._all.close()

    def _of(self, which: tuple[Which, ...]) -> list[LossyProxy]:
        return [proxy for each in which for proxy in self._proxies[each]]
