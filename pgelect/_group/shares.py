"""Who is to lead how many partitions, and which: pure arithmetic, the same in every member.

Each member aims at ``ceil(partitions * weight / total weight)``. Whoever has more gives up what it has had for the
shortest time, and whoever has less takes what is free, by its preference; nobody gives or takes otherwise. So a change
of membership moves only what has to move: about one member's share. The shares add up to at least the number of
partitions, so for each partition that is given up there is room somewhere; and they are rounded up, so nothing flaps at
their edges.

Preference is rendezvous hashing (Thaler and Ravishankar, 1998): every pair of member and partition has a score, and a
member prefers the partitions with which it scores high. So members that look at the same moment reach for different
ones, and one that comes back under its old identity reaches for those that it took before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from pgelect._engine.model import LockKey

_ROUNDING = 1e-9  # a share of 100.00000000000001 is one of 100


@dataclass(frozen=True, slots=True)
class Member:
    """A live member, as the locks of its session tell.

    Attributes:
        id: of its session, random; members are in a ring by it.
        pid: the server process of its session.
        weight: what it carries, in relation to others.
        most: more partitions than this it does not lead; None: no limit.
    """

    id: int
    pid: int
    weight: float = 1.0
    most: int | None = None


@dataclass(frozen=True, slots=True)
class View:
    """The group at one instant, as one look at the server's locks showed it.

    Attributes:
        members: all that live.
        holders: the server process that holds the lock of that pair of keys, whoever it is.
    """

    members: tuple[Member, ...] = ()
    holders: Mapping[tuple[int, int], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """What one member is to do.

    Attributes:
        share: how many partitions it is to lead.
        take: partitions that are free, to be tried for.
        give: partitions to be given up.
        expecting: others have more than their share, and this member has less: they are about to give some up.
    """

    share: int
    take: tuple[LockKey, ...] = ()
    give: tuple[LockKey, ...] = ()
    expecting: bool = False


def score(identity: str, key: LockKey) -> int:
    """Score a member and a partition: a number of 64 bits, the same everywhere and always."""
    digest = blake2b(f"{key.key1} {key.key2} {identity}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def by_preference(identity: str, keys: Iterable[LockKey]) -> tuple[LockKey, ...]:
    """Order partitions, the most preferred first."""
    return tuple(sorted(keys, key=lambda key: score(identity, key), reverse=True))


def shares_of(partitions: int, members: Collection[Member]) -> dict[int, int]:
    """Give each member's share by its id. What members with a limit leave is shared among the others."""
    shares: dict[int, int] = {}
    left, others = partitions, list(members)
    while others:
        total = sum(member.weight for member in others)
        even = {m.id: math.ceil(left * (m.weight / total) - _ROUNDING) for m in others}
        limited = [m for m in others if m.most is not None and m.most < even[m.id]]
        if not limited:
            shares.update(even)
            break
        for member in limited:
            assert member.most is not None  # noqa: S101 -- for the type checker
            shares[member.id] = member.most
            left = max(0, left - member.most)
            others.remove(member)
    return shares


def successor(me: int, members: Iterable[Member]) -> int | None:
    """Return the id of the next live member in the ring; None for one that is alone."""
    others = sorted(member.id for member in members if member.id != me)
    return next((other for other in others if other > me), others[0] if others else None)


def plan(
    view: View,
    me: int,
    wanted: Collection[LockKey],
    *,
    leading: Sequence[LockKey],
    going: Collection[LockKey] = (),
    barred: Collection[LockKey] = (),
    orphaned: bool = False,
) -> Plan:
    """Decide what this member is to give and to take.

    Args:
        view: the group.
        me: this member's id in it.
        wanted: all partitions, the most preferred first.
        leading: those that this member leads, or holds without leading yet; the longest led first.
        going: those that it is giving up, but still holds.
        barred: those that it leaves alone for now.
        orphaned: the member that this one watches has died: take all that no live member holds, whatever the share, at
            once. (The server frees the locks of a dying session one after another: some may still look held.) What is
            too much is given to others later, in order.
    """
    shares = shares_of(len(wanted), view.members)
    share = shares.get(me, 0)
    mine = {*leading, *going}
    alive = {member.pid for member in view.members}
    held = {pair for pair, pid in view.holders.items() if not orphaned or pid in alive}
    free = [key for key in wanted if (key.key1, key.key2) not in held and key not in mine and key not in barred]
    most = next((m.most for m in view.members if m.id == me), None)
    limit = share if not orphaned else len(wanted) if most is None else most
    take = tuple(free[: max(0, limit - len(mine))])
    excess = 0 if orphaned else len(leading) - share
    give = tuple(leading[-excess:]) if excess > 0 else ()
    over = _others_over(view, me, wanted, shares)
    return Plan(share, take, give, expecting=over and len(mine) + len(take) < share)


def _others_over(view: View, me: int, wanted: Iterable[LockKey], shares: Mapping[int, int]) -> bool:
    """Tell whether another member holds more than its share."""
    counts: dict[int, int] = {}
    for key in wanted:
        if (pid := view.holders.get((key.key1, key.key2))) is not None:
            counts[pid] = counts.get(pid, 0) + 1
    return any(counts.get(m.pid, 0) > shares[m.id] for m in view.members if m.id != me)
