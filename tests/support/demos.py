"""A running demo, and the proof that nothing of it is left: no process, no file, nothing in the database."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.support.processes import Worker
from tests.support.server import query, sessions
from tests.support.waiting import eventually_sync

ROOT = Path(__file__).parents[2]
Demo = Callable[..., Worker]


@contextmanager
def demo_place() -> Iterator[Path]:
    """Make a TMPDIR that the server's user can enter too; in the end nothing may live or lie in it."""
    directory = Path(tempfile.mkdtemp(prefix="demo-", dir="/tmp"))
    directory.chmod(0o755)
    try:
        yield directory
        eventually_sync(lambda: not list(directory.iterdir()), 15, "no file of the demo is left")
        eventually_sync(lambda: not processes_of(directory), 15, "no process of the demo is left")
    finally:
        for process in processes_of(directory):
            process.kill()
        shutil.rmtree(directory, ignore_errors=True)


def demos(worker: Callable[..., Worker], place: Path) -> Demo:
    """Give a factory of running demos: `demo("--json", env={...})`."""

    def start(*options: str, env: dict[str, str] | None = None) -> Worker:
        env = {"TMPDIR": str(place), **(env or {})}
        return worker("-m", "pgelect", "demo", *options, env=env, cwd=str(ROOT))

    return start


def processes_of(place: Path) -> list[psutil.Process]:
    """All whose temporary directory, working directory or arguments point there."""
    found = []
    for process in psutil.process_iter(["environ", "cwd", "cmdline"]):  # what may not be read is None
        environ, cwd, cmdline = (process.info[name] for name in ("environ", "cwd", "cmdline"))
        signs = [(environ or {}).get("TMPDIR"), cwd, *(cmdline or ())]
        if any(str(place) in sign for sign in signs if sign):
            found.append(process)
    return found


def schemas(database: str) -> list[str]:
    """The schemas of pgelect and its demo."""
    rows = query(database, "SELECT nspname FROM pg_catalog.pg_namespace WHERE nspname LIKE 'pgelect%' ORDER BY 1")
    return [name for (name,) in rows]


def nothing_of_it_is_left_in(database: str) -> None:
    """Check that there is no ledger, no session and no lock."""
    assert schemas(database) in ([], ["pgelect"])
    eventually_sync(lambda: not sessions(database, "%"), 5, "no session of the demo is left")
    assert query(database, "SELECT * FROM pg_catalog.pg_locks WHERE locktype = 'advisory'") == []
