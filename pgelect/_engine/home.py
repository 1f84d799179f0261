"""Where a lock lives: the one process, and while it runs the one event loop, that may work with it."""

from __future__ import annotations

import asyncio
import os

from pgelect.errors import ForkedError


def check_process(owner_pid: int) -> None:
    """Raise ForkedError in any process but that one."""
    if os.getpid() != owner_pid:
        raise ForkedError(owner_pid)


class Owned:
    """Something that belongs to the process that made it, and to no fork of that."""

    _owner_pid: int

    def _owns(self) -> bool:
        """Tell whether this is that process."""
        return os.getpid() == self._owner_pid

    def _check_pid(self) -> None:
        """Raise ForkedError in any other process."""
        check_process(self._owner_pid)


def check_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Raise RuntimeError unless the caller runs in that event loop."""
    if _running_loop() is not loop:
        raise RuntimeError(
            "this lock runs in another event loop; call it there, for example with run_coroutine_threadsafe(), or with "
            "the loop's call_soon_threadsafe() if it is nothing to await"
        )


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
