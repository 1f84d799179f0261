"""Leaks on purpose, one for each thing that the soak counts or weighs: they show that it would be seen."""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

import psycopg

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KILOBYTE = 1000
BELOW_PYTHON = 40_000
"""As a connection of libpq's would be that nobody frees: it has two buffers of 16 kB."""


def _memory(_: ExitStack, __: str) -> Callable[[], object]:
    kept: list[bytes] = []
    return lambda: kept.append(bytes(KILOBYTE))


def _object(_: ExitStack, __: str) -> Callable[[], object]:
    kept: list[Any] = []
    return lambda: kept.append([])


def _memory_below_python(stack: ExitStack, _: str) -> Callable[[], object]:
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.restype, libc.free.argtypes = None, [ctypes.c_void_p]

    pieces: list[int] = []

    def spill() -> None:
        piece = libc.malloc(BELOW_PYTHON)
        ctypes.memset(piece, 1, BELOW_PYTHON)
        pieces.append(piece)

    def free() -> None:
        for piece in pieces:
            libc.free(piece)

    stack.callback(free)
    return spill


def _task(stack: ExitStack, _: str) -> Callable[[], object]:
    def spill() -> None:
        stack.callback(asyncio.get_running_loop().create_task(asyncio.Event().wait()).cancel)

    return spill


def _thread(stack: ExitStack, _: str) -> Callable[[], object]:
    end = threading.Event()

    def spill() -> None:
        thread = threading.Thread(target=end.wait, daemon=True)
        thread.start()
        stack.callback(thread.join)
        stack.callback(end.set)

    return spill


def _descriptor(stack: ExitStack, _: str) -> Callable[[], object]:
    return lambda: stack.callback(os.close, os.dup(0))


def _session(stack: ExitStack, dsn: str) -> Callable[[], object]:
    left: list[int] = [20]  # of the connections that the server admits some are needed

    def spill() -> None:
        if left[0] > 0:
            left[0] -= 1
            stack.enter_context(psycopg.connect(dsn, application_name="leaked"))

    return spill


def _lock(stack: ExitStack, dsn: str) -> Callable[[], object]:
    conn, keys = stack.enter_context(psycopg.connect(dsn, autocommit=True, application_name="leaked")), count()
    return lambda: conn.execute("SELECT pg_catalog.pg_advisory_lock(%s)", (next(keys),))


def _complaint(_: ExitStack, __: str) -> Callable[[], object]:
    def spill() -> None:
        failed = asyncio.get_running_loop().create_future()
        failed.set_exception(RuntimeError("nobody asks for this"))

    return spill


LEAKS: dict[str, Callable[[ExitStack, str], Callable[[], object]]] = {
    "memory": _memory,
    "object": _object,
    "memory-below-python": _memory_below_python,
    "task": _task,
    "thread": _thread,
    "descriptor": _descriptor,
    "session": _session,
    "lock": _lock,
    "complaint": _complaint,
}


@contextmanager
def leak(kind: str | None, dsn: str) -> Iterator[Callable[[], object]]:
    """Give what leaks a little each time that it is called; all of it is taken back at the end."""
    with ExitStack() as stack:
        yield LEAKS[kind](stack, dsn) if kind is not None else lambda: None
