"""A running ``pgelect run``, its command, and whether processes are gone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tests.support.processes import Worker
from tests.support.waiting import eventually_sync

ROOT = Path(__file__).parents[2]
Run = Callable[..., Worker]

# A command that says what it is, and has a child of its own in its group.
FAMILY = """
sleep 100 & child=$!
echo "{\\"pid\\": $$, \\"child\\": $child, \\"token\\": $PGELECT_TOKEN}"
"""
# Only builtins around the sleep: a signal that meets a substitution ends the loop before it begins.
PATIENT = f"{FAMILY} n=0; while [ $n -lt 2000 ]; do sleep 0.05; n=$((n + 1)); done"
DEAF = f"trap '' TERM; {PATIENT}"  # inherited by the child, too


def runs(worker: Callable[..., Worker], database: str) -> Run:
    """Give a factory of runs: `run("job", "--once", shell="exit 3")`; quick to notice and to try again."""

    def start(*arguments: str, shell: str | None = None, dsn: str = database, quick: bool = True) -> Worker:
        timing = ("--lease", "2", "--health-interval", "0.2", "--retry-base", "0.1") if quick else ()
        command = () if shell is None else ("--", "sh", "-c", shell)
        options = ("--dsn", dsn, *timing, *arguments)
        return worker("-m", "pgelect", "run", *options, *command, env={"PGELECT_DSN": ""}, cwd=str(ROOT))

    return start


def leads(run: Worker, *, above: int = 0) -> dict[str, Any]:
    """Wait for what FAMILY says in a term of a token above that."""
    return run.wait_event(lambda event: event.get("token", 0) > above, 20)


def is_gone(pid: int) -> bool:
    """Whether nothing of that number runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def all_gone(*families: dict[str, Any]) -> bool:
    """Whether nothing of these commands is left."""
    return all(is_gone(family[who]) for family in families for who in ("pid", "child"))


def keeper_of(run: Worker) -> psutil.Process:
    """The process between the run and its command."""

    def found() -> list[psutil.Process]:
        return [child for child in psutil.Process(run.pid).children() if "run_keeper" in " ".join(child.cmdline())]

    return eventually_sync(found, 10, "a keeper")[0]
