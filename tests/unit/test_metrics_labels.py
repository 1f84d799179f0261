"""The labels of metrics are bounded: the words they may have are those of the library, and anything else is other."""

import inspect

import pytest
from prometheus_client import CollectorRegistry

from pgelect import LockState, errors
from pgelect._engine.causes import cause_of, words_of
from pgelect._engine.hooks import Hook
from pgelect._engine.machine import TABLE
from pgelect.errors import PgElectError, SessionLostError
from pgelect.metrics import PrometheusMetrics, _words
from tests.support.metering import View, series_of, value_of

KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, PgElectError) and kind is not SessionLostError
]


def test_every_change_of_state_that_the_machine_knows_is_foreseen() -> None:
    possible = {
        (before, after)
        for before, rules in TABLE.items()
        for _, targets in rules.values()
        for after in targets
        if after is not before
    }
    assert set(_words.USUAL) == possible


def test_every_event_of_the_machine_is_a_known_cause() -> None:
    events = {words_of(object.__new__(event), "_") for rules in TABLE.values() for event in rules}
    assert events - _words.CAUSES == set()
    assert "step_down" in events


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_of_the_library_is_a_known_cause(kind: type[PgElectError]) -> None:
    assert cause_of(kind.__new__(kind)) in _words.ATTEMPT_CAUSES
    assert cause_of(kind.__new__(kind)) in _words.CAUSES


@pytest.mark.parametrize("reason", ["closed", "timeout", "disproved", "expired", "connect"])
def test_every_way_to_lose_a_session_is_a_known_cause(reason: str) -> None:
    assert cause_of(SessionLostError(reason, "")) in _words.CAUSES & _words.ATTEMPT_CAUSES


def test_an_error_of_somebody_else_is_unexpected() -> None:
    assert cause_of(KeyError("who knows")) == "unexpected"
    assert "unexpected" in _words.CAUSES


def test_every_callback_is_known_by_its_name() -> None:
    assert {hook.label.removeprefix("on_") for hook in Hook} == {*_words.CALLBACKS}


def test_the_usual_reasons_are_known_causes() -> None:
    usual = {reason for reasons in _words.USUAL.values() for reason in reasons}
    assert usual - _words.CAUSES == set()
    assert {cause for _, cause in _words.ENDINGS} - _words.CAUSES == set()


def test_unknown_words_are_other_however_many_there_are() -> None:
    registry = CollectorRegistry()
    metrics = PrometheusMetrics(registry).for_lock(view := View())
    before = len(series_of(registry))
    for n in range(50):
        metrics.transition(LockState.LEADER, LockState.FOLLOWER, f"because {n}")
        metrics.attempt_failed(f"because {n}")
        metrics.callback_failed(f"because {n}")
        metrics.fence_check(0.001, f"because {n}")  # type: ignore[arg-type] # as untyped code would
    assert len(series_of(registry)) == before + 4
    transitions = {"from_": "leader", "to": "follower", "reason": "other"}
    assert value_of(registry, "pgelect_transitions_total", **transitions) == 50
    assert value_of(registry, "pgelect_attempts_failed_total", cause="other") == 50
    assert value_of(registry, "pgelect_callback_failures_total", callback="other") == 50
    assert value_of(registry, "pgelect_fence_checks_total", outcome="other") == 50
    assert view.key.name == "jobs"  # kept until here: a lock that is gone shows nothing
