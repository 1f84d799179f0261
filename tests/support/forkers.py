"""Processes that fork, as a test sees them: the program of `forker.py`, and what its children saw."""

import json
import os
import signal
from contextlib import suppress
from typing import Any

import psutil

from tests.support.processes import Worker
from tests.support.replicas import ROOT
from tests.support.waiting import eventually_sync

LEASE_S = 60.0  # so long that no lock here is freed by the lease


class Forker(Worker):
    """The program `forker.py`; children that outlive it are ended with the test."""

    def __init__(self, dsn: str, key: tuple[int, int], *flags: str, **settings: Any) -> None:
        given = {"dsn": dsn, "key": key, "lease_s": LEASE_S, "health_interval_s": 0.1, **settings}
        super().__init__("-m", "tests.support.forker", json.dumps(given), *flags, cwd=str(ROOT))

    def heard(self, event: str, *, after: int = 0) -> dict[str, Any]:
        return self.wait_event(lambda told: told["event"] == event, 20, after=after)

    def ask(self, command: str, answer: str) -> dict[str, Any]:
        after = len(self.events)
        self.tell(command)
        return self.heard(answer, after=after)

    def looks(self, command: str = "fork") -> int:
        """Fork; see that the child is inert, and return the pid of the last one forked."""
        after = len(self.events)
        forked = self.ask(command, "forked")
        assert forked["status"] in {0, None}, self.errors
        self.check_inert(self.heard("child", after=after))
        return int(forked["pid"])

    def check_inert(self, seen: dict[str, Any]) -> None:
        assert (seen["is_leader"], seen["confirmed"], seen["current"]) == (False, False, False)
        assert (seen["term"], seen["token"], seen["only_leader"]) == (False, None, None)
        assert seen["state"] == "stopped"
        assert seen["shown"].endswith("stopped>")
        assert set(seen["raised"].values()) == {f"ForkedError {self.pid}"}, seen["raised"]

    def state(self) -> str:
        return str(self.ask("status", "status")["state"])

    def is_in(self, state: str) -> None:
        eventually_sync(lambda: self.state() == state, 20, f"it is {state}")

    def close(self) -> None:
        for told in [told for told in self.events if told["event"] == "forked" and told["status"] is None]:
            end(told["pid"])
        super().close()


def lives(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
