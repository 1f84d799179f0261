"""Checks on who led when: one leader at a time, tokens that grow, callbacks in pairs, failover within bounds.

Two processes may believe that they lead only after the *server* ended the older one's session early, and then no longer
than ``overlap_session`` from that end; and if the older one could hear of it, no longer than until its next proof.
Never when the lease simply ran out, as under SIGSTOP or on a frozen link alone.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from benchmarks.chaos import plan
from benchmarks.chaos.allowance import BESIDE, SLACK_S, Allowances
from benchmarks.chaos.belief import Overlap, all_spans, gaps, overlaps
from benchmarks.chaos.history import EVERYBODY
from benchmarks.chaos.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.chaos.history import Fault, Heard, History, Process

_MAY_WAKE = frozenset({"stop-short"})
_MAY_RESUME = frozenset({"terminate-all", "restart-fast", "restart-immediate"})
_HEARS_WITHIN_S = plan.HEALTH_INTERVAL_S + SLACK_S / 2


def one_leader(history: History) -> Iterator[Violation]:
    """At most one process believes that it leads, but for the stated window."""
    processes = {process.name: process for process in history.processes}
    for both in overlaps(all_spans(history)):
        why = _unexcused(history, both, processes[both.older.process])
        if why:
            yield Violation(
                "one leader at a time",
                f"tokens {both.older.token} and {both.newer.token} were believed for {_ms(both.until - both.since)} "
                f"at the same time: {why}",
                (both.older.process, both.newer.process),
                both.since,
            )
    for span in all_spans(history):
        if all(span.token != heard.token for heard in processes[span.process].heard):
            yield Violation(
                "one leader at a time",
                f"token {span.token} was believed, but on_acquired never came",
                (span.process,),
                span.first,
            )


def _unexcused(history: History, both: Overlap, older: Process) -> str:
    """Why an overlap is not within the stated window; empty when it is."""
    ends = [
        (since, until)
        for fault in history.faults
        for process, since, until in fault.ended
        if process in {older.name, EVERYBODY} and both.older.first <= until and since <= both.newer.first
    ]
    if not ends:
        return "the server had not ended the older session early"
    ended_at = max(until for _, until in ends)
    window_s = older.bounds["overlap_session"]
    if both.until > ended_at + window_s:
        return f"that is {_ms(both.until - ended_at)} after the end of its session, more than overlap_session"
    could_hear_from = max(
        until
        for process, since, until in [
            *(deaf for fault in history.faults for deaf in fault.deaf),
            (older.name, 0.0, 0.0),
        ]
        if process == older.name and since <= both.until
    )
    told_at = max(ended_at, could_hear_from)
    if both.until > told_at + _HEARS_WITHIN_S + 2 * history.stalled_s(told_at, both.until):
        return f"that is {_ms(both.until - told_at)} after it could have heard of the end of its session"
    return ""


def tokens_grow(history: History) -> Iterator[Violation]:
    """Tokens strictly increase in the order in which the server minted them, across promotions too."""
    terms = sorted(history.terms, key=lambda term: term[1].minted_us)
    for (one, first), (other, second) in pairwise(terms):
        if second.token <= first.token:
            yield Violation(
                "tokens strictly increase",
                f"token {second.token} was minted after token {first.token}",
                (one.name, other.name),
                second.at,
            )
    for process in history.processes:
        acquired = [heard for heard in process.heard if heard.kind == "acquired"]
        for first, second in pairwise(acquired):
            if second.token <= first.token:
                yield Violation(
                    "tokens strictly increase",
                    f"on_acquired with token {second.token} came after {first.token}",
                    (process.name,),
                    second.at,
                )


def callbacks_pair(history: History) -> Iterator[Violation]:
    """Each on_acquired is followed by one on_lost or on_released of its token, unless the process was killed."""
    for process in history.processes:
        open_term: Heard | None = None
        for heard in process.heard:
            if heard.kind == "acquired":
                if open_term is not None:
                    yield _unpaired(process, heard, f"on_acquired ({heard.token}) came while {open_term.token} lasted")
                open_term = heard
            elif open_term is None or open_term.token != heard.token:
                yield _unpaired(process, heard, f"on_{heard.kind} ({heard.token}) came without its on_acquired")
            else:
                open_term = None
        if open_term is not None and process.status is not None:
            yield _unpaired(process, open_term, f"the term {open_term.token} never ended, though the process did")


def _unpaired(process: Process, heard: Heard, what: str) -> Violation:
    return Violation("callbacks come in pairs", what, (process.name,), heard.at)


def losses_have_a_cause(history: History) -> Iterator[Violation]:
    """Only what hit its process, or all, while it lasted, ends a term with on_lost; what goes on beside does not.

    The loss is heard of while the fault's effects last, or once a grace is over after that: a fault that the term has
    survived is no cause of what comes later.
    """
    allowances = Allowances(history)
    main = [
        (fault, max(fault.until, allowances.deadline(fault), *(until for _, _, until in fault.deaf)) + SLACK_S)
        for fault in history.faults
        if fault.kind not in BESIDE
    ]
    for process in history.processes:
        began_at = 0.0
        for heard in process.heard:
            if heard.kind == "acquired":
                began_at = heard.at
            elif heard.kind == "lost" and not any(
                fault.hits(process.name)
                and fault.begun <= heard.at <= over + process.grace_s + 2 * history.stalled_s(fault.begun, heard.at)
                and began_at <= over
                for fault, over in main
            ):
                stalled_s = history.stalled_s(heard.at - process.lease_s, heard.at)
                if stalled_s < process.lease_s / 2:
                    yield Violation(
                        "a loss has a cause",
                        f"the term {heard.token} was lost, and nothing had happened to it",
                        (process.name,),
                        heard.at,
                    )


def failover_within_bounds(history: History) -> Iterator[Violation]:
    """Nobody leads only for as long as the faults of that time explain."""
    allowances = Allowances(history)
    spans = all_spans(history)
    if history.nobody_led:
        what = f"the server knew of no leader for {plan.LEADER_WITHIN_S:g} s; no more faults were tried"
        yield Violation("failover within bounds", what, (), history.end)
    if not spans:
        yield Violation("failover within bounds", "nobody ever led", (), history.end)
        return
    for since, until in gaps(spans, history.end):
        limit = allowances.limit(since, until)
        if until > limit:
            yield Violation(
                "failover within bounds",
                f"nobody led for {_ms(until - since)}, where {_ms(limit - since)} were allowed"
                f"{_recent(history, since)}",
                (),
                since,
            )
    for fault, _, took_s in takeovers(history):
        allowed_s = allowances.limit(fault.begun, fault.begun + took_s) - fault.begun
        if took_s > allowed_s:
            yield Violation(
                "failover within bounds",
                f"after the fault '{fault.kind}' it took {_ms(took_s)} until another led, where {_ms(allowed_s)} "
                "were allowed",
                (fault.leader,),
                fault.begun,
            )


def takeovers(history: History) -> list[tuple[Fault, Heard, float]]:
    """Pair each fault that hit the leader with the term that followed it, if one did before the next such fault."""
    found: list[tuple[Fault, Heard, float]] = []
    terms = [heard for _, heard in history.terms]
    main = [fault for fault in history.faults if fault.kind not in BESIDE]
    for fault, end in zip(main, [*(following.begun for following in main[1:]), history.end], strict=False):
        after = [term for term in terms if term.token > fault.token and fault.begun <= term.at <= max(end, fault.until)]
        if after and fault.hits(fault.leader) and not fault.thwarted:
            found.append((fault, after[0], after[0].at - fault.begun))
    return found


def unmoved(history: History) -> dict[str, tuple[int, int]]:
    """By kind of fault that must depose the leader it hits: how many there were, and how many of them did not.

    A leader that is stopped for a short time may wake in time, and one with a grace may be the first that comes back
    when the sessions of all were ended: then the same term goes on.
    """
    grace_s = {process.name: process.grace_s for process in history.processes}
    deposed = {id(fault) for fault, _, _ in takeovers(history)}
    found: dict[str, tuple[int, int]] = {}
    for fault in history.faults:
        may_stay = fault.kind in _MAY_WAKE | BESIDE or (fault.kind in _MAY_RESUME and grace_s[fault.leader] > 0)
        if fault.hits(fault.leader) and not fault.thwarted and not may_stay:
            number, missed = found.get(fault.kind, (0, 0))
            found[fault.kind] = (number + 1, missed + (id(fault) not in deposed))
    return found


def maintenance_is_not_held_up(history: History) -> Iterator[Violation]:
    """CREATE INDEX CONCURRENTLY and VACUUM end by themselves, whoever waits for the lock."""
    for fault in history.faults:
        if fault.held_up_by is not None:
            yield Violation(
                "maintenance is not held up",
                f"the fault '{fault.kind}' did not end; in a transaction for long: "
                f"{', '.join(fault.held_up_by) or 'nobody'}",
                (),
                fault.begun,
            )


def _recent(history: History, at: float) -> str:
    before = [fault for fault in history.faults if fault.begun <= at + 0.1 and fault.kind not in BESIDE]
    return f"; the last fault before was '{before[-1].kind}', {_ms(at - before[-1].begun)} earlier" if before else ""


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"
