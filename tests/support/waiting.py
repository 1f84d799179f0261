"""Waiting for a condition with a deadline, in place of sleeping and hoping.

The environment's PGELECT_TEST_TIMEOUT_SCALE (default 1) stretches every deadline on a slow machine.
"""

import asyncio
import inspect
import os
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

TIMEOUT_SCALE = float(os.environ.get("PGELECT_TEST_TIMEOUT_SCALE", "1"))
POLL_S = 0.01


def scaled(seconds: float) -> float:
    """A waiting time, stretched for slow machines. Not for times that a test asserts as upper bounds of behaviour."""
    return seconds * TIMEOUT_SCALE


async def eventually(
    predicate: Callable[[], T | Awaitable[T]], timeout_s: float = 10.0, message: str = "condition"
) -> T:
    """Poll until the predicate's value is truthy, and return it; AssertionError shows the last value."""
    deadline = time.monotonic() + scaled(timeout_s)
    while True:
        value = predicate()
        last = await value if inspect.isawaitable(value) else value
        if last:
            return last
        if time.monotonic() > deadline:
            raise AssertionError(_complaint(message, timeout_s, last))
        await asyncio.sleep(POLL_S)


def eventually_sync(predicate: Callable[[], T], timeout_s: float = 10.0, message: str = "condition") -> T:
    """The same for tests without an event loop."""
    deadline = time.monotonic() + scaled(timeout_s)
    while True:
        last = predicate()
        if last:
            return last
        if time.monotonic() > deadline:
            raise AssertionError(_complaint(message, timeout_s, last))
        time.sleep(POLL_S)


def _complaint(message: str, timeout_s: float, last: object) -> str:
    return f"{message}: not so within {scaled(timeout_s):g} s; last value: {last!r}"
