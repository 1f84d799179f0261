"""The runner of a group: publishes the snapshot, starts the effects of the machine, and tells of the terms.

What it shares with that of a single lock, and the rules, are in ``_engine/driver.py``.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from pgelect._engine.driver import Driver
from pgelect._engine.futures import settle
from pgelect._engine.hooks import Hook
from pgelect._group import events as ev
from pgelect._group.answers import Answers
from pgelect._group.machine import step
from pgelect._group.moves import interrupt
from pgelect._group.performer import Performer
from pgelect._group.state import GroupState, Machine, Rules, Snapshot
from pgelect._group.terms import Duty, Terms

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from pgelect._engine.clock import Clock
    from pgelect._engine.model import Backend, LockKey, Term
    from pgelect._engine.settings import Settings
    from pgelect._group.session import GroupSession
    from pgelect.retry import RetryStrategy

log = logging.getLogger("pgelect")


class Runner(Answers, Driver):
    """Runs one group from start to stop, any number of times."""

    STOPPED = GroupState.STOPPED
    KIND = "group"
    _machine: Machine
    _performer: Performer

    def __init__(
        self,
        settings: Settings,
        rules: Rules,
        partitions: tuple[LockKey, ...],
        *,
        sessions: Callable[[], GroupSession],
        strategy: RetryStrategy,
        clock: Clock,
    ) -> None:
        super().__init__(repr(settings.key.name), clock)
        self.settings = settings
        self.snapshot = Snapshot()
        self.terms = Terms(strategy, clock, drained=self._drained, give_up=self._give_up, report=self._tell_error)
        self._performer = Performer(settings, sessions, strategy, clock)
        self._machine = Machine(rules, partitions)
        self._wanted = partitions  # ahead of the machine's while that has yet to hear of a change

    # -- what the group calls ------------------------------------------------------------------------------------------

    @property
    def callbacks(self) -> Terms:
        """What runs the callbacks."""
        return self.terms

    @property
    def in_callback(self) -> bool:
        """The running task is a callback, or one that a callback made."""
        return self.terms.inside()

    @property
    def is_called_by_work(self) -> bool:
        """The running task works for a term, or is a callback."""
        return self.terms.is_called_by_work()

    @property
    def duty_left(self) -> bool:
        """Work for a term has still not stopped."""
        return self.terms.busy

    async def duty_ended(self) -> None:
        """Wait until nobody works for a term any more."""
        await self.terms.ended()

    async def step_down(self, keys: tuple[LockKey, ...] | None, drain_s: float, cooldown_s: float) -> bool:
        """Give partitions up (None: all, and leave for a while); False: there were none."""
        numbers = {
            key: held.number
            for key, held in self._machine.held.items()
            if held.number and (keys is None or key in keys)
        }
        if not numbers and (keys is not None or not self._machine.connected):
            return False
        self.post(ev.StepDown(keys, drain_s, cooldown_s))
        for key, number in numbers.items():
            while self.running and key in (held := self._machine.held) and held[key].number == number:
                await self.change()
        return bool(numbers)

    def repartition(self, keys: tuple[LockKey, ...]) -> None:
        """Campaign for these from now on."""
        self._wanted = keys
        if self.running:
            self.post(ev.Partitions(keys))
        else:
            self._machine, _ = step(self._machine, ev.Partitions(keys), self._clock.now())

    async def gone(self, keys: Collection[LockKey]) -> None:
        """After ``repartition``: wait until nothing of these partitions is held, but of those that are wanted again."""
        before = self._wanted
        while self.running and self._machine.partitions is not self._wanted:
            await self.change()
        for key in keys:
            while self.running and key in self._machine.held and (self._wanted is before or key not in self._wanted):
                await self.change()

    async def lead(self, work: Callable[[Term], Awaitable[object]]) -> None:
        """Run ``work(term)`` for each partition while it is led, until the group stops.

        Raises:
            PgElectError: the group stopped by itself, for this reason.
        """

        async def stopped() -> None:
            while self.running:
                await self.change()

        await Duty(self.terms, work).run(stopped)
        if self.failure is not None:
            raise self.failure

    def succeed(self, old: Runner) -> None:
        """Go on for a runner that is forsaken: the callbacks, and the untold ends of its terms."""
        self.terms.succeed(old.terms)
        old.snapshot = Snapshot()
        old._performer.abandon()

    @property
    def backend(self) -> Backend | None:
        """The present session, if this process is a member."""
        return self._machine.backend

    def clock_moved(self) -> None:
        """Look at the clock again: a test has moved it."""
        settle(self._wake)
        if interrupt(self._machine):
            self._interrupt()

    # -- the task ------------------------------------------------------------------------------------------------------

    def _renewed(self) -> None:
        self.repartition(self._wanted)  # what came when the last run was over already

    def _apply(self, event: ev.Event) -> None:
        if not self._is_ours:
            return
        self._machine, effects = step(self._machine, event, self._clock.now())
        for effect in effects:
            if isinstance(effect, ev.TermBegan):
                current = partial(self.is_trusted, effect.key, effect.number)
                self.terms.begin(effect.key, effect.number, effect.grant, self.settings, current)
            elif isinstance(effect, ev.Drain | ev.TermEnded):
                self.terms.forget(effect.key)
        if isinstance(event, ev.Looked | ev.Joined):
            self._journal.went_well()
        self._publish()
        self._finished = self._machine.state is GroupState.STOPPED
        for effect in effects:
            self._carry_out(effect)
        self._applied(answered=isinstance(event, ev.Failed | ev.Joined | ev.Abort))

    def _publish(self) -> None:
        m = self._machine
        self.snapshot = Snapshot(
            state=m.state,
            trusted_until=m.trusted_until,
            proved_at=m.proved_at,
            terms=self.terms.present(),
            share=m.share,
            members=len(m.view.members),
        )

    def _carry_out(self, effect: ev.Effect) -> None:  # noqa: C901, PLR0912 -- one flat list of all effects
        match effect:
            case ev.Do(io, epoch):
                if isinstance(io, ev.Open):
                    self._performer.prepare(epoch)
                self._perform(io, epoch, ev.WatchEnded if isinstance(io, ev.Watch) else self._performer.cancelled)
            case ev.Interrupt():
                self._interrupt()
            case ev.Close(epoch, orderly):
                self._close(epoch, orderly=orderly)
            case ev.Changed(before, after, reason):
                self._log_change(before, after, reason)
                self.terms.general.post(Hook.STATE_CHANGE, before, after)
            case ev.TermBegan(key, _, grant):
                log.info("%s: %s: leading (token %d)", self._label, key, grant.token)
                self.terms.tell_begun(key)
            case ev.Drain(key, number):
                self.terms.drain(key, number)
            case ev.Asked(key, by):
                log.info("%s: %s: %r has asked for a step-down", self._label, key, by)
            case ev.DrainTimedOut(key):
                log.warning(
                    "%s: the duty of %s did not stop in the time for its drain; the lock is freed while it still runs",
                    self._label,
                    key,
                )
            case ev.TermEnded(key, _, released, error):
                level = logging.INFO if released else logging.WARNING
                log.log(level, "%s: %s: %s", self._label, key, "released" if released else f"lost ({error})")
                self.terms.end(key, released=released)
            case ev.AttemptFailed(_, error):
                self._journal.attempt_failed(error)
                self.terms.general.post(Hook.ACQUIRE_FAILED, error)
                self.terms.general.post(Hook.ERROR, error)
            case ev.Report(error):
                self._report(error)
            case ev.Halt(error, exhausted):
                self._halt(error, exhausted=exhausted)

    def _interrupt(self) -> None:
        if isinstance(self._machine.io, ev.Watch) and self._io is not None:
            self._io.cancel()
        else:
            self._performer.hurry(self._machine.epoch)

    def _drained(self, key: LockKey, number: int) -> None:
        self.post(ev.Drained(key, number))

    def _give_up(self, key: LockKey, delay_s: float) -> None:
        self.post(ev.StepDown((key,), self.settings.drain_timeout_s, delay_s))

    def _report(self, error: Exception) -> None:
        self._journal.attempt_failed(error)
        self._tell_error(error)

    def _tell_error(self, error: Exception) -> None:
        self.terms.general.post(Hook.ERROR, error)

    def _log_change(self, before: GroupState, after: GroupState, reason: str) -> None:
        level = logging.INFO
        if before in {GroupState.MEMBER, GroupState.LEAVING} and after is GroupState.CONNECTING:
            level = logging.WARNING
        log.log(level, "%s: %s -> %s (%s)", self._label, before.value, after.value, reason)
