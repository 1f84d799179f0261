"""What it costs to have pgelect and to start it: import, the first leadership, and the size of what is installed.

    python -m benchmarks.startup                    20 rounds of everything, about half a minute
    python -m benchmarks.startup --no-wheel         without building the wheel, for which pip fetches a build backend

Imports are timed in processes of their own, whose bytecode is compiled already: psycopg, which every program that uses
PostgreSQL imports anyway, and pgelect after it. Leading is timed from the call of start() to leadership, in this
process, on an embedded PostgreSQL of its own over TCP: on empty databases, where the schema is made on the way, and on
one that has it. The floor is what a bare connection takes to connect, take the same lock and commit one row.

Exit status: 0 measured; 2 something did not happen at all.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from itertools import count
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from psycopg import AsyncConnection
from psycopg.sql import SQL, Identifier

from benchmarks.measure import Counts, Target, Timing
from benchmarks.process import STARTS_WITHIN_S, DidNotHappenError
from benchmarks.telling import progress, tell, told
from pgelect import LeaderLock
from pgelect.testing import throwaway_postgres

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgelect.testing import Postgres

_ROOT = Path(__file__).resolve().parent.parent
_IMPORT = """
import time
begun = time.perf_counter()
import psycopg
between = time.perf_counter()
import pgelect
print(between - begun, time.perf_counter() - between)
"""
_FLOOR = "SELECT pg_advisory_lock(1, 1); INSERT INTO floor DEFAULT VALUES"


def imports(rounds: int) -> tuple[list[float], list[float]]:
    """Return the seconds that importing psycopg takes, and pgelect after it."""
    psycopg_s, pgelect_s = [], []
    with tempfile.TemporaryDirectory() as bytecode:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = bytecode
        for number in range(rounds + 1):
            command = [sys.executable, "-c", _IMPORT]
            done = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise DidNotHappenError(f"the import failed: {done.stderr.strip()}")
            if number:  # the first one compiles
                first, second = map(float, done.stdout.split())
                psycopg_s.append(first)
                pgelect_s.append(second)
    return psycopg_s, pgelect_s


async def leading(server: Postgres, rounds: int) -> tuple[list[float], list[float], list[float]]:
    """Return the seconds of the floor, until leading where the schema is, and on an empty database; by turns."""
    floor_s, with_schema_s, empty_s = [], [], []
    names = count()
    async with await AsyncConnection.connect(server.dsn(), autocommit=True) as admin:
        await admin.execute("CREATE TABLE floor (id int8 GENERATED ALWAYS AS IDENTITY)")
        await _until_leading(server.dsn(), names)  # makes the schema, and warms up
        for number in range(rounds):
            begun = time.perf_counter()
            async with await AsyncConnection.connect(server.dsn(), autocommit=True) as conn:
                await conn.execute(_FLOOR)
                floor_s.append(time.perf_counter() - begun)
            with_schema_s.append(await _until_leading(server.dsn(), names))
            database = f"empty_{number}"
            await admin.execute(SQL("CREATE DATABASE {}").format(Identifier(database)))
            empty_s.append(await _until_leading(server.dsn(dbname=database), names))
            await admin.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(database)))
    return floor_s, with_schema_s, empty_s


async def _until_leading(dsn: str, names: count[int]) -> float:
    lock = LeaderLock(dsn, name=f"benchmark {next(names)}")
    begun = time.perf_counter()
    async with lock:
        try:
            await lock.wait_for_leadership(STARTS_WITHIN_S)
        except TimeoutError as error:
            raise DidNotHappenError("nobody led") from error
        return time.perf_counter() - begun


def sizes() -> Counts:
    """Build the wheel, and return its size and that of what it installs."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", directory, str(_ROOT)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise DidNotHappenError(f"the wheel was not built: {done.stderr.strip()}; --no-wheel goes without it")
        (wheel,) = Path(directory).glob("*.whl")
        with zipfile.ZipFile(wheel) as opened:
            installed = sum(entry.file_size for entry in opened.infolist())
            files = len(opened.infolist())
        packed = wheel.stat().st_size
    text = f"wheel {packed / 1e3:.0f} kB, installed {installed / 1e3:.0f} kB in {files} files"
    return Counts("size", (Target("for information", True, text),), {"wheel": packed, "installed": installed})


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.startup", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="of each; default 20")
    parser.add_argument("--no-wheel", action="store_true", help="do not build the wheel")
    parser.add_argument("--quick", action="store_true", help="two rounds and no wheel: to see that it works")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was measured")
    options = parser.parse_args(arguments)
    if options.rounds is None:
        options.rounds = 2 if options.quick else 20
    if options.rounds < 1:
        parser.error("--rounds must be 1 or more")
    options.no_wheel = options.no_wheel or options.quick
    return options


def measure(options: argparse.Namespace) -> tuple[list[Timing | Counts], int]:
    """Measure; return what was found, and the server's version."""
    progress("imports")
    psycopg_s, pgelect_s = imports(options.rounds)
    with throwaway_postgres() as server:
        progress("leading")
        floor_s, with_schema_s, empty_s = asyncio.run(leading(server, options.rounds))
        version = server.version
    floor = median(floor_s)
    found: list[Timing | Counts] = [
        Timing("import psycopg", tuple(psycopg_s)),
        Timing("import pgelect, after psycopg", tuple(pgelect_s), floor_s=median(psycopg_s)),
        Timing("floor: connect, lock and commit a row", tuple(floor_s), floor_s=floor),
        Timing("start() -> leading, with the schema", tuple(with_schema_s), floor_s=floor),
        Timing("start() -> leading, on an empty database", tuple(empty_s), floor_s=floor),
    ]
    if not options.no_wheel:
        progress("the wheel")
        found.append(sizes())
    return found, version


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit status."""
    options = parse(arguments)
    return told(lambda: _measured(options))


def _measured(options: argparse.Namespace) -> int:
    found, version = measure(options)
    about = {"postgresql": version, "rounds": options.rounds}
    return tell(about, found, write=options.json)


if __name__ == "__main__":
    sys.exit(main())
