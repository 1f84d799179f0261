"""Deliberate faults of the library: each breaks a promise, and a run has to find it, or the run proves nothing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from unittest.mock import patch

from benchmarks.process import DidNotHappenError
from pgelect import LockState
from pgelect._engine.runner import Runner

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.chaos.stage import Stage

BROKEN = {
    "trust": "is_leader does not look at the clock",
    "fence": "check_token reads the row, and does not lock it",
    "password": "what to connect with is asked for once, and never again",
}


def in_this_process(name: str) -> None:
    """Break it in a replica, for good."""
    if name == "trust":
        patch.object(Runner, "is_trusted", _trusted_for_ever).start()


def dsn(name: str, ask: Callable[[], str]) -> Callable[[], str]:
    """Give what is to be asked for the connection string in place of ``ask``."""
    if name != "password":
        return ask
    first = ask()
    return lambda: first


def on_the_server(name: str, stage: Stage) -> None:
    """Break it on the server, for good; the schema is installed."""
    if name == "fence":
        ((function,),) = stage.cluster.ask("SELECT pg_get_functiondef('pgelect.check_token'::regproc)")
        broken, number = re.subn(r"FOR SHARE(\s+OF\s+\w+)?", "", str(function))
        if not number:
            raise DidNotHappenError("check_token locks no row in the way that could be broken")
        stage.cluster.ask(broken)


def _trusted_for_ever(runner: Runner, number: int | None = None) -> bool:
    seen = runner.snapshot
    return seen.state is LockState.LEADER and number in {None, seen.number}
