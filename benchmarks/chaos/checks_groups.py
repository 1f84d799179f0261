"""Checks on the group that the replicas form beside their lock: its partitions, their tokens, and who believed what."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from benchmarks.chaos import plan
from benchmarks.chaos.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.chaos.history import History, PartitionHeard

_TIMELINE_BITS = 40
_SLACK_S = 0.1  # between a look and the callback that it is compared with


def tokens_of_partitions_grow(history: History) -> Iterator[Violation]:
    """No two terms of a partition have one token, and on one timeline tokens are minted in their order."""
    for partition, terms in _terms(history).items():
        for (before, earlier), (after, later) in pairwise(sorted(terms, key=lambda term: term[1].token)):
            processes = (before, after)
            same_timeline = earlier.token >> _TIMELINE_BITS == later.token >> _TIMELINE_BITS
            if earlier.token == later.token:
                yield Violation("tokens of partitions grow", f"{partition}: {later.token} twice", processes, later.at)
            elif same_timeline and earlier.minted_us > later.minted_us:
                what = f"{partition}: {later.token} was minted before {earlier.token}"
                yield Violation("tokens of partitions grow", what, processes, later.at)


def _terms(history: History) -> dict[str, list[tuple[str, PartitionHeard]]]:
    found: dict[str, list[tuple[str, PartitionHeard]]] = {}
    for process in history.processes:
        for heard in process.partitions_heard:
            if heard.kind == "acquired":
                found.setdefault(heard.partition, []).append((process.name, heard))
    return found


def callbacks_of_partitions_pair(history: History) -> Iterator[Violation]:
    """Every on_acquired of a partition is followed by one end of its token before the next one."""
    for process in history.processes:
        open_terms: dict[str, int] = {}
        for heard in process.partitions_heard:
            before = open_terms.get(heard.partition)
            if heard.kind == "acquired":
                wrong = before is not None
                open_terms[heard.partition] = heard.token
            else:
                wrong = before != heard.token
                open_terms.pop(heard.partition, None)
            if wrong:
                what = f"{heard.partition}: on_{heard.kind} of {heard.token}, when {before} was open"
                yield Violation("callbacks of partitions pair", what, (process.name,), heard.at)
        if open_terms and process.status == 0:
            yield Violation("callbacks of partitions pair", f"never ended: {open_terms}", (process.name,))


def an_old_belief_ends_within_a_lease(history: History) -> Iterator[Violation]:
    """Nobody believes in a term of a partition for longer than its lease once a newer one has begun elsewhere."""
    terms = _terms(history)
    for process in history.processes:
        last: dict[tuple[str, int], float] = {}
        for look in process.partition_looks:
            last.update(((partition, token), look.before) for partition, token in look.tokens.items())
        for (partition, token), until in last.items():
            for other, newer in terms.get(partition, []):
                if newer.token > token and other != process.name and until - newer.at > process.lease_s + _SLACK_S:
                    what = f"{partition}: it believed in {token} {until - newer.at:.2f} s after {newer.token} had begun"
                    yield Violation("an old belief ends within a lease", what, (process.name, other), until)


def unshared(led: dict[str, int], members: int) -> str:
    """Say what is wrong with the shares, by partitions led for each process; empty: nothing."""
    share = -(-len(plan.PARTITIONS) // len(plan.CHARACTERS))
    if members != len(plan.CHARACTERS):
        return f"{members} of {len(plan.CHARACTERS)} were members"
    if sum(led.values()) != len(plan.PARTITIONS) or max(led.values()) > share:
        return f"{len(plan.PARTITIONS)} partitions were not shared evenly: {led}"
    return ""


def partitions_are_shared_again(history: History) -> Iterator[Violation]:
    """Once the faults are over every partition is led, and nobody has more than its share."""
    if history.nobody_led:
        return
    if history.group_peace is None:
        yield Violation("partitions are shared again", "nobody looked at the group")
    elif wrong := unshared(*history.group_peace):
        yield Violation("partitions are shared again", f"the faults were over, and {wrong}", (), history.end)
