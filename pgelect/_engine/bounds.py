"""The promise in numbers: worst-case failover and overlap that follow from the settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgelect._engine.settings import Settings


FENCE_WAIT_S = 1.7
"""A new token waits this long for transactions that an earlier one fenced; then they are ended, if the role may."""
RELEASE_WAIT_S = 0.9
"""A release waits this long for them before it leaves the row unmarked."""


@dataclass(frozen=True, slots=True)
class Bound:
    """One worst case.

    Attributes:
        seconds: the bound, not counting the time that processes wait for a CPU or the server for its disk.
        reason: where it comes from.
    """

    seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class Bounds:
    """Worst cases of one lock, in seconds, each with its reason.

    Attributes:
        failover_clean: from ``step_down()`` or ``shutdown()`` until another leads.
        failover_crash: from the death of the leader's process or session until another leads.
        failover_silent: from the moment at which the leader is stopped, partitioned or powered off.
        overlap_lease: how long two processes may believe they lead when the lease runs out: always 0.
        overlap_session: the same when the server ends the session early (a killed backend, a restarted server) and the
            news cannot reach the leader.
    """

    failover_clean: Bound
    failover_crash: Bound
    failover_silent: Bound
    overlap_lease: Bound
    overlap_session: Bound


def bounds_of(settings: Settings, poll_max_s: float | None) -> Bounds:
    """Compute the bounds. ``poll_max_s``: the longest sleep between two polls; None when there is none known."""
    if settings.acquire == "queue":
        next_try_s, how = 0.0, "followers wait in the server's queue"
    else:
        next_try_s = poll_max_s if poll_max_s is not None else float("inf")
        how = f"followers poll at most {next_try_s:g} s apart"
    delay_s = settings.takeover_delay_s
    unclean = f", then takeover_delay_s ({delay_s:g})" if delay_s else ""
    mint_s, release_and_mint_s = (FENCE_WAIT_S, RELEASE_WAIT_S + FENCE_WAIT_S) if settings.fencing else (0.0, 0.0)
    return Bounds(
        failover_clean=Bound(
            settings.drain_timeout_s + next_try_s + release_and_mint_s + delay_s,
            f"drain_timeout_s ({settings.drain_timeout_s:g}), then {how}{_fenced(release_and_mint_s)}"
            + (f", and takeover_delay_s ({delay_s:g}) if that kept the release from being marked" if delay_s else ""),
        ),
        failover_crash=Bound(
            next_try_s + delay_s + mint_s,
            f"the server frees the lock with the session; {how}{unclean}{_fenced(mint_s)}",
        ),
        failover_silent=Bound(
            settings.lease_s + next_try_s + delay_s + mint_s,
            f"the server ends a session it has not heard from for lease_s ({settings.lease_s:g}); {how}{unclean}"
            f"{_fenced(mint_s)}",
        ),
        overlap_lease=Bound(
            0.0, f"the old leader stops trusting itself {settings.margin_s:g} s before the server frees the lock"
        ),
        overlap_session=Bound(
            max(0.0, settings.trust_s - delay_s),
            f"lease_s less a margin ({settings.trust_s:g}) of trust may be left when the session ends early"
            + (f", less takeover_delay_s ({delay_s:g})" if delay_s else "")
            + "; only the fence protects writes in that window",
        ),
    )


def _fenced(seconds: float) -> str:
    return f"; at most {seconds:g} s for an open transaction that the old term fenced" if seconds else ""
