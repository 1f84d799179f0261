"""One replica of the demo, a process of its own: it adds lines to the ledger while it leads.

Alone, it connects as libpq's environment says (PGHOST and so on), makes the ledger, and ends on SIGTERM:

    python -m pgelect.cli.demo_worker

Under ``pgelect demo`` it reads its settings and then commands from standard input, one JSON object a line, and ends
with that. Either way it tells what happens as JSON, one object a line; ``at`` is in seconds of the monotonic clock,
which all processes of one machine share.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psycopg

from pgelect import ExponentialBackoff, LeaderLock, LockState, PgElectError, SessionLostError, StaleTokenError, Term
from pgelect._postgres.client import Client
from pgelect.cli.demo_ledger import LOCK_NAME, append, keep_ledger
from pgelect.fencing import fenced

if TYPE_CHECKING:
    from collections.abc import Iterator

LEASE_S = 3.0
HEALTH_INTERVAL_S = 1.0
CONTROLLED = "--controlled"
STEP_DOWN, WRITE_ANYWAY = "step_down", "write_anyway"

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_PAUSE_S, _PAUSE_ALONE_S = 0.1, 1.0
_RECONNECT_S = 0.5


def tell(what: str, **data: object) -> None:
    """Print one report. A single write, so that reports of several threads do not mix."""
    line = json.dumps({"what": what, "at": time.monotonic(), **data}) + "\n"
    with suppress(BrokenPipeError):  # the demo is gone; the end of standard input says so, too
        os.write(sys.stdout.fileno(), line.encode())


class Replica:
    """One candidate for leadership, with the work it does while it leads."""

    def __init__(self, name: str, dsn: str, pause_s: float) -> None:
        self._name = name
        self._dsn = dsn
        self._pause_s = pause_s
        self._stop = asyncio.Event()
        self._last_token = 0
        self._lock = lock = LeaderLock(
            dsn,
            name=LOCK_NAME,
            identity=name,
            lease_s=LEASE_S,
            health_interval_s=HEALTH_INTERVAL_S,
            retry_strategy=ExponentialBackoff(base_s=0.2, max_s=2.0),
            shutdown_event=self._stop,
        )
        lock.on_acquired(self._acquired)
        lock.on_lost(lambda term: tell("lost", token=term.token))
        lock.on_released(lambda term: tell("released", token=term.token))
        lock.on_state_change(self._changed)
        lock.on_error(self._failed)

    async def run(self) -> None:
        """Campaign, and work while leading, until told to stop."""
        async with self._lock:
            await self._lock.lead(self._work, repeat=True)

    def stop(self) -> None:
        """End ``run``: the work stops, the lock is unlocked."""
        self._stop.set()

    def obey(self, lines: Iterator[str], loop: asyncio.AbstractEventLoop) -> None:
        """Do what the lines say, and stop after the last. Runs in a thread of its own, so that nothing comes first."""
        with suppress(RuntimeError):  # the loop has ended by itself
            for line in lines:
                first_look = self._lock.is_leader
                command = json.loads(line)["do"]
                work = self._step_down() if command == STEP_DOWN else self._write_anyway(first_look=first_look)
                asyncio.run_coroutine_threadsafe(work, loop)
            loop.call_soon_threadsafe(self.stop)

    # -- what it does while leading ------------------------------------------------------------------------------------

    async def _work(self, term: Term) -> None:
        try:
            client = await Client.connect(self._dsn)
        except PgElectError as error:
            self._failed(error)
            await asyncio.sleep(_RECONNECT_S)
            return
        try:
            while True:
                async with self._lock.fence(client.conn):
                    seq = await append(client.conn, term.token, self._name)
                tell("wrote", seq=seq, token=term.token)  # only now: it is committed
                await asyncio.sleep(self._pause_s)
        except (psycopg.OperationalError, SessionLostError) as error:  # of our own connection, also inside the fence
            self._failed(error)
            await asyncio.sleep(_RECONNECT_S)
        finally:
            client.close()

    # -- what it is told to do -----------------------------------------------------------------------------------------

    async def _step_down(self) -> None:
        tell("stepping_down")
        tell("stepped_down", done=await self._lock.step_down())

    async def _write_anyway(self, *, first_look: bool) -> None:
        """Write as code would that never looks whether it leads: with the token it remembers, and without any."""
        token = self._last_token
        try:
            client = await Client.connect(self._dsn)
            try:
                with_token = await self._refusal(client, token, fence=True)
                without = await self._refusal(client, token, fence=False)
            finally:
                client.close()
        except (psycopg.Error, PgElectError) as error:
            self._failed(error)
        else:
            tell("wrote_anyway", first_look=first_look, token=token, with_token=with_token, without=without)

    async def _refusal(self, client: Client, token: int, *, fence: bool) -> list[str] | None:
        """Give SQLSTATE and message of the server's refusal; None when it took the write."""
        conn = client.conn
        try:
            if fence:
                async with fenced(conn, self._lock.key, token):
                    await append(conn, token, self._name)
            else:
                await append(conn, token, self._name)
        except StaleTokenError as error:
            cause = error.__cause__
        except psycopg.Error as error:
            cause = error
        else:
            return None
        if not isinstance(cause, psycopg.Error) or cause.diag.message_primary is None:
            raise PgElectError(f"the write did not fail by the server's refusal: {cause}")
        return [cause.sqlstate or "", cause.diag.message_primary]

    # -- what it tells -------------------------------------------------------------------------------------------------

    def _acquired(self, term: Term) -> None:
        self._last_token = term.token
        tell("acquired", token=term.token)

    def _changed(self, _: LockState, state: LockState) -> None:
        tell("state", state=state.value)

    def _failed(self, error: Exception) -> None:
        tell("error", text=" ".join(str(error).split()))


def _lines(descriptor: int) -> Iterator[str]:
    """Read lines. Not by way of sys.stdin: a thread that waits in there holds up the end of the process."""
    rest = b""
    while chunk := os.read(descriptor, 65536):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line.decode() for line in lines)


async def _run(replica: Replica, commands: Iterator[str] | None) -> int:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, replica.stop)
    if commands is not None:
        threading.Thread(target=replica.obey, args=(commands, loop), daemon=True).start()
    try:
        await replica.run()
    except PgElectError as error:
        tell("failed", text=str(error))
        return 1
    return 0


def _end_with_parent() -> None:
    """Have Linux kill us when the demo is gone: while stopped, we could not see that our standard input has ended."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


async def _main(arguments: list[str]) -> int:
    if CONTROLLED in arguments:
        _end_with_parent()
        commands = _lines(sys.stdin.fileno())
        settings: dict[str, Any] = json.loads(next(commands, "{}"))
        return await _run(Replica(settings["name"], settings["dsn"], _PAUSE_S), commands) if settings else 0
    client = await Client.connect("")
    try:
        await keep_ledger(client.conn)
    finally:
        client.close()
    return await _run(Replica(f"{socket.gethostname()}:{os.getpid()}", "", _PAUSE_ALONE_S), None)


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(_main(sys.argv[1:])))
    except PgElectError as problem:
        sys.exit(f"pgelect.cli.demo_worker: {problem}")
