"""The command pgelect, run in the process of the test; and candidates for it to look at, in threads of their own."""

import asyncio
import contextlib
import io
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest

from pgelect import FixedInterval, LeaderLock
from pgelect.cli.app import app
from tests.support.server import lock_waiters
from tests.support.waiting import POLL_S, eventually_sync, scaled


@dataclass(frozen=True, slots=True)
class Said:
    """How a command ended: its exit code, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed, as JSON."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        """The lines that it printed."""
        return self.out.splitlines()


def pgelect(*arguments: str, dsn: str = "") -> Said:
    """Run `pgelect ARGUMENTS`, its output on no terminal."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, {"PGELECT_DSN": dsn}),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        app(list(arguments), prog_name="pgelect")
    code = ended.value.code
    assert code is None or isinstance(code, int)
    return Said(code or 0, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def candidate(dsn: str, name: str, identity: str, *, leads: bool = True, **settings: Any) -> Iterator[LeaderLock]:
    """A lock that campaigns in a thread. When the block begins it leads, or waits in the server's queue."""
    quick = {"lease_s": 5.0, "health_interval_s": 0.2, "retry_strategy": FixedInterval(0.1)}
    lock = LeaderLock(dsn, name=name, identity=identity, **{**quick, **settings})
    stop = threading.Event()
    failures: list[BaseException] = []

    async def campaign() -> None:
        async with lock:
            while not stop.is_set():
                await asyncio.sleep(POLL_S)

    def work() -> None:
        try:
            asyncio.run(campaign())
        except BaseException as error:  # noqa: BLE001 - raised in the test's thread instead
            failures.append(error)

    def ready() -> bool:
        return bool(failures) or (lock.is_leader if leads else bool(lock_waiters(dsn, lock.key.key1, lock.key.key2)))

    thread = threading.Thread(target=work, name=identity, daemon=True)
    thread.start()
    try:
        eventually_sync(ready, message=f"{identity} campaigns")
        yield lock
    finally:
        stop.set()
        thread.join(scaled(15))
    assert not thread.is_alive(), "the candidate's thread does not end"
    if failures:
        raise failures[0]
