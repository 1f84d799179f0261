"""What a check finds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that did not hold.

    Attributes:
        rule: which, in a few words; the same for all violations of it.
        what: what happened, in a sentence.
        processes: who took part.
        at: when, on the books' clock; None where it is no instant.
    """

    rule: str
    what: str
    processes: tuple[str, ...] = ()
    at: float | None = None
