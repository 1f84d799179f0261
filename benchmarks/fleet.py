"""Many replicas on one key: they are started, watched in the server's queue, and killed, one or many at once."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from benchmarks.closing import Closing
from benchmarks.process import ANSWERS_WITHIN_S, STARTS_WITHIN_S, Child, DidNotHappenError, python

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.looking import Observer

_AT_ONCE = 40
"""So many are started before they are awaited: a server is not stormed when a fleet grows, and neither is this one."""
_POLL_S = 0.02
_SESSIONS = """
SELECT application_name FROM pg_catalog.pg_stat_activity
WHERE backend_type = 'client backend' AND application_name LIKE 'pgelect:%'
"""
_WAITING = """
SELECT a.application_name FROM pg_catalog.pg_locks AS l JOIN pg_catalog.pg_stat_activity AS a USING (pid)
WHERE l.locktype = 'advisory' AND NOT l.granted AND a.application_name LIKE 'pgelect:%'
ORDER BY l.waitstart
"""


class Fleet(Closing):
    """Replicas that campaign for one key."""

    def __init__(self, observer: Observer, key: int) -> None:
        self.living: dict[str, int] = {}
        """The processes, by the names under which the server knows their sessions."""
        self._observer = observer
        self._number = 0
        self._crowd = Child("crowd", python("benchmarks.crowd", "--key", str(key)))

    def start(self, number: int, dsn: str) -> list[str]:
        """Start so many, and return their names when the server knows of all."""
        started: list[str] = []
        while len(started) < number:
            names = [f"r{self._number + one}" for one in range(min(_AT_ONCE, number - len(started)))]
            self._number += len(names)
            mark = self._crowd.mark()
            self._crowd.tell(json.dumps({"dsn": dsn, "names": names}))
            self.living |= self._crowd.wait_for("forked", mark, STARTS_WITHIN_S)["pids"]
            started += names
            self._until_known()
        return started

    def kill(self, names: Sequence[str]) -> float:
        """Kill these, one right after the other; return the time just before the last one."""
        *others, last = [self.living.pop(name) for name in names]
        for pid in others:
            os.kill(pid, signal.SIGKILL)
        at = time.monotonic()
        os.kill(last, signal.SIGKILL)
        return at

    def waiting(self) -> list[str]:
        """Return who waits in the server's queue, the longest waiting first."""
        return [_name(row[0]) for row in self._observer.ask(_WAITING)]

    def until_one_waits(self) -> None:
        """Return when somebody waits in the server's queue."""
        deadline = time.monotonic() + STARTS_WITHIN_S
        while not self.waiting():
            if time.monotonic() > deadline:
                raise DidNotHappenError("nobody was seen to wait in the server's queue")
            time.sleep(_POLL_S)

    def leads(self, since: float, within_s: float = ANSWERS_WITHIN_S) -> tuple[str, float]:
        """Return who was the first to lead since then, and when."""
        seen: dict[str, Any] = self._crowd.wait_for("acquired", within_s=within_s, at_least=since)
        return seen["name"], seen["at"]

    def terms(self) -> int:
        """Return how many terms have begun so far."""
        return len(self._crowd.events("acquired"))

    def close(self) -> None:
        """Kill all. May be called again."""
        with suppress(ProcessLookupError):
            os.killpg(self._crowd.pid, signal.SIGKILL)
        self._crowd.close()

    def _until_known(self) -> None:
        """Wait until the server has a session of each that lives, and has forgotten the dead."""
        deadline = time.monotonic() + STARTS_WITHIN_S
        while (seen := {_name(row[0]) for row in self._observer.ask(_SESSIONS)}) != self.living.keys():
            if time.monotonic() > deadline:
                missing, left = self.living.keys() - seen, seen - self.living.keys()
                raise DidNotHappenError(f"{len(missing)} have no session, {len(left)} dead ones still have theirs")
            time.sleep(_POLL_S)


def _name(application_name: str) -> str:
    return application_name.rpartition(":")[2]
