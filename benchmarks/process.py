"""Both ends of a pipe: a process of the benchmark, and the program that started it.

The process reports events as lines of JSON, each with the time at which it happened. That is CLOCK_MONOTONIC, which all
processes of a machine share, so how late a line is read does not matter.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from benchmarks.closing import Closing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

STARTS_WITHIN_S = 30.0
ANSWERS_WITHIN_S = 30.0
"""What takes longer than these has not happened; they are no targets."""

_ROOT = Path(__file__).resolve().parent.parent


class DidNotHappenError(Exception):
    """Something that had to happen did not: there is nothing to measure."""


def report(event: str, at: float, **more: object) -> None:
    """Write one event to standard output. One system call: it may be made from a signal handler."""
    os.write(1, json.dumps({"event": event, "at": at, **more}).encode() + b"\n")


def python(module: str, *arguments: str) -> list[str | Path]:
    """Give the command that runs a module of this package."""
    return [sys.executable, "-m", module, *arguments]


class Process(Protocol):
    """What a child needs of a process: the part of ``subprocess.Popen`` that is used here."""

    pid: int
    stdin: IO[bytes] | None
    stdout: IO[bytes] | None

    def poll(self) -> int | None:
        """Return its status, or None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Return its status once it has ended."""

    def kill(self) -> None:
        """Kill it."""


def popen(command: Sequence[str | Path], complaints: IO[bytes]) -> Process:
    """Start a program."""
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints, cwd=_ROOT)


class Child(Closing):
    """A process, with the name under which the server knows its session."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        spawn: Callable[[Sequence[str | Path], IO[bytes]], Process] = popen,
    ) -> None:
        self.name = name
        self._events: list[dict[str, Any]] = []
        self._news = threading.Condition()
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 -- closed by close()
        self._process = spawn(command, self._complaints)
        self._reader = threading.Thread(target=self._read, name=f"reader of {name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether it runs no more."""
        return self._process.poll() is not None

    def mark(self) -> int:
        """Return the number of events so far, to wait for one after it."""
        return len(self._events)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return all events of that kind so far."""
        return [event for event in tuple(self._events) if event["event"] == kind]

    def wait_for(
        self, event: str, after: int = 0, within_s: float = ANSWERS_WITHIN_S, *, at_least: float = 0.0
    ) -> dict[str, Any]:
        """Return the first event of that kind from number ``after`` on that happened at ``at_least`` or later.

        Raises:
            DidNotHappenError: it did not come.
        """
        deadline = time.monotonic() + within_s
        with self._news:
            while True:
                for seen in self._events[after:]:
                    if seen["event"] == event and seen["at"] >= at_least:
                        return seen
                left_s = deadline - time.monotonic()
                if left_s <= 0 or not self._reader.is_alive():
                    raise DidNotHappenError(self._complaint(event, within_s))
                self._news.wait(min(left_s, 0.5))  # the end of the reader is not announced

    def tell(self, line: str) -> None:
        """Send a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def signal(self, number: int) -> float:
        """Send a signal; return the time just before."""
        at = time.monotonic()
        os.kill(self.pid, number)
        return at

    def close(self) -> None:
        """Kill the process, stopped or not, and reap it. May be called again."""
        self._process.kill()
        self._process.wait()
        self._reader.join(1.0)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._complaints.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._news:
                self._events.append(json.loads(line))
                self._news.notify_all()

    def last_words(self) -> str:
        """Return what it last wrote to standard error."""
        self._complaints.seek(0)
        return self._complaints.read().decode(errors="replace").strip()[-2000:]

    def _complaint(self, event: str, within_s: float) -> str:
        said = self.last_words()
        seen = ", ".join(e["event"] for e in self._events[-10:]) or "nothing"
        status = self._process.poll()
        state = "it runs" if status is None else f"it ended with status {status}"
        return f"{self.name}: no event '{event}' within {within_s:g} s ({state}; it reported {seen})\n{said}".rstrip()
