"""The two servers that each test of the contract runs on."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from pgelect._engine.model import LockKey
from pgelect.testing.fake import FakeServer
from tests.contract.election import Election, FakeElection, RealElection

FAKE_SLICE_S = 0.5  # long enough that two waiters meet in the queue


@pytest_asyncio.fixture(params=["fake", "real"])
async def election(request: pytest.FixtureRequest, key: tuple[int, int]) -> AsyncIterator[Election]:
    """An election that nobody has taken part in yet."""
    made: Election
    if request.param == "fake":
        made = FakeElection(LockKey(*key), FakeServer(wait_slice_s=FAKE_SLICE_S))
    else:
        made = RealElection(LockKey(*key), request.getfixturevalue("database"))
    yield made
    await made.close()
