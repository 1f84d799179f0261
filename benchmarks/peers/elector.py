"""What the measuring code knows of an elector, and what its processes ask of it: values and protocols only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Scenario = Literal["crash", "step-down", "stopped", "frozen", "terminated"]
SCENARIOS: tuple[Scenario, ...] = ("crash", "step-down", "stopped", "frozen", "terminated")

LEASE_S = 1.0
"""The fast settings: a lease of a second, or what comes closest to it. Less, and a machine that is merely busy is taken
for a dead one."""
EVERY_S = LEASE_S / 3
"""How often a lease of that length is renewed, and asked for by those who wait."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One way to set an elector up.

    Attributes:
        name: "defaults" or "fast".
        values: by the names that the elector has for them; empty for its defaults.
        cycle_s: the longest pause between two things that a candidate does: the fault comes at a random moment of it.
        window_s: how long it is watched. It is longer than what the elector needs where it gets there at all.
    """

    name: Literal["defaults", "fast"]
    values: Mapping[str, Any]
    cycle_s: float
    window_s: float


@dataclass(frozen=True, slots=True)
class System:
    """An elector.

    Attributes:
        name: as it is asked for.
        module: of this package: it has a function ``candidate``.
        needs: the modules that are imported for it, before anything is timed.
        store: where its candidates meet.
        settings: the ways in which it is measured.
        cannot: for scenarios that it has no part in, why.
        is_floor: it is no elector, but what the server does without one: nobody there believes anything.
    """

    name: str
    module: str
    needs: tuple[str, ...]
    settings: tuple[Settings, ...]
    store: Literal["postgresql", "redis"] = "postgresql"
    cannot: Mapping[Scenario, str] = field(default_factory=dict)
    is_floor: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """Where a candidate takes part.

    Attributes:
        url: of the server.
        election: what the candidates compete for.
        name: the candidate's own; the server knows its sessions by it.
        values: those of the settings.
    """

    url: str
    election: str
    name: str
    values: Mapping[str, Any]


class Changed(Protocol):
    """What a candidate calls when it may have begun or ceased to lead. Anything else is found out by looking."""

    def __call__(self, at: float | None = None) -> None:
        """Look now; ``at`` is when it happened, where that is known better."""


class Candidate(Protocol):
    """One candidate, in a process of its own."""

    def leads(self) -> bool:
        """Return what a user of this elector has to go by."""

    async def campaign(self, ready: Callable[[], None], changed: Changed) -> None:
        """Take part until cancelled. ``ready`` is called once it is connected."""

    async def resign(self) -> None:
        """Give up leadership cleanly, in the way that the elector has for that."""
