"""A process that leads is killed: its follower leads, and nothing of the dead one is left."""

from tests.support.replicas import Replica, Replicas
from tests.support.server import lock_waiters, query, sessions
from tests.support.waiting import eventually_sync

LEASE_S = 30.0  # so long that no takeover can be the lease's doing


def nothing_is_left_of(replica: Replica, pids: list[int]) -> None:
    """Wait until the server has forgotten the sessions of a dead replica, by name and by pid."""

    def gone() -> bool:
        left = query(replica.dsn, "SELECT pid FROM pg_stat_activity WHERE pid = ANY(%s)", pids)
        locks = query(replica.dsn, "SELECT pid FROM pg_locks WHERE pid = ANY(%s)", pids)
        return not (left or locks or replica.sessions)

    eventually_sync(gone, message="nothing of the dead one is left")


def test_the_follower_leads_after_each_of_ten_kills_in_a_row(database: str, key: tuple[int, int]) -> None:
    with Replicas(database, key, lease_s=LEASE_S) as group:
        leader = group.start("r0")
        token = group.leading(leader)
        tokens = [token]
        for n in range(1, 11):
            follower = group.start(f"r{n}")
            group.waiting(follower)
            assert group.holders() == leader.sessions
            dead = leader.sessions
            leader.kill()
            token = group.leading(follower, above=token)
            tokens.append(token)
            nothing_is_left_of(leader, dead)
            assert leader.tokens("lost") == leader.tokens("released") == []
            leader = follower
        assert tokens == sorted(set(tokens))
        assert len(tokens) == 11
        assert [session.pid for session in sessions(database)] == group.holders()


def test_exactly_one_of_several_followers_leads_after_a_kill(database: str, key: tuple[int, int]) -> None:
    with Replicas(database, key, lease_s=LEASE_S) as group:
        leader = group.start("r0")
        token = group.leading(leader)
        followers = [group.launch(f"r{n}") for n in range(1, 5)]
        eventually_sync(lambda: len(lock_waiters(database, *key)) == 4, 30, "all wait in the queue")
        leader.kill()
        winner = eventually_sync(lambda: [one for one in followers if one.term], message="one leads")[0]
        assert group.leading(winner, above=token) == winner.term
        eventually_sync(lambda: len(lock_waiters(database, *key)) == 3, message="the others wait on")
        assert [one.term for one in followers if one is not winner] == [0, 0, 0]


def test_a_fenced_transaction_dies_with_its_leader_and_does_not_hold_up_the_next_token(
    database: str, key: tuple[int, int]
) -> None:
    with Replicas(database, key, lease_s=LEASE_S) as group:
        leader = group.start("r0")
        token = group.leading(leader)
        follower = group.start("r1")
        assert leader.ask("write")["error"] is None
        assert leader.ask("begin")["error"] is None
        leader.kill()
        successor = group.leading(follower, above=token)
        assert follower.ask("write")["error"] is None
        assert group.ledger() == [token, successor]
        eventually_sync(lambda: len(sessions(database, "writer")) == 1, message="the dead one's transaction is gone")


def test_a_killed_follower_leaves_nothing_and_disturbs_nobody(database: str, key: tuple[int, int]) -> None:
    with Replicas(database, key, lease_s=LEASE_S) as group:
        leader = group.start("r0")
        token = group.leading(leader)
        follower = group.start("r1")
        pids = group.waiting(follower)
        follower.kill()
        nothing_is_left_of(follower, pids)
        assert lock_waiters(database, *key) == []
        assert leader.ask("status")["token"] == token
        assert group.holders() == leader.sessions
        assert leader.tokens("lost") == []


def test_the_lock_is_free_after_the_last_one_was_killed(database: str, key: tuple[int, int]) -> None:
    with Replicas(database, key, lease_s=LEASE_S) as group:
        leader = group.start("r0")
        token = group.leading(leader)
        leader.kill()
        eventually_sync(lambda: group.holders() == [] == sessions(database), message="the lock is free")
        assert query(database, "SELECT token, released_at IS NULL FROM pgelect.token") == [(token, True)]
        assert group.leading(group.start("r1"), above=token) > token
