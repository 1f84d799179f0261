"""What is done to the servers, and beside all that: one function a kind of fault, as in ``faults_replicas``."""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Literal

import psycopg

from benchmarks.chaos import plan
from benchmarks.chaos.book import now
from benchmarks.chaos.faults_replicas import step_down
from benchmarks.chaos.history import EVERYBODY

if TYPE_CHECKING:
    from benchmarks.chaos.faults_replicas import Deed
    from benchmarks.chaos.stage import Leader, Stage

_LOST_WRITES = 5
_WRITES_WITHIN_S = 5.0

# -- the server --------------------------------------------------------------------------------------------------------


def terminate(stage: Stage, leader: Leader) -> None:
    """End the leader's session, and now and then its writer's, too."""
    with stage.fault("terminate", leader, leader.process) as fault:
        pids = [leader.pid]
        if stage.rng.random() < 0.5:
            pids += stage.writer_sessions(leader.process)
        with fault.ending(leader.process):
            stage.terminate(pids)
        stage.until_led_anew(leader)


def terminate_all(stage: Stage, leader: Leader) -> None:
    """End the election sessions of all replicas: all come back at once."""
    with stage.fault("terminate-all", leader, EVERYBODY) as fault, fault.ending(EVERYBODY):
        stage.terminate(stage.election_sessions())
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
    """Take all connections that the server has left, then end the leader's session and a follower's."""
    other = stage.rng.choice(stage.followers(leader)).process.name
    with stage.fault("exhaust", leader, leader.process, other) as fault, ExitStack() as crowd:
        dsn = stage.cluster.primary.dsn(plan.DATABASE, user=plan.CROWD, application_name="crowd")
        with suppress(psycopg.OperationalError):  # the refusal that is wanted
            for _ in range(plan.MAX_CONNECTIONS):
                crowd.enter_context(psycopg.connect(dsn))
                fault.notes["taken"] = fault.notes.get("taken", 0) + 1
        with fault.ending(leader.process), fault.ending(other):
            stage.terminate([leader.pid, *stage.election_sessions(other)])
            with suppress(psycopg.OperationalError):  # so that neither gets in again by what it has left
                for _ in range(plan.MAX_CONNECTIONS):
                    crowd.enter_context(psycopg.connect(dsn))
        stage.until_led_anew(leader)
        stage.a_moment(0.7, 1.5)


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
        begin = now()
        conn.execute("SET statement_timeout = '15s'")
        conn.execute("CREATE INDEX CONCURRENTLY IF NOT EXISTS ledger_token ON public.ledger (token)")
        fault.notes["took_s"] = round(now() - begin, 3)
        conn.execute("DROP INDEX CONCURRENTLY public.ledger_token")


def vacuum(stage: Stage, leader: Leader) -> None:
    """VACUUM the ledger and the table of the tokens."""
    with stage.fault("vacuum", leader), stage.cluster.connect() as conn:
        conn.execute("SET statement_timeout = '15s'")
        conn.execute("VACUUM (ANALYZE) public.ledger")
        conn.execute("VACUUM pgelect.token")
