"""What a group says of its health in each phase of its life, and how the endpoint for probes asks it."""

import os
from collections.abc import Iterator

import aiohttp
import pytest

from pgelect import LeaderGroup
from pgelect.http import HealthServer
from pgelect.testing import LocalElection, local_election

NAMES = ["a", "b", "c"]
WELL, WAITING, ILL = (True, True), (True, False), (False, False)


@pytest.fixture
def election() -> Iterator[LocalElection]:
    with local_election() as made:
        yield made


def seen(group: LeaderGroup[str]) -> tuple[bool, bool]:
    health = group.health()
    return health.healthy, health.ready


async def test_from_before_its_start_to_after_its_end(election: LocalElection) -> None:
    group = LeaderGroup(names=NAMES)
    assert (seen(group), group.health().reason) == (WAITING, "not started")
    async with group:
        await election.advance(1)
        assert seen(group) == WELL
        assert group.health().reason.startswith("leading 3 of 3 partitions (share: 3), proved 0.")
    assert (seen(group), group.health().reason) == (WAITING, "stopped")


async def test_one_that_has_nothing_to_lead_is_ready(election: LocalElection) -> None:
    async with LeaderGroup(names=["one"], identity="1"), LeaderGroup(names=["one"], identity="2") as other:
        await election.advance(3)
        assert seen(other) == WELL


async def test_while_the_server_is_away_a_restart_would_mend_nothing(election: LocalElection) -> None:
    async with LeaderGroup(names=NAMES) as group:
        election.server.stop()
        await election.advance(3)
        assert seen(group) == WAITING
        assert "not running" in group.health().reason
        election.server.start()
        await election.advance(30)
        assert seen(group) == WELL


async def test_overdue_proofs_and_a_trust_that_ran_out_unnoticed_are_ill(election: LocalElection) -> None:
    """As behind an event loop that is blocked: the clock goes on, and nothing runs."""
    async with LeaderGroup(names=NAMES, health_timeout_s=2.0) as group:
        await election.advance(1)
        election.clock.advance(8.5)
        assert seen(group) == ILL
        assert "the last proof of leadership is" in group.health().reason
        election.clock.advance(8.5)
        assert seen(group) == ILL
        assert "has not noticed" in group.health().reason
        assert group.leading == {}


async def test_in_a_fork_it_is_idle(election: LocalElection, monkeypatch: pytest.MonkeyPatch) -> None:
    async with LeaderGroup(names=NAMES) as group:
        await election.advance(1)
        with monkeypatch.context() as patched:
            child = os.getpid() + 1
            patched.setattr(os, "getpid", lambda: child)
            assert seen(group) == WAITING
            assert "forked" in group.health().reason


async def test_probes_are_answered_for_a_group(election: LocalElection) -> None:
    group = LeaderGroup(names=NAMES)
    async with HealthServer({"orders": group}, port=0) as server, aiohttp.ClientSession() as client:

        async def status(path: str) -> int:
            async with client.get(server.url + path) as answer:
                return answer.status

        assert [await status(path) for path in ("/livez", "/readyz", "/leader/orders")] == [200, 503, 503]
        async with group:
            await election.advance(1)
            assert [await status(path) for path in ("/livez", "/readyz", "/leader/orders")] == [200, 200, 200]
