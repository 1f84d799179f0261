"""The command of ``pgelect run``: started under its keeper, told what it must know, and waited for. See run_keeper."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import sys
from contextlib import suppress
from shutil import which
from typing import TYPE_CHECKING

from pgelect.cli import run_keeper

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NOT_FOUND, NOT_EXECUTABLE = 127, 126
_KILLED = -signal.SIGKILL


class CommandError(Exception):
    """The command could not be started.

    Attributes:
        code: the exit code that shells give this: 127 where there is no such file, 126 otherwise.
    """

    def __init__(self, name: str, number: int) -> None:
        self.code = NOT_FOUND if number == errno.ENOENT else NOT_EXECUTABLE
        why = os.strerror(number)
        if number == errno.ENOENT:
            why = "there is no such command" if which(name) is None else "the interpreter that it names does not exist"
        elif number == errno.ECHILD:
            why = "the process that was to start it was killed"
        super().__init__(f"cannot start {name!r}: {why}")


class TooLateError(Exception):
    """Trust in leadership ran out before the command was started."""


class Command:
    """One run of the command, and of all that it starts in its process group."""

    def __init__(self, process: asyncio.subprocess.Process, channel: socket.socket) -> None:
        self._process = process
        self._channel = channel
        self._heard = b""
        self.was_asked = False
        """To end, by this process."""
        self._pid: int | None = None
        self._status = _KILLED  # unless something else is heard
        self._over = False
        self.exited_by_itself = False
        """It ended before it was asked to."""

    @classmethod
    async def start(
        cls,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        trusted_until: float,
        grace_s: float,
        loss_grace_s: float,
    ) -> Command:
        """Start it. Whatever ends this process, or this call, ends the command.

        Args:
            arguments: the command and its arguments.
            environment: all of its environment.
            trusted_until: as for ``trust_until``.
            grace_s: between TERM and KILL, for what outlives the command in its group.
            loss_grace_s: the same when trust has run out.

        Raises:
            CommandError: it cannot be started.
            TooLateError: trust has run out already.
        """
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        settings = map(str, (theirs.fileno(), trusted_until, grace_s, loss_grace_s))
        try:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    *("-I", "-S", run_keeper.__file__, *settings, *arguments),
                    stdin=asyncio.subprocess.DEVNULL if os.isatty(0) else None,
                    env=environment,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # what is sent to our group, as Ctrl-C is, comes to us alone
                )
        except BaseException:
            ours.close()
            raise
        command = cls(process, ours)
        try:
            await command._begin(arguments[0])
        except BaseException:
            ours.close()
            await process.wait()
            raise
        return command

    @property
    def pid(self) -> int:
        """The process of the command, and the number of its group."""
        assert self._pid is not None  # noqa: S101 -- it was started
        return self._pid

    def trust_until(self, at: float) -> None:
        """Let it run until then, a reading of ``run_keeper.now()``, should nothing more be heard of us."""
        self._tell(f"until {at}")

    def send(self, number: int) -> None:
        """Send a signal to the whole group."""
        self._tell(f"signal {number}")

    def stop(self, grace_s: float) -> None:
        """Ask the whole group to end with TERM, and kill after ``grace_s`` what is left. The shortest grace counts."""
        self.was_asked = True
        self._tell(f"stop {grace_s}")

    async def gone(self) -> int:
        """Wait until nothing of the group is left; return the command's exit status, as ``subprocess`` gives it.

        May be called again afterwards, but not by two at once.
        """
        if self._over:
            return self._status
        while (line := await self._line()) not in {None, "gone"}:
            word, _, value = str(line).partition(" ")
            self._status = int(value)
            self.exited_by_itself = word == "exited"
        if line is None:  # the keeper was killed, and so Linux has killed the command
            self.exited_by_itself = not self.was_asked
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        await self._process.wait()
        self._channel.close()
        self._over = True
        return self._status

    def close(self) -> None:
        """Have the keeper kill at once whatever is left."""
        with suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)

    async def _begin(self, name: str) -> None:
        word, _, value = (await self._line() or "").partition(" ")
        if word == "forked":
            self._pid = int(value)
            word, _, value = (await self._line() or "started").partition(" ")  # nothing: gone() sees why
        if word == "late":
            raise TooLateError
        if word != "started":
            raise CommandError(name, int(value or errno.ECHILD))

    async def _line(self) -> str | None:
        """Wait for the next word of the keeper; None when there will be none."""
        while b"\n" not in self._heard:
            try:
                chunk = await asyncio.get_running_loop().sock_recv(self._channel, 4096)
            except ConnectionError:  # it ended without having read all
                chunk = b""
            if not chunk:
                return None
            self._heard += chunk
        line, self._heard = self._heard.split(b"\n", 1)
        return line.decode()

    def _tell(self, line: str) -> None:
        with suppress(OSError):  # it is gone; or stopped, and its pipe full
            self._channel.send(f"{line}\n".encode())
