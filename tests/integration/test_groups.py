"""Groups on a real server: what is led is what the server says is locked, each partition once, evenly shared."""

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import psutil
import psycopg
import pytest

from pgelect import (
    FixedInterval,
    ForkedError,
    GroupState,
    LeaderGroup,
    LeaderLock,
    LockKey,
    NotLeaderError,
    PoolerError,
    StaleTokenError,
    Term,
    get_history,
    get_leader,
    request_step_down,
)
from pgelect.fencing import check_token
from pgelect.testing import Postgres, throwaway_postgres
from tests.support.databases import fresh_database
from tests.support.pgbouncer import PgBouncer
from tests.support.processes import Worker
from tests.support.proxy import BreakableProxy
from tests.support.server import query, sessions, terminate
from tests.support.waiting import eventually, eventually_sync

NAMES = [f"orders-{number}" for number in range(12)]
QUICK: dict[str, Any] = {
    "lease_s": 2.0,
    "health_interval_s": 0.5,
    "rebalance_interval_s": 1.0,
    "retry_strategy": FixedInterval(0.1),
}
_HELD = """
SELECT l.classid::int8, l.objid::int8, l.pid FROM pg_catalog.pg_locks AS l WHERE l.locktype = 'advisory'
AND l.objsubid = 2 AND l.granted AND l.database = (SELECT oid FROM pg_catalog.pg_database
WHERE datname = pg_catalog.current_database())
"""


def made(dsn: Any, names: list[str] = NAMES, **settings: Any) -> LeaderGroup[str]:
    return LeaderGroup(dsn, names=names, **{**QUICK, **settings})


@asynccontextmanager
async def members(dsn: Any, number: int, **settings: Any) -> AsyncIterator[list[LeaderGroup[str]]]:
    """So many members, which share evenly."""
    groups = [made(dsn, identity=f"member {place}", **settings) for place in range(number)]
    async with asyncio.TaskGroup() as starting:
        for group in groups:
            starting.create_task(group.start())
    try:
        await balanced(groups)
        yield groups
    finally:
        for group in groups:
            await group.shutdown()


async def balanced(groups: list[LeaderGroup[str]], names: list[str] = NAMES) -> None:
    share = -(-len(names) // len(groups))

    def so() -> bool:
        led = [set(group.leading) for group in groups]
        return sum(map(len, led)) == len(names) == len(set().union(*led)) and max(map(len, led)) <= share

    await eventually(so, 20.0, "every partition is led, and nobody has more than its share")


def holders(database: str, names: list[str] = NAMES) -> dict[str, int]:
    """The server process that holds each partition's lock."""
    keys = {LockKey.from_name(name) for name in names}
    by_pair = {(key.classid, key.objid): str(key.name) for key in keys}
    return {by_pair[one, two]: pid for one, two, pid in query(database, _HELD) if (one, two) in by_pair}


def pid_of(database: str, identity: str) -> int:
    (session,) = [one for one in sessions(database) if one.application_name.endswith(f":{identity}")]
    return session.pid


async def leads(one: Worker, number: int) -> None:
    """Wait until a member in another process says that it leads so many."""
    await asyncio.to_thread(one.wait_event, lambda told: told["event"] == "look" and told["leading"] == number, 20.0)


async def test_members_share_evenly_over_one_connection_each_and_the_server_says_so(database: str) -> None:
    async with members(database, 3) as groups:
        held = holders(database)
        assert Counter(held.values()) == {pid_of(database, f"member {place}"): 4 for place in range(3)}
        for group in groups:
            assert {held[name] for name in group.leading} == {pid_of(database, group.identity)}
            assert all(group.is_leader(name) for name in group.leading)
            assert group.share == 4
            assert group.members == 3
            assert group.state is GroupState.MEMBER
            assert group.trust_left_s > 0
        tokens = [term.token for group in groups for term in group.leading.values()]
        assert len(set(tokens)) == 12
        assert len(sessions(database)) == 3
    assert holders(database) == {}
    await eventually(lambda: not sessions(database), message="no session is left")
    assert query(database, _HELD) == []
    assert all(group.state is GroupState.STOPPED and not group.leading for group in groups)


async def test_a_newcomer_is_given_its_share_after_the_duties_have_drained(database: str) -> None:
    ended: list[tuple[str, str]] = []

    async def handler(partition: str, term: Term) -> None:
        try:
            await term.ended()
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.1)  # it cleans up
            ended.append((partition, str(holders(database).get(partition))))

    async with members(database, 1) as (old,):
        leading = asyncio.create_task(old.lead(handler))
        pid = pid_of(database, "member 0")
        before = dict(old.leading)
        new = made(database, identity="new")
        async with new:
            await balanced([old, new])
            assert sorted(partition for partition, _ in ended) == sorted(new.leading)
            assert {holder for _, holder in ended} == {str(pid)}  # unlocked only when the duty had stopped
            assert {name: term.token for name, term in old.leading.items()} == {
                name: before[name].token for name in old.leading
            }  # what stayed was not touched
            assert not leading.done()
        await balanced([old])
    await leading


async def test_when_a_member_is_killed_the_next_one_takes_all_it_had_at_once(database: str) -> None:
    """Long before the next look at the whole group, and before the lease: the server ends the session."""
    slow: dict[str, Any] = {"lease_s": 60.0, "health_interval_s": 20.0, "rebalance_interval_s": 60.0}
    with started(database, "victim", **slow) as victim:
        await leads(victim, 12)
        async with made(database, identity="heir", **slow) as heir:
            await eventually(lambda: len(heir.leading) == 6, 20.0, "it has its share")
            (pid,) = {pid for name, pid in holders(database).items() if not heir.is_leader(name)}
            tokens = {told["partition"]: told["token"] for told in victim.events if told["event"] == "acquired"}
            victim.kill()
            await eventually(lambda: len(heir.leading) == 12, 20.0, "it has taken everything")
            assert pid not in holders(database).values()
            assert all(term.token > tokens[name] for name, term in heir.leading.items())


async def test_a_member_that_stands_still_loses_everything_by_its_lease_and_knows_when_it_goes_on(
    database: str,
) -> None:
    with started(database, "frozen", **QUICK) as frozen:
        await leads(frozen, 12)
        async with made(database, identity="awake") as awake:
            await eventually(lambda: len(awake.leading) == 6, 20.0, "it has its share")
            await leads(frozen, 6)
            seen = len(frozen.events)
            frozen.stop()
            await eventually(lambda: len(awake.leading) == 12, 20.0, "it has taken everything")
            frozen.cont()
            first = await asyncio.to_thread(frozen.wait_event, lambda told: told["event"] == "look", after=seen)
            assert first["leading"] == 0
            await eventually(
                lambda: sum(told["event"] == "lost" for told in frozen.events) >= 6, 20.0, "it hears what it lost"
            )
            await eventually(lambda: len(awake.leading) == 6, 20.0, "and they share again")


async def test_a_service_that_is_told_to_end_hands_over_before_it_does(database: str) -> None:
    with started(database, "old") as old:
        await leads(old, 12)
        async with made(database, identity="new") as new:
            await eventually(lambda: len(new.leading) == 6, 20.0, "it has its share")
            old.signal(signal.SIGTERM)
            await eventually(lambda: len(new.leading) == 12, 20.0, "it leads everything")
            assert await asyncio.to_thread(old.wait, 20) == 0
            kinds = Counter(told["event"] for told in old.events)
            assert kinds["acquired"] == kinds["released"]
            assert kinds["lost"] == 0
            rows = query(database, "SELECT count(*) FROM pgelect.token WHERE terms > 1 AND released_at IS NULL")
            assert rows == [(12,)]


async def test_one_partition_is_stepped_down_and_the_rest_is_not_touched(database: str) -> None:
    async with members(database, 1) as (group,):
        before = dict(group.leading)
        assert await group.step_down("orders-3", cooldown_s=0.5)
        assert "orders-3" not in group.leading
        assert "orders-3" not in holders(database)
        assert len(group.leading) == 11
        assert not await group.step_down("orders-3")
        await balanced([group])
        assert group.leading["orders-3"].token > before["orders-3"].token
        assert all(group.leading[name] is before[name] for name in NAMES if name != "orders-3")
        with pytest.raises(KeyError, match="no partition of this group"):
            await group.step_down("orders-99")


async def test_an_operator_asks_for_one_partition_and_only_that_is_given_up(database: str) -> None:
    async with members(database, 2) as (a, b):
        before = {**a.leading, **b.leading}
        assert await request_step_down(database, "orders-3") == before["orders-3"].token
        await eventually(lambda: "orders-3" not in {**a.leading, **b.leading}, message="it is given up")
        await balanced([a, b])
        after = {**a.leading, **b.leading}
        assert [name for name in NAMES if after[name] is not before[name]] == ["orders-3"]
        ending = "SELECT ending FROM pgelect.history WHERE token = %s"
        await eventually(
            lambda: query(database, ending, before["orders-3"].token) == [("released",)], message="it is written down"
        )


async def test_stepping_down_from_everything_leaves_it_to_the_others_for_a_while(database: str) -> None:
    async with members(database, 2) as (a, b):
        assert await a.step_down(cooldown_s=30.0)
        assert a.leading == {}
        assert a.state is GroupState.CONNECTING
        await balanced([b])
        assert b.members == 1
        assert not await a.step_down()


async def test_a_handler_that_raises_gives_its_partition_up_and_no_other(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    errors: list[Exception] = []
    tries: list[float] = []

    async def handler(partition: str, _: Term) -> None:
        if partition == "orders-1":
            tries.append(asyncio.get_running_loop().time())
            raise ValueError("no way")
        await asyncio.sleep(60)

    async with members(database, 1, retry_strategy=FixedInterval(0.3)) as (group,):
        group.on_error(errors.append)
        work = asyncio.create_task(group.lead(handler))
        await eventually(lambda: len(tries) > 2, 20.0, "it is tried again")
        assert min(later - earlier for earlier, later in pairwise(tries)) >= 0.3
        assert {str(error) for error in errors} == {"no way"}
        assert len(group.leading) >= 11
        assert not work.done()
        assert "orders-1" in caplog.text
    await work


async def test_callbacks_come_in_pairs_for_each_partition_and_a_slow_one_holds_up_no_other(database: str) -> None:
    told: list[tuple[str, str, int]] = []
    hung = asyncio.Event()
    async with members(database, 1) as (first,):
        group = made(database, identity="watched")

        @group.on_acquired
        async def acquired(term: Term) -> None:
            told.append(("acquired", str(term.key.name), term.token))
            if len(told) == 1:
                hung.set()
                await asyncio.sleep(60)

        group.on_released(lambda term: told.append(("released", str(term.key.name), term.token)))
        group.on_lost(lambda term: told.append(("lost", str(term.key.name), term.token)))
        async with group:
            await balanced([first, group])
            await eventually(lambda: len(told) == 6, message="all six were told")
            assert hung.is_set()
            terminate(database, pid_of(database, "watched"))
            await eventually(lambda: sum(kind == "lost" for kind, _, _ in told) == 6, message="all six were lost")
            await balanced([first, group])
    for name in NAMES:
        mine = [(kind, token) for kind, which, token in told if which == name]
        assert [kind == "acquired" for kind, _ in mine] == [True, False] * (len(mine) // 2)
        assert [token for _, token in mine[::2]] == [token for _, token in mine[1::2]]


async def test_partitions_are_added_and_removed_while_it_runs(database: str) -> None:
    async with members(database, 2, group="orders") as (a, b):
        for group in (a, b):
            group.add("more-1", "more-2")
            group.add("more-1")  # it is there already
        more = [*NAMES, "more-1", "more-2"]
        await balanced([a, b], more)
        assert len(a.partitions) == 14
        await asyncio.gather(*(group.remove("more-1", *NAMES[:4]) for group in (a, b)))
        left = [*NAMES[4:], "more-2"]
        assert not any(group.is_leader("more-1") for group in (a, b))
        await balanced([a, b], left)
        assert set(holders(database, more)) == set(left)
        with pytest.raises(KeyError):
            await a.remove("more-1")
        with pytest.raises(TypeError, match="names, not"):
            a.add((1, 2))  # type: ignore[arg-type]


async def test_writes_are_fenced_by_the_partition_they_belong_to(database: str) -> None:
    query(database, "CREATE TABLE ledger (partition text)")
    async with members(database, 2) as (a, b), await psycopg.AsyncConnection.connect(database) as conn:
        mine, theirs = next(iter(a.leading)), next(iter(b.leading))
        async with a.fence(conn, mine) as term:
            await conn.execute("INSERT INTO ledger VALUES (%s)", (mine,))
            assert term is a.leading[mine]
        with pytest.raises(NotLeaderError, match="inside lead"):
            await a.check_fence(conn, theirs)
        stale = b.leading[theirs]
        await b.step_down(theirs, cooldown_s=30)
        with pytest.raises(StaleTokenError):
            async with conn.transaction():
                await check_token(conn, stale.key, stale.token)
    assert query(database, "SELECT partition FROM ledger") == [(mine,)]


async def test_observers_see_who_leads_each_partition_and_its_history(database: str) -> None:
    async with members(database, 1) as (group,):
        await group.step_down("orders-0", cooldown_s=0.0)
        await balanced([group])
        record = await get_leader(database, "orders-0")
        assert record is not None
        assert record.alive
        assert record.holder == "member 0"
        assert record.terms == 2
        assert record.token == group.leading["orders-0"].token
        await eventually(history_of(database, 2), message="both terms are written down")
        endings = [term.ending for term in await get_history(database, "orders-0")]
        assert endings == [None, "released"]


def history_of(database: str, terms: int) -> Callable[[], Any]:
    async def so() -> bool:
        return len(await get_history(database, "orders-0")) == terms

    return so


async def test_a_single_lock_and_a_group_exclude_each_other(database: str) -> None:
    async with LeaderLock(database, name="orders-5", lease_s=2.0, health_interval_s=0.5) as lock:
        await lock.wait_for_leadership(10)
        async with made(database) as group:
            await eventually(lambda: len(group.leading) == 11, message="it leads all the others")
            await lock.shutdown()
            await balanced([group])


async def test_tokens_pass_over_those_of_a_lost_tail_as_those_of_a_lock_do(database: str) -> None:
    """As after pg_upgrade of a server that had been promoted five times: the row says so; the timeline is 1 again."""

    async def tokens() -> list[int]:
        async with made(database, ["a", "b"]) as group, LeaderLock(database, name="c") as lock:
            term = await lock.wait_for_leadership(timeout_s=10)
            await eventually(lambda: len(group.leading) == 2, message="both are led")
            return [*(led.token for led in group.leading.values()), term.token]

    assert {token >> 40 for token in await tokens()} == {0}
    with psycopg.connect(database) as conn:
        conn.execute("UPDATE pgelect.token SET timeline = 6, token = (5::int8 << 40) + 1000")
    assert {token >> 40 for token in await tokens()} == {6}


async def test_a_silent_link_ends_all_terms_and_the_next_session_ends_the_ghost(
    proxy: BreakableProxy, database: str
) -> None:
    """Not by the lease, which is long: our own lost session would keep everything from us, and from everybody."""
    ways = iter([proxy.dsn(database)])
    lost: list[Term] = []
    settings: dict[str, Any] = {"lease_s": 60.0, "health_interval_s": 0.3, "health_timeout_s": 0.3}
    async with made(lambda: next(ways, database), identity="one", **settings) as group:
        group.on_lost(lost.append)
        await balanced([group])
        ghost = pid_of(database, "one")
        proxy.freeze()
        await eventually(lambda: len(lost) == 12, message="all terms are lost")
        await balanced([group])
        assert ghost not in holders(database).values()
        assert pid_of(database, "one") != ghost


async def test_when_the_server_has_no_room_for_locks_what_is_led_stays_led_and_the_error_says_what_to_do() -> None:
    crowd = {"max_locks_per_transaction": "10", "max_connections": "20", "max_worker_processes": "1"}
    names = [f"p{number}" for number in range(1500)]
    with throwaway_postgres(settings=crowd) as server, fresh_database(server) as database:
        async with made(database, names[:50], group="g", rebalance_interval_s=0.3) as group:
            errors: list[Exception] = []
            group.on_error(errors.append)
            await eventually(lambda: len(group.leading) == 50, message="it leads what there is room for")
            before = dict(group.leading)
            group.add(*names[50:])
            await eventually(lambda: errors, 20.0, "it fails")
            assert "max_locks_per_transaction" in str(errors[0])
            await eventually(lambda: len(errors) > 2, 20.0, "again and again")
            assert all(group.leading[name] is before[name] for name in names[:50])
            assert group.state is GroupState.MEMBER
            await group.remove(*names[50:])
            assert set(holders(database, names)) == set(names[:50])


async def test_when_a_stranger_takes_all_room_for_locks_members_that_wait_for_each_other_keep_what_they_lead() -> None:
    crowd = {"max_locks_per_transaction": "10", "max_connections": "20", "max_worker_processes": "1"}
    with throwaway_postgres(settings=crowd) as server, fresh_database(server) as database:
        async with members(database, 2, group="g") as groups, await psycopg.AsyncConnection.connect(database) as conn:
            errors: list[Exception] = []
            for group in groups:
                group.on_error(errors.append)
            before = [dict(group.leading) for group in groups]
            await conn.set_autocommit(True)
            with pytest.raises(psycopg.errors.OutOfMemory):
                await conn.execute("SELECT pg_advisory_lock(8, number) FROM generate_series(1, 100000) AS number")
            for number in range(100000):
                try:
                    await conn.execute("SELECT pg_advisory_lock(9, %s)", (number,))
                except psycopg.errors.OutOfMemory:
                    await asyncio.sleep(0.01)  # members wait in turns: there is room while they do not
                if errors:
                    break
            assert "max_locks_per_transaction" in str(errors[0])
            loop = asyncio.get_running_loop()
            ends = [loop.time() + group.trust_left_s for group in groups]
            await eventually(
                lambda: all(
                    loop.time() + group.trust_left_s > end + 1 for group, end in zip(groups, ends, strict=True)
                ),
                message="both have proved their locks since",
            )
            assert [dict(group.leading) for group in groups] == before
            assert len(errors) < 50


async def test_a_fork_is_inert(database: str) -> None:
    async with members(database, 1) as (group,):
        child = os.fork()
        if child == 0:
            wrong = bool(group.leading) or group.state is not GroupState.STOPPED
            try:
                group.add("orders-99")
            except ForkedError:
                os._exit(1 if wrong else 0)
            os._exit(2)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert len(group.leading) == 12
        assert len(holders(database)) == 12


async def test_it_starts_once_and_again_after_a_shutdown(database: str) -> None:
    group = made(database)
    async with group:
        with pytest.raises(RuntimeError, match="runs already"):
            await group.start()
        await balanced([group])
        tokens = {name: term.token for name, term in group.leading.items()}
    async with group:
        await balanced([group])
        assert all(term.token > tokens[name] for name, term in group.leading.items())
    await group.shutdown()  # harmless


async def test_a_server_that_is_away_is_waited_for() -> None:
    errors: list[Exception] = []
    group = made("host=127.0.0.1 port=1 dbname=x")
    group.on_error(errors.append)
    async with group:
        await eventually(lambda: len(errors) > 1, message="it tries again")
        assert group.state is GroupState.CONNECTING
        assert not group.leading


def test_a_transaction_pooler_is_refused(pgbouncer: Callable[..., PgBouncer], database: str) -> None:
    pooler = pgbouncer("transaction")
    with pytest.raises(PoolerError):
        asyncio.run(made(pooler.through(database)).start())


def test_it_goes_on_in_another_event_loop(database: str) -> None:
    group = made(database)

    async def once() -> int:
        async with group:
            await balanced([group])
            return len(group.leading)

    assert [asyncio.run(once()) for _ in range(2)] == [12, 12]
    assert holders(database) == {}
    eventually_sync(lambda: query(database, _HELD) == [], message="the member's own locks go with its session")


def started(database: str, identity: str, **settings: Any) -> Worker:
    """A member in a process of its own."""
    quick = {name: value for name, value in {**QUICK, **settings}.items() if name != "retry_strategy"}
    options = {"dsn": database, "names": NAMES, "identity": identity, **quick}
    return Worker("-m", "tests.support.group_member", json.dumps(options))


def test_a_program_that_ends_without_a_word_leaves_nothing(database: str, server: Postgres) -> None:
    with started(database, "careless") as one:
        one.wait_event(lambda told: told["event"] == "look" and told["leading"] == 12)
        one.kill()
    eventually_sync(lambda: query(database, _HELD) == [], message="the server has freed everything")
    assert server.is_running


async def test_weights_and_limits_are_kept(database: str) -> None:
    heavy = made(database, identity="heavy", weight=2.0)
    light = made(database, identity="light")
    limited = made(database, identity="limited", max_share=1)
    async with heavy, light, limited:

        def so() -> bool:
            led = [len(group.leading) for group in (heavy, light, limited)]
            shares = [group.share for group in (heavy, light, limited)]
            return shares == [8, 4, 1] and sum(led) == 12 and all(map(int.__le__, led, shares))

        await eventually(so, 20.0, "12 partitions are shared as at most 8, 4 and 1")
        assert len(holders(database)) == 12


def test_it_runs_on_uvloop(database: str) -> None:
    import uvloop  # noqa: PLC0415 -- an extra

    async def once() -> None:
        async with members(database, 2) as (a, b):
            assert await a.step_down(next(iter(a.leading)), cooldown_s=0.1)
            await balanced([a, b])

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(once())


async def test_starts_losses_and_cancels_leave_nothing_behind(database: str) -> None:
    process, tasks = psutil.Process(), asyncio.all_tasks()

    async def one_of_each(number: int) -> None:
        async with made(database) as group:
            await balanced([group])
            backend = group._runner.backend
            assert backend is not None
            terminate(database, backend.pid)
            await eventually(lambda: group._runner.backend not in {None, backend}, message="it has come back")
            await balanced([group])
        running = asyncio.create_task(made(database).run())
        await asyncio.sleep(number * 0.004)
        running.cancel()
        await asyncio.wait({running})
        await eventually(lambda: asyncio.all_tasks() == tasks, message="no task is left")

    await one_of_each(0)
    descriptors = process.num_fds()
    for number in range(8):
        await one_of_each(number)
    await eventually(lambda: sessions(database) == [], message="no session is left")
    assert query(database, _HELD) == []
    assert process.num_fds() == descriptors
