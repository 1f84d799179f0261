"""Both ends of a nursery: a program that has imported an elector, and forks a process for each candidate.

A candidate is then there within milliseconds. Dozens of interpreters that start would be most of what the machine does,
and what is timed in milliseconds would be timed beside that.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from benchmarks.closing import Closing
from benchmarks.process import DidNotHappenError, python

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_ROOT = Path(__file__).resolve().parents[2]
_MESSAGE = 65536
_ENDS_WITHIN_S = 10.0


class Newborn:
    """A process that a nursery forked, as ``benchmarks.process.Child`` needs one. The nursery reaps it."""

    def __init__(self, pid: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.pid = pid
        self.stdin: IO[bytes] | None = stdin
        self.stdout: IO[bytes] | None = stdout
        self._handle: int | None = os.pidfd_open(pid)  # its number may be given to another once it has ended

    def poll(self) -> int | None:
        """Return None while it runs; with which status it ended, only the nursery knows."""
        return -1 if self._handle is None or select.select([self._handle], [], [], 0)[0] else None

    def wait(self, timeout: float | None = _ENDS_WITHIN_S) -> int:
        """Return once it has ended."""
        if self._handle is not None:
            if not select.select([self._handle], [], [], timeout)[0]:
                raise DidNotHappenError(f"the process {self.pid} did not end within {timeout:g} s")
            os.close(self._handle)
            self._handle = None
        return -1

    def kill(self) -> None:
        """Kill it, stopped or not."""
        if self._handle is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)


class Nursery(Closing):
    """The program, as seen by the one that started it. May be used by many threads."""

    def __init__(self, module: str) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [*python("benchmarks.peers.worker", module, str(theirs.fileno()))]
            self._process = subprocess.Popen(command, cwd=_ROOT, pass_fds=[theirs.fileno()])
        self._socket = ours
        self._socket.settimeout(30.0)
        self._turn = threading.Lock()
        self._module = module

    def spawn(self, arguments: Sequence[str | Path], complaints: IO[bytes]) -> Newborn:
        """Have a candidate born; the arguments are its own."""
        theirs_in, ours_in = os.pipe()
        ours_out, theirs_out = os.pipe()
        try:
            with self._turn:
                message = json.dumps([str(each) for each in arguments]).encode()
                socket.send_fds(self._socket, [message], [theirs_in, theirs_out, complaints.fileno()])
                pid = self._socket.recv(_MESSAGE)
        except OSError as error:
            raise DidNotHappenError(f"{self._module}: no process was born ({error})") from error
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        if not pid:
            raise DidNotHappenError(f"{self._module}: the program that starts its processes has ended")
        return Newborn(int(pid), os.fdopen(ours_in, "wb"), os.fdopen(ours_out, "rb"))

    def close(self) -> None:
        """End it, and whatever it has borne."""
        self._socket.close()
        try:
            self._process.wait(_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def serve(descriptor: int, live: Callable[[list[str]], None]) -> None:
    """Fork a process for each message, which lives with its arguments; return when the other end is closed."""
    born: set[int] = set()

    def reap(*_: object) -> None:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                born.discard(ended)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other end hears of it, and closes
    signal.signal(signal.SIGCHLD, reap)
    with socket.socket(fileno=descriptor) as asked:
        while True:
            message, descriptors, _, _ = socket.recv_fds(asked, _MESSAGE, 3)
            if not message:
                break
            pid = os.fork()
            if pid == 0:
                asked.close()
                _be_born(descriptors)
                live(json.loads(message))
                os._exit(0)
            for each in descriptors:
                os.close(each)
            born.add(pid)
            asked.send(str(pid).encode())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # from here on nobody is reaped, and no number means another process
    for pid in born:
        os.kill(pid, signal.SIGKILL)


def _be_born(descriptors: list[int]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
