"""Histories of a chaos run, made by hand: one that is right, and what is needed to make others that are not."""

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.chaos import checker
from benchmarks.chaos.checks_end import GLANCES
from benchmarks.chaos.history import Acknowledged, Fault, Glance, Heard, History, Look, Process, Refused, Remains, Row

BOUNDS = {
    "failover_clean": 3.0,
    "failover_crash": 1.7,
    "failover_silent": 3.7,
    "overlap_lease": 0.0,
    "overlap_session": 1.9,
}
SECOND_TIMELINE = 1 << 40
A, B, C, D, E = "a.1", "b.1", "c.1", "d.1", "e.1"


def life(name: str, *terms: tuple[int, float, float], status: int | None = 0, end: str = "released") -> Process:
    """A process that led with each token from one time to another."""
    looks: list[Look] = []
    heard: list[Heard] = []
    for token, first, last in terms:
        looks += [Look(first, first, token), Look(last, last, token), Look(last + 0.001, last + 0.001, None)]
        heard += [Heard("acquired", first, token, minted_us=round(first * 1e6)), Heard(end, last, token)]
    return Process(name, lease_s=2.0, bounds=BOUNDS, looks=tuple(looks), heard=tuple(heard), status=status)


def fault(
    kind: str,
    begun: float,
    *,
    leader: str = A,
    token: int = 1,
    until: float | None = None,
    targets: Sequence[str] | None = None,
    ended: bool = False,
    deaf: float = 0.0,
) -> Fault:
    return Fault(
        kind=kind,
        begun=begun,
        until=begun if until is None else until,
        leader=leader,
        token=token,
        targets=(leader,) if targets is None else tuple(targets),
        ended=((leader, begun, begun),) if ended else (),
        deaf=((leader, begun, begun + deaf),) if deaf else (),
    )


def write(number: int, token: int, *, by: str = A, at: float = 5.0, timeline: int = 1) -> tuple[Acknowledged, Row]:
    """The nth write of all, between positions 100 n and 100 n + 50 of the WAL, as its writer and the ledger saw it."""
    low, high = 100 * number, 100 * number + 50
    ident = f"{by}:{number}"
    return (
        Acknowledged(ident, at, token, number, timeline, low, high),
        Row(ident, token, number, timeline, committed_us=round(at * 1e6)),
    )


def glance(number: int, **other: object) -> Glance:
    """The nth look in peace: `b` leads, the others wait, and each of the first two has a writer."""
    whole = Glance(
        at=18.0 + number / 10,
        elections=tuple((name, 100 + n) for n, name in enumerate((A, B, C, D, E))),
        holders=(B,),
        waiters=(A, C, D, E),
        writers=(A, B),
    )
    return replace(whole, **other)  # type: ignore[arg-type]  # the tests pass what fits


def right() -> History:
    """`a` leads from 1 to 10 and is terminated, `b` leads from 10.01 to 20; each writes."""
    written = [write(1, 1, at=5.0), write(2, 1, at=6.0), write(3, 2, by=B, at=11.0)]
    return History(
        begin=1.0,
        end=20.0,
        processes=(life(A, (1, 1.0, 10.0)), life(B, (2, 10.01, 20.0)), life(C)),
        acknowledged=tuple(each for each, _ in written),
        rows=tuple(row for _, row in written),
        faults=(fault("terminate", 9.99, ended=True),),
        refused=(Refused("a.1:9", 12.0, 1, stubborn=True),),
        live=(A, B, C, D, E),
        peace=tuple(glance(number) for number in range(GLANCES)),
        left=Remains(token=2, released=True),
        group_peace=({A: 2, B: 1, C: 1, D: 1, E: 1}, 5),
        about={"seed": 1},
    )


def broken_rules(history: History) -> set[str]:
    return {violation.rule for violation in checker.violations(history)}


def led(*processes: Process, faults: Sequence[Fault] = (), **more: object) -> History:
    tokens = [heard.token for process in processes for heard in process.heard]
    left = Remains(token=max(tokens, default=0), released=True)
    whole = replace(right(), processes=processes, faults=tuple(faults), acknowledged=(), rows=(), refused=(), left=left)
    return replace(whole, **more)  # type: ignore[arg-type]  # the tests pass what fits


def wrote(*written: tuple[Acknowledged, Row], kept: Sequence[int] | None = None, **more: object) -> History:
    """With these writes, of which the ledger has those with a number in `kept`."""
    rows = tuple(row for _, row in written if kept is None or row.n in kept)
    whole = replace(right(), acknowledged=tuple(each for each, _ in written), rows=rows)
    return replace(whole, **more)  # type: ignore[arg-type]  # the tests pass what fits
