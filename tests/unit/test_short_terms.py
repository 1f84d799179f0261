"""Terms that are lost as soon as they have begun: the first is made good at once, those after it by the strategy.

Holds off a hot loop of terms, fifty new connections and tokens a second, where something ends the session of whoever
leads: an idle killer, a middlebox, a trigger.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from pgelect import RetryContext, SessionLostError
from pgelect._engine.backoff import FALLBACK_DELAY_S, STABLE_AFTER_S, ShortTerms
from pgelect.testing import FakeClock, FakeServer
from tests.support.fake_locks import KEY, Elector
from tests.support.waiting import eventually

KILLED = SessionLostError("closed", "the backend was terminated")


@dataclass
class Asked:
    """A strategy that writes down what it is asked."""

    delay_s: float | None = 3.0
    contexts: list[RetryContext] = field(default_factory=list)

    def next_delay_s(self, ctx: RetryContext) -> float | None:
        self.contexts.append(ctx)
        return self.delay_s


class Life:
    """Terms of given lengths, one after another."""

    def __init__(self, strategy: Asked) -> None:
        self.clock = FakeClock()
        self.terms = ShortTerms(strategy, self.clock)

    def lose_after(self, seconds: float) -> float:
        self.terms.began()
        self.clock.advance(seconds)
        return self.terms.lost_s(KILLED)


def test_the_first_loss_is_made_good_at_once() -> None:
    strategy = Asked()
    assert Life(strategy).lose_after(0.01) == 0.0
    assert strategy.contexts == []


def test_from_the_second_in_a_row_on_the_strategy_is_asked() -> None:
    strategy = Asked()
    life = Life(strategy)
    assert [life.lose_after(0.5) for _ in range(4)] == [0.0, 3.0, 3.0, 3.0]
    assert [ctx.attempt for ctx in strategy.contexts] == [1, 2, 3]
    assert [ctx.error for ctx in strategy.contexts] == [KILLED] * 3


def test_a_term_that_lasted_begins_the_count_anew() -> None:
    strategy = Asked()
    life = Life(strategy)
    lost_after = [0.1, 0.1, STABLE_AFTER_S + 0.1, 0.1, 0.1]
    assert [life.lose_after(seconds) for seconds in lost_after] == [0.0, 3.0, 0.0, 0.0, 3.0]
    assert [ctx.attempt for ctx in strategy.contexts] == [1, 1]


def test_a_term_that_ended_well_begins_the_count_anew() -> None:
    life = Life(Asked())
    assert [life.lose_after(0.1) for _ in range(2)] == [0.0, 3.0]
    life.terms.reset()
    assert life.lose_after(0.1) == 0.0


def test_a_strategy_that_gives_up_does_not_end_an_election_that_was_won() -> None:
    life = Life(Asked(delay_s=None))
    assert [life.lose_after(0.1) for _ in range(2)] == [0.0, FALLBACK_DELAY_S]


# -- in the runner -----------------------------------------------------------------------------------------------------


async def kill_whoever_leads(server: FakeServer, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while loop.time() < until:
        for holder in server.holders(KEY):
            if server.row(KEY) is not None:
                server.terminate(holder)
        await asyncio.sleep(0.001)


SETTINGS: dict[str, dict[str, Any]] = {
    "without a grace": {},
    "with a grace": {"reconnect_grace_s": 5.0},
    "with a grace that is over at once": {"reconnect_grace_s": 0.01},
    "with a takeover delay": {"takeover_delay_s": 0.05},
    "polling": {"acquire": "poll"},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
async def test_sessions_that_are_ended_as_soon_as_they_lead_are_no_hot_loop(settings: dict[str, Any]) -> None:
    server, strategy = FakeServer(), Asked(delay_s=0.2)
    one = Elector(server, retry_strategy=strategy, **settings)
    async with one.lock:
        await one.leads()
        before = server.statements
        await kill_whoever_leads(server, 1.0)
        assert server.statements - before < 60  # five rounds; a hot loop: thousands
        await eventually(lambda: one.lock.is_leader, message="it leads again when nobody ends its sessions any more")
    assert one.terms[-1][0] == "released"


async def test_a_single_kill_is_made_good_without_asking_the_strategy() -> None:
    server, strategy = FakeServer(), Asked(delay_s=60.0)
    one = Elector(server, retry_strategy=strategy)
    async with one.lock:
        await one.leads()
        server.terminate(server.holders(KEY)[0])
        await one.leads(above=1)
    assert strategy.contexts == []


async def test_after_a_clean_release_a_kill_counts_as_the_first() -> None:
    server, strategy = FakeServer(), Asked(delay_s=60.0)
    one = Elector(server, retry_strategy=strategy)
    async with one.lock:
        for token in (1, 3, 5):
            await one.leads(above=token - 1)
            server.terminate(server.holders(KEY)[0])
            await one.leads(above=token)
            await one.lock.step_down(cooldown_s=0.0)
        assert strategy.contexts == []


async def test_a_new_start_is_not_held_to_the_losses_of_the_last_run() -> None:
    server, strategy = FakeServer(), Asked(delay_s=60.0)
    one = Elector(server, retry_strategy=strategy)
    for token in (1, 3, 5):
        async with one.lock:
            await one.leads(above=token - 1)
            server.terminate(server.holders(KEY)[0])
            await one.is_told("lost", token)
            await one.leads(above=token)
            server.stop()
            await eventually(lambda: not one.lock.is_leader)
        server.start()
    assert all(ctx.attempt == 1 for ctx in strategy.contexts)
