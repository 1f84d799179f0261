"""End a server and remove its directory when the program that made it is gone, however it went.

A shell waits on a pipe whose other end this program alone holds. The system closes that end even on SIGKILL. (The
parent-death signal of Linux would be shorter, but follows the thread that started the child, not the process.)
"""

import subprocess
from pathlib import Path

# Nothing is ever written to the pipe; `read` is built in, so no child is orphaned when the shell is killed.
# $1: file whose first line is the server's pid; $2: the directory to remove. The server has ten seconds to end.
_SCRIPT = """
read -r _
pid=$(head -n 1 "$1" 2>/dev/null)
if [ -n "$pid" ]; then
    kill -CONT "$pid"; kill -QUIT "$pid"
    n=0
    while [ $n -lt 100 ] && kill -0 "$pid"; do sleep 0.1; n=$((n + 1)); done
fi
rm -rf -- "$2"
"""


class Watch:
    """Watches over one server until `close`."""

    __slots__ = ("_shell",)

    def __init__(self, pid_file: Path, directory: Path) -> None:
        self._shell = subprocess.Popen(  # noqa: S603 - a fixed script
            ["/bin/sh", "-c", _SCRIPT, "pgelect-watch", pid_file, directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The pid of the watching shell."""
        return self._shell.pid

    def close(self) -> None:
        """End the watch. To be called after the server has stopped and its directory is gone."""
        self._shell.kill()
        self._shell.wait()
        if self._shell.stdin is not None:
            self._shell.stdin.close()
