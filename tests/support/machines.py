"""The state machine in each situation that its tests begin from, and the form of a test case about one rule.

All situations are at the time NOW, in epoch 5 and with two terms behind them; a trust is 10 s, a proof due every 4 s.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from pgelect._engine.events import Changed, Close, Effect, Event, Halt, Io, Report, TermEnded
from pgelect._engine.machine import step
from pgelect._engine.model import Backend, Grant, LeaderRecord, LockKey, LockState
from pgelect._engine.state import Machine, Rules
from pgelect.errors import LockError, SessionLostError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pgelect._engine.moves import Step

STOPPED, FOLLOWER, ACQUIRING = LockState.STOPPED, LockState.FOLLOWER, LockState.ACQUIRING
LEADER, RECONNECTING, RELEASING = LockState.LEADER, LockState.RECONNECTING, LockState.RELEASING

NOW = 100.0
EPOCH = 5
NUMBER = 2
TRUST_S = 10.0
INTERVAL_S = 4.0

RULES = Rules(
    key=LockKey(5001, 1),
    trust_s=TRUST_S,
    health_interval_s=INTERVAL_S,
    reconnect_grace_s=0.0,
    takeover_delay_s=0.0,
    queue=True,
    auto_reacquire=True,
)
BACKEND = Backend(4711, datetime(2026, 1, 1, tzinfo=UTC))
OTHER_BACKEND = Backend(4712, datetime(2026, 1, 1, 0, 5, tzinfo=UTC))
"""A later session of ours."""


def make_grant(*, token: int = 7, predecessor_clean: bool = True) -> Grant:
    """What the server confirmed when the token was minted."""
    return Grant(token, datetime(2026, 1, 2, tzinfo=UTC), BACKEND, 1, predecessor_clean, record=None)


class _Nothing(dict[str, Any]):
    """Metadata that can be part of a set."""

    def __hash__(self) -> int:  # type: ignore[override]  # a dict has none; this one stays empty
        return 0


def fenced(grant: Grant) -> Grant:
    """The same with a row in the database, of which there is something to tell."""
    row = LeaderRecord(
        5001, 1, None, grant.token, "us", _Nothing(), grant.acquired_at, None, grant.token, 15.0, grant.backend
    )
    return replace(grant, record=row)


GRANT = make_grant()
AFTER_A_CRASH = make_grant(token=8, predecessor_clean=False)

IDLE = Machine(RULES, epoch=EPOCH, number=NUMBER)
"""Stopped, after two terms."""
CONNECTING = replace(IDLE, state=FOLLOWER, io=Io.OPEN)
BACKING_OFF = replace(IDLE, state=FOLLOWER, wake_at=NOW + 3)
TRYING = replace(IDLE, state=ACQUIRING, connected=True, io=Io.TRY)
WAITING = replace(IDLE, state=FOLLOWER, connected=True, settled=True, io=Io.WAIT)
ASIDE = replace(WAITING, io=Io.ASIDE, aside_s=2.5)
POLLING = replace(WAITING, io=None, wake_at=NOW + 3)
MINTING = replace(TRYING, settled=True, io=Io.MINT)
_HOLDING = replace(MINTING, grant=GRANT, io=Io.WATCH, trusted_until=NOW + 9, proved_at=NOW - 1, proof_at=NOW + 3)
DELAYED = replace(_HOLDING, grant=AFTER_A_CRASH, lead_at=NOW + 2)
"""The token is minted, a takeover delay runs."""
LEADING = replace(_HOLDING, state=LEADER, number=NUMBER + 1)
DRAINING = replace(LEADING, state=RELEASING, until=NOW + 6)
UNLOCKING = replace(LEADING, state=RELEASING, drained=True, io=Io.UNLOCK)
REOPENING = replace(
    LEADING,
    state=RECONNECTING,
    connected=False,
    io=Io.OPEN,
    trusted_until=float("-inf"),
    proved_at=float("-inf"),
    until=NOW + 5,
)
RESUMING = replace(REOPENING, connected=True, io=Io.RESUME)
BETWEEN_TRIES = replace(REOPENING, io=None, wake_at=NOW + 0.25)
"""Within the grace, before the next attempt to reconnect."""

SITUATIONS = [
    IDLE,
    CONNECTING,
    BACKING_OFF,
    TRYING,
    WAITING,
    POLLING,
    MINTING,
    DELAYED,
    LEADING,
    DRAINING,
    UNLOCKING,
    REOPENING,
    RESUMING,
    BETWEEN_TRIES,
]


def ruled(machine: Machine, **changes: Any) -> Machine:
    """The same situation under other rules."""
    return replace(machine, rules=replace(machine.rules, **changes))


DROPPED: dict[str, Any] = {"epoch": EPOCH + 1, "connected": False, "io": None}
"""What is left of a session after it was dropped."""


def without_term(**more: Any) -> dict[str, Any]:
    """The fields of a machine whose term is over and whose session was dropped."""
    return {
        **DROPPED,
        "grant": None,
        "trusted_until": float("-inf"),
        "proof_at": float("inf"),
        "lead_at": float("inf"),
        "until": float("inf"),
        "wake_at": float("inf"),
        "drained": False,
        "cooldown_s": 0.0,
        "stopping": False,
        **more,
    }


class Lost(SessionLostError):  # noqa: N818 -- an expectation, never raised
    """Equal to every SessionLostError of the same reason: in an expected effect, one that the machine makes."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, reason)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SessionLostError) and other.reason == self.reason

    def __hash__(self) -> int:
        return hash(self.reason)


class NotHeld(LockError):  # noqa: N818 -- an expectation, never raised
    """Equal to every LockError of the same key."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LockError) and other.key == self.key

    def __hash__(self) -> int:
        return hash(self.key)


def gone(
    reason: str, *, before: LockState, after: LockState, error: Exception | None, halt: bool = False
) -> tuple[Effect, ...]:
    """The effects when a term ends uncleanly."""
    effects: tuple[Effect, ...] = (
        Changed(before, after, reason),
        TermEnded(GRANT, released=False, error=error),
        Close(EPOCH, orderly=False),
    )
    if error is not None:
        effects = (*effects, Report(error))
    return (*effects, Halt(error, exhausted=False)) if halt else effects


@dataclass(frozen=True, slots=True)
class Case:
    """One rule: in this situation, this event changes exactly these fields and asks for exactly these effects."""

    says: str
    given: Machine
    event: Event
    changes: Mapping[str, Any] = field(default_factory=dict)
    effects: tuple[Effect, ...] = ()
    at: float = NOW

    @property
    def then(self) -> Machine:
        """The machine that is expected. Trust is counted from the proof that it rests on."""
        changes = dict(self.changes)
        if "trusted_until" in changes:
            changes.setdefault("proved_at", changes["trusted_until"] - TRUST_S)
        return replace(self.given, **changes)

    def run(self) -> Step:
        """Give the machine its event."""
        return step(self.given, self.event, self.at)


def cases(*listed: Case) -> list[Any]:
    """Parameters for ``@pytest.mark.parametrize("case", ...)``: the sentence is the name."""
    return [pytest.param(case, id=case.says) for case in listed]
