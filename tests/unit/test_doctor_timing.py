"""What the doctor thinks of round trips and clocks, and what it says that the settings promise."""

from dataclasses import replace

import pytest

from pgelect._engine.bounds import bounds_of
from pgelect.cli.doctor_checks_timing import check_clock, check_latency, check_promises
from tests.support.doctoring import ERROR, NOTE, OK, SETTINGS, TIMING, WARNING, only, severities


def test_quick_proofs_are_well_and_told_beside_what_is_allowed() -> None:
    found = only(check_latency(TIMING, SETTINGS))
    assert found.severity is OK
    assert found.said == "a proof took 1 ms (median) and 4 ms (worst of 10); the settings allow 9.25 s"


@pytest.mark.parametrize(("worst", "severity"), [(9.3, ERROR), (5.0, WARNING), (4.0, OK)])
def test_slow_proofs_are_judged_by_what_the_settings_allow(worst: float, severity: object) -> None:
    assert severities(check_latency(replace(TIMING, proofs_s=[0.1, worst]), SETTINGS)) == [severity]


def test_an_interval_for_which_balancers_forget_connections_is_a_warning() -> None:
    assert severities(check_latency(TIMING, replace(SETTINGS, lease_s=900.0, health_interval_s=240.0))) == [OK, WARNING]


@pytest.mark.parametrize(
    ("server_s", "unsure_s", "severity"),
    [(0.5, 0.001, OK), (0.4, 0.001, ERROR), (0.6, 0.001, ERROR), (0.5, 0.1, NOTE), (0.51, 0.001, OK), (0.6, 0.2, NOTE)],
)
def test_clocks_are_judged_by_the_margin_and_only_as_far_as_can_be_told(
    server_s: float, unsure_s: float, severity: object
) -> None:
    timing = replace(TIMING, server_s=server_s, unsure_s=unsure_s)
    assert severities(check_clock(timing, SETTINGS)) == [severity]


def test_a_local_clock_that_stands_still_does_not_end_the_doctor() -> None:
    assert severities(check_clock(replace(TIMING, ours_s=0.0), SETTINGS)) == [NOTE]


def test_every_promise_of_the_settings_is_told_with_its_reason() -> None:
    bounds = bounds_of(SETTINGS, None)
    found = list(check_promises(bounds))
    assert len(found) == len(bounds.__slots__)
    assert all(bound in text.said for bound, text in zip(bounds.__slots__, found, strict=True))
    assert found[2].said.startswith("failover_silent: at most 16.7 s from a leader that falls silent")
