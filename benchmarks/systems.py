"""The electors whose cost is measured: each has a name, and a way to start one process of it.

A process campaigns from its start on. It reports ``acquired`` on its standard output when it leads (see
``benchmarks.process``), and may be killed at any time. Nothing else is asked of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.peers.rounds import SYSTEMS, missing, ways
from benchmarks.process import Child, python
from benchmarks.stores import PostgresStore, RedisStore, Store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmarks.peers import elector


@dataclass(frozen=True, slots=True)
class System:
    """One elector.

    Attributes:
        name: as it is asked for, and shown.
        store: makes the server that it elects on.
        command: gives the command of one process, from how it connects and what it is called.
    """

    name: str
    store: Callable[[], Store]
    command: Callable[[str, str], list[str | Path]]

    def start(self, address: str, name: str) -> Child:
        """Start a process."""
        return Child(name, self.command(address, name))


def systems() -> dict[str, System]:
    """Give all that can be started here, by their names."""
    found = [_system(one, settings) for one, settings in ways(SYSTEMS) if not missing(one)]
    return {system.name: system for system in found}


def lacking() -> dict[str, str]:
    """Give the electors that cannot be started here, with what they lack."""
    return {one.name: lacks for one in SYSTEMS if (lacks := missing(one))}


def _system(one: elector.System, settings: elector.Settings) -> System:
    def command(address: str, name: str) -> list[str | Path]:
        return python("benchmarks.peers.alone", one.module, one.name, settings.name, address, name)

    name = one.name if settings.name == "defaults" else f"{one.name}-{settings.name}"
    return System(name, RedisStore if one.store == "redis" else PostgresStore, command)
