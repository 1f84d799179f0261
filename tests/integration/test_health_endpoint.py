"""The HTTP endpoint: what it answers, that no client holds it or an election up, and that it leaves nothing behind."""

import asyncio
import errno
import json
import logging
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
import psutil
import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from pgelect._health import Health
from pgelect.http import HealthServer, Watched
from tests.support.electors import Elector
from tests.support.proxy import BreakableProxy
from tests.support.waiting import eventually, scaled

GOOD = Health(healthy=True, ready=True, reason="leading, proved 0.1 s ago")
AWAY = Health(healthy=True, ready=False, reason="no connection to the server")
ILL = Health(healthy=False, ready=False, reason="stopped by itself: a bug")


class Stub:
    """In place of a lock."""

    def __init__(self, health: Health = GOOD, *, leads: bool = False) -> None:
        self.says = health
        self.is_leader = leads

    def health(self) -> Health:
        return self.says


class Asked:
    """A server with a client that asks it."""

    def __init__(self, server: HealthServer, client: aiohttp.ClientSession) -> None:
        self.server = server
        self._client = client

    async def text(self, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
        async with self._client.request(method, f"{self.server.url}{path}", headers=headers) as answer:
            return answer.status, await answer.text()

    async def says(self, path: str) -> tuple[int, Any]:
        status, text = await self.text(path)
        assert text.endswith("\n")
        return status, json.loads(text)


@asynccontextmanager
async def serving(locks: Watched | Mapping[str, Watched], **settings: Any) -> AsyncIterator[Asked]:
    async with HealthServer(locks, port=0, **settings) as server, aiohttp.ClientSession() as client:
        yield Asked(server, client)


def listening() -> list[int]:
    """The ports at which this process listens."""
    return [one.laddr.port for one in psutil.Process().net_connections("tcp") if one.status == psutil.CONN_LISTEN]


def connect(server: HealthServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=scaled(5))


# What it answers


@pytest.mark.parametrize(
    ("health", "leads", "livez", "readyz", "leader"),
    [
        (GOOD, True, 200, 200, 200),
        (GOOD, False, 200, 200, 503),
        (AWAY, False, 200, 503, 503),
        (ILL, False, 503, 503, 503),
    ],
)
async def test_the_status_says_it_and_the_body_says_why(
    health: Health, leads: bool, livez: int, readyz: int, leader: int
) -> None:
    body = {"healthy": health.healthy, "ready": health.ready, "leader": leads, "reason": health.reason}
    async with serving(Stub(health, leads=leads)) as asked:
        assert await asked.says("/livez") == (livez, body)
        assert await asked.says("/readyz") == (readyz, body)
        assert await asked.says("/leader") == (leader, body)


async def test_it_answers_what_is_so_when_it_is_asked() -> None:
    lock = Stub(leads=True)
    async with serving(lock) as asked:
        assert (await asked.says("/leader"))[0] == 200
        lock.is_leader = False
        assert (await asked.says("/leader"))[0] == 503
        lock.says = ILL
        assert (await asked.says("/livez"))[0] == 503
        lock.says = GOOD
        assert (await asked.says("/livez"))[0] == 200


async def test_of_several_locks_all_have_to_be_well_and_each_is_asked_for_its_leader() -> None:
    one, two = Stub(leads=True), Stub()
    async with serving({"one": one, "a/b c": two}) as asked:
        status, body = await asked.says("/readyz")
        assert (status, body["ready"], {*body["locks"]}) == (200, True, {"one", "a/b c"})
        two.says = AWAY
        status, body = await asked.says("/readyz")
        assert (status, body["healthy"], body["ready"]) == (503, True, False)
        assert body["locks"]["a/b c"] == {"healthy": True, "ready": False, "leader": False, "reason": AWAY.reason}
        assert (await asked.says("/livez"))[0] == 200
        assert (await asked.says("/leader/one"))[0] == 200
        assert (await asked.says("/leader/a%2Fb%20c"))[0] == 503
        for path in ("/leader", "/leader/three"):
            assert await asked.text(path) == (404, "there is no such lock here; ask /leader/one; /leader/a/b c\n")


async def test_head_is_answered_without_a_body_and_anything_that_would_change_something_is_refused() -> None:
    lock = Stub(leads=True)
    async with serving(lock) as asked:
        for path in ("/livez", "/readyz", "/leader", "/metrics"):
            assert await asked.text(path, "HEAD") == (200, "")
            for method in ("POST", "PUT", "DELETE", "PATCH"):
                assert (await asked.text(path, method))[0] == 405
        lock.says = ILL
        assert await asked.text("/livez", "HEAD") == (503, "")


@pytest.mark.parametrize("path", ["/", "/livez/", "/health", "/leader/one", "/../etc/passwd", "/livez%00", "/%2e%2e/"])
async def test_an_unknown_path_is_not_found(path: str) -> None:
    async with serving(Stub()) as asked:
        status, text = await asked.text(path)
        assert status == 404
        assert "ask /l" in text


async def test_no_answer_is_kept_by_what_stands_between() -> None:
    async with serving(Stub()) as asked, aiohttp.ClientSession() as client:
        for path in ("/livez", "/readyz", "/leader", "/metrics", "/nothing"):
            async with client.get(f"{asked.server.url}{path}") as answer:
                assert answer.headers["Cache-Control"] == "no-store"
                assert answer.headers["Connection"] == "close"


async def test_probes_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A line for each probe, every few seconds, for ever."""
    caplog.set_level(logging.INFO)
    async with serving(Stub()) as asked:
        await asked.text("/livez")
        await asked.text("/nothing")
    assert caplog.records == []


async def test_an_error_of_a_lock_is_an_answer_and_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    lock = Stub()
    async with serving(lock) as asked:
        del lock.says
        assert await asked.text("/livez") == (500, "an error; see the log\n")
        assert (await asked.text("/livez", "POST"))[0] == 405
    (record,) = caplog.records
    assert record.message == "the health endpoint could not answer /livez"
    assert record.exc_info is not None


# Metrics


async def test_metrics_are_those_of_the_registry_that_was_given() -> None:
    registry = CollectorRegistry()
    Gauge("things", "Things.", registry=registry).set(3)
    async with serving(Stub(), registry=registry) as asked:
        status, text = await asked.text("/metrics")
        assert (status, text.splitlines()[-1]) == (200, "things 3.0")
        status, text = await asked.text("/metrics", Accept="application/openmetrics-text; version=1.0.0")
        assert (status, text.splitlines()[-1]) == (200, "# EOF")


async def test_without_a_registry_metrics_are_those_of_the_default_one() -> None:
    async with serving(Stub()) as asked:
        status, text = await asked.text("/metrics")
        assert status == 200
        assert "python_info{" in text


async def test_without_prometheus_client_metrics_are_not_found_and_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    async with serving(Stub()) as asked:
        assert await asked.text("/metrics") == (404, "there are no metrics: pip install 'pgelect[prometheus]'\n")
        assert (await asked.text("/livez"))[0] == 200


class Slow(Collector):
    """A collector that takes its time."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.go_on = asyncio.run_coroutine_threadsafe(asyncio.sleep(3600), self._loop)

    def collect(self) -> Any:
        self._loop.call_soon_threadsafe(self.entered.set)
        with suppress(BaseException):
            self.go_on.result()
        yield GaugeMetricFamily("slow", "Slow.", value=1)


async def test_a_collector_that_takes_its_time_holds_up_neither_the_loop_nor_the_end() -> None:
    registry = CollectorRegistry(auto_describe=False)
    slow = Slow()
    registry._collector_to_names[slow] = []  # registering would already collect
    async with serving(Stub(), registry=registry) as asked:
        scrape = asyncio.create_task(asked.text("/metrics"))
        await slow.entered.wait()
        assert (await asked.text("/livez"))[0] == 200
        async with asyncio.timeout(scaled(5)):
            await asked.server.close()
        slow.go_on.cancel()
        with pytest.raises(aiohttp.ClientError):
            await scrape


# Clients that are slow, rude or many


async def test_clients_that_say_nothing_or_half_or_do_not_listen_hold_up_nothing() -> None:
    registry = CollectorRegistry()
    Gauge("long", "x" * 20_000_000, registry=registry)
    async with serving(Stub(), registry=registry) as asked:
        silent, half, deaf = (connect(asked.server) for _ in range(3))
        half.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n")
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        deaf.setblocking(False)
        async with asyncio.timeout(scaled(5)):
            assert await asyncio.get_running_loop().sock_recv(deaf, 1) == b"H"
        assert (await asked.text("/livez"))[0] == 200
        async with asyncio.timeout(scaled(5)):
            await asked.server.close()
        for client in (silent, half):
            assert client.recv(1) == b""
            client.close()
        port = deaf.getpeername()[1]
        assert not [one for one in psutil.Process().net_connections("tcp") if one.laddr[1:] == (port,)], "all let go"
        deaf.close()


@pytest.mark.parametrize(
    "sent",
    [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET " + b"/" * 100_000, b"no http\r\n\r\n", b"\x00" * 5000],
    ids=["TLS", "a long path", "nonsense", "zeros"],
)
async def test_rubbish_is_refused_without_a_word_in_the_log(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(Stub()) as asked:
        client = connect(asked.server)
        client.setblocking(False)
        with suppress(ConnectionError):
            await asyncio.get_running_loop().sock_sendall(client, sent + b"\r\n\r\n")
            answer = await asyncio.get_running_loop().sock_recv(client, 4096)
            assert answer == b"" or b" 400 " in answer.splitlines()[0]
        client.close()
        assert (await asked.text("/livez"))[0] == 200
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_connection_that_lasts_is_closed_and_so_are_the_oldest_of_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever reaches the port could use up the descriptors of the process, and an election needs one to reconnect."""
    monkeypatch.setattr("pgelect.http.LOOK_EVERY_S", 0.05)
    monkeypatch.setattr("pgelect.http.MOST_CONNECTIONS", 2)
    async with serving(Stub()) as asked:
        clients = [connect(asked.server) for _ in range(3)]
        await eventually(lambda: [_is_closed(client) for client in clients] == [True, False, False])
        assert (await asked.text("/livez"))[0] == 200
        monkeypatch.setattr("pgelect.http.CONNECTION_S", 0.1)
        clients[1].sendall(b"GET /livez")
        await eventually(lambda: all(map(_is_closed, clients)))
        assert (await asked.text("/livez"))[0] == 200
        for client in clients:
            client.close()


def _is_closed(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


# Its beginning and its end


async def test_it_listens_on_loopback_only_and_at_its_end_no_more() -> None:
    before, tasks = listening(), asyncio.all_tasks()
    async with HealthServer(Stub(), port=0) as server:
        assert sorted(listening()) == sorted([*before, server.port])
        assert server.url == f"http://127.0.0.1:{server.port}"
        (ours,) = [one for one in psutil.Process().net_connections("tcp") if one.laddr[1:] == (server.port,)]
        assert ours.laddr[0] == "127.0.0.1"
    assert listening() == before
    assert asyncio.all_tasks() == tasks
    await server.close()
    async with server:  # and it can be started again
        assert len(listening()) == len(before) + 1
        with pytest.raises(RuntimeError, match="listens already"):
            await server.start()
    assert listening() == before


async def test_it_listens_where_it_is_told() -> None:
    async with HealthServer(Stub(), host="::1", port=0) as server, aiohttp.ClientSession() as client:
        assert server.url == f"http://[::1]:{server.port}"
        async with client.get(f"{server.url}/livez") as answer:
            assert answer.status == 200


async def test_a_port_in_use_is_told_and_leaves_nothing_behind() -> None:
    tasks = asyncio.all_tasks()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = HealthServer(Stub(), port=port)
        with pytest.raises(
            OSError, match=f"^the health endpoint cannot listen at 127.0.0.1:{port}: the port is taken"
        ) as no:
            await server.start()
        assert no.value.errno == errno.EADDRINUSE
        assert asyncio.all_tasks() == tasks
    async with server:  # it is free now
        assert server.port == port


@pytest.mark.parametrize(
    ("host", "said"),
    [("192.0.2.1", "cannot listen at 192.0.2.1:0: "), ("no.such.host.invalid", "no.such.host")],
)
async def test_an_address_that_cannot_be_had_is_told(host: str, said: str) -> None:
    with pytest.raises(OSError, match="the health endpoint cannot listen at ") as caught:
        await HealthServer(Stub(), host=host, port=0).start()
    assert said in str(caught.value)


@pytest.mark.parametrize("cancels", [1, 2])
async def test_a_cancel_while_it_closes_is_raised_when_it_has_closed(
    cancels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgelect.http.CLOSE_WITHIN_S", 0.1)
    registry, slow = CollectorRegistry(), Slow()
    registry._collector_to_names[slow] = []
    server = HealthServer(Stub(), port=0, registry=registry)
    await server.start()
    port = server.port
    with connect(server) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        await slow.entered.wait()
        closing = asyncio.create_task(server.close())
        for _ in range(cancels):
            await asyncio.sleep(0.02)
            assert not closing.done()
            closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert [one for one in psutil.Process().net_connections("tcp") if one.laddr[1:] == (port,)] == []
    slow.go_on.cancel()


async def test_a_cancel_while_it_starts_leaves_nothing_behind() -> None:
    before = listening()
    for turns in range(10):
        server = HealthServer(Stub(), port=0)
        starting = asyncio.create_task(server.start())
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        with suppress(asyncio.CancelledError):
            await starting
        await server.close()
        assert listening() == before


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_is_none_is_refused(port: int) -> None:
    with pytest.raises(ValueError, match=f"^port={port} is outside"):
        HealthServer(Stub(), port=port)


@pytest.mark.parametrize("port", ["8080", True, 80.0])
def test_a_port_that_is_no_number_is_refused(port: Any) -> None:
    with pytest.raises(TypeError, match=r"^port must be an int"):
        HealthServer(Stub(), port=port)


def test_no_lock_at_all_is_refused() -> None:
    """It would be healthy and ready, and say so of nothing."""
    with pytest.raises(ValueError, match="at least one lock"):
        HealthServer({})


def test_importing_it_loads_no_aiohttp_and_without_aiohttp_it_says_what_to_install() -> None:
    code = (
        "import asyncio, sys, pgelect.http\n"
        "print('aiohttp' in sys.modules)\n"
        "sys.modules['aiohttp'] = None\n"
        "try: asyncio.run(pgelect.http.HealthServer(object()).start())\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    needs = "the health endpoint needs aiohttp. Install it with: pip install 'pgelect[http]'"
    assert (done.stdout.splitlines(), done.stderr) == (["False", needs], "")


# With a real lock


async def test_it_follows_a_lock_whose_link_falls_silent_and_comes_back(
    database: str, key: tuple[int, int], proxy: BreakableProxy
) -> None:
    a = Elector(proxy.dsn(database), key)
    async with serving(a.lock) as asked:
        assert await _statuses(asked) == (200, 503, 503)
        async with a:
            token = (await a.leads()).token
            clients = [connect(asked.server) for _ in range(20)]
            await a.proved(3)
            assert await _statuses(asked) == (200, 200, 200)
            proxy.freeze()
            await a.has_lost(token)
            assert await _statuses(asked) == (200, 503, 503), "a restart would not thaw it"
            assert (await asked.says("/livez"))[1]["reason"].startswith("no connection to the server for ")
            proxy.thaw()
            await a.leads(above=token)
            assert await _statuses(asked) == (200, 200, 200)
            for client in clients:
                client.close()
        assert await _statuses(asked) == (200, 503, 503)


async def _statuses(asked: Asked) -> tuple[int, ...]:
    return tuple([(await asked.says(path))[0] for path in ("/livez", "/readyz", "/leader")])
