"""An observer in the background, and what it has seen."""

import asyncio
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self

from pgelect import LeaderRecord
from pgelect.observe import ChangeKind, LeadershipChange, observe
from tests.support.waiting import eventually


class Observer:
    """`async with Observer(dsn, key) as seen:` iterates over the changes; the first is there when the block begins."""

    def __init__(self, dsn: str, key: Any = None, **settings: Any) -> None:
        self.changes: list[LeadershipChange] = []
        self._passed = 0
        self._iteration = observe(dsn, key, **settings)
        self._task: asyncio.Task[None] | None = None

    @property
    def kinds(self) -> list[str]:
        """What it was told, in order."""
        return [change.kind.value for change in self.changes]

    @property
    def told(self) -> list[tuple[str, int | None]]:
        """What it was told, with the token of the record."""
        return [(change.kind.value, change.record.token if change.record else None) for change in self.changes]

    async def sees(self, kind: str, token: int | None = None, within_s: float = 15.0) -> LeadershipChange:
        """Wait for the next change of that kind, after all that was waited for before; those before it are passed."""
        wanted = ChangeKind(kind)

        def found() -> list[LeadershipChange]:
            assert self._task is not None
            if self._task.done():
                self._task.result()
            return [
                change
                for change in self.changes[self._passed :]
                if change.kind is wanted and (token is None or (change.record or _NONE).token == token)
            ]

        try:
            change = (await eventually(found, within_s))[0]
        except AssertionError as late:
            raise AssertionError(f"{kind} of {token} was not told, but {self.told[self._passed :]}") from late
        self._passed = next(n for n, one in enumerate(self.changes) if one is change) + 1
        return change

    async def close(self) -> None:
        """Cancel the iteration, and wait for its end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        async with aclosing(self._iteration) as changes:
            async for change in changes:
                self.changes.append(change)

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        try:
            await self.sees("present")
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


class _Nobody:
    token = None


_NONE: LeaderRecord | _Nobody = _Nobody()
