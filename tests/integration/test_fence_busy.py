"""A leader stops inside a fenced transaction, and its successor may not end that: nobody leads without a new token.

Holds off a successor that hangs in the minting, that leads without a token, or that sits on the lock meanwhile although
somebody else could end the transaction (the other side of a fault like Tr3kkR/Yuzu#4015).
"""

import secrets
from contextlib import ExitStack

import pytest
from psycopg.conninfo import make_conninfo

from pgelect._postgres.install import grants_sql
from tests.support.looks import now
from tests.support.replicas import Replica, Replicas
from tests.support.server import query, sessions
from tests.support.waiting import eventually_sync

Key = tuple[int, int]


@pytest.fixture
def role(database: str, last_of_all: ExitStack) -> str:
    """A role that may lead, and may not end the sessions of others."""
    name = f"role_{secrets.token_hex(3)}"
    query(database, f"CREATE ROLE {name} LOGIN")
    last_of_all.callback(query, database, f"DROP ROLE {name}")
    last_of_all.callback(query, database, f"DROP OWNED BY {name}")
    return name


def launch_as(role: str, group: Replicas, identity: str) -> Replica:
    """Start a replica of that role; the schema is there already."""
    query(group.dsn, f"GRANT INSERT ON ledger TO {role}; GRANT USAGE ON ledger_n_seq TO {role}; {grants_sql(role)}")
    return group.launch(identity, through=make_conninfo(group.dsn, user=role))


def busy(replica: Replica) -> list[str]:
    return [told["text"] for told in replica.all("error") if told["type"] == "FenceBusyError"]


def writer_of(group: Replicas) -> int:
    """The pid of the one session that has a fenced transaction open."""
    ((pid,),) = query(
        group.dsn, "SELECT pid FROM pg_stat_activity WHERE application_name = 'writer' AND state LIKE 'idle in trans%'"
    )
    return int(pid)


def test_nobody_leads_until_the_stopped_leaders_transaction_is_over(database: str, key: Key, role: str) -> None:
    """Its write commits, for no newer term has begun; the next term begins after it."""
    with Replicas(database, key) as group:
        old = group.start("old")
        token = group.leading(old)
        new = launch_as(role, group, "new")
        new.wait_for("started", 30)
        assert old.ask("begin")["error"] is None
        writer = writer_of(group)
        old.stop()
        eventually_sync(lambda: len(busy(new)) >= 3, 30, "it tries, says why it cannot, and tries again")
        assert all("fence_busy" in text and str(writer) in text for text in busy(new))
        eventually_sync(lambda: group.holders() == [], message="between two attempts it does not hold the lock")
        assert query(database, "SELECT token, terms FROM pgelect.token") == [(token, 1)]
        assert new.all("acquired", "look") == []
        goes_on_at = now()
        old.cont()
        assert old.ask("commit")["error"] is None
        one = eventually_sync(lambda: [it for it in (old, new) if it.term > token], message="one of them leads")[0]
        successor = group.leading(one, above=token)
        assert one.wait_for("acquired", token=successor)["at"] > goes_on_at
        assert one.ask("write")["error"] is None
        old.wait_for("lost", token=token)
        assert group.ledger() == [token, successor]


def test_who_may_end_the_transaction_leads_though_another_tries_in_vain(database: str, key: Key, role: str) -> None:
    with Replicas(database, key) as group:
        old = group.start("old")
        token = group.leading(old)
        weak = launch_as(role, group, "weak")
        weak.wait_for("started", 30)
        assert old.ask("begin")["error"] is None
        writer = writer_of(group)
        old.stop()
        eventually_sync(lambda: busy(weak), 30, "it cannot")
        strong = group.start("strong")
        successor = group.leading(strong, above=token, timeout_s=30)
        eventually_sync(lambda: writer not in [one.pid for one in sessions(database, "writer")], message="it is ended")
        old.cont()
        assert old.ask("commit")["error"] is not None
        assert strong.ask("write")["error"] is None
        assert weak.all("acquired", "look") == []
        assert group.ledger() == [successor]


def test_the_death_of_the_stopped_leader_ends_its_transaction(database: str, key: Key, role: str) -> None:
    with Replicas(database, key) as group:
        old = group.start("old")
        token = group.leading(old)
        new = launch_as(role, group, "new")
        new.wait_for("started", 30)
        assert old.ask("begin")["error"] is None
        old.stop()
        eventually_sync(lambda: busy(new), 30, "it cannot")
        old.cont()
        old.kill()
        successor = group.leading(new, above=token, timeout_s=30)
        assert group.ledger() == []
        assert new.ask("write")["error"] is None
        assert group.ledger() == [successor]
