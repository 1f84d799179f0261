"""The table of a group, by itself: every pair of state and event, and the rules that matter most."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from pgelect import GroupState, LockKey, SessionLostError
from pgelect._engine.model import Backend, Grant
from pgelect._engine.rulebook import IllegalEventError
from pgelect._group import events as ev
from pgelect._group.machine import IGNORED, TABLE, step
from pgelect._group.shares import Member, View
from pgelect._group.state import Held, Machine, Phase, Rules
from pgelect.errors import PgElectError

STOPPED, CONNECTING = GroupState.STOPPED, GroupState.CONNECTING
MEMBER, LEAVING = GroupState.MEMBER, GroupState.LEAVING
KEYS = tuple(LockKey(3, number) for number in range(6))
RULES = Rules(
    trust_s=10.0,
    health_interval_s=3.0,
    wait_s=0.9,
    rebalance_interval_s=5.0,
    takeover_delay_s=0.0,
    drain_timeout_s=2.0,
)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
BACKEND = Backend(101, NOW)
LOST = SessionLostError("closed", "gone")


def grant(token: int, *, clean: bool = True) -> Grant:
    return Grant(token, NOW, BACKEND, 1, predecessor_clean=clean, record=None)


def after(machine: Machine, *events: tuple[float, ev.Event]) -> tuple[Machine, list[ev.Effect]]:
    """The machine after these, and all their effects."""
    effects: list[ev.Effect] = []
    for now, event in events:
        machine, more = step(machine, event, now)
        effects += more
    return machine, effects


def member(*, keys: tuple[LockKey, ...] = KEYS, rules: Rules = RULES) -> Machine:
    """One that has just joined, at the time 0."""
    return after(
        Machine(rules, keys), (0.0, ev.Start()), (0.0, ev.Opened(1)), (0.0, ev.Joined(1, 0.0, me=7, backend=BACKEND))
    )[0]


def view(*others: tuple[int, int], held: dict[LockKey, int] | None = None) -> View:
    """`others`: id and pid. `held`: pids by partition."""
    members = [Member(7, 101), *(Member(*other) for other in others)]
    return View(tuple(members), {(key.key1, key.key2): pid for key, pid in (held or {}).items()})


def leader(*, rules: Rules = RULES) -> Machine:
    """One that is alone, leads all six, and has told so."""
    machine, _ = after(
        member(rules=rules),
        (0.0, ev.Looked(1, 0.0, 1, view())),
        (0.0, ev.Taken(1, tuple((key, grant(number)) for number, key in enumerate(KEYS, 1)))),
        (0.0, ev.Told(1)),
    )
    assert len(machine.held) == 6
    return machine


def kinds(effects: list[ev.Effect], kind: type[ev.Effect]) -> list[ev.Effect]:
    return [effect for effect in effects if isinstance(effect, kind)]


def ios(effects: list[ev.Effect]) -> list[ev.Io]:
    return [effect.io for effect in effects if isinstance(effect, ev.Do)]


EVENTS: dict[type[ev.Event], ev.Event] = {
    type(event): event
    for event in (
        ev.Start(),
        ev.Partitions(KEYS[:2]),
        ev.StepDown(None, 1.0, 1.0),
        ev.Shutdown(1.0),
        ev.Abort(None),
        ev.Drained(KEYS[0], 1),
        ev.Tick(),
        ev.Opened(1),
        ev.Joined(1, 1.0, 7, BACKEND),
        ev.Looked(1, 1.0, 2, view()),
        ev.Taken(1, ((KEYS[0], grant(9)),)),
        ev.Told(1),
        ev.Heeded(1),
        ev.Freed(1, ()),
        ev.WatchEnded(1),
        ev.Refused(1, PgElectError("cancelled")),
        ev.Failed(1, LOST, 0.5),
    )
}


def in_state(state: GroupState) -> Machine:
    if state is STOPPED:
        return replace(Machine(RULES, KEYS), epoch=1)
    if state is CONNECTING:
        return after(Machine(RULES, KEYS), (0.0, ev.Start()))[0]
    return leader() if state is MEMBER else after(leader(), (0.5, ev.Shutdown(1.0)))[0]


def test_every_event_is_in_this_test() -> None:
    named = {kind for rules in TABLE.values() for kind in rules} | {
        kind for kinds in IGNORED.values() for kind in kinds
    }
    assert named == set(EVENTS)


@pytest.mark.parametrize("state", GroupState)
@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
def test_each_pair_is_a_rule_or_ignored_or_a_bug(state: GroupState, kind: type[ev.Event]) -> None:
    machine = in_state(state)
    if kind in TABLE[state]:
        assert kind not in IGNORED[state]
        result, _ = step(machine, EVENTS[kind], 1.0)
        assert result.state in TABLE[state][kind][1]
    elif kind in IGNORED[state]:
        assert step(machine, EVENTS[kind], 1.0) == (machine, ())
    else:
        with pytest.raises(IllegalEventError):
            step(machine, EVENTS[kind], 1.0)


@pytest.mark.parametrize("kind", [k for k, e in EVENTS.items() if isinstance(e, ev.SessionEvent)])
def test_what_comes_from_a_session_that_is_gone_is_dropped_and_the_session_closed(kind: type[ev.Event]) -> None:
    machine = leader()
    stale = replace(EVENTS[kind], epoch=0)  # type: ignore[call-arg]
    assert step(machine, stale, 1.0) == (machine, (ev.Close(0, orderly=False),))


def test_whoever_joins_looks_first_and_then_takes_its_share() -> None:
    machine = member()
    assert machine.io == ev.Look(None)
    machine, effects = after(machine, (0.1, ev.Looked(1, 0.0, 1, view((9, 102), held={KEYS[0]: 102}))))
    assert ios(effects) == [ev.Take(KEYS[1:4])]
    machine, effects = after(machine, (0.2, ev.Taken(1, tuple((key, grant(1)) for key in KEYS[1:4]))))
    assert [effect.key for effect in effects if isinstance(effect, ev.TermBegan)] == list(KEYS[1:4])
    assert [one.phase for one in machine.held.values()] == [Phase.LEADING] * 3


def test_a_member_waits_for_the_next_one_and_one_that_is_alone_idles() -> None:
    alone = leader()
    for _ in range(8):  # nobody comes: it looks less and less often
        alone, _ = after(alone, (0.1, ev.WatchEnded(1)), (0.1, ev.Looked(1, 0.1, 1)))
    assert alone.io == ev.Watch(0.9)
    machine, _ = after(alone, (0.1, ev.WatchEnded(1)), (0.1, ev.Looked(1, 0.1, 2, view((9, 102)))))
    waits = [machine.io]
    for _ in range(8):
        machine, _ = after(machine, (0.1, ev.Looked(1, 0.1, 2, view((9, 102)))))
        waits.append(machine.io)
    assert waits[0] == ev.Look(None, wait_for=9, wait_s=0.05)  # more may come
    assert waits[-1] == ev.Look(2, wait_for=9, wait_s=0.9)


def test_what_is_too_much_is_drained_before_it_is_freed() -> None:
    held = dict.fromkeys(KEYS, 101)
    machine, effects = after(leader(), (0.1, ev.WatchEnded(1)), (0.2, ev.Looked(1, 0.1, 2, view((9, 102), held=held))))
    assert kinds(effects, ev.Drain) == [ev.Drain(KEYS[3], 4), ev.Drain(KEYS[4], 5), ev.Drain(KEYS[5], 6)]
    assert not any(isinstance(io, ev.Free) for io in ios(effects))
    machine, effects = after(machine, (0.3, ev.Drained(KEYS[4], 5)))
    assert effects == [ev.Interrupt()]
    machine, effects = after(machine, (0.3, ev.Looked(1, 0.3, 2)))
    assert ios(effects) == [ev.Free(((KEYS[4], 5),))]
    machine, effects = after(machine, (0.4, ev.Freed(1, (KEYS[4],))))
    assert ev.TermEnded(KEYS[4], 5, released=True) in effects
    machine, effects = after(machine, (2.2, ev.Tick()))  # the drain of the others takes too long
    assert kinds(effects, ev.DrainTimedOut) == [ev.DrainTimedOut(KEYS[3]), ev.DrainTimedOut(KEYS[5])]


def test_when_the_next_member_dies_all_that_is_free_is_taken_at_once() -> None:
    both = view((9, 102), held={**dict.fromkeys(KEYS[:3], 101), **dict.fromkeys(KEYS[3:], 102)})
    machine, _ = after(
        member(),
        (0.0, ev.Looked(1, 0.0, 1, view((9, 102), held=dict.fromkeys(KEYS[3:], 102)))),
        (0.0, ev.Taken(1, tuple((key, grant(1)) for key in KEYS[:3]))),
        (0.0, ev.Told(1)),
        (0.0, ev.Looked(1, 0.0, 2, both)),
    )
    alone = view((11, 103), held=dict.fromkeys(KEYS[:3], 101))
    machine, effects = after(machine, (0.5, ev.Looked(1, 0.4, 3, alone, orphaned=True)))
    assert ios(effects) == [ev.Take(KEYS[3:])]
    machine, effects = after(machine, (0.5, ev.Taken(1, tuple((key, grant(2)) for key in KEYS[3:]))))
    assert len(kinds(effects, ev.TermBegan)) == 3
    assert kinds(effects, ev.Drain) == []
    everything = view((11, 103), held=dict.fromkeys(KEYS, 101))
    machine, effects = after(machine, (0.6, ev.Told(1)), (0.7, ev.Looked(1, 0.6, 4, everything)))
    assert kinds(effects, ev.Drain) == []  # there may be more to come
    machine, effects = after(machine, (0.9, ev.Looked(1, 0.8, 4)))
    assert len(kinds(effects, ev.Drain)) == 3  # what is too much is handed on afterwards


def test_what_a_dead_member_seems_to_hold_still_is_tried_for_until_it_is_had() -> None:
    """The server frees the locks of a session that ends one after another, and the waiter may be quicker."""
    three = dict.fromkeys(KEYS[:3], 101)
    machine, _ = after(
        member(),
        (0.0, ev.Looked(1, 0.0, 1, view((9, 102), held=dict.fromkeys(KEYS[3:], 102)))),
        (0.0, ev.Taken(1, tuple((key, grant(1)) for key in KEYS[:3]))),
        (0.0, ev.Told(1)),
    )
    dying = view(held={**three, **dict.fromkeys(KEYS[3:], 102)})
    machine, effects = after(machine, (0.5, ev.Looked(1, 0.4, 3, dying, orphaned=True)))
    assert ios(effects) == [ev.Take(KEYS[3:])]
    machine, effects = after(machine, (0.5, ev.Taken(1, ((KEYS[3], grant(2)),))))  # the rest is not free yet
    assert ios(effects)[-1] == ev.Tell(((KEYS[3], grant(2)),))
    machine, effects = after(machine, (0.5, ev.Told(1)))
    assert machine.io == ev.Watch(0.05)
    machine, effects = after(machine, (0.55, ev.WatchEnded(1)))
    assert machine.io == ev.Look(None)
    machine, effects = after(machine, (0.56, ev.Looked(1, 0.55, 4, view(held={**three, KEYS[3]: 101}))))
    assert ios(effects) == [ev.Take(KEYS[4:])]


def test_a_lost_session_ends_every_term_at_once() -> None:
    machine, effects = after(leader(), (1.0, ev.Failed(1, LOST, 0.5)))
    assert machine.state is CONNECTING
    assert machine.held == {}
    assert [effect.error for effect in effects if isinstance(effect, ev.TermEnded)] == [LOST] * 6
    assert machine.wake_at == 1.5
    assert machine.ghost == BACKEND


@pytest.mark.parametrize("event", [ev.Tick(), ev.Looked(1, 9.99, 1), ev.WatchEnded(1), ev.Drained(KEYS[0], 1)])
def test_when_trust_has_run_out_everything_is_lost_whatever_comes(event: ev.Event) -> None:
    machine = leader()
    assert machine.deadline == 10.0
    machine, effects = step(machine, event, 10.0)
    assert machine.state is CONNECTING
    ended = [effect for effect in effects if isinstance(effect, ev.TermEnded)]
    assert len(ended) == 6
    assert all("nothing for the length of the lease" in str(effect.error) for effect in ended)


def test_trust_counts_from_when_the_proof_was_sent() -> None:
    machine, _ = after(leader(), (1.0, ev.WatchEnded(1)), (5.0, ev.Looked(1, 1.5, 1)))
    assert machine.trusted_until == 11.5
    machine, _ = after(leader(), (1.0, ev.WatchEnded(1)), (2.0, ev.Looked(1, 1.5, 1, trust_s=4.0)))
    assert machine.trusted_until == 10.0  # never less than what was promised before


def test_a_wait_that_the_server_refuses_is_left_out_for_a_while_and_the_proofs_go_on() -> None:
    """As when it has no room for one more lock: tried again at once and for ever, no proof would come any more."""
    machine, _ = after(leader(), (3.0, ev.WatchEnded(1)), (3.0, ev.Looked(1, 3.0, 2, view((9, 102)))))
    assert isinstance(machine.io, ev.Look)
    assert machine.io.wait_for == 9
    machine, effects = after(machine, (3.1, ev.Refused(1, PgElectError("out of shared memory"))))
    assert isinstance(machine.io, ev.Watch)
    for now in (3.2, 4.2, 5.2):
        machine, effects = after(machine, (now, ev.WatchEnded(1)))
        assert ios(effects) == [ev.Look(machine.print)]
        machine, _ = after(machine, (now, ev.Looked(1, now, 2, view((9, 102)))))
        assert isinstance(machine.io, ev.Watch)
        assert machine.trusted_until == now + RULES.trust_s
    machine, _ = after(machine, (6.2, ev.WatchEnded(1)), (6.2, ev.Looked(1, 6.2, 2)))
    assert isinstance(machine.io, ev.Look)  # the server may have room again
    assert machine.io.wait_for == 9


def test_after_an_unclean_end_a_partition_waits_for_the_takeover_delay() -> None:
    slow = replace(RULES, takeover_delay_s=1.5)
    machine, effects = after(
        member(rules=slow),
        (0.0, ev.Looked(1, 0.0, 1, view())),
        (0.2, ev.Taken(1, ((KEYS[0], grant(1, clean=False)), (KEYS[1], grant(2))))),
    )
    assert [effect.key for effect in effects if isinstance(effect, ev.TermBegan)] == [KEYS[1]]
    assert machine.held[KEYS[0]].phase is Phase.WAITING
    assert machine.deadline == 1.7
    machine, effects = after(machine, (1.7, ev.Tick()))
    assert [effect.key for effect in effects if isinstance(effect, ev.TermBegan)] == [KEYS[0]]


def test_what_is_held_up_is_minted_singly_and_what_failed_is_left_alone_for_a_while() -> None:
    machine, effects = after(
        member(),
        (0.0, ev.Looked(1, 0.0, 1, view())),
        (0.1, ev.Taken(1, (), held_up=KEYS[:2], failed=((KEYS[2], PgElectError("no")),), retry_in_s=3.0)),
    )
    assert kinds(effects, ev.AttemptFailed) == [ev.AttemptFailed(KEYS[2], machine_error(effects))]
    assert machine.io == ev.Mint(KEYS[0])
    assert machine.barred == {KEYS[2]: 3.1}


def machine_error(effects: list[ev.Effect]) -> Exception:
    return next(effect.error for effect in effects if isinstance(effect, ev.AttemptFailed))


def test_a_partition_that_is_removed_is_drained_and_one_that_comes_too_late_is_given_back() -> None:
    machine, effects = after(leader(), (0.5, ev.Partitions(KEYS[1:])))
    assert kinds(effects, ev.Drain) == [ev.Drain(KEYS[0], 1)]
    machine = member()
    machine, _ = after(machine, (0.0, ev.Looked(1, 0.0, 1, view())), (0.0, ev.Partitions(KEYS[1:])))
    machine, effects = after(machine, (0.1, ev.Taken(1, tuple((key, grant(1)) for key in KEYS))))
    assert ios(effects) == [ev.Free(((KEYS[0], 1),))]
    assert KEYS[0] not in [effect.key for effect in effects if isinstance(effect, ev.TermBegan)]


def test_a_step_down_of_everything_leaves_the_ring_and_comes_back() -> None:
    machine, effects = after(leader(), (1.0, ev.StepDown(None, 2.0, 5.0)))
    assert machine.state is LEAVING
    assert len(kinds(effects, ev.Drain)) == 6
    machine, _ = after(machine, *((1.1, ev.Drained(key, number)) for number, key in enumerate(KEYS, 1)))
    machine, effects = after(machine, (1.2, ev.WatchEnded(1)))
    assert isinstance(machine.io, ev.Free)
    machine, effects = after(machine, (1.3, ev.Freed(1, KEYS)))
    assert machine.state is CONNECTING
    assert ev.Close(1, orderly=True) in effects
    assert machine.wake_at == 6.3
    assert len(kinds(effects, ev.TermEnded)) == 6


def test_a_single_step_down_is_barred_for_its_cooldown() -> None:
    machine, _ = after(
        leader(),
        (1.0, ev.StepDown((KEYS[2],), 2.0, 5.0)),
        (1.1, ev.Drained(KEYS[2], 3)),
        (1.2, ev.WatchEnded(1)),
        (1.3, ev.Freed(1, (KEYS[2],))),
    )
    assert machine.barred == {KEYS[2]: 6.3}
    machine, effects = after(machine, (6.0, ev.Looked(1, 5.9, 3, view(held=dict.fromkeys(KEYS[3:], 101)))))
    assert not any(isinstance(io, ev.Take) for io in ios(effects))
    machine, effects = after(machine, (6.4, ev.WatchEnded(1)), (6.5, ev.Looked(1, 6.4, 3)))
    assert ios(effects)[-1] == ev.Take((KEYS[2],))


def test_a_call_is_looked_at_and_what_was_asked_for_is_given_up() -> None:
    machine, effects = after(leader(), (0.5, ev.WatchEnded(1)), (0.6, ev.Looked(1, 0.5, 1, called=True)))
    assert machine.io == ev.Heed(tuple((key, number) for number, key in enumerate(KEYS, 1)))
    machine, effects = after(machine, (0.7, ev.Heeded(1, ((KEYS[2], "operator"),))))
    assert ev.Asked(KEYS[2], "operator") in effects
    assert kinds(effects, ev.Drain) == [ev.Drain(KEYS[2], 3)]
    assert machine.held[KEYS[2]].cooldown_s == 1.0
    error = PgElectError("cancelled")
    machine, effects = after(leader(), (0.5, ev.WatchEnded(1)), (0.6, ev.Looked(1, 0.5, 1, called=True)))
    machine, effects = after(machine, (0.7, ev.Heeded(1, error=error)))
    assert ev.Report(error) in effects
    assert isinstance(machine.io, ev.Watch)


def test_a_shutdown_with_nothing_led_is_over_at_once() -> None:
    machine, _ = after(member(), (0.1, ev.Looked(1, 0.1, 1, view((9, 102), held=dict.fromkeys(KEYS, 102)))))
    machine, effects = after(machine, (0.2, ev.Shutdown(1.0)), (0.3, ev.Looked(1, 0.2, 1)))
    assert machine.state is STOPPED
    assert ev.Close(1, orderly=True) in effects


def test_held_is_kept_in_the_order_in_which_terms_began() -> None:
    """What has been led for the shortest time is given up first, so that a change moves only what it must."""
    assert [held.number for held in leader().held.values()] == [1, 2, 3, 4, 5, 6]
    assert isinstance(leader().held[KEYS[0]], Held)
