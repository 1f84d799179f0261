"""Faults of what the server is asked, as it would be with other SQL, and of the client's end of a connection."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pgelect._engine.session import LockAnswer, Proof
from pgelect.errors import StaleTokenError
from pgelect.testing._fake_client_end import ClientEnd
from pgelect.testing._fake_cluster import Cluster, FakeBackend, Statement, Wait
from pgelect.testing._fake_data import Commit, Data
from pgelect.testing._fake_statements import Statements
from pgelect.testing._fake_transactions import FakeTransaction, Tables
from tests.simulation.mutants.mutant import Mutant, named

if TYPE_CHECKING:
    import asyncio

    from pgelect._engine.model import Backend, Grant, LeaderRecord, LockKey

_next_row = Tables.next_row
_wait_lock, _why_over = Statements.wait_lock, Statements.why_over


def _plain_read(transaction: FakeTransaction, token: int) -> None:
    """SELECT without FOR SHARE."""
    transaction._raise_if_over()
    transaction._tables.current(transaction.key, token, transaction.snapshot())
    transaction.token = token


def _latest_row_without_lock(transaction: FakeTransaction, token: int) -> None:
    """A look at the latest row, outside the transaction's snapshot, as over another connection."""
    transaction._raise_if_over()
    transaction._tables.current(transaction.key, token, transaction._tables.cluster.data.position)
    transaction.token = token


def _free_at_once(statements: Statements, for_s: float) -> Statement[bool]:
    """FOR KEY SHARE in the fence: it does not hold off an update of the token."""
    return (yield Wait(lambda: True, for_s))


def _released_or_not(tables: Tables, key: LockKey, token: int, as_of: int) -> LeaderRecord:
    row = tables.cluster.data.row(key, as_of)
    if row is None or row.token != token or not tables.cluster.data.is_of_this_timeline(key, as_of):
        raise StaleTokenError(key, token)
    return row


def _goes_on_after_a_promotion(statements: Statements, grant: Grant) -> str:
    return _why_over(statements, replace(grant, timeline=statements.cluster.data.timeline))


def _not_held_to_its_lease(statements: Statements, backend: FakeBackend) -> Statement[LockAnswer]:
    before = backend.held_to_lease
    work = _wait_lock(statements, backend)
    wait = next(work)
    backend.held_to_lease = before
    while True:
        try:
            wait = work.send((yield wait))
        except StopIteration as stop:
            answer: LockAnswer = stop.value
            return answer


def _granted_late(statements: Statements, backend: FakeBackend) -> Statement[LockAnswer]:
    answer = yield from _wait_lock(statements, backend)
    if answer.granted:
        yield Wait(lambda: False, 2.0)
    return answer


def _whatever_the_timeline(data: Data, key: LockKey, as_of: int | None = None) -> bool:
    return True


def _same_token(tables: Tables, key: LockKey, sequence: int, **more: Any) -> LeaderRecord:
    last = tables.row(key)
    row = _next_row(tables, key, sequence, **more)
    return row if last is None else replace(row, token=last.token)


def _from_the_sequence_alone(tables: Tables, key: LockKey, sequence: int, **more: Any) -> LeaderRecord:
    return replace(_next_row(tables, key, sequence, **more), token=sequence)


def _no_timeline(tables: Tables, key: LockKey, sequence: int, **more: Any) -> LeaderRecord:
    last = tables.row(key)
    row = _next_row(tables, key, sequence, **more)
    return replace(row, token=max(last.token + 1 if last else 1, sequence))


def _always_granted(statements: Statements, backend: FakeBackend, ghost: Backend | None) -> LockAnswer:
    statements.cluster.locks.try_lock(statements.key, backend)
    return LockAnswer(granted=True, record=statements._row())


def _select_1(statements: Statements, backend: FakeBackend) -> Proof:
    return Proof(held=True)


def _timeline_alone(statements: Statements, grant: Grant) -> str:
    return "the server was promoted" if statements.cluster.data.timeline != grant.timeline else ""


def _no_lease(cluster: Cluster, backend: FakeBackend) -> None:
    return


def _no_deadline(end: ClientEnd, answer: asyncio.Future[Any], within_s: float) -> Any:
    return answer


def _the_server_is_not_told(end: ClientEnd) -> None:
    end.dropped = True
    end._fail_pending("the session has been closed")


def _primary_or_not(statements: Statements) -> None:
    return


def _released_before_the_row_is_free(
    statements: Statements, backend: FakeBackend, token: int, within_s: float
) -> Statement[bool]:
    """The release is marked though a fenced transaction is still open."""
    marked = statements.tables.released(statements.key, token) if statements.fencing else None
    if marked is not None:
        statements.cluster.data.commit(Commit(row=marked))
    yield Wait(lambda: True, 0.0)
    return statements.cluster.locks.unlock(statements.key, backend)


SERVER_MUTANTS = named(
    {
        "fence_by_plain_read": Mutant(
            "the fence reads the token without locking the row",
            ((FakeTransaction, "check", _plain_read),),
            "a write",
        ),
        "fence_beside_the_transaction": Mutant(
            "the fence looks at the latest token, but locks nothing",
            ((FakeTransaction, "check", _latest_row_without_lock),),
            "a write",
        ),
        "mint_does_not_wait_for_writers": Mutant(
            "a token is minted while a write of the last term is still open",
            ((Statements, "_row_free", _free_at_once),),
            "a write",
        ),
        "fence_across_a_promotion": Mutant(
            "a token of an earlier timeline still passes the fence, until somebody mints",
            ((Data, "is_of_this_timeline", _whatever_the_timeline),),
            "a write",
            seed=1035,
        ),
        "fence_passes_a_released_token": Mutant(
            "a token still passes the fence when its term was released",
            ((Tables, "current", _released_or_not),),
            "a write",
            seed=289,
        ),
        "token_does_not_grow": Mutant(
            "a new term takes over the token of the last one",
            ((Tables, "next_row", _same_token),),
            "was minted, but",
        ),
        "token_from_the_sequence_alone": Mutant(
            "a token is what the sequence gives, whatever the row says",
            ((Tables, "next_row", _from_the_sequence_alone),),
            "was minted, but",
            seed=8,
        ),
        "token_without_timeline": Mutant(
            "a token does not jump with the timeline",
            ((Tables, "next_row", _no_timeline),),
            "was minted, but",
            seed=8,
        ),
        "lock_always_granted": Mutant(
            "SELECT true in the place of pg_try_advisory_lock",
            ((Statements, "try_lock", _always_granted),),
            "leads, but its session never held the lock",
        ),
        "proof_by_select_1": Mutant(
            "a proof asks whether the server answers, not whether it still holds our lock",
            ((Statements, "prove", _select_1),),
            "after its session ended: stripped of its lock",
            seed=38,
        ),
        "grace_without_the_token_check": Mutant(
            "a term goes on with the lock alone, whoever led in between",
            ((Statements, "why_over", _timeline_alone),),
            "leads with token",
            seed=30,
        ),
        "grace_across_a_promotion": Mutant(
            "a term goes on though the server was promoted in between",
            ((Statements, "why_over", _goes_on_after_a_promotion),),
            "after a promotion",
            seed=8,
        ),
        "lock_granted_late": Mutant(
            "whoever waits in the queue hears two seconds late that it has the lock",
            ((Statements, "wait_lock", _granted_late),),
            "does not lead",
        ),
        "no_lease_after_waiting": Mutant(
            "who got the lock by waiting is not held to the lease",
            ((Statements, "wait_lock", _not_held_to_its_lease),),
            "nobody leads",
            seed=34,
        ),
        "no_lease_on_the_server": Mutant(
            "idle_session_timeout is not set",
            ((Cluster, "_idle", _no_lease),),
            "nobody leads",
        ),
        "no_deadlines": Mutant(
            "an answer is waited for as long as it takes",
            ((ClientEnd, "_answered", _no_deadline),),
            "does not campaign",
        ),
        "links_not_dropped": Mutant(
            "a session that is given up is merely forgotten: the server does not hear of it",
            ((ClientEnd, "abandon", _the_server_is_not_told),),
            "sessions are left on the server",
        ),
        "standby_not_refused": Mutant(
            "nobody asks whether the server is in recovery",
            ((Statements, "check_primary", _primary_or_not), (Statements, "prove", Statements.holds)),
            "in recovery",
            seed=13,
        ),
        "release_marked_too_early": Mutant(
            "a term is marked as released while one of its writes is still open",
            ((Statements, "unlock", _released_before_the_row_is_free),),
            "a write",
            seed=50,
        ),
    }
)
