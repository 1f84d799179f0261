"""A book: what one process has seen, a JSON object a line, each with the time at which it was so.

The clock counts suspended time and is common to all processes of the machine (CLOCK_BOOTTIME on Linux), the same that
the library trusts by. A line is one write(2), so it is in the file even when the process is killed right after it.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from pgelect._engine.clock import SystemClock

if TYPE_CHECKING:
    from pathlib import Path

now = SystemClock().now


class Book:
    """A file that is only appended to. ``write`` may be called from any thread."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, event: str, at: float | None = None, **more: object) -> None:
        """Write one line."""
        line = {"event": event, "at": now() if at is None else at, **more}
        os.write(self._fd, json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def read(path: Path) -> list[dict[str, Any]]:
    """Read a book. The last line may have been cut short by a kill: it is left out then."""
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1]]
