"""The settings of one lock, checked by name against each other, and what follows from them.

All durations are seconds. The arithmetic of trust:

    trusted_until = send time of the last successful proof + lease_s - margin_s

The server ends the session ``lease_s`` after it last heard from it, and it hears later than we send, so without any
margin the old leader already stops trusting itself first, if both clocks run at one rate. ``margin_s`` pays for clocks
that do not: 5 % of the lease is a hundred times what NTP slews (500 ppm), at least 50 ms.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Literal

from pgelect._engine.model import LockKey
from pgelect._engine.state import Rules

MARGIN_RATIO, MARGIN_MIN_S = 0.05, 0.05
LEASE_MIN_S, LEASE_MAX_S = 0.2, 2_000_000.0  # idle_session_timeout is a 32-bit number of milliseconds
PROOF_MIN_S = 0.02  # the least time in which a proof can be expected to come back
QUEUE_COOLDOWN_S = 1.0  # longer than a slice in the server's queue, so that whoever waits is waiting when we are not


@dataclass(frozen=True, slots=True)
class Settings:
    """See ``LeaderLock`` for what each of them means."""

    key: LockKey
    identity: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    health_interval_s: float = 5.0
    health_timeout_s: float | None = None
    lease_s: float = 15.0
    reconnect_grace_s: float | None = None
    acquire: Literal["queue", "poll"] = "queue"
    takeover_delay_s: float = 0.0
    drain_timeout_s: float = 10.0
    auto_reacquire: bool = True
    fencing: bool = True

    def __post_init__(self) -> None:
        for item in fields(self):
            if item.name.endswith("_s"):
                _check_duration(item.name, getattr(self, item.name))
        if self.acquire not in {"queue", "poll"}:
            raise ValueError(f"acquire={self.acquire!r} is neither 'queue' nor 'poll'")
        _check_identity(self.identity)
        object.__setattr__(self, "metadata", MappingProxyType(_checked_metadata(self.metadata)))
        self._check_lease()
        if self.reconnect_grace_s and not self.fencing:
            raise ValueError(
                "reconnect_grace_s needs fencing=True: without the token table nothing could prove that nobody led "
                "in between"
            )
        if self.takeover_delay_s and not self.fencing:
            raise ValueError(
                "takeover_delay_s needs fencing=True: without the token table an unclean end of a term cannot be told "
                "from a clean one"
            )

    def _check_lease(self) -> None:
        if not LEASE_MIN_S <= self.lease_s <= LEASE_MAX_S:
            raise ValueError(f"lease_s={self.lease_s:g} is outside {LEASE_MIN_S:g} .. {LEASE_MAX_S:g} seconds")
        if self.health_interval_s <= 0:
            raise ValueError("health_interval_s must be greater than 0")
        if self.health_timeout_s is not None and self.health_timeout_s <= 0:
            raise ValueError("health_timeout_s must be greater than 0, or None for all that the lease leaves")
        timeout_s = self.health_timeout_s if self.health_timeout_s is not None else PROOF_MIN_S
        needed_s = self.health_interval_s + timeout_s + self.margin_s
        if needed_s > self.lease_s:
            raise ValueError(
                f"health_interval_s ({self.health_interval_s:g}) + health_timeout_s ({timeout_s:g}) + a margin "
                f"({self.margin_s:g}) = {needed_s:g} do not fit into lease_s ({self.lease_s:g}): a single slow proof "
                "would end the term. Lower health_interval_s or health_timeout_s, or raise lease_s"
            )

    @property
    def margin_s(self) -> float:
        """How much earlier than the server we let go of the lease."""
        return max(MARGIN_MIN_S, MARGIN_RATIO * self.lease_s)

    @property
    def trust_s(self) -> float:
        """For how long one proof is trusted, from the moment it was sent."""
        return self.lease_s - self.margin_s

    @property
    def proof_timeout_s(self) -> float:
        """When a proof counts as failed and the link as dead: by default, when trust has run out."""
        if self.health_timeout_s is not None:
            return self.health_timeout_s
        return self.trust_s - self.health_interval_s

    @property
    def rules(self) -> Rules:
        """Return what the state machine needs of these settings."""
        return Rules(
            key=self.key,
            trust_s=self.trust_s,
            health_interval_s=self.health_interval_s,
            reconnect_grace_s=self.reconnect_grace_s or 0.0,
            takeover_delay_s=self.takeover_delay_s,
            queue=self.acquire == "queue",
            auto_reacquire=self.auto_reacquire,
        )


def _check_duration(name: str, value: object) -> None:
    if value is None and name in {"health_timeout_s", "reconnect_grace_s"}:
        return
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number of seconds, not {type(value).__name__}")
    if not _is_finite(value) or value < 0:
        raise ValueError(f"{name}={value} must be a finite number of seconds, 0 or more")


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond all floats
        return False


def _check_identity(identity: object) -> None:
    if not isinstance(identity, str):
        raise TypeError(f"identity must be a str, not {type(identity).__name__}")
    if not identity:
        raise ValueError("identity must not be empty")
    _check_text("identity", identity)


def _check_text(name: str, text: str) -> None:
    """Refuse what PostgreSQL cannot store as text."""
    if "\0" in text:
        raise ValueError(f"{name} must not contain a NUL character: PostgreSQL cannot store it")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} must be text that UTF-8 can encode (it has a lone surrogate)") from None


def _checked_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(metadata, Mapping):
        raise TypeError(f"metadata must be a mapping, not {type(metadata).__name__}")
    try:
        copy = json.loads(json.dumps(dict(metadata), allow_nan=False))
        texts = list(_texts_of(copy))
    except (TypeError, ValueError, RecursionError) as error:  # the last: of too great a depth
        raise ValueError(f"metadata must be a mapping that JSON can carry: {error}") from None
    for text in texts:
        _check_text("metadata", text)
    return dict(copy)


def _texts_of(value: object) -> Iterator[str]:
    """Every string in a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts_of(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _texts_of(item)


def check_argument_s(name: str, value: float) -> float:
    """Check a duration that was passed to a method; return it.

    Raises:
        ValueError, TypeError: it is not a finite number of seconds, 0 or more.
    """
    _check_duration(name, value)
    return value


def key_of(key1: int | None, key2: int | None, name: str | None) -> LockKey:
    """Make the key from either form.

    Raises:
        ValueError, TypeError: both forms, neither, half of one, or out of range.
    """
    if name is not None:
        if key1 is not None or key2 is not None:
            raise ValueError("give either name or key1 and key2, not both")
        return LockKey.from_name(name)
    if key1 is None or key2 is None:
        raise ValueError("a lock needs either name, or both key1 and key2")
    return LockKey(key1, key2)


def default_identity() -> str:
    """Name this process: host, pid, and a random part, since pids are used again."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
