"""Checks on the end: every replica comes back once the faults are over, and nothing is left when all have ended."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from benchmarks.chaos import plan
from benchmarks.chaos.children import HUNG
from benchmarks.chaos.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.chaos.history import Glance, History

GLANCES, EVERY_S = 20, 0.1
"""So many looks in a row must be right, so far apart: together they see two slices of a follower's wait."""
_MARKED_WITHIN_S = 0.4  # a release waits 0.9 s for an open transaction; those of the end take some 10 ms


def unsettled(glances: Sequence[Glance], live: Sequence[str]) -> list[tuple[str, str]]:
    """Say who is not where it belongs, by the last looks; nothing: all is well. A process, or '', and what is wrong.

    A live replica has one election session, the same all the time. One of them holds the lock, and it is always the
    same; each other one waits for it, in the queue or aside, but for the moments between two slices. Nobody has another
    connection to the server than that, and one of its writer.
    """
    last = glances[-GLANCES:]
    if len(last) < GLANCES:
        return [("", f"the server was asked {len(last)} times, fewer than {GLANCES}")]
    found: list[tuple[str, str]] = []
    holders = {glance.holders for glance in last}
    if len(holders) != 1 or len(next(iter(holders))) != 1:
        found.append(("", f"the lock was not held by one and the same all the time: {sorted(holders)}"))
    for name in live:
        pids = [[pid for process, pid in glance.elections if process == name] for glance in last]
        if any(len(each) != 1 for each in pids):
            least, most = min(map(len, pids)), max(map(len, pids))
            found.append((name, f"it had {least} to {most} election sessions at a time, in place of 1"))
        elif len({each[0] for each in pids}) != 1:
            found.append((name, "its election session was not the same all the time"))
        if not any(name in glance.holders or name in glance.waiters for glance in last):
            found.append((name, "it neither held the lock nor waited for it"))
        most = max(glance.writers.count(name) for glance in last)
        if most > 1:
            found.append((name, f"its writer had {most} connections at a time"))
    known = {name for glance in last for name in (*glance.writers, *(process for process, _ in glance.elections))}
    found += [(name, "it has ended, and has sessions on the server") for name in sorted(known - set(live))]
    strangers = {name for glance in last for name in glance.strangers}
    found += [("", f"a session that nobody should have: '{name}'") for name in sorted(strangers)]
    return found


def every_replica_is_back(history: History) -> Iterator[Violation]:
    """Whatever happened to it, each replica leads or waits for the lock once the faults are over."""
    if history.nobody_led:
        return  # nobody looked; that is a violation by itself
    rule, all_of_them = "every replica comes back", len(plan.CHARACTERS)
    if len(history.live) != all_of_them:
        yield Violation(rule, f"{len(history.live)} of {all_of_them} lived when the faults were over", history.live)
    for process, what in unsettled(history.peace, history.live):
        yield Violation(
            rule,
            f"the faults were over, and {what}",
            (process,) if process else (),
            history.peace[-1].at if history.peace else history.end,
        )


def ended_cleanly(history: History) -> Iterator[Violation]:
    """Every replica that was asked to shut down did, with status 0, and left nothing on the server but its token."""
    rule, left = "all shut down cleanly", history.left
    for process in history.processes:
        if process.status not in {None, 0}:
            yield Violation(rule, f"it was asked to shut down, and {_how(process.status)}", (process.name,))
    if left.locks:
        yield Violation(rule, f"{left.locks} entries of the lock were left in pg_locks")
    if left.sessions:
        yield Violation(rule, f"sessions of the replicas were left on the server: {', '.join(left.sessions)}")
    # A token that nobody heard of was minted for one that was being shut down: it may drop that term unmarked.
    given_up = [
        process.name
        for process in history.processes
        for heard in process.heard
        if heard.token == left.token and heard.kind == "released"
    ]
    if given_up and not left.released and history.stalled_s(history.end, inf) < _MARKED_WITHIN_S:
        yield Violation(
            rule, f"token {left.token} was given up, and its row is not marked as released", tuple(given_up)
        )
    newest = max((heard.token for _, heard in history.terms), default=0)
    if left.token < newest:
        yield Violation(
            rule, f"the row of the lock has token {left.token}, and {newest} was the last that was heard of"
        )


def _how(status: int | None) -> str:
    return "did not end" if status == HUNG else f"ended with status {status}"
