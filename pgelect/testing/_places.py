"""Private directories and free ports for servers that live for a short time."""

import os
import secrets
import shutil
import socket
import tempfile
from pathlib import Path

from pgelect.testing._programs import Account

# Below the ports that systems give to outgoing connections (Linux: from 32768 on): while a server is down, an outgoing
# connection could else be given its port, or a client that retries could even connect to itself.
_FIRST_PORT, _PORTS = 20_000, 12_000
_MEMORY = Path("/dev/shm")  # noqa: S108
_MEMORY_NEEDED = 2 * 2**30  # containers often have 64 MiB of it: too little
_LONGEST_SOCKET_PATH = 100  # the system's limit is 104 to 108 bytes


def free_port() -> int:
    """Return a TCP port of the loopback interface that nobody listens on at this moment."""
    for _ in range(100):
        port = _FIRST_PORT + secrets.randbelow(_PORTS)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise RuntimeError("found no free TCP port in 100 tries")


def private_directory(account: Account, *, in_memory: bool = False) -> Path:
    """Make a directory that the server's user owns and can enter, short enough to hold a unix socket.

    `in_memory` prefers Linux's memory file system, where there is room, and unless TMPDIR says where to be: a database
    is some 300 files, made there in 10 ms and on some disks in 300 ms.
    """
    bases = [Path(tempfile.gettempdir()).resolve(), Path("/tmp"), Path("/var/tmp")]  # noqa: S108
    wanted = in_memory and "TMPDIR" not in os.environ and _MEMORY.is_dir()
    if wanted and shutil.disk_usage(_MEMORY).free >= _MEMORY_NEEDED:
        bases.insert(0, _MEMORY)
    for base in dict.fromkeys(bases):
        longest = base / "pgelect-12345678" / ".s.PGSQL.65535"
        if base.is_dir() and account.can_reach(base) and len(str(longest).encode()) < _LONGEST_SOCKET_PATH:
            directory = Path(tempfile.mkdtemp(prefix="pgelect-", dir=base))
            account.own(directory)
            return directory
    raise RuntimeError("found no temporary directory that the server's user can enter; set TMPDIR to one")
