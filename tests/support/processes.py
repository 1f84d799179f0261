"""A Python program in a process of its own, to be talked to, stopped and killed."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import IO, Any, Self, TypeVar

from tests.support.waiting import scaled

T = TypeVar("T")


class Worker:
    """Runs `python *arguments`, as `Worker("-m", "module")` or `Worker("-c", code, dsn)`; reads what it prints.

    `lines` and `errors` grow as it prints; a line of standard output that begins with "{" is also a JSON object in
    `events`. Output is unbuffered.
    """

    def __init__(self, *arguments: str, env: Mapping[str, str] | None = None, cwd: str | None = None) -> None:
        self.lines: list[str] = []
        self.errors: list[str] = []
        self.events: list[dict[str, Any]] = []
        self._news = threading.Condition()
        self._process = subprocess.Popen(
            [sys.executable, "-u", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env={**os.environ, **(env or {})},
        )
        self._readers = [
            threading.Thread(target=self._read, args=(stream, into), daemon=True)
            for stream, into in ((self._process.stdout, self.lines), (self._process.stderr, self.errors))
        ]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        """The pid of the process."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit status, or None while it runs."""
        return self._process.poll()

    def wait_line(self, wanted: str | Callable[[str], bool], timeout_s: float = 10.0, *, after: int = 0) -> str:
        """Return the first line from number `after` on that matches the regex or predicate, waiting for it."""
        matches = wanted if callable(wanted) else _searching(wanted)
        return self._wait_for(self.lines, matches, after, timeout_s, f"line {wanted!r}")

    def wait_event(
        self, matches: Callable[[dict[str, Any]], bool], timeout_s: float = 10.0, *, after: int = 0
    ) -> dict[str, Any]:
        """Return the first JSON event from number `after` on that matches, waiting for it."""
        return self._wait_for(self.events, matches, after, timeout_s, "event")

    def tell(self, line: str) -> None:
        """Write one line to its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def signal(self, number: int) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def stop(self) -> None:
        """Stop it in its tracks with SIGSTOP; returns when the system says that it is stopped."""
        self.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def cont(self) -> None:
        """Let a stopped process go on."""
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it with SIGKILL, and return when it is gone."""
        self._process.kill()
        self._process.wait()

    def wait(self, timeout_s: float = 10.0) -> int:
        """Wait for its end, and return the exit status. All that it printed is in `lines` and `errors` then."""
        try:
            status = self._process.wait(scaled(timeout_s))
        except subprocess.TimeoutExpired:
            raise AssertionError(self._complaint("the end of the process", timeout_s)) from None
        for reader in self._readers:
            reader.join(scaled(timeout_s))
        return status

    def close(self) -> None:
        """Kill it if it runs, stopped or not, and reap it. May be called again."""
        if self._process.poll() is None:
            self.cont()
            self.kill()
        if self._process.stdin is not None:
            with suppress(OSError):  # what it never read
                self._process.stdin.close()
        for reader, stream in zip(self._readers, (self._process.stdout, self._process.stderr), strict=True):
            reader.join(1.0)  # a grandchild may hold the pipe open: then it is left to the thread
            if stream is not None and not reader.is_alive():
                stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, stream: IO[str], into: list[str]) -> None:
        for line in stream:
            text = line.rstrip("\n")
            with self._news:
                into.append(text)
                if into is self.lines and text.startswith("{"):
                    with suppress(ValueError):
                        self.events.append(json.loads(text))
                self._news.notify_all()

    def _wait_for(self, found: list[T], matches: Callable[[T], bool], after: int, timeout_s: float, what: str) -> T:
        deadline = time.monotonic() + scaled(timeout_s)
        seen = after
        with self._news:
            while True:
                for item in found[seen:]:
                    if matches(item):
                        return item
                seen = max(seen, len(found))
                left = deadline - time.monotonic()
                ended = not any(reader.is_alive() for reader in self._readers)
                if left <= 0 or ended:
                    raise AssertionError(self._complaint(what, timeout_s))
                self._news.wait(min(left, 0.2))  # short: the end of a reader is not announced

    def _complaint(self, what: str, timeout_s: float) -> str:
        said, complained = "\n".join(self.lines[-30:]), "\n".join(self.errors[-30:])
        return (
            f"no {what} within {scaled(timeout_s):g} s (exit status {self.returncode})\n"
            f"it printed:\n{said}\nand on standard error:\n{complained}"
        )


def _searching(pattern: str) -> Callable[[str], bool]:
    compiled = re.compile(pattern)
    return lambda line: compiled.search(line) is not None
