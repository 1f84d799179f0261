"""`python -m benchmarks.failover --peers NAMES`: which systems and settings are meant, and what is told of them."""

from __future__ import annotations

import importlib.metadata
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.looking import Observer
from benchmarks.peers.elector import SCENARIOS
from benchmarks.peers.report import rows, table
from benchmarks.peers.rounds import FLOORS, SYSTEMS, Plan, missing, run, ways
from benchmarks.peers.stores import SERVER
from benchmarks.telling import progress, tell
from pgelect.testing import throwaway_postgres

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from benchmarks.peers.elector import System

_PACKAGES = ("pgelect", "grelmicro", "asyncpg-lock", "notifelect", "asyncpg", "redis")
_ALL = "all"
# What is of pgelect alone, by its name in the options and on the command line.
_ALONE = {
    "check": "--check",
    "profile": "--profile",
    "uvloop": "--uvloop",
    "lease": "--lease",
    "window": "--window",
}


@dataclass(frozen=True, slots=True)
class Chosen:
    """Who takes part, and who would if it were installed: with what it lacks."""

    systems: tuple[System, ...]
    absent: dict[str, str]


def chosen(names: str) -> Chosen:
    """Return the systems that were asked for, as "all" or "pgelect-queue,redis".

    Raises:
        ValueError: there is none of that name, or one that was asked for by its name is not installed.
    """
    by_name = {system.name: system for system in SYSTEMS}
    asked = [name.strip() for name in names.split(",")]
    if asked == [_ALL]:
        absent = {system.name: lacks for system in SYSTEMS if (lacks := missing(system))}
        return Chosen(tuple(system for system in SYSTEMS if system.name not in absent), absent)
    for name in asked:
        if name not in by_name:
            raise ValueError(f"--peers: there is no {name!r}; there are: {', '.join([_ALL, *by_name])}")
        if lacks := missing(by_name[name]):
            raise ValueError(f"--peers: {name}: {lacks}")
    return Chosen(tuple(system for system in SYSTEMS if system.name in asked), {})


def refused(options: argparse.Namespace) -> str:
    """Return what does not go with --peers; empty when all does."""
    given = [flag for name, flag in _ALONE.items() if getattr(options, name) not in {None, False}]
    if strange := [name for name in options.only or () if name not in SCENARIOS]:
        given.append(f"--only {strange[0]}")
    return f"{given[0]} does not go with --peers: it is about pgelect alone" if given else ""


def measured(options: argparse.Namespace, rounds: int) -> int:
    """Measure, print, and return the exit status."""
    who: Chosen = options.peers
    for name, lacks in who.absent.items():
        progress(f"without {name}: {lacks}")
    seed = options.seed if options.seed is not None else random.randrange(1_000_000)
    scenarios = tuple(scenario for scenario in SCENARIOS if scenario in (options.only or SCENARIOS))
    plan = Plan(who.systems, scenarios, rounds, seed, options.quick)
    begun = time.monotonic()
    with throwaway_postgres(settings=SERVER, durable=options.durable) as server:
        seen = run(plan, server)
        observer = Observer(server.dsn())
        version = str(observer.value("SHOW server_version"))
        observer.close()
    found = rows(seen, [(system.name, settings.name) for system, settings in ways((*FLOORS, *who.systems))])
    by_settings = {kind: matches[-1].round + 1 for kind, matches in plan.matches().items()}
    about = {
        "postgresql": version,
        "storage": "on disk, with fsync" if options.durable else "in memory where there is room, without fsync",
        **{f"rounds, {kind}": number for kind, number in by_settings.items()},
        "seed": seed,
        "seconds": round(time.monotonic() - begun),
        **_versions(),
    }
    if who.absent:
        about["missing"] = "; ".join(f"{name} ({lacks})" for name, lacks in who.absent.items())
    results = [row.found() for row in found]
    return tell(about, results, shown=table(found), write=options.json, met="no targets: compare the rows")


def _versions(names: Sequence[str] = _PACKAGES) -> dict[str, str]:
    installed = {name.lower().replace("_", "-") for dist in importlib.metadata.distributions() if (name := dist.name)}
    return {name: importlib.metadata.version(name) for name in names if name in installed}
