"""A program on a pseudo-terminal, as a user at a screen has it: keys reach it, and Ctrl-C interrupts it."""

import fcntl
import os
import re
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Self

from tests.support.waiting import eventually_sync, scaled

# A session leader gets the first terminal it opens as its controlling one, and so its Ctrl-C.
_TAKE_TERMINAL = (
    "import os, sys; os.open(os.ttyname(0), os.O_RDWR); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)
_ROWS, _COLUMNS = 40, 90


class Terminal:
    """Runs `python *arguments` there; `text` grows with all that is drawn, control sequences included."""

    def __init__(self, *arguments: str, env: Mapping[str, str], cwd: str) -> None:
        self._screen, inner = os.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
        kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _TAKE_TERMINAL, *arguments],
                stdin=inner,
                stdout=inner,
                stderr=inner,
                start_new_session=True,
                env={**kept, "TERM": "xterm-256color", **env},
                cwd=cwd,
            )
        finally:
            os.close(inner)
        self.text = ""
        self._hung_up = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The pid of the process."""
        return self._process.pid

    def wait_text(self, pattern: str, timeout_s: float = 60.0) -> None:
        """Wait until something that matches has been drawn."""
        try:
            eventually_sync(lambda: re.search(pattern, self.text), timeout_s, f"{pattern!r} is drawn")
        except AssertionError as error:
            error.add_note(f"drawn so far: {self.text!r}")
            raise

    def press(self, keys: bytes) -> None:
        """Type."""
        os.write(self._screen, keys)

    def hang_up(self) -> None:
        """Close the terminal, as one closes its window, once something more was drawn."""
        self._hung_up = True
        self._reader.join(scaled(10))

    def wait(self, timeout_s: float = 30.0) -> int:
        """Wait for its end, and return the exit status. All that it drew is in `text` then."""
        status = self._process.wait(scaled(timeout_s))
        self._reader.join(scaled(timeout_s))
        return status

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join(1.0)

    def _read(self) -> None:
        with suppress(OSError):  # EIO: nobody has the terminal open any more
            while not self._hung_up:
                self.text += os.read(self._screen, 65536).decode(errors="replace")
        os.close(self._screen)  # here, where no read is under way
