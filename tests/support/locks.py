"""LeaderLocks with short times, what their callbacks were told, and whether the server says that a lock is free."""

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pgelect
from pgelect import FixedInterval, LeaderLock, LockState, Term
from tests.support.processes import Worker
from tests.support.server import lock_holders, lock_waiters, query
from tests.support.waiting import POLL_S, eventually, scaled

Key = tuple[int, int]

QUICK: dict[str, Any] = {"lease_s": 5.0, "health_interval_s": 0.2, "retry_strategy": FixedInterval(0.1)}
SHORT_LEASE: dict[str, Any] = {"lease_s": 1.0, "health_interval_s": 0.1}
"""For tests that wait for a lease to run out; in others a busy machine would end it."""


def make_lock(dsn: str, key: Key, **settings: Any) -> LeaderLock:
    """A lock with quick proofs and retries, unless `settings` say otherwise."""
    return LeaderLock(dsn, *key, **{**QUICK, **settings})


@asynccontextmanager
async def leading(dsn: str, key: Key, **settings: Any) -> AsyncIterator[LeaderLock]:
    """A lock that leads when the block begins."""
    async with make_lock(dsn, key, **settings) as lock:
        await lock.wait_for_leadership(scaled(10))
        yield lock


@asynccontextmanager
async def queueing(dsn: str, key: Key, **settings: Any) -> AsyncIterator[LeaderLock]:
    """A lock that waits in the server's queue when the block begins, as another session holds it."""
    before = len(lock_waiters(dsn, *key))
    async with make_lock(dsn, key, **settings) as lock:
        await eventually(lambda: len(lock_waiters(dsn, *key)) > before, message="the follower waits in the queue")
        yield lock


def state_of(lock: LeaderLock) -> LockState:
    """What it is doing now. A call: to a type checker an attribute would still be what it was compared with before."""
    return lock.state


async def is_free(dsn: str, key: Key, within_s: float = 1.0) -> None:
    """Nobody holds the lock, nor waits for it, as the server sees it."""
    await eventually(
        lambda: not lock_holders(dsn, *key) and not lock_waiters(dsn, *key), within_s, "the server has freed the lock"
    )


async def another_leads(dsn: str, key: Key) -> int:
    """A new elector wins, and stops again; its token."""
    async with leading(dsn, key) as other:
        assert len(lock_holders(dsn, *key)) == 1
        assert other.token is not None
        return other.token


async def no_tasks_but(before: set[asyncio.Task[Any]], within_s: float = 1.0) -> None:
    """Of this loop's tasks only those of `before`, and the present one, are left."""
    allowed = before | {asyncio.current_task()}
    await eventually(lambda: not asyncio.all_tasks() - allowed, within_s, "no task is left")


def token_row(dsn: str, key: Key) -> tuple[int, int, bool]:
    """Of the lock's row: the token, the number of terms, whether the last one was given up cleanly."""
    statement = "SELECT token, terms, released_at IS NOT NULL FROM pgelect.token WHERE key1 = %s AND key2 = %s"
    token, terms, released = query(dsn, statement, *key)[0]
    return token, terms, released


class Story:
    """What the callbacks of one lock were told, in order."""

    def __init__(self, lock: LeaderLock) -> None:
        self.told: list[str] = []  # the ends and beginnings of terms
        self.tokens: list[int] = []  # that each of them was told with
        self.states: list[tuple[LockState, LockState]] = []
        self.errors: list[BaseException] = []
        self.failures: list[Exception | None] = []
        lock.on_acquired(self._teller("acquired"))
        lock.on_released(self._teller("released"))
        lock.on_lost(self._teller("lost"))
        lock.on_state_change(lambda before, after: self.states.append((before, after)))
        lock.on_error(self.errors.append)
        lock.on_acquire_failed(self.failures.append)

    async def tells(self, *told: str, within_s: float = 10.0) -> None:
        """Wait until exactly this was told of terms."""
        try:
            await eventually(lambda: self.told == list(told), within_s)
        except AssertionError as late:
            raise AssertionError(f"{self.told} did not become {list(told)}") from late

    def is_paired(self) -> bool:
        """Every beginning of a term has one end, the last one perhaps not yet, and with the same token."""
        words = " ".join(self.told)
        pairs = zip(self.tokens[::2], self.tokens[1::2], strict=False)
        return re.fullmatch(r"(acquired (lost|released) ?)*(acquired)?", words) is not None and all(
            first == second for first, second in pairs
        )

    def _teller(self, what: str) -> Callable[[Term], None]:
        def tell(term: Term) -> None:
            self.told.append(what)
            self.tokens.append(term.token)

        return tell


class ThreadedLock:
    """A lock in a thread with a loop of its own: it goes on while the test blocks the test's loop."""

    def __init__(self, dsn: str, key: Key, **settings: Any) -> None:
        self.leads = threading.Event()
        self.token: int | None = None
        self._error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(dsn, key, settings), name="elector", daemon=True)

    def _run(self, dsn: str, key: Key, settings: dict[str, Any]) -> None:
        try:
            asyncio.run(self._campaign(dsn, key, settings))
        except BaseException as error:  # noqa: BLE001 - raised in the test's thread instead
            self._error = error

    async def _campaign(self, dsn: str, key: Key, settings: dict[str, Any]) -> None:
        lock = make_lock(dsn, key, **settings)

        @lock.on_acquired
        def won(term: Term) -> None:
            self.token = term.token
            self.leads.set()

        async with lock:
            while not self._stop.is_set():
                await asyncio.sleep(POLL_S)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(scaled(10))
        assert not self._thread.is_alive(), "the elector's thread does not end"
        if self._error is not None and exc is None:
            raise self._error


def program(worker: Callable[..., Worker], code: str, *arguments: object) -> Worker:
    """Run a Python program that uses this very pgelect."""
    house = str(Path(pgelect.__file__).parents[1])
    return worker("-c", code, *map(str, arguments), env={"PYTHONPATH": house})
