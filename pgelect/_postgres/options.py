"""What a session needs to know before it connects. Values only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from psycopg import AsyncConnection

if TYPE_CHECKING:
    from pgelect._engine.model import LockKey

Dsn: TypeAlias = str | Callable[[], str | Awaitable[str]]
ConnectFn: TypeAlias = Callable[[], Awaitable[AsyncConnection[Any]]]


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """Settings of one lock's sessions.

    Attributes:
        key: the lock.
        identity: of this process, as observers see it.
        metadata: JSON-serialisable; written to the token row.
        lease_s: the server ends the session when it has not heard from it for this long, in seconds.
        fencing: keep the token row; needs the schema ``pgelect``.
        allow_pooler: skip the guard against transaction pooling.
        places: so many wait in the server's queue, and others stand aside; None: nobody does.
        dsn: conninfo or URI, or a callable asked before each attempt; never shown anywhere.
        connect_fn: makes a dedicated, idle connection instead; ``dsn`` is then not used.
    """

    key: LockKey
    identity: str
    lease_s: float
    metadata: Mapping[str, Any] = field(default_factory=dict)
    fencing: bool = True
    allow_pooler: bool = False
    places: int | None = None
    dsn: Dsn = field(default="", repr=False)
    connect_fn: ConnectFn | None = field(default=None, repr=False)
