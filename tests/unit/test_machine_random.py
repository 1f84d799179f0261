"""Long random lives of one machine, with real times: over restarts and many terms, every promise holds.

A life is known by its seed. `test_machine_space.py` tries everything once, in a small world; here a machine
lives on and on.
"""

import random
from collections import Counter
from dataclasses import replace
from math import inf

import pytest

from pgelect._engine import events as ev
from pgelect._engine.events import Event, Io
from pgelect._engine.machine import step
from pgelect._engine.model import LockState
from pgelect._engine.state import Machine, Rules
from tests.support.machine_world import answers, broken, events, is_stale
from tests.support.machines import RULES

STEPS = 400
IN_TERM = {LockState.LEADER, LockState.RECONNECTING, LockState.RELEASING}


class Life:
    """One machine, and what has come of it so far."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.m = Machine(self._rules())
        self.now = 1000.0
        self.sent_at = 0.0  # of the I/O in flight
        self.last_sent_at = -inf  # of the last answer that extended the trust
        self.opened: list[int] = []
        self.closed: list[int] = []
        self.terms: list[str] = []
        self.seen: Counter[LockState] = Counter()

    def _rules(self) -> Rules:
        dice = self.dice
        return replace(
            RULES,
            trust_s=dice.uniform(1.0, 20.0),
            health_interval_s=dice.uniform(0.1, 10.0),
            reconnect_grace_s=dice.choice([0.0, dice.uniform(0.5, 20.0)]),
            takeover_delay_s=dice.choice([0.0, dice.uniform(0.5, 10.0)]),
            queue=dice.random() < 0.5,
            auto_reacquire=dice.random() < 0.8,
        )

    def next_event(self) -> Event:
        """Mostly an answer that is good and soon, or the tick that is due; sometimes anything, at any time."""
        m, dice = self.m, self.dice
        kind = dice.random()
        if kind < 0.1:
            self.now += dice.expovariate(1 / 5)
            return dice.choice(list(events(m, self.sent_at)))
        if kind < 0.2 or m.io is None or m.deadline <= self.now:
            if m.deadline < inf:
                self.now = max(self.now, m.deadline)
            return ev.Start() if m.state is LockState.STOPPED else ev.Tick()
        if m.io is Io.WATCH:
            self.now = max(self.now, min(m.proof_at, m.deadline))
        else:
            self.now += dice.uniform(0.0, 0.5)
        possible = list(answers(m, self.sent_at))
        return possible[0] if dice.random() < 0.85 else dice.choice(possible)

    def live_on(self) -> None:
        """Take one step, and hold it to the promises."""
        m, event = self.m, self.next_event()
        self.seen[m.state] += 1
        after, effects = step(m, event, self.now)
        assert broken(m, event, self.now, after, effects) == []
        if isinstance(event, ev.Minted | ev.Proved | ev.Resumed) and not is_stale(m, event):
            self.last_sent_at = max(self.last_sent_at, event.sent_at)
        self.m = after
        for effect in effects:
            match effect:
                case ev.Do(io, epoch):
                    self.sent_at = self.now
                    if io is Io.OPEN:
                        self.opened.append(epoch)
                case ev.Close(epoch, _) if not is_stale(m, event):
                    self.closed.append(epoch)
                case ev.TermBegan():
                    self.terms.append("began")
                case ev.TermEnded():
                    self.terms.append("ended")
                case _:
                    pass

    def check(self) -> None:
        """Hold the whole life so far to the promises."""
        m = self.m
        in_session = m.connected or m.io is not None
        assert self.opened == sorted(set(self.opened)), "each session has an epoch of its own"
        assert self.closed == (self.opened[:-1] if in_session else self.opened), "each is closed once, in order"
        assert self.terms[::2] == ["began"] * len(self.terms[::2]), "terms begin and end in turn"
        assert self.terms[1::2] == ["ended"] * len(self.terms[1::2])
        assert (len(self.terms) % 2 == 1) is (m.state in IN_TERM)
        assert m.number == self.terms.count("began")
        assert m.trusted_until <= self.last_sent_at + m.rules.trust_s


@pytest.mark.parametrize("seed", range(40))
def test_in_a_long_life_every_promise_holds(seed: int) -> None:
    life = Life(seed)
    for _ in range(STEPS):
        life.live_on()
        life.check()


def test_these_lives_are_full() -> None:
    seen: Counter[LockState] = Counter()
    terms = []
    for seed in range(40):
        life = Life(seed)
        for _ in range(STEPS):
            life.live_on()
        seen += life.seen
        terms.append(life.terms.count("ended"))
    assert min(terms) >= 2
    assert sum(terms) > 400
    assert {state for state, times in seen.items() if times > 50} == set(LockState)


@pytest.mark.parametrize("seed", range(40))
def test_there_is_no_dead_end(seed: int) -> None:
    """From wherever a life has got to: when all answers are good from then on, the process leads soon."""
    life = Life(seed)
    for _ in range(seed * 5):
        life.live_on()
    m, now, sent_at = life.m, life.now, life.sent_at
    for _ in range(100):
        if m.state is LockState.LEADER and m.trusted_until > now:
            return
        event: Event
        if m.state is LockState.STOPPED:
            event = ev.Start()
        elif m.state is LockState.RELEASING and not m.drained:
            event = ev.Drained(m.number)
        elif m.io is None:
            now = max(now, m.deadline)
            event = ev.Tick()
        elif m.deadline < now + 0.01 or (m.io is Io.WATCH and not m.drained):
            now = max(now, min(m.deadline, m.proof_at))
            event = ev.Tick() if m.deadline <= m.proof_at else next(answers(m, sent_at))
        else:
            now += 0.01
            event = next(answers(m, sent_at))
        m, effects = step(m, event, now)
        if any(isinstance(effect, ev.Do) for effect in effects):
            sent_at = now
    pytest.fail(f"a hundred good steps, and not leading: {m}")
