"""Scrapes of the HTTP endpoint that take long or hang: an election and the end of a program wait for none of them."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterable

import aiohttp
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from pgelect._health import Health
from pgelect.http import MOST_SCRAPES, HealthServer
from tests.support.waiting import eventually, scaled


class Following:
    """In place of a lock."""

    is_leader = False

    def health(self) -> Health:
        return Health(healthy=True, ready=True, reason="following")


class Hanging(Collector):
    """A collector that answers when it is told to."""

    def __init__(self) -> None:
        self.entered = 0
        self.go_on = threading.Event()

    def describe(self) -> Iterable[GaugeMetricFamily]:
        return []

    def collect(self) -> Iterable[GaugeMetricFamily]:
        self.entered += 1
        self.go_on.wait()
        yield GaugeMetricFamily("slow", "Slow.", value=1)


async def test_scrapes_that_hang_hold_up_neither_names_nor_more_than_a_few_threads() -> None:
    """A lock that connects resolves its server's name in the loop's own threads, of which there are few."""
    registry, hanging = CollectorRegistry(), Hanging()
    registry.register(hanging)
    async with HealthServer(Following(), port=0, registry=registry) as server, aiohttp.ClientSession() as client:

        async def scrape() -> tuple[int, str]:
            async with client.get(f"{server.url}/metrics") as answer:
                return answer.status, await answer.text()

        try:
            first = [asyncio.create_task(scrape()) for _ in range(MOST_SCRAPES)]
            await eventually(lambda: hanging.entered == MOST_SCRAPES)
            first.pop().cancel()  # a client that went away is still being collected for
            said = await asyncio.gather(*(scrape() for _ in range(30)))
            assert {*said} == {(503, "4 others are collecting metrics, and have not ended yet\n")}
            async with asyncio.timeout(scaled(5)):
                assert await asyncio.get_running_loop().getaddrinfo("localhost", 5432)
        finally:
            hanging.go_on.set()
        assert [status for status, _ in await asyncio.gather(*first)] == [200] * len(first)
        assert (await scrape())[0] == 200


async def test_a_scrape_that_could_not_begin_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async with HealthServer(Following(), port=0) as server, aiohttp.ClientSession() as client:
        with monkeypatch.context() as full:
            full.setattr(threading.Thread, "start", refuse)
            for _ in range(MOST_SCRAPES + 1):
                async with client.get(f"{server.url}/metrics") as answer:
                    assert answer.status == 500
        async with client.get(f"{server.url}/metrics") as answer:
            assert answer.status == 200


@pytest.mark.parametrize("end", ["", "raise SystemExit(0)"], ids=["returns", "exits"])
def test_a_scrape_that_hangs_does_not_hold_up_the_end_of_the_program(end: str) -> None:
    code = f"""
import asyncio, threading
from prometheus_client import CollectorRegistry
from pgelect.http import HealthServer
from tests.integration.test_health_endpoint_scrapes import Following, Hanging

async def main():
    registry, hanging = CollectorRegistry(), Hanging()
    registry.register(hanging)
    async with HealthServer(Following(), port=0, registry=registry) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /metrics HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
        while not hanging.entered:
            await asyncio.sleep(0.01)
        writer.close()
    {end}

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=scaled(30))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
