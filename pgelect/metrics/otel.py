"""Metrics for OpenTelemetry, and a span for each term. Needs the extra ``otel``: the API, not the SDK."""

from __future__ import annotations

import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING

try:
    from opentelemetry import metrics, trace
    from opentelemetry.context import Context
    from opentelemetry.metrics import Observation
    from opentelemetry.trace import Status, StatusCode
except ImportError as _error:
    raise ImportError(
        "OpenTelemetryMetrics needs the package opentelemetry-api. Install it with: pip install 'pgelect[otel]'"
    ) from _error
from typing_extensions import override

from pgelect.metrics import _series as series
from pgelect.metrics._locks import Locks, Present, label_of
from pgelect.metrics._recorder import Recorder
from pgelect.metrics._series import Kind, Series

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider
    from opentelemetry.trace import Span, Tracer, TracerProvider

    from pgelect._engine.meter import LockMetrics, LockView
    from pgelect._engine.model import Term

__all__ = ["OpenTelemetryMetrics"]


class OpenTelemetryMetrics:
    """Metrics and spans for OpenTelemetry: ``LeaderLock(..., metrics=OpenTelemetryMetrics())``.

    One object may serve any number of locks, and any number of objects one provider. Exported to Prometheus, the
    series have the names of ``PrometheusMetrics``. Histograms begin with their first value: this API has no empty ones.
    Each term is a span ``pgelect.term`` without a parent; that of a process that dies is never exported.

    Args:
        meter_provider: where the series go; None: the global one, also when that is only set later.
        tracer_provider: where the spans go; None: the global one.
    """

    def __init__(
        self, meter_provider: MeterProvider | None = None, tracer_provider: TracerProvider | None = None
    ) -> None:
        self._instruments = _known.of(meter_provider)
        self._tracer = trace.get_tracer("pgelect", tracer_provider=tracer_provider)

    def for_lock(self, lock: LockView) -> LockMetrics:
        """Make the metrics of one lock, with all their series at once."""
        instruments = self._instruments
        label = label_of(lock.key)
        return _TracingRecorder(instruments, label, instruments.locks.add(label, lock), self._tracer)


class _TracingRecorder(Recorder):
    """Keeps the span of the present term, too."""

    def __init__(self, sink: _Instruments, label: str, present: Present, tracer: Tracer) -> None:
        super().__init__(sink, label, present)
        self._tracer = tracer
        self._span: Span | None = None

    @override
    def term_began(self, term: Term, takeover_s: float | None, *, after_release: bool) -> None:
        super().term_began(term, takeover_s, after_release=after_release)
        self._end_span()  # there is none, unless an end was not told
        self._span = self._tracer.start_span(
            "pgelect.term",
            context=Context(),  # whatever happened to be traced when the lock was started is not its parent
            attributes={
                "pgelect.lock": self.label,
                "pgelect.token": term.token,
                "pgelect.identity": term.identity,
            },
        )
        if takeover_s is not None:
            self._span.set_attribute("pgelect.takeover_s", takeover_s)

    @override
    def term_ended(self, term: Term, length_s: float, *, released: bool, cause: str) -> None:
        super().term_ended(term, length_s, released=released, cause=cause)
        if self._span is not None:
            self._span.set_attribute("pgelect.ended", "released" if released else "lost")
            self._span.set_attribute("pgelect.cause", cause)
            if not released:
                self._span.set_status(Status(StatusCode.ERROR, f"leadership was lost: {cause}"))
        self._end_span()

    @override
    def proof(self, duration_s: float, *, succeeded: bool) -> None:
        super().proof(duration_s, succeeded=succeeded)
        if self._span is not None and not succeeded:
            self._span.add_event("proof failed", {"pgelect.duration_s": duration_s})

    @override
    def reconnected(self) -> None:
        super().reconnected()
        if self._span is not None:
            self._span.add_event("reconnected")

    def _end_span(self) -> None:
        span, self._span = self._span, None
        if span is not None:
            span.end()


class _Instruments:
    """All instruments of one provider."""

    def __init__(self, meter: Meter) -> None:
        self.locks = Locks()
        self._counters = {
            of: meter.create_counter(name_of(of), description=of.text)
            for of in series.EVENTS
            if of.kind is Kind.COUNTER
        }
        self._histograms = {
            of: meter.create_histogram(
                name_of(of),
                unit="s" if of.in_seconds else "",
                description=of.text,
                explicit_bucket_boundaries_advisory=of.buckets,
            )
            for of in series.EVENTS
            if of.kind is Kind.HISTOGRAM
        }
        for of in series.GAUGES:
            # No unit "1" for what is no ratio: Prometheus would have its name end in _ratio.
            meter.create_observable_gauge(
                name_of(of),
                callbacks=[partial(self._observed, of)],
                unit="s" if of.in_seconds else "",
                description=of.text,
            )

    def prepare(self, of: Series, labels: tuple[str, ...]) -> None:
        if of.kind is Kind.COUNTER:
            self._counters[of].add(0, _attributes(of, labels))

    def count(self, of: Series, labels: tuple[str, ...]) -> None:
        self._counters[of].add(1, _attributes(of, labels))

    def observe(self, of: Series, labels: tuple[str, ...], value: float) -> None:
        self._histograms[of].record(value, _attributes(of, labels))

    def _observed(self, of: Series, _: CallbackOptions) -> Iterable[Observation]:
        for reading in self.locks.read():
            if reading.of is of:
                yield Observation(reading.value, _attributes(of, (reading.lock, *reading.labels)))


class _Known:
    """The instruments of each provider. That which stands for the global one until it is set hands on to it."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._of: weakref.WeakKeyDictionary[MeterProvider, _Instruments] = weakref.WeakKeyDictionary()
        self._of_global: _Instruments | None = None

    def of(self, provider: MeterProvider | None) -> _Instruments:
        """Return those of a provider, the same each time: it would not take the gauges of a second object."""
        the_global = metrics.get_meter_provider()
        provider = provider if provider is not None else the_global
        is_global = provider is the_global
        with self._guard:
            found = self._of.get(provider) or (self._of_global if is_global else None)
            if found is None:
                found = _Instruments(metrics.get_meter("pgelect", meter_provider=provider))
            self._of[provider] = found
            if is_global:
                self._of_global = found
            return found


_known = _Known()


def name_of(of: Series) -> str:
    """Return the name of the instrument of a series."""
    return f"pgelect.{of.name}"


def _attributes(of: Series, labels: tuple[str, ...]) -> dict[str, str]:
    return dict(zip(("lock", *of.labels), labels, strict=True))
