"""What the doctor thinks of the settings: whether round trips and clocks allow them, and what they promise."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from pgelect.cli.doctor_facts import Finding, Severity, Timing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgelect._engine.bounds import Bounds
    from pgelect._engine.settings import Settings

_TIGHT = 0.5  # a proof that takes more than this part of its time is close to being too late
_IDLE_S = 200.0  # of common load balancers, the soonest forgets an idle connection after 240 s

_PROMISES = {
    "failover_clean": "from a step-down until another leads",
    "failover_crash": "from the death of the leader until another leads",
    "failover_silent": "from a leader that falls silent until another leads",
    "overlap_lease": "for which two believe they lead when a lease runs out",
    "overlap_session": "for which two may believe they lead when the server ends a session early",
}


def check_latency(timing: Timing, settings: Settings) -> Iterator[Finding]:
    """Judge the round trips of proofs against the time that the settings leave for one."""
    typical, worst = median(timing.proofs_s), max(timing.proofs_s)
    allowed = settings.proof_timeout_s
    said = (
        f"a proof took {_ms(typical)} (median) and {_ms(worst)} (worst of {len(timing.proofs_s)}); "
        f"the settings allow {_ms(allowed)}"
    )
    if worst >= allowed:
        yield Finding(
            Severity.ERROR,
            "latency",
            f"{said}: leadership would be lost again and again",
            "Raise --lease, or lower --health-interval; or bring the candidates closer to the server.",
        )
    elif worst >= _TIGHT * allowed:
        yield Finding(
            Severity.WARNING,
            "latency",
            f"{said}, which is close",
            "Raise --lease, or lower --health-interval.",
        )
    else:
        yield Finding(Severity.OK, "latency", said)
    if settings.health_interval_s >= _IDLE_S:
        yield Finding(
            Severity.WARNING,
            "latency",
            f"the session of a leader is idle for {settings.health_interval_s:g} s between proofs: load balancers "
            "forget such connections",
            "Lower --health-interval below 200.",
        )


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def check_clock(timing: Timing, settings: Settings) -> Iterator[Finding]:
    """Judge whether both clocks run at one rate, as far as so short a time can tell."""
    allowed = settings.margin_s / settings.lease_s
    if timing.ours_s <= 0:
        yield Finding(Severity.NOTE, "clock", "the local clock stood still: nothing can be said of its rate")
        return
    off = abs(timing.server_s - timing.ours_s) / timing.ours_s
    unsure = timing.unsure_s / timing.ours_s
    said = (
        f"in {timing.ours_s:.1f} s the server's clock and ours differed by {off:.2%} (give or take {unsure:.2%}); "
        f"the margin of the lease allows {allowed:.0%}"
    )
    if off - unsure > allowed:
        yield Finding(
            Severity.ERROR,
            "clock",
            f"{said}: the server may free a lock whose leader still trusts itself",
            "If the server's clock was not just set, mend the clock of the machine that runs fast or slow.",
        )
    elif off + unsure > allowed:
        yield Finding(Severity.NOTE, "clock", f"{said}: the round trips are too long to be sure")
    else:
        yield Finding(Severity.OK, "clock", said)


def check_promises(bounds: Bounds) -> Iterator[Finding]:
    """Say what the settings promise in the worst case."""
    for name, what in _PROMISES.items():
        bound = getattr(bounds, name)
        yield Finding(Severity.OK, "promise", f"{name}: at most {bound.seconds:g} s {what}: {bound.reason}")
