"""What the demo opens: a server, its ledger, its replicas. Closed in any case, whatever was interrupted when."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from pgelect.cli.demo_ledger import SCHEMA, Ledger
from pgelect.cli.demo_replicas import DemoError, Replicas, uninterrupted
from pgelect.errors import PgElectError
from pgelect.lock import LeaderLock
from pgelect.testing import Postgres, throwaway_postgres

if TYPE_CHECKING:
    from collections.abc import Awaitable

_START_FAILURES = (ModuleNotFoundError, LookupError, RuntimeError, TimeoutError, OSError)
_ALONE_WITHIN_S = 3.0


class Stage:
    """Opened step by step in a task that may be cancelled; closed by another that is not."""

    def __init__(self, dsn: str | None, version: int | None) -> None:
        self._given = dsn
        self._version = version
        self._starting: asyncio.Task[Postgres] | None = None
        self._alone: LeaderLock | None = None
        self._ledger: Ledger | None = None
        self.replicas = Replicas("")

    @property
    def is_private(self) -> bool:
        """Whether the server is the demo's own."""
        return self._given is None

    async def open(self) -> Ledger:
        """Start the server or connect to the one that was given, and make the ledger.

        Raises:
            DemoError, LedgerError, ValueError, PgElectError: it cannot be done; the message is for the user.
        """
        dsn = self._given if self._given is not None else await self._start_server()
        self.replicas = Replicas(dsn)
        self._ledger = ledger = await Ledger.open(dsn)
        await self._be_alone(dsn)
        await uninterrupted(ledger.make())  # cut short, it could still be made after it was dropped
        return ledger

    async def close(self) -> list[str]:
        """End the replicas, drop the ledger, end the server; what could not be done is returned in words."""
        problems: list[str] = []
        await self._attempt(self.replicas.end(), "the replicas could not be ended", problems)
        if self._ledger is not None:
            await self._attempt(self._ledger.drop(), f"the schema {SCHEMA} could not be dropped", problems)
        if self._alone is not None:
            await self._attempt(self._alone.shutdown(), "the demo's own lock could not be unlocked", problems)
        if self._starting is not None:
            await asyncio.wait({self._starting})
            if not self._starting.cancelled() and self._starting.exception() is None:
                await asyncio.to_thread(self._starting.result().close)
        return [] if self.is_private else problems

    async def _start_server(self) -> str:
        for name in [name for name in os.environ if name.startswith("PG") and not name.startswith("PGELECT")]:
            del os.environ[name]  # libpq's environment is about another server
        # A thread, so that a signal is heard meanwhile. It cannot be cancelled: close() waits for it.
        self._starting = asyncio.create_task(asyncio.to_thread(throwaway_postgres, self._version))
        await asyncio.wait({self._starting})
        try:
            return self._starting.result().dsn()
        except _START_FAILURES as error:
            raise DemoError(str(error)) from error

    async def _be_alone(self, dsn: str) -> None:
        """Hold a lock for as long as the demo runs; its guards also refuse a server that will not do."""
        errors: list[Exception] = []
        self._alone = alone = LeaderLock(dsn, name="pgelect/demo", fencing=False)
        alone.on_error(errors.append)
        await alone.start()
        try:
            await alone.wait_for_leadership(_ALONE_WITHIN_S)
        except TimeoutError:
            if errors and isinstance(errors[-1], PgElectError):
                raise errors[-1] from None
            running = "another pgelect demo is running in this database; wait until it has ended"
            raise DemoError(str(errors[-1]) if errors else running) from None

    async def _attempt(self, step: Awaitable[None], failing: str, problems: list[str]) -> None:
        try:
            await step
        except (PgElectError, OSError) as error:
            problems.append(f"{failing}: {error}")
