"""``pgelect run`` at work: campaign, keep the command running while leading and only then, and end cleanly.

- The command is started when a term begins, and asked to end (TERM, then KILL after a grace) when it ends. A clean
  release waits for it: the lock is freed when nothing of the command's process group is left.
- When a term is *lost*, the grace is short: half the margin by which we let go of the lease earlier than the server
  does, and ``takeover_delay_s``. So when a lease runs out the command is gone before another can lead.
- The keeper of the command holds the same deadline. It needs no word from us to keep it: we may be stopped or hang.
- SIGTERM and SIGINT end it all, a second one without grace. Other signals are passed on to the command.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgelect import LockState, ShutdownError
from pgelect.cli.ending import SIGNALS, Code, complain, hush
from pgelect.cli.output import as_json, clean
from pgelect.cli.run_command import Command, CommandError, TooLateError
from pgelect.cli.run_keeper import now
from pgelect.cli.run_report import Report

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgelect import LeaderLock, Term
    from pgelect._engine.settings import Settings

ENDING = (signal.SIGTERM, signal.SIGINT)
PASSED_ON = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)
RELEASE_S = 5.0
"""What a shutdown may take beyond the grace of the command; of it, the lock waits half for what KILL has to end."""
CUT_SHORT = -1
"""The keeper ended the command, for it had not heard of us for too long, and leadership has gone on all the same."""
_RESTART_S, _RESTART_MAX_S, _STEADY_S = 1.0, 30.0, 60.0
_BEATS = 4  # in the time in which trust may come near its end
_LOOK_S = 0.01


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done, besides the settings of the lock.

    Attributes:
        command: and its arguments; empty: only tell of transitions.
        grace_s: between TERM and KILL, in a clean end.
        restart: start the command again when it ends by itself while leading.
        once: end after the first term.
        wait_s: give up when this process does not lead within so many seconds; None: never.
        attended: a terminal hangs on this process, so SIGHUP means that it is gone.
    """

    command: tuple[str, ...]
    grace_s: float
    restart: bool
    once: bool
    wait_s: float | None
    attended: bool


class Campaign:
    """One ``pgelect run``."""

    def __init__(self, lock: LeaderLock, settings: Settings, plan: Plan, *, as_json: bool) -> None:
        self._lock = lock
        self._plan = plan
        self._settings = settings
        self._loss_grace_s = min(plan.grace_s, settings.margin_s / 2 + settings.takeover_delay_s)
        self._beat_s = min(settings.health_interval_s, settings.trust_s - settings.health_interval_s) / _BEATS
        self._report = Report(lock, aside=bool(plan.command), as_json=as_json, on_nobody=self._unheard)
        self._stop = asyncio.Event()
        self._signals: list[signal.Signals] = []
        self._command: Command | None = None
        self._working_for: Term | None = None
        self._leading = self._starting = False
        self._kept: list[signal.Signals] = []  # for the command that is being started
        self._code: int | None = None  # the answer, once there is one
        self._last_code: int = Code.OK  # of the last term, for --once
        self._ended_with: int | None = None  # the command, after the first signal
        self._releasing: asyncio.Task[None] | None = None
        lock.on_lost(self._lost)

    async def run(self) -> int:
        """Campaign until it is over; return the exit code.

        Raises:
            PgElectError: the lock cannot be started, or has stopped by itself.
        """
        with self._signals_caught():
            work = asyncio.create_task(self._work())
            stop = asyncio.create_task(self._stop.wait())
            await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
            if not self._leading:
                work.cancel()
            await self._release()
            await asyncio.wait({work})
        if not work.cancelled():
            work.result()
        if not self._signals:
            return self._last_code if self._code is None else self._code
        ended_with = self._ended_with
        return ended_with if ended_with is not None and ended_with >= 0 else 128 + self._signals[0]

    def _finish(self, code: int) -> None:
        """Have it all end, with this exit code."""
        if not self._stop.is_set():
            self._code = code
            self._stop.set()

    def _unheard(self) -> None:
        hush()
        self._finish(Code.BROKEN_PIPE)

    async def _work(self) -> None:
        await self._lock.start()
        if self._plan.wait_s is not None and not await self._leads_within(self._plan.wait_s):
            return
        self._leading = True
        await self._lock.lead(self._duty, repeat=True)
        # It has stopped: it was asked to, or after its only term.

    async def _leads_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            await self._lock.wait_for_leadership(seconds)
        while self._lock.state is LockState.ACQUIRING:  # noqa: ASYNC110 -- brief, and bounded by the lock
            await asyncio.sleep(_LOOK_S)
        if self._lock.is_leader:
            return True
        health, record = self._lock.health(), self._lock.record
        if health.ready:
            self._finish(Code.NO)
            who = f": {clean(record.holder)}, with token {record.token}" if record is not None else ""
            complain("run", f"another process leads{who}")
        else:
            self._finish(Code.UNREACHABLE)
            complain("run", health.reason)
        return False

    async def _release(self) -> None:
        """Shut the lock down, which waits for the command."""
        self._releasing = asyncio.create_task(self._lock.shutdown(self._plan.grace_s + RELEASE_S))
        await asyncio.wait({self._releasing})
        if self._command is not None:
            self._command.close()
        if not self._releasing.cancelled() and isinstance(error := self._releasing.exception(), ShutdownError):
            complain("run", str(error))
            self._code = self._code or self._last_code or Code.NO

    # -- while leading -------------------------------------------------------------------------------------------------

    async def _duty(self, term: Term) -> None:
        delay_s = _RESTART_S
        while self._plan.command and not self._stop.is_set():
            began = now()
            try:
                code = await self._attend(term)
            except TooLateError:  # in a reconnect grace, or a cancel is on its way
                await asyncio.sleep(self._beat_s)
                continue
            except CommandError as error:
                complain("run", str(error))
                self._finish(error.code)
                break
            if code is None:
                break
            if code == CUT_SHORT:
                why = (
                    "this process had not run for nearly a lease, so its keeper ended the command; it is started again"
                )
                self._report.tell("restart", why, {"delay_s": 0.0})
                continue
            if not self._plan.restart:
                self._finish(code)
                break
            delay_s = _RESTART_S if now() - began > _STEADY_S else min(2 * delay_s, _RESTART_MAX_S)
            self._report.tell("restart", f"the command is started again in {delay_s:g} s", {"delay_s": delay_s})
            await asyncio.sleep(delay_s)
        await term.ended()

    async def _attend(self, term: Term) -> int | None:
        """Run the command once; return its exit code, None when it was asked to end, or CUT_SHORT."""
        starting = asyncio.create_task(
            Command.start(
                self._plan.command,
                environment_of(term),
                trusted_until=self._trusted_until(),
                grace_s=self._plan.grace_s,
                loss_grace_s=self._loss_grace_s,
            )
        )
        told = 0
        self._starting = True
        while not starting.done():  # it may run before we hear that it does: then it has its grace, and signals, too
            try:
                await asyncio.wait({starting})
            except asyncio.CancelledError:
                told += 1
        self._starting = False
        kept, self._kept = self._kept, []
        command = starting.result()
        self._command, self._working_for = command, term
        for number in kept:
            command.send(number)
        self._report.tell("started", f"the command runs, pid {command.pid}", {"pid": command.pid})
        gone = asyncio.create_task(command.gone())
        beat = asyncio.create_task(self._keep_trusted(command))
        if told:
            beat.cancel()
            self._ask_to_end(command, hurry=told > 1 or len(self._signals) > 1)
        while not gone.done():
            try:
                await asyncio.wait({gone})
            except asyncio.CancelledError:  # the term is over, or is being given up
                told += 1
                beat.cancel()
                self._ask_to_end(command, hurry=told > 1)
        beat.cancel()
        self._command = None
        status = gone.result()
        code = status if status >= 0 else 128 - status
        self._report.tell("exited", f"the command has ended, exit code {code}", {"code": code})
        if self._signals:
            self._ended_with = status
        self._last_code = code
        if command.exited_by_itself:
            return code
        return None if command.was_asked else CUT_SHORT

    def _ask_to_end(self, command: Command, *, hurry: bool) -> None:
        if hurry:
            command.stop(0.0)
        elif self._lock.state is LockState.RELEASING:
            command.trust_until(float("inf"))  # proofs go on; what bounds it now is the grace, or the news of a loss
            command.stop(self._plan.grace_s)
        else:
            command.stop(self._loss_grace_s)

    async def _keep_trusted(self, command: Command) -> None:
        """Tell the keeper again and again how long the command may run without a word from us."""
        while True:
            await asyncio.sleep(self._beat_s)
            if (until := self._trusted_until()) > now():  # else it is not leading, and what was said last counts
                command.trust_until(until)

    def _trusted_until(self) -> float:
        left_s = self._lock.trust_left_s
        return now() + (left_s + (self._settings.reconnect_grace_s or 0.0) if left_s else 0.0)

    def _lost(self, term: Term) -> None:
        """Take the long grace back from a command that was being drained."""
        if self._command is not None and self._working_for is term:  # else the news is old
            self._command.stop(self._loss_grace_s)
        elif not self._plan.command:
            self._last_code = Code.NO

    # -- signals -------------------------------------------------------------------------------------------------------

    @contextmanager
    def _signals_caught(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        heard = [number for number in (*ENDING, *PASSED_ON) if signal.getsignal(number) is not signal.SIG_IGN]
        for number in heard:  # what is ignored, as under nohup, stays so
            loop.add_signal_handler(number, self._signalled, number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        try:
            yield
        finally:
            for number in heard:
                loop.remove_signal_handler(number)

    def _signalled(self, number: signal.Signals) -> None:
        if number in ENDING or (number is signal.SIGHUP and self._plan.attended and self._command is None):
            self._signals.append(number)
            if len(self._signals) == 1:
                self._finish(128 + number)
            elif self._command is not None:
                self._command.stop(0.0)
            elif self._starting:  # it is stopped as soon as it runs
                pass
            elif self._releasing is not None:
                self._releasing.cancel()
        elif self._command is not None:
            self._command.send(number)
        elif self._starting:
            self._kept.append(number)


def environment_of(term: Term) -> dict[str, str]:
    """Make the environment of the command: ours, and which term it works for."""
    key = term.key
    told = {
        "NAME": key.name,
        "KEY1": key.key1,
        "KEY2": key.key2,
        "TOKEN": term.token or None,
        "HOLDER": term.identity,
        "ACQUIRED_AT": as_json(term.acquired_at),
    }
    environment = {name: value for name, value in os.environ.items() if name.removeprefix("PGELECT_") not in told}
    return environment | {f"PGELECT_{name}": str(value) for name, value in told.items() if value is not None}
