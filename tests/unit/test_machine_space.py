"""Every machine that can come about, explored one by one in a small world: all promises hold at every single step.

The world has small numbers: a trust of 4 s, a proof every 2 s, and time that passes in whole seconds. In it the machine
has some thousand situations for each set of rules. From each of them everything is tried that users, timers, duties and
the server can say; late and stale answers too.
"""

from collections import deque
from dataclasses import dataclass, field, replace

import pytest

from pgelect._engine.events import Do, Event
from pgelect._engine.machine import IGNORED, TABLE, step
from pgelect._engine.model import LockKey, LockState
from pgelect._engine.state import Machine, Rules
from tests.support.machine_world import broken, events, is_stale, normal
from tests.support.machines import RULES

MEMORY_S = 1.0  # two instants that are further in the past than this are one
SENT_MEMORY_S = 5.0  # an answer to a question older than the trust is too late, however much older


def small(*, queue: bool, grace_s: float, delay_s: float, auto_reacquire: bool, name: str | None = None) -> Rules:
    """``name``: terms of this lock are announced, and may be asked to end; its world is smaller."""
    return replace(
        RULES,
        key=LockKey(5001, 1, name),
        trust_s=4.0 if name is None else 2.0,
        health_interval_s=2.0 if name is None else 1.0,
        reconnect_grace_s=grace_s,
        takeover_delay_s=delay_s,
        queue=queue,
        auto_reacquire=auto_reacquire,
    )


# each value of each rule meets each value of every other one
WORLDS = {
    "queue": small(queue=True, grace_s=0.0, delay_s=0.0, auto_reacquire=True),
    "queue, told of": small(queue=True, grace_s=0.0, delay_s=0.0, auto_reacquire=True, name="told of"),
    "queue, grace, delay": small(queue=True, grace_s=3.0, delay_s=2.0, auto_reacquire=True),
    "queue, grace, one term": small(queue=True, grace_s=3.0, delay_s=0.0, auto_reacquire=False),
    "poll": small(queue=False, grace_s=0.0, delay_s=0.0, auto_reacquire=True),
    "poll, grace, one term": small(queue=False, grace_s=3.0, delay_s=0.0, auto_reacquire=False),
    "poll, delay, one term": small(queue=False, grace_s=0.0, delay_s=2.0, auto_reacquire=False),
}

Edge = tuple[LockState, type[Event], LockState]


@dataclass(frozen=True)
class Explored:
    machines: set[Machine] = field(default_factory=set)
    edges: set[Edge] = field(default_factory=set)
    faults: dict[str, str] = field(default_factory=dict)  # the first example of each


def explore(rules: Rules) -> Explored:
    """Begin stopped; from every machine found, let a second pass, and send it every event. At each time it is 0."""
    found = Explored()
    first = (Machine(rules), 0.0)  # the machine, and when the I/O in flight was begun
    seen, todo = {first}, deque([first])
    while todo:
        m, sent_at = todo.popleft()
        found.machines.add(m)
        nexts = [(normal(m, 1.0, MEMORY_S), max(-SENT_MEMORY_S, sent_at - 1.0) if m.io else 0.0)]
        for event in events(m, sent_at):
            after, effects = step(m, event, 0.0)
            for fault in broken(m, event, 0.0, after, effects):
                found.faults.setdefault(fault, f"{m}\n  on {event}\n  -> {after}\n  {effects}")
            if not is_stale(m, event) and not (m.trusting and m.trusted_until <= 0.0):  # one rule, and no other, ran
                found.edges.add((m.state, type(event), after.state))
            begun = any(isinstance(effect, Do) for effect in effects)
            nexts.append((normal(after, 0.0, MEMORY_S), 0.0 if begun or after.io is None else sent_at))
        new = [each for each in nexts if each not in seen]
        seen.update(new)
        todo.extend(new)
    return found


def test_every_promise_holds_at_every_step_and_every_rule_is_reached_with_every_state_it_may_end_in() -> None:
    """In one test: to explore takes long, and what was found is not shared between processes."""
    claimed = {
        (state, kind, target)
        for state, row in TABLE.items()
        for kind, (_, targets) in row.items()
        for target in targets
    }
    ignored = {(state, kind, state) for state, kinds in IGNORED.items() for kind in kinds}
    reached = set()
    for name, rules in WORLDS.items():
        found = explore(rules)
        assert len(found.machines) > 300, name
        assert found.faults == {}, name
        reached |= found.edges
    assert sorted(map(str, claimed - reached)) == []
    assert sorted(map(str, ignored - reached)) == []


def test_the_exploration_finds_a_fault_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Break it on purpose: a proof that is trusted from when it was heard, and a term whose end forgets its session."""
    from pgelect._engine import moves, transitions  # noqa: PLC0415 -- broken here only

    trust, drop = moves.trust, moves.drop
    rules = replace(WORLDS["queue"], health_interval_s=1.0)

    monkeypatch.setattr(transitions, "trust", lambda m, *said: replace(trust(m, *said), trusted_until=4.0))
    assert "trust is extended by proofs alone, and never beyond their sending plus the lease" in explore(rules).faults

    monkeypatch.setattr(transitions, "trust", trust)
    for module in (moves, transitions):
        monkeypatch.setattr(module, "drop", lambda m, **how: (drop(m, **how)[0], ()))
    assert "every session that was opened is kept or closed" in explore(rules).faults
