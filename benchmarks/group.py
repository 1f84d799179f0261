"""Many partitions over many members: how soon they are shared, what that costs, and how soon a dead member's are led.

    python -m benchmarks.group                        1,000 partitions over 10 members, about a minute and a half
    python -m benchmarks.group --partitions 200 --members 4 --rounds 3
    python -m benchmarks.group --check                exit with 1 when a target is missed

Members are processes that use the public API, on an embedded PostgreSQL of its own, reached over TCP on this machine.
Each round kills one member with SIGKILL, waits until the others share what it had, and starts another one.

Exit status: 0 measured; 1 a target was missed and --check was given; 2 something did not happen at all.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from benchmarks.group_fleet import KEY1, Fleet, Settings
from benchmarks.looking import Observer
from benchmarks.measure import Counts, Target, Timing
from benchmarks.process import DidNotHappenError
from benchmarks.telling import progress, tell, told
from pgelect.testing import throwaway_postgres

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgelect.testing import Postgres

CONVERGED_S = 3.0
STATEMENTS_PER_S = 3.0
TAKEN_MEDIAN_MS, TAKEN_WORST_MS = 500, 1500
SERVER = {"max_connections": "50", "max_locks_per_transaction": "256"}
_STATEMENT = re.compile(r"^<(\d+)> LOG:  statement: (.*?)(?=^<\d+> )", re.MULTILINE | re.DOTALL)
_LOCKS = f"""
SELECT count(*) FILTER (WHERE classid = {KEY1}), count(*) FROM pg_catalog.pg_locks
WHERE locktype = 'advisory' AND granted
"""
_PIDS = """
SELECT pid, application_name FROM pg_catalog.pg_stat_activity
WHERE backend_type = 'client backend' AND application_name LIKE 'pgelect:%'
"""


@dataclass(slots=True)
class Found:
    """What was measured; times in seconds."""

    converged_s: float = 0.0
    statements_per_s: list[float] = field(default_factory=list)  # of each member
    round_trips_per_s: list[float] = field(default_factory=list)
    locks: int = 0
    other_locks: int = 0
    client_mb: list[float] = field(default_factory=list)
    server_mb: list[float] = field(default_factory=list)
    taken_s: list[float] = field(default_factory=list)  # of each partition of a dead member
    all_taken_s: list[float] = field(default_factory=list)  # of each round: until the last one was led
    balanced_s: list[float] = field(default_factory=list)  # after a death
    joined_s: list[float] = field(default_factory=list)  # after a newcomer
    moved_by_death: list[int] = field(default_factory=list)  # beside those of the dead
    moved_by_join: list[int] = field(default_factory=list)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.group", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--partitions", type=int, default=1000, metavar="P", help="default 1000")
    parser.add_argument("--members", type=int, default=10, metavar="N", help="default 10")
    parser.add_argument("--rounds", type=int, default=8, metavar="R", help="members that are killed; default 8")
    parser.add_argument("--window", type=float, default=15.0, metavar="S", help="of the steady state; default 15")
    parser.add_argument("--rebalance", type=float, default=5.0, metavar="S", help="rebalance_interval_s; default 5")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was measured")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    options = parser.parse_args(arguments)
    if options.partitions < 1 or options.members < 2 or options.rounds < 1:
        parser.error("--partitions and --rounds must be 1 or more, --members 2 or more")
    return options


def measure(options: argparse.Namespace) -> tuple[Found, str]:
    """Run it; return what was found, and the server's version."""
    found = Found()
    settings = Settings(options.partitions, 15.0, 5.0, options.rebalance)
    within_s = 2 * options.rebalance + 20.0
    with throwaway_postgres(settings={**SERVER, "log_line_prefix": "<%p> "}) as server:
        observer = Observer(server.dsn())
        version = str(observer.value("SHOW server_version"))
        with Fleet(server.dsn(), settings) as fleet:
            progress(f"{options.members} members begin to share {options.partitions} partitions")
            went = fleet.go(fleet.prepare(options.members))
            found.converged_s = fleet.until_balanced(went, within_s) - went
            progress("steady state")
            _steady(server, observer, fleet, found, options.window)
            for number in range(options.rounds):
                progress(f"a member is killed, {number + 1} of {options.rounds}")
                _one_dies(fleet, found, within_s)
                _one_joins(fleet, found, within_s)
        observer.close()
    return found, version


def _steady(server: Postgres, observer: Observer, fleet: Fleet, found: Found, window_s: float) -> None:
    """Count what every member sends, as the server logs it."""
    time.sleep(2.0)  # what the beginning left to do is done by then
    pids = {pid: name.rpartition(":")[2] for pid, name in observer.ask(_PIDS)}
    server.configure(log_statement="all")
    server.reload()
    time.sleep(0.5)
    logged, begin = len(server.log_text()), time.monotonic()
    time.sleep(window_s)
    log, took_s = server.log_text()[logged:], time.monotonic() - begin
    server.configure(log_statement="none")
    server.reload()
    texts = [(int(pid), text) for pid, text in _STATEMENT.findall(log)]
    for pid in pids:
        mine = [text for sender, text in texts if sender == pid]
        found.round_trips_per_s.append(len(mine) / took_s)
        found.statements_per_s.append(sum(1 + text.startswith("DO ") for text in mine) / took_s)
    found.locks, every = observer.ask(_LOCKS)[0]
    found.other_locks = every - found.locks
    found.client_mb = [psutil.Process(child.pid).memory_info().rss / 2**20 for child in fleet.running.values()]
    found.server_mb = [psutil.Process(pid).memory_full_info().uss / 2**20 for pid in pids]


def _one_dies(fleet: Fleet, found: Found, within_s: float) -> None:
    time.sleep(random.random())  # at any moment of the others' waits
    before = fleet.history().led_at(time.monotonic())
    victim = random.choice(list(fleet.running))
    killed = fleet.kill(victim)
    balanced = fleet.until_balanced(killed, within_s)
    history = fleet.history()
    times = []
    for partition in (partition for partition, member in before.items() if member == victim):
        again = history.led_again_at(partition, killed)
        if again is None:
            raise DidNotHappenError(f"partition {partition} is not led again")
        times.append(again - killed)
    found.taken_s += times
    found.all_taken_s.append(max(times))
    found.balanced_s.append(balanced - killed)
    after = history.led_at(time.monotonic())
    found.moved_by_death.append(
        sum(after[partition] != member for partition, member in before.items() if member != victim)
    )


def _one_joins(fleet: Fleet, found: Found, within_s: float) -> None:
    before = fleet.history().led_at(time.monotonic())
    went = fleet.go(fleet.prepare(1))
    found.joined_s.append(fleet.until_balanced(went, within_s) - went)
    after = fleet.history().led_at(time.monotonic())
    found.moved_by_join.append(sum(after[partition] != member for partition, member in before.items()))


def judged(found: Found, options: argparse.Namespace) -> list[Timing | Counts]:
    """Put what was found beside its targets."""
    two_s = 2 * options.rebalance
    share = -(-options.partitions // options.members)
    taken = Timing("a member killed -> all it had is led again", tuple(found.all_taken_s))
    most = max(found.statements_per_s)
    trips = max(found.round_trips_per_s)
    return [
        Timing(
            "all members start -> shared evenly",
            (found.converged_s,),
            (Target(f"< {CONVERGED_S:g} s", found.converged_s < CONVERGED_S),),
        ),
        Timing("a member killed -> each partition led again", tuple(found.taken_s)),
        Timing(
            taken.name,
            taken.times_s,
            (
                Target(f"median < {TAKEN_MEDIAN_MS}", taken.median_ms < TAKEN_MEDIAN_MS),
                Target(f"worst < {TAKEN_WORST_MS}", taken.worst_ms < TAKEN_WORST_MS),
            ),
        ),
        Timing(
            "a member killed -> shared evenly again",
            tuple(found.balanced_s),
            (Target(f"worst < 2 rebalance intervals = {two_s:g} s", max(found.balanced_s) < two_s),),
        ),
        Timing(
            "a member joins -> shared evenly again",
            tuple(found.joined_s),
            (Target(f"worst < 2 rebalance intervals = {two_s:g} s", max(found.joined_s) < two_s),),
        ),
        Counts(
            f"steady state over {options.window:g} s, and what moves",
            (
                Target(
                    f"< {STATEMENTS_PER_S:g}", most < STATEMENTS_PER_S, f"statements/s of the busiest member {most:.2f}"
                ),
                Target("for information", True, f"round trips/s of the busiest member {trips:.2f}"),
                Target(
                    f"{options.partitions}, one each",
                    found.locks == options.partitions,
                    f"locks of partitions {found.locks}",
                ),
                Target("2 a member", found.other_locks == 2 * options.members, f"other locks {found.other_locks}"),
                Target(
                    "0",
                    max(found.moved_by_death) == 0,
                    f"partitions of others that a death moved {max(found.moved_by_death)}",
                ),
                Target(
                    f"<= {share}, one share",
                    max(found.moved_by_join) <= share,
                    f"partitions that a newcomer moved {max(found.moved_by_join)}",
                ),
                Target(
                    "for information",
                    True,
                    f"memory of a client {max(found.client_mb):.0f} MB, of its session {max(found.server_mb):.0f} MB",
                ),
            ),
            {"statements_per_s": found.statements_per_s, "round_trips_per_s": found.round_trips_per_s},
        ),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit status."""
    options = parse(arguments)
    return told(lambda: _measured(options))


def _measured(options: argparse.Namespace) -> int:
    found, version = measure(options)
    about = {
        "postgresql": version,
        "partitions": options.partitions,
        "members": options.members,
        "rounds": options.rounds,
    }
    return tell(about, judged(found, options), write=options.json, check=options.check)


if __name__ == "__main__":
    sys.exit(main())
