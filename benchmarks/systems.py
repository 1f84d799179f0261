"""The electors whose cost is measured: each has a name, and a way to start one process of it.

A process campaigns from its start on. It reports ``acquired`` on its standard output when it leads (see
``benchmarks.process``), and may be killed at any time. Nothing else is asked of it, so that a worker that was written
for another benchmark will do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.process import Child, python
from benchmarks.scenarios import HEALTH_S, LEASE_S
from benchmarks.stores import PostgresStore, Store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KEY = 9


@dataclass(frozen=True, slots=True)
class System:
    """One elector.

    Attributes:
        name: as it is shown.
        store: makes the server that it elects on.
        command: gives the command of one process, from how it connects and what it is called.
    """

    name: str
    store: Callable[[], Store]
    command: Callable[[str, str], list[str | Path]]

    def start(self, address: str, name: str) -> Child:
        """Start a process."""
        return Child(name, self.command(address, name))


def _pgelect(acquire: str) -> Callable[[str, str], list[str | Path]]:
    def command(address: str, name: str) -> list[str | Path]:
        flags = ["--dsn", address, "--key", str(KEY), "--name", name, "--acquire", acquire]
        flags += ["--health", str(HEALTH_S), "--lease", str(LEASE_S)]
        return python("benchmarks.replica", *flags)

    return command


def systems() -> dict[str, System]:
    """Give all that can be started here, by their names."""
    found = (
        System("pgelect-queue", PostgresStore, _pgelect("queue")),
        System("pgelect-poll", PostgresStore, _pgelect("poll")),
    )
    return {system.name: system for system in found}
