"""The loop of an observer: look, tell what has changed, wait for news; and begin anew when the connection breaks."""

from __future__ import annotations

import asyncio
import itertools
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeAlias

from pgelect._changes import ChangeKind, LeadershipChange, kinds_of, terms_between
from pgelect._postgres.watching import Watcher
from pgelect.errors import ForkedError, PgElectError
from pgelect.retry import ExponentialBackoff, RetryContext

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Mapping

    from pgelect._engine.model import LeaderRecord, LockKey

    _Seen: TypeAlias = Mapping[LockKey, LeaderRecord]

_APART_S = 0.01  # between two looks, however much there is to hear
_BACKOFF = ExponentialBackoff(base_s=0.2, max_s=5.0)


async def observed(dsn: str, key: LockKey | None, look_every_s: float) -> AsyncGenerator[LeadershipChange, None]:
    """Iterate over the changes of a lock, or of all locks; see ``pgelect.observe.observe``."""
    watcher, seen = await _begin(dsn, key, look_every_s)
    try:
        looked_at = time.monotonic()
        for change in _present(key, seen):
            yield change
        while True:
            try:
                await watcher.wait(max(0.0, looked_at + look_every_s - time.monotonic()))
                await asyncio.sleep(max(0.0, looked_at + _APART_S - time.monotonic()))
                looked_at = time.monotonic()
                now: _Seen = await watcher.look()
            except ForkedError:
                raise
            except PgElectError as error:
                watcher.close()
                yield _blind(key, seen, error)
                watcher, now = await _begin_again(dsn, key, look_every_s, error)
                looked_at = time.monotonic()
                yield _back(key, seen, now)
            for change in _changes(seen, now):
                yield change
            seen = now
    finally:
        watcher.close()


async def _begin(dsn: str, key: LockKey | None, look_every_s: float) -> tuple[Watcher, _Seen]:
    watcher = await Watcher.open(dsn, key, look_every_s)
    try:
        return watcher, await watcher.look()
    except BaseException:
        watcher.close()
        raise


async def _begin_again(dsn: str, key: LockKey | None, look_every_s: float, error: Exception) -> tuple[Watcher, _Seen]:
    """For as long as it takes, whatever is in the way: a right that was taken may be given again."""
    since, delay_s = time.monotonic(), None
    for attempt in itertools.count(1):
        delay_s = _BACKOFF.next_delay_s(RetryContext(attempt, time.monotonic() - since, delay_s, error))
        await asyncio.sleep(delay_s)
        try:
            return await _begin(dsn, key, look_every_s)
        except ForkedError:
            raise
        except PgElectError as again:
            error = again
    raise AssertionError("it counts for ever")


# What is told


def _told(
    kind: ChangeKind,
    key: LockKey | None,
    *,
    record: LeaderRecord | None = None,
    previous: LeaderRecord | None = None,
    missed_terms: int = 0,
    error: Exception | None = None,
) -> LeadershipChange:
    return LeadershipChange(kind, key, record, previous, missed_terms, error, datetime.now(UTC))


def _present(key: LockKey | None, seen: _Seen) -> Iterator[LeadershipChange]:
    if not seen:
        yield _told(ChangeKind.PRESENT, key)
    for found, record in seen.items():
        yield _told(ChangeKind.PRESENT, found, record=record)


def _blind(key: LockKey | None, seen: _Seen, error: Exception) -> LeadershipChange:
    return _told(ChangeKind.BLIND, key, previous=None if key is None else seen.get(key), error=error)


def _back(key: LockKey | None, seen: _Seen, now: _Seen) -> LeadershipChange:
    missed = sum(terms_between(seen.get(found), record) for found, record in now.items())
    if key is None:
        return _told(ChangeKind.BACK, None, missed_terms=missed)
    return _told(ChangeKind.BACK, key, record=now.get(key), previous=seen.get(key), missed_terms=missed)


def _changes(seen: _Seen, now: _Seen) -> Iterator[LeadershipChange]:
    for key, record in now.items():
        before = previous = seen.get(key)
        for kind in kinds_of(before, record):
            missed = max(0, terms_between(before, record) - 1) if kind is ChangeKind.BEGAN else 0
            yield _told(kind, key, record=record, previous=previous, missed_terms=missed)
            previous = record
