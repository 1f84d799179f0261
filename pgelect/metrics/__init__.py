"""Metrics: what is given to ``LeaderLock(..., metrics=...)``, and the alert rules and dashboard that go with it.

``PrometheusMetrics`` needs the extra ``prometheus``, ``OpenTelemetryMetrics`` the extra ``otel``; nothing of either is
imported before it is asked for. Anything else with the methods of ``Metrics`` and ``LockMetrics`` will do as well.
"""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING, Any

from pgelect._engine.meter import FenceOutcome, LockMetrics, LockView, Metrics

if TYPE_CHECKING:
    from pgelect.metrics.otel import OpenTelemetryMetrics
    from pgelect.metrics.prometheus import PrometheusMetrics

__all__ = [
    "FenceOutcome",
    "LockMetrics",
    "LockView",
    "Metrics",
    "OpenTelemetryMetrics",
    "PrometheusMetrics",
    "alert_rules",
    "dashboard",
]


def alert_rules() -> str:
    """Return the alert rules for Prometheus that come with the library, as YAML: a file for ``rule_files``."""
    return _shipped("alerts.yml")


def dashboard() -> str:
    """Return the Grafana dashboard that comes with the library, as the JSON that Grafana imports."""
    return _shipped("dashboard.json")


def _shipped(name: str) -> str:
    return (resources.files(__name__) / name).read_text(encoding="utf-8")


def __getattr__(name: str) -> Any:
    """Import an adapter when it is asked for: each needs a package that is optional."""
    if name == "PrometheusMetrics":
        from pgelect.metrics.prometheus import PrometheusMetrics  # noqa: PLC0415 -- optional package

        return PrometheusMetrics
    if name == "OpenTelemetryMetrics":
        from pgelect.metrics.otel import OpenTelemetryMetrics  # noqa: PLC0415 -- optional package

        return OpenTelemetryMetrics
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
