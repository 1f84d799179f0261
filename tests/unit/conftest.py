"""Here a server is a fake one: unit tests need no other."""

from collections.abc import AsyncIterator

import pytest_asyncio

from pgelect.testing.fake import FakeServer


@pytest_asyncio.fixture
async def server() -> AsyncIterator[FakeServer]:
    server = FakeServer()
    yield server
    server.stop()  # ends what tests left open, and its timers
