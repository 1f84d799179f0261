"""What this process holds, and what its server holds for it: the things that a leak leaves more of."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import time
import tracemalloc
import warnings
from collections import Counter
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.looking import Observer

AT_REST_WITHIN_S = 5.0
_STEP_S = 0.01
_LOOKS, _BETWEEN_LOOKS_S = 4, 0.05
_SESSIONS = """
SELECT count(*) FROM pg_catalog.pg_stat_activity
WHERE backend_type = 'client backend' AND pid <> pg_catalog.pg_backend_pid()
"""
_LOCKS = "SELECT count(*) FROM pg_catalog.pg_locks WHERE locktype = 'advisory'"


@dataclass(frozen=True, slots=True)
class Holdings:
    """What can be counted and has to be the same before and after.

    Attributes:
        tasks: of the event loop, without the one that asks.
        threads: of the process.
        descriptors: open files and sockets of the process.
        sessions: of clients on the server, without the observer's own.
        locks: advisory locks on the server, held or waited for.
    """

    tasks: int
    threads: int
    descriptors: int
    sessions: int
    locks: int

    def more_than(self, before: Holdings) -> dict[str, int]:
        """Tell what there is more of than before, and by how much."""
        then = asdict(before)
        return {name: now - then[name] for name, now in asdict(self).items() if now > then[name]}


@dataclass(frozen=True, slots=True)
class Memory:
    """What can only be weighed, and has to stay level while the same is done again and again.

    Attributes:
        traced: bytes that Python has given out (tracemalloc).
        objects: objects that the garbage collector knows.
        rss: bytes of the whole process, what C libraries took included.
        descriptors: as in Holdings.
    """

    traced: int
    objects: int
    rss: int
    descriptors: int


_me = psutil.Process()


def holdings(observer: Observer) -> Holdings:
    """Count now."""
    return Holdings(
        tasks=len(asyncio.all_tasks()) - 1,
        threads=_me.num_threads(),
        descriptors=_me.num_fds(),
        sessions=observer.value(_SESSIONS),
        locks=observer.value(_LOCKS),
    )


async def at_rest(observer: Observer, before: Holdings | None = None) -> Holdings:
    """Count when there is no more than before; the server is given a moment to notice who has gone."""
    gc.collect()
    deadline = time.monotonic() + AT_REST_WITHIN_S
    while True:
        found = holdings(observer)
        if not (found.more_than(before) if before else found.sessions) or time.monotonic() > deadline:
            return found
        await asyncio.sleep(_STEP_S)


def kinds() -> Counter[str]:
    """Count the objects that the garbage collector knows by their type, and the modules that are loaded."""
    gc.collect()
    found = Counter(f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.get_objects())
    found.update(f"module {name}" for name in sys.modules)
    return found


async def weigh() -> Memory:
    """Weigh until several looks in a row find nothing less, and give the least: what is only passing does not count.

    On a busy machine it takes its time to pass: a session that is being closed has a second for that.
    """
    least, fruitless = await _look(), 0
    deadline = time.monotonic() + AT_REST_WITHIN_S
    while fruitless < _LOOKS and time.monotonic() < deadline:
        now = await _look()
        lesser = Memory(*map(min, astuple(least), astuple(now)))
        fruitless = 0 if lesser.objects < least.objects else fruitless + 1
        least = lesser
    return least


async def _look() -> Memory:
    await asyncio.sleep(_BETWEEN_LOOKS_S)
    gc.collect()
    traced, _ = tracemalloc.get_traced_memory()
    return Memory(traced, len(gc.get_objects()), _me.memory_info().rss, _me.num_fds())


@contextmanager
def traced() -> Iterator[None]:
    """Trace what Python gives out in here. What was given out before is not seen, so begin early."""
    if tracemalloc.is_tracing():
        yield
        return
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


@contextmanager
def complaints(loop: asyncio.AbstractEventLoop) -> Iterator[list[str]]:
    """Collect what nobody would hear of otherwise: tasks destroyed, errors never retrieved, files never closed."""
    heard: list[str] = []

    def by_loop(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        heard.append(f"{context['message']}: {context.get('exception') or context.get('task')}")

    def by_collector(what: Any) -> None:
        heard.append(f"{what.err_msg or 'ignored'}: {what.exc_value!r} in {what.object!r}")

    hook, level = sys.unraisablehook, logging.getLogger("pgelect").level
    loop.set_exception_handler(by_loop)
    sys.unraisablehook = by_collector
    logging.getLogger("pgelect").setLevel(logging.CRITICAL)  # each lost session is a line
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            yield heard
        heard += [str(each.message) for each in warned]
    finally:
        sys.unraisablehook = hook
        logging.getLogger("pgelect").setLevel(level)
        loop.set_exception_handler(None)
