"""What is used in a window of time: each lane's round trips, connections, processors' time and memory; the server's."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.closing import Closing
from benchmarks.meters import Memory, cpu_s, memory, tree_cpu_s
from benchmarks.relay import Relay, Traffic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.stores import Store

_LOOK_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Usage:
    """Of one lane: all processes and sessions that belong to it, together.

    Attributes:
        trips_per_s: round trips, counted on the wire.
        peak_per_s: the most round trips in any one second.
        connections: that are open.
        connects: made in the window.
        client_ms_per_s: processor time of the clients, in milliseconds for each second.
        session_ms_per_s: the same of the server's processes that serve them.
        client: memory of the clients.
        sessions: memory of the server's processes that serve them.
    """

    trips_per_s: float
    peak_per_s: float
    connections: int
    connects: int
    client_ms_per_s: float
    session_ms_per_s: float
    client: Memory
    sessions: Memory


@dataclass(frozen=True, slots=True)
class Window:
    """What was used in ``window_s`` seconds.

    Attributes:
        lanes: by name.
        server_ms_per_s: processor time of the whole server, with what it does by itself.
        written_per_s: bytes of log that the server wrote; None where it keeps none.
    """

    window_s: float
    lanes: Mapping[str, Usage]
    server_ms_per_s: float
    written_per_s: float | None


@dataclass(frozen=True, slots=True)
class _Reading:
    at: float
    traffic: Mapping[str, Traffic]
    clients_s: Mapping[str, float]
    sessions_s: Mapping[str, float]
    server_s: float


class Metered(Closing):
    """A server behind a relay."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.relay = Relay(store.host, store.port)

    def lane(self, name: str) -> str:
        """Open a lane; return how clients connect by it."""
        return self.store.address(self.relay.lane(name))

    def traffic(self, name: str) -> Traffic:
        """Return what a lane has counted so far."""
        return self.relay.read()[name]

    def window(self, window_s: float, clients: Mapping[str, Sequence[int]]) -> Window:
        """Let so much time pass, and say what was used; ``clients`` are the processes on each lane to look at."""
        (window,) = windows(window_s, [(self, clients)])
        return window

    def close(self) -> None:
        """End the relay; the server is not ours."""
        self.relay.close()


def windows(window_s: float, what: Sequence[tuple[Metered, Mapping[str, Sequence[int]]]]) -> list[Window]:
    """Let so much time pass for several servers at once, and say what was used on each."""
    watches = [_Watch(metered, clients) for metered, clients in what]
    until = time.monotonic() + window_s
    while (left_s := until - time.monotonic()) > 0:
        time.sleep(min(_LOOK_EVERY_S, left_s))
        for watch in watches:
            watch.look()
    return [watch.end() for watch in watches]


class _Watch:
    """A window that has begun."""

    def __init__(self, metered: Metered, clients: Mapping[str, Sequence[int]]) -> None:
        self._store, self._relay = metered.store, metered.relay
        self._clients = clients
        self._written = self._store.written()  # before and after the readings: what we ask is not in them
        self._sessions = {name: self._store.sessions(self._relay.ports(name)) for name in clients}
        self._peaks = dict.fromkeys(clients, 0.0)
        self._before = self._read()
        self._last_at, self._last = self._before.at, self._before.traffic

    def look(self) -> None:
        """Note how many round trips there were since the last look."""
        now, traffic = time.monotonic(), self._relay.read()
        took_s = now - self._last_at
        if took_s < _LOOK_EVERY_S / 2:  # it says little of a second
            return
        for name in self._clients:
            trips = traffic[name].trips - self._last[name].trips
            self._peaks[name] = max(self._peaks[name], trips / took_s)
        self._last_at, self._last = now, traffic

    def end(self) -> Window:
        """Say what was used."""
        before, after, written = self._before, self._read(), self._store.written()
        took_s = after.at - before.at
        both = None if written is None or self._written is None else written - self._written
        return Window(
            window_s=took_s,
            lanes={name: self._usage(name, before, after) for name in self._clients},
            server_ms_per_s=_ms_per_s(before.server_s, after.server_s, took_s),
            written_per_s=None if both is None else both / took_s,
        )

    def _usage(self, name: str, before: _Reading, after: _Reading) -> Usage:
        took_s = after.at - before.at
        return Usage(
            trips_per_s=(after.traffic[name].trips - before.traffic[name].trips) / took_s,
            peak_per_s=self._peaks[name],
            connections=after.traffic[name].now,
            connects=after.traffic[name].connects - before.traffic[name].connects,
            client_ms_per_s=_ms_per_s(before.clients_s[name], after.clients_s[name], took_s),
            session_ms_per_s=_ms_per_s(before.sessions_s[name], after.sessions_s[name], took_s),
            client=memory(self._clients[name]),
            sessions=memory(self._sessions[name]),
        )

    def _read(self) -> _Reading:
        return _Reading(
            traffic=self._relay.read(),
            clients_s={name: sum(map(cpu_s, pids)) for name, pids in self._clients.items()},
            sessions_s={name: sum(map(cpu_s, pids)) for name, pids in self._sessions.items()},
            server_s=tree_cpu_s(self._store.pid),
            at=time.monotonic(),
        )


def _ms_per_s(before_s: float, after_s: float, window_s: float) -> float:
    """Tell the share of a second; none where a process has ended since, and took with it what it had counted."""
    return max(0.0, after_s - before_s) / window_s * 1000
