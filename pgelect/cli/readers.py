"""A command that prints seldom would not notice for hours that nobody reads its pipe any more. This does at once."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine


async def while_read(work: Coroutine[Any, Any, None]) -> None:
    """Run ``work`` until it ends, or until the reader of standard output, if that is a pipe, goes away.

    Raises:
        BrokenPipeError: nobody reads any more; ``work`` was cancelled, and has ended.
    """
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)
    descriptor = _pipe()
    gone = False

    def end() -> None:
        nonlocal gone
        gone = True
        loop.remove_reader(descriptor)
        task.cancel()

    if descriptor >= 0:
        loop.add_reader(descriptor, end)  # the writing end of a pipe becomes readable only by the end of its readers
    try:
        await asyncio.wait({task})
    finally:
        if descriptor >= 0:
            loop.remove_reader(descriptor)
        task.cancel()
        await asyncio.wait({task})
    if gone and task.cancelled():
        raise BrokenPipeError(errno.EPIPE, "nobody reads the output any more")
    task.result()


def _pipe() -> int:
    """Give the descriptor of standard output if it is a pipe; -1 otherwise."""
    try:
        descriptor = sys.stdout.fileno()
        return descriptor if stat.S_ISFIFO(os.fstat(descriptor).st_mode) else -1
    except (OSError, ValueError):  # closed, or replaced by something in memory
        return -1
