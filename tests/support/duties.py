"""Duties in the background, and one that does not stop when it is told to."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from pgelect import LeaderLock, Term

Duty = Callable[[Term], Awaitable[object]]


@asynccontextmanager
async def serving(lock: LeaderLock, duty: Duty, *, repeat: bool = False) -> AsyncIterator[asyncio.Task[object]]:
    """Run lock.lead(duty); where the lock leads already, the block begins when the duty has."""
    begun = asyncio.Event()

    async def marked(term: Term) -> object:
        begun.set()
        return await duty(term)

    task = asyncio.create_task(lock.lead(marked, repeat=repeat))
    if lock.is_leader:
        await begun.wait()
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})


class Stubborn:
    """A duty, or an async callback, that does not stop when it is cancelled, but when `may_end` is set."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()

    async def __call__(self, term: Term | None = None) -> None:
        self.begun.set()
        while not self.may_end.is_set():
            with suppress(asyncio.CancelledError):
                await self.may_end.wait()


@asynccontextmanager
async def serving_stubbornly(lock: LeaderLock) -> AsyncIterator[Stubborn]:
    """Run lock.lead() with a duty that does not stop before the end of the block."""
    duty = Stubborn()
    task = asyncio.create_task(lock.lead(duty))
    await duty.begun.wait()
    try:
        yield duty
    finally:
        duty.may_end.set()
        task.cancel()
        await asyncio.wait({task})
