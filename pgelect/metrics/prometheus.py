"""Metrics for Prometheus, through its own client library. Needs the extra ``prometheus``."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.registry import Collector
except ImportError as _error:
    raise ImportError(
        "PrometheusMetrics needs the package prometheus-client. Install it with: pip install 'pgelect[prometheus]'"
    ) from _error
from typing_extensions import override

from pgelect.metrics import _series as series
from pgelect.metrics._locks import Locks, label_of
from pgelect.metrics._recorder import Recorder
from pgelect.metrics._series import Kind, Series

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.metrics_core import Metric

    from pgelect._engine.meter import LockMetrics, LockView

__all__ = ["PrometheusMetrics"]


class PrometheusMetrics:
    """Metrics for Prometheus: ``LeaderLock(..., metrics=PrometheusMetrics())``.

    One object may serve any number of locks, and any number of objects one registry: their series are the same. Locks
    of one name in one process share their series.

    Args:
        registry: where the series are to be found; None: the default one of ``prometheus_client``.

    Raises:
        ValueError: something else in that registry already has a series of one of these names.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._families = _families_of(registry if registry is not None else REGISTRY)

    def for_lock(self, lock: LockView) -> LockMetrics:
        """Make the metrics of one lock, with all their series at once."""
        families = self._families
        label = label_of(lock.key)
        return Recorder(families, label, families.locks.add(label, lock))


class _Families(Collector):
    """All families of one registry, registered as one: gauges are worked out when somebody looks."""

    def __init__(self) -> None:
        self.locks = Locks()
        self._counters = {of: _counter(of) for of in series.EVENTS if of.kind is Kind.COUNTER}
        self._histograms = {of: _histogram(of) for of in series.EVENTS if of.kind is Kind.HISTOGRAM}

    def prepare(self, of: Series, labels: tuple[str, ...]) -> None:
        if of.kind is Kind.COUNTER:
            self._counters[of].labels(*labels)
        else:
            self._histograms[of].labels(*labels)

    def count(self, of: Series, labels: tuple[str, ...]) -> None:
        self._counters[of].labels(*labels).inc()

    def observe(self, of: Series, labels: tuple[str, ...], value: float) -> None:
        self._histograms[of].labels(*labels).observe(value)

    def describe(self) -> Iterable[Metric]:
        """List the families, for the registry to see whether a name is taken."""
        yield from map(_gauge, series.GAUGES)
        for family in (*self._counters.values(), *self._histograms.values()):
            yield from family.describe()

    @override
    def collect(self) -> Iterable[Metric]:
        gauges = {of: _gauge(of) for of in series.GAUGES}
        for reading in self.locks.read():
            gauges[reading.of].add_metric([reading.lock, *reading.labels], float(reading.value))
        yield from gauges.values()
        for family in (*self._counters.values(), *self._histograms.values()):
            yield from family.collect()


_known: weakref.WeakKeyDictionary[CollectorRegistry, _Families] = weakref.WeakKeyDictionary()
_guard = threading.Lock()


def _families_of(registry: CollectorRegistry) -> _Families:
    """Return the families of a registry, the same each time."""
    with _guard:
        families = _known.get(registry)
        if families is None:
            families = _Families()
            registry.register(families)
            _known[registry] = families
        return families


def name_of(of: Series) -> str:
    """Return the name that a series has in Prometheus, without the suffixes of counters and histograms."""
    return f"pgelect_{of.name}{'_seconds' if of.in_seconds else ''}"


def _labels(of: Series) -> tuple[str, ...]:
    return ("lock", *of.labels)


def _gauge(of: Series) -> GaugeMetricFamily:
    return GaugeMetricFamily(name_of(of), of.text, labels=_labels(of))


def _counter(of: Series) -> Counter:
    return Counter(name_of(of), of.text, _labels(of), registry=None)


def _histogram(of: Series) -> Histogram:
    return Histogram(name_of(of), of.text, _labels(of), buckets=of.buckets, registry=None)
