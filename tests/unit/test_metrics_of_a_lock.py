"""A lock on a fake server is measured: it campaigns, leads, hands over and loses, and the series move with it."""

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from pgelect import LockKey
from pgelect.metrics import LockMetrics, PrometheusMetrics
from pgelect.testing import FakeServer
from tests.support.fake_locks import Elector
from tests.support.metering import value_of
from tests.support.waiting import eventually

JOBS = LockKey.from_name("jobs")


class Measured(Elector):
    """An elector with a registry of its own, as each process has."""

    def __init__(self, server: FakeServer, identity: str = "a", **settings: Any) -> None:
        super().__init__(server, identity, key=JOBS, **settings)
        self.registry = CollectorRegistry()
        self.metrics: LockMetrics = PrometheusMetrics(self.registry).for_lock(self.lock)
        self.lock._meter.bind(self.metrics)  # as the constructor does, before it was put on the fake server

    def shows(self, name: str, **labels: str) -> float:
        """The value of a series, which exists."""
        value = value_of(self.registry, f"pgelect_{name}", **labels)
        assert value is not None, f"{name} {labels} is not shown"
        return value


async def test_a_leader_shows_that_it_leads_and_for_how_long_it_is_trusted(server: FakeServer) -> None:
    a = Measured(server)
    assert (a.shows("is_leader"), a.shows("state", state="stopped")) == (0, 1)
    async with a.lock:
        await a.leads()
        assert (a.shows("is_leader"), a.shows("token"), a.shows("state", state="leader")) == (1, 1, 1)
        assert 0 < a.shows("trust_left_seconds") < 5
        assert a.shows("term_start_time_seconds") > 0
        assert a.shows("terms_total") == 1
        assert a.shows("takeover_seconds_count", after="release") == 0  # nobody led before
        assert a.shows("transitions_total", from_="stopped", to="follower", reason="start") == 1
        assert a.shows("transitions_total", from_="acquiring", to="leader", reason="minted") == 1
        await eventually(lambda: a.shows("proof_seconds_count", outcome="ok") > 1, message="proofs are counted")
        await eventually(lambda: a.shows("event_loop_lag_seconds_count") > 0, message="the lag is measured")
    assert (a.shows("is_leader"), a.shows("token"), a.shows("trust_left_seconds")) == (0, 0, 0)
    assert a.shows("state", state="stopped") == 1
    assert a.shows("terms_ended_total", ending="released", cause="shutdown") == 1
    assert a.shows("term_seconds_count") == 1
    assert a.shows("proofs_failed_total") == 0


async def test_a_follower_shows_that_it_waits_and_the_leader_that_it_has_one(server: FakeServer) -> None:
    a, b = Measured(server, "a"), Measured(server, "b")
    async with a.lock:
        await a.leads()
        assert a.shows("followers_waiting") == 0
        async with b.lock:
            await b.waits()
            assert (b.shows("is_leader"), b.shows("token"), b.shows("state", state="follower")) == (0, 0, 1)
            assert b.shows("attempts_failed_total", cause="held") == 1
            await eventually(lambda: a.shows("followers_waiting") == 1, message="the leader sees its follower")
            await a.lock.step_down(cooldown_s=5.0)
            await b.leads()
            assert (a.shows("is_leader"), b.shows("is_leader"), b.shows("token")) == (0, 1, 2)
            assert a.shows("followers_waiting") == 0
            assert a.shows("terms_ended_total", ending="released", cause="step_down") == 1
            assert b.shows("takeover_seconds_count", after="release") == 1


async def test_a_leader_whose_session_is_killed_has_lost_its_term(server: FakeServer) -> None:
    a = Measured(server)
    async with a.lock:
        await a.leads()
        server.terminate(server.holders(JOBS)[0])
        await a.is_told("lost", 1)
        await a.leads(above=1)
        assert a.shows("terms_ended_total", ending="lost", cause="closed") == 1
        assert a.shows("transitions_total", from_="leader", to="follower", reason="closed") == 1
        assert (a.shows("terms_total"), a.shows("token")) == (2, 2)
        assert a.shows("takeover_seconds_count", after="loss") == 1
        assert a.shows("reconnects_total") == 0


async def test_a_session_that_is_replaced_within_the_grace_is_a_reconnect_and_no_new_term(server: FakeServer) -> None:
    a = Measured(server, reconnect_grace_s=5.0)
    async with a.lock:
        await a.leads()
        server.terminate(server.holders(JOBS)[0])
        await eventually(lambda: a.shows("reconnects_total") == 1, message="the term goes on")
        assert (a.shows("is_leader"), a.shows("terms_total"), a.shows("token")) == (1, 1, 1)
        assert a.shows("transitions_total", from_="reconnecting", to="leader", reason="resumed") == 1


async def test_a_server_that_is_away_is_a_failed_attempt(server: FakeServer) -> None:
    server.stop()
    a = Measured(server)
    async with a.lock:
        await eventually(lambda: a.shows("attempts_failed_total", cause="connect") > 1, message="attempts are counted")
        assert a.shows("terms_total") == 0


async def test_a_callback_that_raises_is_counted_by_its_name(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    a = Measured(server)

    @a.lock.on_released
    def fail() -> None:
        raise RuntimeError("on purpose")

    async with a.lock:
        await a.leads()
    assert a.shows("callback_failures_total", callback="released") == 1
    assert "on purpose" in caplog.text


async def test_metrics_that_raise_disturb_nothing_and_are_told_of_once(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    a = Measured(server)

    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise OSError(f"no {name} today")

    a.lock._meter.bind(Broken())
    async with a.lock:
        await a.leads()
        assert await a.lock.step_down(cooldown_s=0.05)
        await a.leads(above=1)
    assert a.terms == [("acquired", 1), ("released", 1), ("acquired", 2), ("released", 2)]
    assert len([record for record in caplog.records if "today" in f"{record.message}{record.exc_info}"]) == 1
