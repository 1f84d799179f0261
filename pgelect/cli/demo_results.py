"""What the demo found: values, and the ledger's check."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pgelect.cli.demo_ledger import Line


@dataclass(frozen=True, slots=True)
class Act:
    """One change of leader.

    Attributes:
        title: what was done.
        old, new: names of the replica that led and of the one that leads now.
        old_token, new_token: of their terms.
        took_s: from the deed until the new leader's ``on_acquired``.
        noticed_s: from the deed until the old leader's ``on_lost``, where it was told by the server.
    """

    title: str
    old: str
    new: str
    old_token: int
    new_token: int
    took_s: float
    noticed_s: float | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """Something the demo set out to show, and whether it held."""

    text: str
    held: bool


@dataclass(frozen=True, slots=True)
class Results:
    """All of it."""

    server: str
    acts: tuple[Act, ...]
    claims: tuple[Claim, ...]
    writes: int
    took_s: float

    @property
    def held(self) -> bool:
        """Whether every claim held."""
        return all(claim.held for claim in self.claims)

    def as_json(self) -> dict[str, Any]:
        """Give plain values; durations are in seconds."""
        return {"held": self.held, **asdict(self)}


def terms_claim(tokens: Iterable[int]) -> Claim:
    """Check the tokens of all terms, in the order in which they began."""
    found = list(tokens)
    text = f"{len(found)} terms, each with a greater token than the one before"
    return Claim(text, bool(found) and all(old < new for old, new in pairwise(found)))


def ledger_claims(lines: list[Line], acknowledged: list[Line]) -> tuple[Claim, ...]:
    """Check the ledger, given in the order of its numbers, which is the order of its commits."""
    times = Counter(line.seq for line in lines)
    numbered = all(times[seq] == 1 for seq in range(1, len(lines) + 1))
    older_after_newer = sum(new.token < old.token for old, new in pairwise(lines))
    missing = set(acknowledged) - set(lines)
    return (
        Claim(
            f"the ledger's {len(lines)} lines are numbered 1 to {len(lines)}, none twice, none missing"
            if numbered
            else f"the ledger's {len(lines)} lines are NOT numbered 1 to {len(lines)}",
            numbered and bool(lines),
        ),
        Claim(
            "no write of an older token stands after one of a newer token"
            if not older_after_newer
            else f"{older_after_newer} write(s) of an older token stand AFTER one of a newer token",
            not older_after_newer,
        ),
        Claim(
            f"all {len(acknowledged)} writes that were acknowledged are there: nothing was lost"
            if not missing
            else f"{len(missing)} of {len(acknowledged)} acknowledged writes are MISSING",
            not missing and bool(acknowledged),
        ),
    )
