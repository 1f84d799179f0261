"""A process is stopped with SIGSTOP, as by a debugger, a paused container or a long collection of garbage.

It knows nothing of the time that passed. The server ends its session by the lease; when it goes on it must not believe
for a moment that it leads, and must not write.
"""

import time
from typing import Any

from tests.support.looks import now
from tests.support.replicas import Replica, Replicas
from tests.support.server import query
from tests.support.server_queue import fresh_waits
from tests.support.waiting import eventually_sync

LEASE_S = 1.0


def stop_in_the_queue(follower: Replica, key: tuple[int, int]) -> int:
    """Stop a follower while its session waits in the server's queue and will for a while; return the session's pid."""

    def stopped() -> list[int]:
        follower.stop()
        pids = fresh_waits(follower.dsn, key)
        if pids == follower.sessions:
            return pids
        follower.cont()
        return []

    return eventually_sync(stopped, message="it is stopped early in a wait")[0]


def first_look_after(replica: Replica, stopped_at: float) -> dict[str, Any]:
    """Wait for what the replica tells of the time without looks around that instant."""
    return replica.wait_event(lambda told: told["event"] == "gap" and told["last_look_at"] < stopped_at < told["at"])


def test_a_stopped_leader_is_succeeded_and_never_again_believes_it_leads(database: str, key: tuple[int, int]) -> None:
    with Replicas(database, key, lease_s=LEASE_S) as group:
        old = group.start("old")
        token = group.leading(old)
        old_pids = old.sessions
        new = group.start("new")
        assert old.ask("write")["error"] is None

        old.stop()
        successor = group.leading(new, above=token)
        assert not query(database, "SELECT 1 FROM pg_stat_activity WHERE pid = ANY(%s)", old_pids)
        assert new.ask("write")["error"] is None
        old.cont()

        acquired = new.wait_for("acquired", token=successor)
        gap = first_look_after(old, acquired["at"])
        assert gap["leader"] is False, "is_leader was True at the very first look after SIGCONT"
        assert gap["trusted_until"] < acquired["at"]
        old.wait_for("lost", token=token)
        refused, stale = old.ask("write"), old.ask(f"write_as {token}")
        assert str(refused["error"]).startswith("NotLeaderError")
        assert str(stale["error"]).startswith("StaleTokenError")

        group.waiting(old)
        assert old.tokens("lost") == [token]
        assert old.tokens("released") == []
        assert not [told for told in old.all("look") if told["leader"] and told["at"] > gap["last_look_at"]]
        assert group.holders() == new.sessions
        assert group.ledger() == [token, successor]


def test_a_leader_stopped_inside_a_fenced_transaction_cannot_commit_it(database: str, key: tuple[int, int]) -> None:
    """The transaction holds off the next token; it is ended for that, and not waited for without end."""
    with Replicas(database, key, lease_s=LEASE_S) as group:
        old = group.start("old")
        token = group.leading(old)
        new = group.start("new")
        assert old.ask("begin")["error"] is None
        old.stop()
        successor = group.leading(new, above=token)
        assert new.ask("write")["error"] is None
        old.cont()
        assert old.ask("commit")["error"] is not None
        old.wait_for("lost", token=token)
        assert group.ledger() == [successor]


def test_each_of_two_is_succeeded_by_the_other_time_and_again(database: str, key: tuple[int, int]) -> None:
    with Replicas(database, key, lease_s=LEASE_S) as group:
        leader, follower = group.start("r0"), group.launch("r1")
        token = group.leading(leader)
        follower.wait_for("started", 30)
        for _ in range(4):
            leader.stop()
            successor = group.leading(follower, above=token)
            leader.cont()
            leader.wait_for("lost", token=token)
            acquired = follower.wait_for("acquired", token=successor)
            gap = first_look_after(leader, acquired["at"])
            assert gap["leader"] is False
            assert gap["trusted_until"] < acquired["at"]
            group.waiting(leader)
            leader, follower, token = follower, leader, successor
        assert sorted(leader.tokens("lost") + follower.tokens("lost") + [token]) == sorted(
            leader.tokens("acquired") + follower.tokens("acquired")
        )


def test_a_stop_shorter_than_the_lease_changes_nothing(database: str, key: tuple[int, int]) -> None:
    with Replicas(database, key, lease_s=4.0) as group:
        leader = group.start("r0")
        token = group.leading(leader)
        group.start("r1")
        for _ in range(3):
            leader.stop()
            stopped_at = now()
            time.sleep(0.5)  # the fault itself: so long it stands still
            leader.cont()
            assert first_look_after(leader, stopped_at)["leader"] is True
            assert leader.ask("status")["token"] == token
        assert leader.tokens("lost") == []
        assert group.holders() == leader.sessions


def test_a_follower_that_is_stopped_in_the_queue_holds_up_nobody_longer_than_the_lease(
    database: str, key: tuple[int, int]
) -> None:
    with Replicas(database, key, lease_s=LEASE_S) as group:
        leader = group.start("leader")
        token = group.leading(leader)
        stopped = group.start("stopped")
        pid = stop_in_the_queue(stopped, key)
        leader.kill()
        eventually_sync(lambda: group.holders() == [pid], message="the server grants the lock to the stopped one")
        next_in_line = group.start("next")
        successor = group.leading(next_in_line, above=token)
        granted = query(database, "SELECT 1 FROM pg_stat_activity WHERE pid = %s", pid)
        assert not granted, "the server has ended the session that was stopped"
        stopped.cont()
        group.waiting(stopped)
        assert stopped.tokens("acquired") == []
        assert group.holders() == next_in_line.sessions
        assert next_in_line.ask("status")["token"] == successor


def test_a_follower_that_is_stopped_does_not_disturb_the_leader(database: str, key: tuple[int, int]) -> None:
    with Replicas(database, key, lease_s=LEASE_S) as group:
        leader = group.start("leader")
        token = group.leading(leader)
        stopped = group.start("stopped")
        pid = stop_in_the_queue(stopped, key)
        eventually_sync(
            lambda: not query(database, "SELECT 1 FROM pg_stat_activity WHERE pid = %s", pid),
            message="its session is ended by the lease",
        )
        assert leader.ask("status")["token"] == token
        stopped.cont()
        group.waiting(stopped)
        assert leader.tokens("lost") == []
        assert group.holders() == leader.sessions
