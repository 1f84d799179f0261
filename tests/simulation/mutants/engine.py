"""Faults of the engine: the machine, the runner, and what carries out its I/O."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

from pgelect._engine import events as ev
from pgelect._engine import moves, rulebook
from pgelect._engine import transitions as rules
from pgelect._engine.dispatch import Dispatcher
from pgelect._engine.hooks import Hook
from pgelect._engine.machine import TABLE
from pgelect._engine.model import LockState
from pgelect._engine.performer import Performer
from pgelect._engine.rulebook import IllegalEventError, Rulebook
from pgelect._engine.runner import Runner
from pgelect._engine.settings import Settings
from pgelect._engine.term import TermLife
from tests.simulation.mutants.mutant import Mutant, named

if TYPE_CHECKING:
    from pgelect._engine.events import Event
    from pgelect._engine.moves import Step
    from pgelect._engine.state import Machine

_perform, _post, _call, _drop, _apply, _shut_down = (
    Performer.perform,
    Dispatcher.post,
    Performer._call,
    moves.drop,
    Rulebook.apply,
    Runner.post_shutdown,
)
_margin_s = Settings.margin_s


def _trusted_for_ever(runner: Runner, number: int | None = None) -> bool:
    seen = runner.snapshot
    return seen.state is LockState.LEADER and number in {None, seen.number} and runner._is_ours


async def _sent_when_answered(performer: Performer, io: ev.Io, epoch: int, machine: Machine) -> Event:
    event = await _perform(performer, io, epoch, machine)
    if isinstance(event, ev.Proved | ev.Minted | ev.Resumed):
        return replace(event, sent_at=performer._clock.now())
    return event


async def _mint_before_lock(performer: Performer, io: ev.Io, epoch: int, machine: Machine, sent_at: float) -> Event:
    """The token is drawn when the lock is tried, and written when it is granted."""
    session: Any = performer._sessions.get(epoch)
    if io is ev.Io.TRY and session is not None:
        statements = session._server

        def draw(backend: Any) -> Any:
            number = statements.cluster.data.next_value()
            return statements.tables.next_row(
                statements.key, number, holder="", metadata={}, lease_s=statements.lease_s, backend=backend.id
            )

        session.drawn = await session._end.ask(5.0, draw)
    event = await _call(performer, io, epoch, machine, sent_at)
    if isinstance(event, ev.Minted) and event.grant.record is not None:
        record = session.drawn

        def write(backend: Any) -> Any:
            return session._server.tables.write_row(backend, record)

        await session._end.ask(5.0, write)
        return replace(event, grant=replace(event.grant, token=record.token, record=record))
    return event


def _clock_alone(runner: Runner, number: int | None = None) -> bool:
    return runner._clock.now() < runner.snapshot.trusted_until and number in {None, runner.snapshot.number}


def _epochs_do_not_matter(_: Machine, __: Event) -> bool:
    return False


def _no_pair_is_illegal(rules: Rulebook[Machine, LockState], m: Machine, event: Event, now: float) -> Step:
    """What no rule expects does nothing, in place of stopping the lock."""
    try:
        return _apply(rules, m, event, now)
    except IllegalEventError:
        return m, ()


def _always_was_held(m: Machine, event: ev.Unlocked, now: float) -> Step:
    return rules.released(m, replace(event, was_held=True), now)


def _without_drain(m: Machine, event: ev.StepDown, now: float) -> Step:
    m, effects = rules.step_down(m, event, now)
    m = replace(m, drained=True, until=inf)
    return m, (*effects, ev.Interrupt()) if m.io is ev.Io.WATCH else effects


def _is_not_busy(life: TermLife) -> bool:
    return False


async def _does_not_wait(life: TermLife) -> None:
    return


def _ends_are_not_told(dispatcher: Dispatcher, hook: Hook, *arguments: Any, **more: Any) -> None:
    if hook is not Hook.LOST:
        _post(dispatcher, hook, *arguments, **more)


def _sessions_are_left_open(m: Machine, *, orderly: bool = False) -> Step:
    after, _ = _drop(m, orderly=orderly)
    return after, ()


def _no_takeover_delay(m: Machine, event: ev.Minted, now: float) -> Step:
    grant = replace(event.grant, predecessor_clean=True)
    return rules.minted(m, replace(event, grant=grant), now)


def _leads_without_asking_again(m: Machine, event: ev.Opened, now: float) -> Step:
    assert m.grant is not None
    return rules.resumed(replace(m, connected=True), ev.Resumed(m.epoch, now, m.grant.backend), now)


def _untold_in_the_grace(m: Machine, event: ev.Shutdown, now: float) -> Step:
    m, effects = rules.reconnecting_shutdown(m, event, now)
    return m, tuple(effect for effect in effects if not isinstance(effect, ev.TermEnded))


def _leaves_a_task_in_the_grace(runner: Runner, *arguments: float) -> None:
    if runner.snapshot.state is LockState.RECONNECTING:
        runner._spawn(asyncio.sleep(1e6))
    _shut_down(runner, *arguments)


def _never_again(m: Machine, event: ev.Unlocked, now: float) -> Step:
    m, effects = rules.released(m, event, now)
    return replace(m, wake_at=inf), effects


def _believes_a_longer_lease_at_once(m: Machine, event: ev.Reconfigure, now: float) -> Step:
    m, effects = rules.reconfigure(m, event, now)
    return replace(m, trusted_until=max(m.trusted_until, m.proved_at + m.rules.trust_s)), effects


def _keeps_its_trust(m: Machine, event: ev.Reconfigure, now: float) -> Step:
    after, effects = rules.reconfigure(m, event, now)
    return replace(after, trusted_until=m.trusted_until), effects


def _stays_aside(m: Machine, event: ev.LockRefused, now: float) -> Step:
    if m.io is ev.Io.ASIDE and event.aside_s is None:
        event = replace(event, aside_s=m.aside_s)
    return rules.waited_refused(m, event, now)


def _always_waits(m: Machine, event: ev.LockRefused, now: float) -> Step:
    return rules.waited_refused(m, replace(event, aside_s=None), now)


def _rule(state: LockState, event: type[Event], handler: Any) -> tuple[Any, Any, Any]:
    row = dict(TABLE[state])
    row[event] = (handler, tuple(LockState))
    return TABLE, state, row


ENGINE_MUTANTS = named(
    {
        "trust_ignores_the_clock": Mutant(
            "is_leader is a stored state, not compared with the clock",
            ((Runner, "is_trusted", _trusted_for_ever),),
            "after its session ended",
            seed=29,
        ),
        "trust_ignores_the_state": Mutant(
            "is_leader compares only the clock: who has stepped down, or waits to lead, says that it leads",
            ((Runner, "is_trusted", _clock_alone),),
            "says that it leads, but is",
        ),
        "trust_counted_from_the_answer": Mutant(
            "a proof is trusted from when its answer came, not from when it was sent",
            ((Performer, "perform", _sent_when_answered),),
            "still leads when its lease is over",
            seed=15,
        ),
        "no_margin": Mutant(
            "the lease is believed for as long as the server keeps it: nothing pays for clocks that differ",
            ((Settings, "margin_s", property(lambda settings: 0.0)),),
            "still leads when its lease is over",
            seed=49,
        ),
        "half_the_margin": Mutant(
            "the margin pays for half of what clocks may differ",
            ((Settings, "margin_s", property(lambda settings: _margin_s.__get__(settings) / 2)),),
            "still leads when its lease is over",
            seed=51,
        ),
        "no_epoch_check": Mutant(
            "the answer of an earlier session counts for the present one: each failure breaks the next session",
            ((rulebook, "is_stale", _epochs_do_not_matter), (Rulebook, "apply", _no_pair_is_illegal)),
            "a process spins",
        ),
        "mint_before_the_lock": Mutant(
            "the token is drawn before the lock is held",
            ((Performer, "_call", _mint_before_lock),),
            "was minted, but",
        ),
        "unlock_result_ignored": Mutant(
            "an unlock that the server refused counts as a release",
            (_rule(LockState.RELEASING, ev.Unlocked, _always_was_held),),
            "on_released",
            seed=52,
        ),
        "released_before_the_drain": Mutant(
            "a step-down frees the lock while the duty still works",
            (_rule(LockState.LEADER, ev.StepDown, _without_drain),),
            "the lock was freed while the duty",
        ),
        "duty_not_waited_for": Mutant(
            "a release does not wait for the duty that it has cancelled",
            ((TermLife, "busy", property(_is_not_busy)), (TermLife, "drained", _does_not_wait)),
            "the lock was freed while the duty",
        ),
        "ends_not_told": Mutant(
            "on_lost is not called",
            ((Dispatcher, "post", _ends_are_not_told),),
            "without an end of term",
        ),
        "end_not_told_at_shutdown": Mutant(
            "on_lost is not called by a shutdown in the grace",
            (_rule(LockState.RECONNECTING, ev.Shutdown, _untold_in_the_grace),),
            "was never ended",
            seed=46,
        ),
        "task_left_at_shutdown": Mutant(
            "a shutdown in the grace leaves a task behind",
            ((Runner, "post_shutdown", _leaves_a_task_in_the_grace),),
            "tasks are left",
            seed=46,
        ),
        "no_campaign_after_a_step_down": Mutant(
            "who has stepped down never campaigns again",
            (_rule(LockState.RELEASING, ev.Unlocked, _never_again),),
            "does not campaign",
        ),
        "places_are_not_taken": Mutant(
            "who stands aside never goes back to the queue",
            (_rule(LockState.FOLLOWER, ev.LockRefused, _stays_aside),),
            "after a place was left",
            seed=4,
        ),
        "nobody_leaves_the_queue": Mutant(
            "who waits goes on waiting, however many others do",
            (_rule(LockState.FOLLOWER, ev.LockRefused, _always_waits),),
            "stand aside",
        ),
        "sessions_left_open": Mutant(
            "a session that is uncertain is not closed",
            ((rules, "drop", _sessions_are_left_open), (moves, "drop", _sessions_are_left_open)),
            "sessions are left",
        ),
        "no_takeover_delay": Mutant(
            "a new leader does not wait after an unclean end",
            (_rule(LockState.ACQUIRING, ev.Minted, _no_takeover_delay),),
            "lead at once",
            seed=17,
        ),
        "longer_lease_believed_at_once": Mutant(
            "a lease that is made longer is believed before the server was told of it",
            (_rule(LockState.LEADER, ev.Reconfigure, _believes_a_longer_lease_at_once),),
            "still leads when its lease is over",
            seed=197,
        ),
        "shorter_lease_trusted_as_before": Mutant(
            "a lease that is made shorter leaves the trust in the longer one as it was",
            (_rule(LockState.LEADER, ev.Reconfigure, _keeps_its_trust),),
            "still leads when its lease is over",
            seed=197,
        ),
        "grace_without_asking": Mutant(
            "a term goes on as soon as there is a new session",
            (_rule(LockState.RECONNECTING, ev.Opened, _leads_without_asking_again),),
            "still leads when its lease is over",
        ),
    }
)
