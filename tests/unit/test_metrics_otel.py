"""The adapter for OpenTelemetry: the same series, and a span for each term."""

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from pgelect import LockKey
from pgelect.metrics import OpenTelemetryMetrics
from tests.support.metering import BEGAN_AT, View, tell_everything, term_of


class Telemetry:
    """A provider of each kind, and what they were given."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))

    def metrics(self) -> OpenTelemetryMetrics:
        return OpenTelemetryMetrics(self.meters, self.tracers)

    def shown(self) -> dict[tuple[str, frozenset[tuple[str, object]]], float]:
        """The value of each series; the sum of a histogram."""
        data = self.reader.get_metrics_data()
        if data is None:
            return {}
        return {
            (metric.name, frozenset((point.attributes or {}).items())): (
                point.sum if isinstance(point, HistogramDataPoint) else getattr(point, "value")  # noqa: B009 -- typed as any point
            )
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
        }

    def value(self, name: str, **labels: str) -> float | None:
        wanted = {label.rstrip("_"): value for label, value in labels.items()}
        return self.shown().get((name, frozenset({"lock": "jobs", **wanted}.items())))


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    telemetry = Telemetry()
    yield telemetry
    telemetry.meters.shutdown()
    telemetry.tracers.shutdown()


@pytest.fixture
def view() -> View:
    return View()


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("pgelect.transitions", {"from_": "acquiring", "to": "leader", "reason": "minted"}, 1),
        ("pgelect.attempts_failed", {"cause": "held"}, 1),
        ("pgelect.terms", {}, 1),
        ("pgelect.takeover", {"after": "release"}, 0.004),
        ("pgelect.proof", {"outcome": "ok"}, 0.002),
        ("pgelect.proof", {"outcome": "failed"}, 3),
        ("pgelect.proofs_failed", {}, 1),
        ("pgelect.reconnects", {}, 1),
        ("pgelect.fence_checks", {"outcome": "ok"}, 1),
        ("pgelect.fence_checks", {"outcome": "stale"}, 1),
        ("pgelect.fence_checks", {"outcome": "failed"}, 0),
        ("pgelect.fence_check", {}, 0.006),
        ("pgelect.callback_failures", {"callback": "lost"}, 1),
        ("pgelect.event_loop_lag", {}, 0.02),
        ("pgelect.terms_ended", {"ending": "lost", "cause": "expired"}, 1),
        ("pgelect.term", {}, 90),
    ],
)
def test_what_a_lock_tells_reaches_its_series(
    telemetry: Telemetry, view: View, name: str, labels: dict[str, str], value: float
) -> None:
    tell_everything(telemetry.metrics().for_lock(view), view)
    assert telemetry.value(name, **labels) == pytest.approx(value)


def test_histograms_have_bounds_of_their_own(telemetry: Telemetry, view: View) -> None:
    """Holds off the bounds that are usual there, which begin at 5: for milliseconds, not for seconds."""
    tell_everything(telemetry.metrics().for_lock(view), view)
    data = telemetry.reader.get_metrics_data()
    assert data is not None
    found = {
        metric.name: (metric.unit, point.explicit_bounds)
        for metric in data.resource_metrics[0].scope_metrics[0].metrics
        for point in metric.data.data_points
        if isinstance(point, HistogramDataPoint)
    }
    assert {*found} == {f"pgelect.{name}" for name in ("term", "takeover", "proof", "fence_check", "event_loop_lag")}
    assert {unit for unit, _ in found.values()} == {"s"}
    assert found["pgelect.takeover"][1][0] == 0.001
    assert found["pgelect.term"][1][-1] == 28 * 86400


def test_who_looks_sees_the_lock_at_that_moment(telemetry: Telemetry, view: View) -> None:
    metrics = telemetry.metrics().for_lock(view)
    view.lead(7, trust_left_s=14.0)
    metrics.term_began(term_of(view), None, after_release=True)
    metrics.followers(2)

    def shown() -> tuple[float | None, ...]:
        names = ("is_leader", "token", "trust_left", "term_start_time", "followers_waiting")
        return tuple(telemetry.value(f"pgelect.{name}") for name in names)

    assert shown() == (1, 7, 14, BEGAN_AT.timestamp(), 2)
    assert telemetry.value("pgelect.state", state="leader") == 1
    view.follow()
    assert shown() == (0, 0, 0, 0, 0)
    assert telemetry.value("pgelect.state", state="follower") == 1


def test_a_lock_that_is_gone_leads_no_more(telemetry: Telemetry) -> None:
    view = View()
    metrics = telemetry.metrics().for_lock(view)
    view.lead(7)
    assert telemetry.value("pgelect.is_leader") == 1
    del view, metrics
    gc.collect()
    assert telemetry.value("pgelect.is_leader") == 0


def test_counters_and_gauges_exist_from_the_start(telemetry: Telemetry, view: View) -> None:
    metrics = telemetry.metrics().for_lock(view)
    before = {series for series, value in telemetry.shown().items() if value == 0}
    tell_everything(metrics, view)
    histograms = {"pgelect.term", "pgelect.takeover", "pgelect.proof", "pgelect.fence_check", "pgelect.event_loop_lag"}
    assert {name for name, _ in set(telemetry.shown()) - before} - histograms == {"pgelect.state"}  # it is 1 of a state
    assert ("pgelect.fence_checks", frozenset({("lock", "jobs"), ("outcome", "stale")})) in before


def test_two_objects_on_one_provider_show_the_locks_of_both(telemetry: Telemetry) -> None:
    """Holds off the gauges of the second, whose callbacks the SDK would drop."""
    a, b = View(LockKey(1, 1, "a")), View(LockKey(1, 2, "b"))
    telemetry.metrics().for_lock(a)
    telemetry.metrics().for_lock(b)
    a.lead(1)
    b.lead(2)
    assert telemetry.value("pgelect.token", lock="a") == 1
    assert telemetry.value("pgelect.token", lock="b") == 2


def test_without_providers_it_is_the_global_ones_also_when_they_are_set_later() -> None:
    code = (
        "from opentelemetry import metrics, trace\n"
        "from tests.unit.test_metrics_otel import Telemetry\n"
        "from pgelect.metrics import OpenTelemetryMetrics\n"
        "from tests.support.metering import View, term_of\n"
        "from pgelect import LockKey\n"
        "a, b = View(), View(LockKey(1, 3, 'b'))\n"
        "early = OpenTelemetryMetrics().for_lock(a)\n"
        "telemetry = Telemetry()\n"
        "metrics.set_meter_provider(telemetry.meters); trace.set_tracer_provider(telemetry.tracers)\n"
        "late = OpenTelemetryMetrics().for_lock(b)\n"
        "a.lead(1); b.lead(2)\n"
        "early.reconnected(); late.reconnected()\n"
        "early.term_began(term_of(a), None, after_release=True)\n"
        "early.term_ended(term_of(a), 1.0, released=True, cause='step_down')\n"
        "print(telemetry.value('pgelect.token'), telemetry.value('pgelect.token', lock='b'),\n"
        "      telemetry.value('pgelect.reconnects'), telemetry.value('pgelect.reconnects', lock='b'),\n"
        "      len(telemetry.exporter.get_finished_spans()))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=Path(__file__).parents[2],
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("1 2 1 1 1\n", "")


# Spans


def test_a_term_is_a_span_that_says_how_it_ended(telemetry: Telemetry, view: View) -> None:
    metrics = telemetry.metrics().for_lock(view)
    term = term_of(view, 7)
    metrics.term_began(term, 0.004, after_release=True)
    assert telemetry.exporter.get_finished_spans() == ()
    metrics.term_ended(term, 90.0, released=True, cause="step_down")
    (span,) = telemetry.exporter.get_finished_spans()
    assert span.name == "pgelect.term"
    assert dict(span.attributes or {}) == {
        "pgelect.lock": "jobs",
        "pgelect.token": 7,
        "pgelect.identity": "a",
        "pgelect.takeover_s": 0.004,
        "pgelect.ended": "released",
        "pgelect.cause": "step_down",
    }
    assert span.status.status_code is StatusCode.UNSET


def test_a_term_that_is_lost_is_a_span_with_an_error(telemetry: Telemetry, view: View) -> None:
    metrics = telemetry.metrics().for_lock(view)
    metrics.term_began(term_of(view), None, after_release=True)
    metrics.proof(3.0, succeeded=False)
    metrics.proof(0.1, succeeded=True)
    metrics.reconnected()
    metrics.term_ended(term_of(view), 90.0, released=False, cause="expired")
    (span,) = telemetry.exporter.get_finished_spans()
    assert (span.attributes or {})["pgelect.ended"] == "lost"
    assert "pgelect.takeover_s" not in (span.attributes or {})
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == "leadership was lost: expired"
    assert [event.name for event in span.events] == ["proof failed", "reconnected"]


def test_a_term_is_nobodys_child(telemetry: Telemetry, view: View) -> None:
    """Holds off a term of days that hangs in the trace of the request which happened to start the lock."""
    metrics = telemetry.metrics().for_lock(view)
    tracer = trace.get_tracer("test", tracer_provider=telemetry.tracers)
    with tracer.start_as_current_span("request"):
        metrics.term_began(term_of(view), None, after_release=True)
        metrics.term_ended(term_of(view), 1.0, released=True, cause="shutdown")
    term, request = telemetry.exporter.get_finished_spans()
    assert (term.name, request.name) == ("pgelect.term", "request")
    assert term.parent is None
    assert term.context.trace_id != request.context.trace_id


def test_the_next_term_is_a_span_of_its_own(telemetry: Telemetry, view: View) -> None:
    metrics = telemetry.metrics().for_lock(view)
    for token in (7, 8):
        metrics.term_began(term_of(view, token), None, after_release=True)
        metrics.term_ended(term_of(view, token), 1.0, released=True, cause="step_down")
    tokens = [(span.attributes or {})["pgelect.token"] for span in telemetry.exporter.get_finished_spans()]
    assert tokens == [7, 8]
