"""A tiny HTTP endpoint for probes: /livez, /readyz, /leader, /metrics. On aiohttp (extra ``http``).

It only reads what locks say of themselves, at the moment of each request. Whatever its clients do, an election waits
for none of them, and closing it takes about a second at the most. It has no access control: whoever reaches the port
can read what the reasons say, such as the name of the server's host. By default only this machine does.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, Self

from pgelect._aside import aside

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from types import TracebackType

    from aiohttp import web
    from prometheus_client import CollectorRegistry

    from pgelect._health import Health

__all__ = ["HealthServer", "Watched", "WatchedGroup"]

log = logging.getLogger("pgelect")
_rubbish = logging.getLogger("pgelect.http.rubbish")  # aiohttp's word on each request that is none: a port scan
_rubbish.setLevel(logging.CRITICAL + 1)

PATHS = "/livez, /readyz, /leader and /metrics"
CONNECTION_S = 30.0
"""A connection lasts no longer, whatever its client does with it. Each one serves one request."""
MOST_CONNECTIONS = 100
"""Beyond these the oldest are closed: an election needs descriptors, too."""
MOST_SCRAPES = 4
"""So many /metrics are collected at once, also for clients that have gone; each takes a thread."""
LOOK_EVERY_S = 1.0
CLOSE_WITHIN_S = 0.5
"""Closing waits this long for answers on their way, then as long again for their handlers to end."""


class Watched(Protocol):
    """What the endpoint asks; ``LeaderLock`` is one."""

    @property
    def is_leader(self) -> bool:
        """Whether this process leads at this very instant."""

    def health(self) -> Health:
        """Tell whether it is well."""


class WatchedGroup(Protocol):
    """The same of a group; ``LeaderGroup`` is one."""

    @property
    def leading(self) -> Mapping[Any, object]:
        """What this process leads at this very instant."""

    def health(self) -> Health:
        """Tell whether it is well."""


class HealthServer:
    """Answers the probes of an orchestrator for one lock, or for several: ``async with HealthServer(lock): ...``.

    ============== =====================================================================================================
    ``/livez``     200 while the lock is healthy, 503 otherwise: for a liveness probe
    ``/readyz``    200 while it is ready, 503 otherwise: for a readiness probe
    ``/leader``    200 only while this process leads (of a group: any partition), 503 otherwise
    ``/metrics``   what prometheus-client has collected; 404 where that is not installed; 503 while four are collected
    ============== =====================================================================================================

    The first three answer with one line of JSON: ``healthy``, ``ready``, ``leader``, ``reason``. With several locks the
    first two need all of them, and say each one's line under ``locks``; ``/leader/NAME`` is asked of each.

    Args:
        locks: a lock or a group, or a mapping of names to such.
        host: the address to listen at; default 127.0.0.1, where only this machine reaches it. A kubelet asks from
            outside: 0.0.0.0 (or ``::``).
        port: default 8080; 0: a free one, see ``port``.
        registry: of prometheus-client, for ``/metrics``; None: its default registry.

    Raises:
        ValueError, TypeError: there is no lock in the mapping, or the port is none.
    """

    def __init__(
        self,
        locks: Watched | WatchedGroup | Mapping[str, Watched | WatchedGroup],
        *,
        host: str = "127.0.0.1",
        port: int = 8080,
        registry: CollectorRegistry | None = None,
    ) -> None:
        if isinstance(port, bool) or not isinstance(port, int):
            raise TypeError(f"port must be an int, not {type(port).__name__}")
        if not 0 <= port <= 65535:
            raise ValueError(f"port={port} is outside 0 .. 65535")
        if isinstance(locks, Mapping) and not locks:
            raise ValueError("locks must have at least one lock")
        self._locks: dict[str, Watched | WatchedGroup] = dict(locks) if isinstance(locks, Mapping) else {}
        self._only: Watched | WatchedGroup | None = None if isinstance(locks, Mapping) else locks
        self._host = host
        self._port = port
        self._registry = registry
        self._runner: web.AppRunner | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._scrapes = threading.BoundedSemaphore(MOST_SCRAPES)

    @property
    def port(self) -> int:
        """The port that it listens at; before the start, the one that was asked for."""
        if self._runner is not None and self._runner.addresses:
            return int(self._runner.addresses[0][1])
        return self._port

    @property
    def url(self) -> str:
        """Where it can be asked, such as ``http://127.0.0.1:8080``."""
        return f"http://{_bracketed(self._host)}:{self.port}"

    async def start(self) -> None:
        """Listen.

        Raises:
            ImportError: aiohttp is missing; the message says what to install.
            OSError: the address is taken, or may not be used.
            RuntimeError: it listens already.
        """
        if self._runner is not None:
            raise RuntimeError("start() was called on a health endpoint that listens already")
        try:
            from aiohttp import web  # noqa: PLC0415 -- optional
        except ImportError as error:
            raise ImportError(
                "the health endpoint needs aiohttp. Install it with: pip install 'pgelect[http]'", name=error.name
            ) from error
        app = web.Application(middlewares=[web.middleware(_answered)])
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/leader", self._leader)
        app.router.add_get("/leader/{name}", self._leader)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/{rest:.*}", self._unknown)
        self._runner = runner = web.AppRunner(
            app,
            access_log=None,  # it would have a line for each probe
            logger=_rubbish,
            keepalive_timeout=CONNECTION_S,
            lingering_time=0,
            shutdown_timeout=CLOSE_WITHIN_S,
        )
        try:
            await runner.setup()
            # To the end even when cancelled: in between, asyncio has a listening socket that nobody can close.
            await _carried_through(web.TCPSite(runner, self._host, self._port).start())
            self._sweeping = asyncio.get_running_loop().create_task(_sweep(runner), name="pgelect-http-sweep")
        except OSError as error:
            await self.close()
            raise self._refused(error) from None
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Stop, within about a second whatever clients do. Harmless when repeated. A cancel is raised afterwards."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        if self._sweeping is not None:
            self._sweeping.cancel()
        await _carried_through(_clean_up(runner))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- answers -------------------------------------------------------------------------------------------------------

    async def _livez(self, _: web.Request) -> web.Response:
        return self._health(lambda health: health.healthy)

    async def _readyz(self, _: web.Request) -> web.Response:
        return self._health(lambda health: health.ready)

    def _health(self, is_good: Callable[[Health], bool]) -> web.Response:
        if self._only is not None:
            health, line = _look(self._only)
            return _json(line, good=is_good(health))
        looks = {name: _look(lock) for name, lock in self._locks.items()}
        lines = {name: line for name, (_, line) in looks.items()}
        together: dict[str, Any] = {key: all(line[key] for line in lines.values()) for key in ("healthy", "ready")}
        return _json({**together, "locks": lines}, good=all(is_good(health) for health, _ in looks.values()))

    async def _leader(self, request: web.Request) -> web.Response:
        name = request.match_info.get("name")
        lock = self._only if name is None else self._locks.get(name)
        if lock is None:
            asked = "; ".join(f"/leader/{known}" for known in self._locks) or "/leader"
            return _text(f"there is no such lock here; ask {asked}", status=404)
        _, line = _look(lock)
        return _json(line, good=line["leader"])

    async def _metrics(self, request: web.Request) -> web.Response:
        accept = request.headers.get("Accept", "")
        if not self._scrapes.acquire(blocking=False):
            return _text(f"{MOST_SCRAPES} others are collecting metrics, and have not ended yet", status=503)
        try:
            # In a thread, as prometheus-client's own endpoint: a collector that takes its time holds up nothing else.
            body, content_type = await aside(
                lambda: _collected(self._registry, accept), "pgelect-metrics", then=self._scrapes.release
            )
        except ImportError:
            return _text("there are no metrics: pip install 'pgelect[prometheus]'", status=404)
        return _response(body, content_type, 200)

    async def _unknown(self, _: web.Request) -> web.Response:
        return _text(f"there is nothing here; ask {PATHS}", status=404)

    def _refused(self, error: OSError) -> OSError:
        number = error.errno
        if number == errno.EADDRINUSE:
            why = "the port is taken. Choose another one, or 0 for any that is free"
        elif number == errno.EADDRNOTAVAIL:
            why = "this machine does not have that address"
        else:
            why = os.strerror(number) if number is not None and number > 0 else str(error)
        refused = OSError(f"the health endpoint cannot listen at {_bracketed(self._host)}:{self._port}: {why}")
        refused.errno = number  # given to the constructor, it would stand before the words
        return refused


async def _carried_through(work: Coroutine[Any, Any, None]) -> None:
    """Await work that must not be left half done. A cancel is raised when it has ended."""
    task = asyncio.get_running_loop().create_task(work, name="pgelect-http")
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cancelled = True
    error = task.exception()
    if cancelled:
        raise asyncio.CancelledError
    if error is not None:
        raise error


def _transports(runner: web.AppRunner) -> list[asyncio.Transport]:
    """List the open connections, oldest first."""
    connections = runner.server.connections if runner.server is not None else []
    return [connection.transport for connection in connections if connection.transport is not None]


async def _clean_up(runner: web.AppRunner) -> None:
    transports = _transports(runner)
    try:
        await runner.cleanup()
    finally:
        for transport in transports:  # of clients that do not take the rest of their answer
            transport.abort()
        await asyncio.sleep(0)  # it closes the socket in the next turn


async def _sweep(runner: web.AppRunner) -> None:
    """Close connections that are too old, or too many."""
    loop = asyncio.get_running_loop()
    seen_at: dict[asyncio.Transport, float] = {}
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        now = loop.time()
        seen_at = {transport: seen_at.get(transport, now) for transport in _transports(runner)}
        for number, (transport, first_at) in enumerate(seen_at.items()):
            if now - first_at > CONNECTION_S or number < len(seen_at) - MOST_CONNECTIONS:
                transport.abort()


async def _answered(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answer an error of a lock or a collector, too: the log has what it was."""
    from aiohttp.web import HTTPException  # noqa: PLC0415 -- optional

    try:
        return await handler(request)
    except HTTPException:  # such as: this method is not allowed
        raise
    except Exception:
        log.exception("the health endpoint could not answer %s", request.path)
        return _text("an error; see the log", status=500)


def _look(lock: Watched | WatchedGroup) -> tuple[Health, dict[str, Any]]:
    health = lock.health()
    leading = getattr(lock, "leading", None)
    leads = bool(leading) if leading is not None else getattr(lock, "is_leader", False)
    return health, {"healthy": health.healthy, "ready": health.ready, "leader": leads, "reason": health.reason}


def _json(line: dict[str, Any], *, good: bool) -> web.Response:
    return _response(f"{json.dumps(line)}\n".encode(), "application/json", 200 if good else 503)


def _text(said: str, *, status: int) -> web.Response:
    return _response(f"{said}\n".encode(), "text/plain; charset=utf-8", status)


def _response(body: bytes, content_type: str, status: int) -> web.Response:
    from aiohttp.web import Response  # noqa: PLC0415 -- optional

    headers = {"Content-Type": content_type, "Cache-Control": "no-store", "Connection": "close"}
    return Response(body=body, status=status, headers=headers)


def _collected(registry: CollectorRegistry | None, accept: str) -> tuple[bytes, str]:
    from prometheus_client import REGISTRY  # noqa: PLC0415 -- optional
    from prometheus_client.exposition import choose_encoder  # noqa: PLC0415 -- optional

    encode, content_type = choose_encoder(accept)
    return encode(REGISTRY if registry is None else registry), content_type


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
