"""The keeper of the command of ``pgelect run``: a small process that sees to it that the command ends when it must.

It stands between ``pgelect run`` and the command, and depends on nothing but the standard library. It starts the
command in a process group of its own, and ends the whole group

- when ``run`` says so: TERM, and KILL after a grace;
- when ``run`` is gone, however that came about: KILL at once, since its lock is free by now;
- when the trust that ``run`` has in its leadership has run out, and ``run`` is stopped or hangs and so does not say it;
- when the command has ended and left others of its group behind: as when ``run`` says so.

Where the keeper is killed itself, Linux kills the command (PR_SET_PDEATHSIG), and ``run`` the rest of the group.

The channel is a socket; ``run`` alone has its other end. Both sides write lines:

    run:     until T | signal N | stop GRACE_S     T: a reading of the clock below; stop: the shortest grace counts
    keeper:  forked PID | started | failed ERRNO | late | exited STATUS | ended STATUS | gone

Forked: its group is known, and only now it begins, so that nothing can run that nobody would end. Late: trust had run
out before that. Exited: by itself; ended: it was asked to. STATUS is as subprocess has it, -N for signal N.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False  # as type checkers know it; typing would take its time to import
if TYPE_CHECKING:
    from collections.abc import Callable

_CLOCK = getattr(time, "CLOCK_MONOTONIC" if sys.platform == "darwin" else "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # <linux/prctl.h>
_LOOK_S = 0.02  # between two looks whether the rest of a group has ended: nobody tells
_LONGEST_S = 0.5  # of a wait: what select measures stands still while the machine is suspended
_OURS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)  # and not for us
_FOR_EVER = float("inf")


def now() -> float:
    """Read the clock that trust is measured by; the same for all processes of a machine, and it goes on in suspend."""
    return time.clock_gettime(_CLOCK)


class Keeper:
    """Watches one command."""

    def __init__(self, channel: int, trusted_until: float, grace_s: float, loss_grace_s: float) -> None:
        self._channel = channel
        self._grace_s = grace_s
        self._loss_grace_s = loss_grace_s
        self._heard = b""
        self._orphaned = False
        self._trusted_until = trusted_until
        self._kill_at = _FOR_EVER
        self._stopping = False
        self._pid = 0
        self._running = False

    def keep(self, command: list[str]) -> None:
        """Run the command, and return when nothing of its group is left."""
        prctl(_PR_SET_CHILD_SUBREAPER, 1)  # orphans of the group come to us: none stays behind as a zombie
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, *_OURS):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _do_nothing)  # to ignore it would be inherited by the command
        if now() >= self._trusted_until:
            self._tell("late")
            return
        try:
            self._pid = start(command, lambda pid: self._tell(f"forked {pid}"))
        except OSError as error:
            self._tell(f"failed {error.errno}")
            return
        self._running = True
        self._tell("started")
        while self._is_left():
            watched = [woken] if self._orphaned else [woken, self._channel]
            ready, _, _ = select.select(watched, [], [], self._patience_s())
            if woken in ready:
                os.read(woken, 4096)
            if self._channel in ready:
                self._hear()
            if now() >= self._trusted_until:
                self._stop(self._loss_grace_s)
            if now() >= self._kill_at:
                self._send(signal.SIGKILL)
        self._tell("gone")

    def _is_left(self) -> bool:
        """Whether anything of the group lives. While it does, or is not reaped, its number is nobody else's."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._pid:
                    self._running = False
                    word = "ended" if self._stopping else "exited"
                    self._tell(f"{word} {os.waitstatus_to_exitcode(ended[1])}")
        if self._running:
            return True
        try:
            os.killpg(self._pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # it lives, as another user
            pass
        self._stop(self._grace_s)
        return True

    def _patience_s(self) -> float:
        left = min(self._trusted_until, self._kill_at) - now()
        return min(left, _LONGEST_S) if self._running and left > 0 else _LOOK_S

    def _hear(self) -> None:
        try:
            chunk = os.read(self._channel, 4096)
        except ConnectionError:
            chunk = b""
        if not chunk:
            self._orphaned = True
            self._stop(0.0)
        *lines, self._heard = (self._heard + chunk).split(b"\n")
        for line in lines:
            word, _, value = line.partition(b" ")
            if word == b"until":
                self._trusted_until = float(value)
            elif word == b"signal":
                self._send(int(value))
            elif word == b"stop":
                self._stop(float(value))

    def _stop(self, grace_s: float) -> None:
        """Ask the group to end, once, and shorten the grace if it is shorter."""
        if not self._stopping:
            self._stopping = True
            self._send(signal.SIGTERM)
            self._send(signal.SIGCONT)  # who is stopped hears nothing
        self._kill_at = min(self._kill_at, now() + grace_s)

    def _send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, number)

    def _tell(self, line: str) -> None:
        with contextlib.suppress(OSError):  # nobody is there any more
            os.write(self._channel, f"{line}\n".encode())


def start(command: list[str], forked: Callable[[int], None]) -> int:
    """Start the command as the first of a group of its own; return its pid, which is the number of the group.

    It begins when ``forked`` has been told of the pid.

    Raises:
        OSError: it cannot be executed.
    """
    parent = os.getpid()
    problem, tell = os.pipe()  # closed by a successful exec
    begin, let_begin = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(let_begin)
            os.setpgid(0, 0)
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if not os.read(begin, 1) or os.getppid() != parent:  # it died meanwhile
                os._exit(1)
            for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
                signal.signal(number, signal.SIG_DFL)
            os.execvp(command[0], command)  # noqa: S606 -- what the user asked for
        except OSError as error:
            os.write(tell, str(error.errno).encode())
        finally:
            os._exit(127)
    os.close(tell)
    os.close(begin)
    forked(pid)
    os.write(let_begin, b"!")
    os.close(let_begin)
    said = os.read(problem, 16)
    os.close(problem)
    if said:
        os.waitpid(pid, 0)
        raise OSError(int(said), os.strerror(int(said)))
    return pid


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process, where the system is Linux."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _do_nothing(_number: int, _frame: object) -> None:
    """Be woken, and no more."""


def main() -> None:
    """Take the channel, the end of trust, the graces and the command from the arguments."""
    channel, trusted_until, grace_s, loss_grace_s, *command = sys.argv[1:]
    os.set_inheritable(int(channel), False)
    Keeper(int(channel), float(trusted_until), float(grace_s), float(loss_grace_s)).keep(command)


if __name__ == "__main__":
    main()
