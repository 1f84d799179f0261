"""What is done to the servers, and beside all that: one function a kind of fault, as in ``faults_replicas``."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal

import psycopg

from benchmarks.chaos import plan
from benchmarks.chaos.book import now
from benchmarks.chaos.faults_replicas import step_down
from benchmarks.chaos.history import EVERYBODY
from benchmarks.chaos.stage import ThwartedError

if TYPE_CHECKING:
    from benchmarks.chaos.faults_replicas import Deed
    from benchmarks.chaos.stage import Fault, Leader, Stage

_LOST_WRITES = 5
_WRITES_WITHIN_S = 5.0
_NO_CONNECTION_LEFT = ("too many clients", "remaining connection slots are reserved")
_MAINTENANCE_WITHIN_S = 15.0
_LONG_S = 2.5  # a follower's wait is a transaction of 0.9 s, a writer's takes 1.5 s at most
_IN_TRANSACTION = """
SELECT application_name FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
AND xact_start < clock_timestamp() - make_interval(secs => %s)
"""

# -- the server --------------------------------------------------------------------------------------------------------


def terminate(stage: Stage, leader: Leader) -> None:
    """End the leader's session, and now and then its writer's, or that of its group, too."""
    with stage.fault("terminate", leader, leader.process) as fault:
        pids = [leader.pid]
        if stage.rng.random() < 0.5:
            pids += stage.writer_sessions(leader.process)
        if stage.rng.random() < 0.5:
            pids += stage.group_sessions(leader.process)
        with fault.ending(leader.process):
            stage.terminate(pids)
        stage.until_led_anew(leader)


def terminate_all(stage: Stage, leader: Leader) -> None:
    """End the election sessions of all replicas: all come back at once."""
    with stage.fault("terminate-all", leader, EVERYBODY) as fault, fault.ending(EVERYBODY):
        stage.terminate([*stage.election_sessions(), *stage.group_sessions()])
    stage.until_led_anew(leader)


def restart(mode: Literal["fast", "immediate"]) -> Deed:
    """Restart the primary."""

    def deed(stage: Stage, leader: Leader) -> None:
        stage.cluster.standby_ready()
        with stage.fault(f"restart-{mode}", leader, EVERYBODY) as fault:
            with fault.ending(EVERYBODY):
                stage.cluster.primary.stop(mode)
            stage.cluster.primary.start()
        stage.forget_connection()
        stage.until_led_anew(leader)

    return deed


def promote(stage: Stage, leader: Leader) -> None:
    """Stop the primary in an orderly way, and promote the standby: nothing is lost."""
    stage.cluster.standby_ready()
    _promote(stage, leader, "promote", "fast")


def promote_lossy(stage: Stage, leader: Leader) -> None:
    """Promote a standby that has not received the last of the primary: writes, and its last token."""
    stage.cluster.standby_ready()
    stage.cluster.replication.freeze()
    _until_written(stage, _LOST_WRITES)
    # As other locks would: a sequence is logged 32 numbers ahead, which would hide that it goes back.
    stage.ask("SELECT pg_catalog.nextval('pgelect.token_seq') FROM pg_catalog.generate_series(1, 40)")
    step_down(stage, leader)
    leader = stage.leader()
    stage.a_moment(0.2, 0.8)
    _promote(stage, leader, "promote-lossy", "immediate")


def _until_written(stage: Stage, number: int) -> None:
    """Wait until the ledger has so many entries more; not for ever."""
    count, deadline = "SELECT count(*) FROM public.ledger", time.monotonic() + _WRITES_WITHIN_S
    before = stage.ask(count)
    while time.monotonic() < deadline:
        after = stage.ask(count)
        if before and after and after[0][0] >= before[0][0] + number:
            return
        time.sleep(0.05)


def _promote(stage: Stage, leader: Leader, kind: str, mode: Literal["fast", "immediate"]) -> None:
    with stage.fault(kind, leader, EVERYBODY) as fault:
        with fault.ending(EVERYBODY):
            stage.cluster.primary.stop(mode)
        timeline, left_at = stage.cluster.promote()
    stage.book.write("switch", timeline=timeline, left_at=left_at, kind=kind)
    stage.forget_connection()
    stage.until_led_anew(leader)


def rotate_password(stage: Stage, leader: Leader) -> None:
    """Change the password and end the sessions of the leader and of a follower: they need the new one."""
    other = stage.rng.choice(stage.followers(leader)).process.name
    with stage.fault("rotate-password", leader, leader.process, other) as fault:
        stage.cluster.rotate_password()
        with fault.ending(leader.process), fault.ending(other):
            stage.terminate([leader.pid, *stage.election_sessions(other), *stage.writer_sessions(leader.process)])
        stage.until_led_anew(leader)


def exhaust(stage: Stage, leader: Leader) -> None:
    """Take all connections that the server has left, then end the leader's session and a follower's.

    The others stay connected, and queued: one of them leads at once. The two are to come back afterwards.
    """
    other = stage.rng.choice(stage.followers(leader)).process.name
    with stage.fault("exhaust", leader, leader.process, other) as fault, ExitStack() as crowd:
        dsn = stage.cluster.primary.dsn(plan.DATABASE, user=plan.CROWD, application_name="crowd")
        fault.notes["taken"] = _crowd_in(crowd, dsn)
        with fault.ending(leader.process), fault.ending(other):
            stage.terminate([leader.pid, *stage.election_sessions(other)])
        fault.notes["taken"] += _crowd_in(crowd, dsn)  # so that neither gets in again by what it has left
        stage.until_led_anew(leader)
        stage.a_moment(0.7, 1.5)


def _crowd_in(crowd: ExitStack, dsn: str) -> int:
    """Connect until the server refuses because there are too many; return how often it did not.

    Raises:
        ThwartedError: it never refused.
    """
    for taken in range(plan.MAX_CONNECTIONS):
        try:
            crowd.enter_context(psycopg.connect(dsn))
        except psycopg.OperationalError as error:  # psycopg has no SQLSTATE of a connection that was refused
            if any(words in str(error) for words in _NO_CONNECTION_LEFT):
                return taken
            raise
    raise ThwartedError(f"{plan.MAX_CONNECTIONS} connections were made, and none was refused")


# -- what goes on beside all that, in a thread: nobody is to lose leadership by it -------------------------------------


def cancel_statements(stage: Stage, leader: Leader) -> None:
    """Cancel whatever the election sessions and the writers run, again and again for a while."""
    cancel = (
        "SELECT pg_cancel_backend(pid) FROM pg_stat_activity "
        "WHERE application_name LIKE 'pgelect:%' OR application_name LIKE 'chaos-writer:%'"
    )
    with stage.fault("cancel", leader) as fault, stage.cluster.connect() as conn:
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            fault.notes["cancelled"] = fault.notes.get("cancelled", 0) + len(conn.execute(cancel.encode()).fetchall())
            time.sleep(0.05)


def build_index(stage: Stage, leader: Leader) -> None:
    """Build an index with CREATE INDEX CONCURRENTLY, which waits for all snapshots, and drop it again."""
    with stage.fault("index", leader) as fault, stage.cluster.connect() as conn:
        _maintain(
            fault,
            conn,
            "DROP INDEX CONCURRENTLY IF EXISTS public.ledger_token",  # a half-built one, left by a restart
            "CREATE INDEX CONCURRENTLY ledger_token ON public.ledger (token)",
            "DROP INDEX CONCURRENTLY public.ledger_token",
        )


def vacuum(stage: Stage, leader: Leader) -> None:
    """VACUUM the ledger and the table of the tokens."""
    with stage.fault("vacuum", leader) as fault, stage.cluster.connect() as conn:
        _maintain(fault, conn, "VACUUM (ANALYZE) public.ledger", "VACUUM pgelect.token")


def _maintain(fault: Fault, conn: psycopg.Connection[Any], *statements: str) -> None:
    """Run what nobody may hold up for long; if somebody does, say who.

    Raises:
        ThwartedError: a writer did: the nemesis can make one hang in its transaction.
    """
    begin = now()
    conn.execute(f"SET statement_timeout = '{_MAINTENANCE_WITHIN_S}s'".encode())
    try:
        for statement in statements:
            conn.execute(statement.encode())
    except psycopg.errors.QueryCanceled:
        names = [str(name) for (name,) in conn.execute(_IN_TRANSACTION.encode(), (_LONG_S,))]
        if names and all(name.startswith("chaos-writer:") for name in names):
            raise ThwartedError(f"held up by {', '.join(names)}") from None
        fault.held_up_by = names
    fault.notes["took_s"] = round(now() - begin, 3)
