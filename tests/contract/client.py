"""A writer's connection, fake or real: plain transactions at an isolation level, with the fence in them or without."""

from abc import ABC, abstractmethod

LEVELS = ("read committed", "repeatable read", "serializable")
SNAPSHOTS = LEVELS[1:]  # those that see the same from their first statement to their end


class SerializationError(Exception):
    """The server cannot serialise this transaction: SQLSTATE 40001."""


class Client(ABC):
    """One connection. Every call but `close` raises SessionLostError when the server has ended it."""

    pid: int

    @abstractmethod
    async def open(self) -> None:
        """Connect."""

    @abstractmethod
    async def begin(self, isolation: str = "read committed") -> None:
        """Begin a transaction. Its snapshot is taken by the first statement after this one."""

    @abstractmethod
    async def check(self, token: int) -> None:
        """Fence the transaction by a token, or raise StaleTokenError or SerializationError."""

    @abstractmethod
    async def peek(self) -> int | None:
        """The token in the row as the transaction sees it: a plain read, as of a writer who knows no better."""

    @abstractmethod
    async def write(self, value: int) -> None:
        """Write a value to the ledger under the token that was last checked, or peeked at, in this transaction."""

    @abstractmethod
    async def commit(self) -> None:
        """Commit. A transaction in which something was refused is rolled back instead."""

    @abstractmethod
    async def rollback(self) -> None:
        """Roll back."""

    @abstractmethod
    async def close(self) -> None:
        """End the connection, and with it what is open. Never raises."""
