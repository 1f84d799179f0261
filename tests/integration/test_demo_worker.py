"""The demo's replica also runs by itself, as it does in containers: with libpq's environment, until SIGTERM."""

import signal
from collections.abc import Callable

from psycopg.conninfo import conninfo_to_dict

from tests.support.demos import ROOT
from tests.support.processes import Worker
from tests.support.server import query
from tests.support.waiting import eventually_sync


def test_a_replica_runs_on_its_own_and_keeps_its_ledger(worker: Callable[..., Worker], database: str) -> None:
    given = conninfo_to_dict(database)
    env = {f"PG{name}": str(given[option]) for name, option in
           (("HOST", "host"), ("PORT", "port"), ("USER", "user"), ("DATABASE", "dbname"))}  # fmt: skip
    replicas = [worker("-m", "pgelect.cli.demo_worker", env=env, cwd=str(ROOT)) for _ in range(2)]
    eventually_sync(lambda: any(event["what"] == "wrote" for replica in replicas for event in replica.events), 20)
    leader, other = sorted(replicas, key=lambda replica: not any(e["what"] == "acquired" for e in replica.events))
    leader.signal(signal.SIGTERM)
    assert leader.wait(10) == 0
    assert leader.events[-1]["what"] in {"released", "state"}
    other.wait_event(lambda event: event["what"] == "wrote" and event["token"] == 2)
    other.signal(signal.SIGTERM)
    assert other.wait(10) == 0
    lines = query(database, "SELECT seq, token FROM pgelect_demo.ledger ORDER BY seq")
    assert [seq for seq, _ in lines] == list(range(1, len(lines) + 1))
    assert {token for _, token in lines} == {1, 2}
