"""Faults of groups: their machine, the plan that each member makes, and their statements."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

from pgelect._engine import rulebook
from pgelect._group import events as ev
from pgelect._group import moves, shares
from pgelect._group import transitions as rules
from pgelect._group.machine import TABLE
from pgelect._group.performer import Performer
from pgelect._group.runner import Runner
from pgelect._group.state import GroupState, Phase
from pgelect.testing._fake_group import GroupStatements
from tests.simulation.mutants.mutant import Mutant, named

if TYPE_CHECKING:
    from pgelect._engine.model import LockKey
    from pgelect._group.moves import Step
    from pgelect._group.state import Machine

_perform, _let_go, _plan, _shares_of = Performer.perform, moves.let_go, shares.plan, shares.shares_of

_FREED: Any = ev.Freed


async def _sent_when_answered(performer: Performer, io: ev.Io, epoch: int, machine: Machine) -> ev.Event:
    event = await _perform(performer, io, epoch, machine)
    return replace(event, sent_at=performer._clock.now()) if isinstance(event, ev.Looked) else event


def _trusted_for_ever(runner: Runner, key: LockKey | None = None, number: int | None = None) -> bool:
    found = runner.snapshot.terms.get(key) if key is not None else None
    return key is None or (found is not None and number in {None, found[0]})


def _epochs_do_not_matter(_: Machine, __: ev.Event) -> bool:
    return False


def _locks_are_not_proved(*_: Any) -> bool:
    return True


def _without_drain(m: Machine, keys: tuple[LockKey, ...], until: float, cooldown_s: float) -> Step:
    m, effects = moves.drain(m, keys, until, cooldown_s)
    held = {
        key: replace(one, phase=Phase.DRAINED, until=inf) if one.phase is Phase.DRAINING else one
        for key, one in m.held.items()
    }
    return replace(m, held=held), effects


def _ends_are_not_told(m: Machine, error: Exception | None) -> Step:
    after, effects = _let_go(m, error)
    return after, effects[1:]


def _nobody_is_watched(_: int, __: Any) -> None:
    return


def _takes_everything(view: Any, me: int, wanted: Any, **more: Any) -> Any:
    return _plan(view, me, wanted, **{**more, "orphaned": True})


def _shares_rounded_down(partitions: int, members: Any) -> dict[int, int]:
    shares = _shares_of(partitions, members)
    return {me: max(0, share - 1) for me, share in shares.items()}


def _gives_the_oldest(view: Any, me: int, wanted: Any, *, leading: Any, **more: Any) -> Any:
    return _plan(view, me, wanted, leading=leading[::-1], **more)


def _barred_for_ever(m: Machine, event: ev.Freed, now: float) -> Step:
    m, effects = rules.freed(m, event, now)
    return replace(m, barred={**m.barred, **dict.fromkeys(event.keys, inf)}), effects


GROUP_MUTANTS = named(
    {
        "group_trust_from_answer": Mutant(
            "trust is counted from the answer to a proof instead of the question",
            ((Performer, "perform", _sent_when_answered),),
            finds="although its lease is over",
            seed=154,
        ),
        "group_trusted_for_ever": Mutant(
            "a member leads until it hears otherwise",
            ((Runner, "is_trusted", _trusted_for_ever),),
            finds="although its lease is over",
            seed=11,
        ),
        "group_no_epoch_check": Mutant(
            "what comes from a session that is gone counts",
            ((rulebook, "is_stale", _epochs_do_not_matter),),
            finds="no rule for",
            seed=6,
        ),
        "group_no_proof_of_locks": Mutant(
            "a proof does not look at the locks",
            ((GroupStatements, "_holds", _locks_are_not_proved),),
            finds="a lease after its session ended",
            seed=248,
        ),
        "group_without_drain": Mutant(
            "a partition is unlocked while its handler still works",
            ((rules, "drain", _without_drain),),
            finds="while its handler still worked",
        ),
        "group_untold_end": Mutant(
            "the loss of one of many terms is not told",
            ((rules, "let_go", _ends_are_not_told),),
            finds="and so does a newer one",
        ),
        "group_takes_everything": Mutant(
            "members take whatever is free, whatever their share, and give nothing up",
            ((rules, "plan", _takes_everything),),
            finds="not so within",
        ),
        "group_shares_too_small": Mutant(
            "the shares do not add up to all partitions",
            ((shares, "shares_of", _shares_rounded_down),),
            finds="not so within",
        ),
        "group_gives_the_oldest": Mutant(
            "what has been led for the longest time is given up first",
            ((rules, "plan", _gives_the_oldest),),
            finds="what others had moved",
        ),
        "group_barred_for_ever": Mutant(
            "a partition that was given up is never taken again",
            ((TABLE[GroupState.MEMBER], _FREED, (_barred_for_ever, (GroupState.MEMBER,))),),
            finds="not so within",
            seed=7,
        ),
        "group_watches_nobody": Mutant(
            "members do not wait for the end of the next one",
            ((moves, "successor", _nobody_is_watched),),
            finds="another one leads what it had at once",
            seed=163,
        ),
    },
    groups=True,
)
