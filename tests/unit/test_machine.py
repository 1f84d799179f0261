"""The table as a whole: each pair of a state and an event is ruled, ignored, or raises and changes nothing."""

import inspect
from dataclasses import replace
from itertools import product

import pytest

from pgelect._engine import events as ev
from pgelect._engine.events import Close, Event, SessionEvent
from pgelect._engine.machine import IGNORED, TABLE, step
from pgelect._engine.model import LockState
from pgelect._engine.rulebook import IllegalEventError
from pgelect._engine.state import Machine
from pgelect.errors import PgElectError
from tests.support.machines import (
    EPOCH,
    GRANT,
    LEADING,
    NOW,
    NUMBER,
    OTHER_BACKEND,
    RULES,
    SITUATIONS,
    UNLOCKING,
    Case,
)
from tests.unit import (
    test_machine_campaign,
    test_machine_leader,
    test_machine_minted,
    test_machine_reconnecting,
    test_machine_releasing,
    test_machine_telling,
)

ERROR = PgElectError("an error")
EXAMPLES: list[Event] = [
    ev.Start(),
    ev.StepDown(6.0, 1.5),
    ev.Shutdown(6.0),
    ev.Reconfigure(RULES),
    ev.Abort(ERROR),
    ev.Drained(NUMBER),
    ev.Tick(),
    ev.Opened(EPOCH),
    ev.LockRefused(EPOCH, 1.0),
    ev.LockGranted(EPOCH),
    ev.Minted(EPOCH, NOW, GRANT),
    ev.Failed(EPOCH, ERROR, 1.0),
    ev.Proved(EPOCH, NOW),
    ev.ProofFailed(EPOCH, ERROR),
    ev.WatchEnded(EPOCH),
    ev.Announced(EPOCH),
    ev.Heeded(EPOCH),
    ev.StepDownRequested(EPOCH, "operator", 6.0, 1.5),
    ev.Resumed(EPOCH, NOW, OTHER_BACKEND),
    ev.ResumeRefused(EPOCH, final=True, error=ERROR),
    ev.Unlocked(EPOCH, was_held=True),
]
ABSTRACT = {Event, SessionEvent}
KINDS = {kind for kind in vars(ev).values() if inspect.isclass(kind) and issubclass(kind, Event)} - ABSTRACT

PRODUCT = [
    pytest.param(
        machine, event, id=f"{machine.state}-{machine.io.value if machine.io else 'idle'}-{type(event).__name__}"
    )
    for machine, event in product(SITUATIONS, EXAMPLES)
]
CASES: list[Case] = [
    *test_machine_campaign.CASES,
    *test_machine_minted.CASES,
    *test_machine_leader.CASES,
    *test_machine_releasing.CASES,
    *test_machine_reconnecting.CASES,
    *test_machine_telling.CASES,
]


def test_the_product_has_every_state_and_every_event() -> None:
    assert {type(event) for event in EXAMPLES} == KINDS
    assert {machine.state for machine in SITUATIONS} == set(LockState)
    assert set(TABLE) == set(IGNORED) == set(LockState)


def test_no_pair_is_both_ruled_and_ignored() -> None:
    assert [state for state in LockState if set(TABLE[state]) & IGNORED[state]] == []


def test_the_table_knows_only_events() -> None:
    assert {kind for state in LockState for kind in {*TABLE[state], *IGNORED[state]}} <= KINDS


@pytest.mark.parametrize(("machine", "event"), PRODUCT)
def test_a_pair_is_ruled_or_ignored_or_raises_and_changes_nothing(machine: Machine, event: Event) -> None:
    kind, before = type(event), replace(machine)
    if kind in TABLE[machine.state]:
        after, _ = step(machine, event, NOW)
        assert after.state in TABLE[machine.state][kind][1]
    elif kind in IGNORED[machine.state]:
        assert step(machine, event, NOW) == (machine, ())
    else:
        with pytest.raises(IllegalEventError, match=rf"no rule for {kind.__name__} in state {machine.state.value}"):
            step(machine, event, NOW)
    assert machine == before


@pytest.mark.parametrize("state", LockState)
def test_what_a_user_or_a_timer_sends_never_raises(state: LockState) -> None:
    """They do not know the state; only Start is checked for by its caller."""
    anywhere = {ev.StepDown, ev.Shutdown, ev.Abort, ev.Drained, ev.Tick}
    assert anywhere <= {*TABLE[state], *IGNORED[state]}


@pytest.mark.parametrize("event", [event for event in EXAMPLES if isinstance(event, SessionEvent)])
@pytest.mark.parametrize("machine", SITUATIONS)
def test_a_stale_answer_is_dropped_in_every_state_and_its_session_closed(machine: Machine, event: SessionEvent) -> None:
    stale = replace(event, epoch=EPOCH - 1)
    assert step(machine, stale, NOW) == (machine, (Close(EPOCH - 1, orderly=False),))


def test_an_illegal_event_raises_also_when_the_trust_has_run_out_and_that_changes_nothing() -> None:
    before = replace(LEADING)
    with pytest.raises(IllegalEventError):
        step(LEADING, ev.Start(), LEADING.trusted_until + 1)
    assert before == LEADING


def test_a_rule_that_ends_in_a_state_it_does_not_name_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    rule, _ = TABLE[LockState.RELEASING][ev.Unlocked]
    changed = {**TABLE[LockState.RELEASING], ev.Unlocked: (rule, (LockState.STOPPED,))}
    monkeypatch.setitem(TABLE, LockState.RELEASING, changed)
    with pytest.raises(IllegalEventError, match="Unlocked led from releasing to follower"):
        step(UNLOCKING, ev.Unlocked(EPOCH, was_held=True), NOW)


def test_every_rule_has_a_case_for_every_state_it_may_end_in() -> None:
    ruled = {
        (state, kind, target)
        for state, row in TABLE.items()
        for kind, (_, targets) in row.items()
        for target in targets
    }
    covered = {(case.given.state, type(case.event), case.then.state) for case in CASES}
    assert sorted(map(str, ruled - covered)) == []


def test_every_case_says_something_else() -> None:
    sentences = [case.says for case in CASES]
    assert len(sentences) == len(set(sentences))
