"""The README's recipes for fenced writes and for work that goes on: leaders are killed or frozen in the middle of it.

What counts is what is in the database afterwards: nothing lost, nothing twice, nothing of an old term.
"""

import ast
import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from itertools import groupby, pairwise
from typing import Any

import psycopg
import pytest
from aiohttp import ClientConnectionResetError, WSCloseCode, web
from psycopg.conninfo import conninfo_to_dict

import pgelect
from pgelect import LockKey, get_leader, request_step_down
from tests.support.processes import Worker
from tests.support.readme import BLOCKS, DSN, RECIPE, RECIPES
from tests.support.server import eventually, eventually_sync, lock_waiters, query, sessions, terminate

TOKENS_FROM = 2**40
"""More than fits into 32 bits: as after a promotion."""
MIDDLE = """
async def hang() -> None:
    print("in the middle", flush=True)
    await asyncio.Event().wait()


async def be_deaf() -> None:
    print("in the middle", flush=True)
    input()  # the loop is blocked, and hears of nothing
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        print("cancelled, and goes on all the same", flush=True)


async def """
"""Two things that may happen in the middle of work, as functions that are put into a recipe."""


def program(name: str, database: str, **changes: str) -> str:
    """The code of a recipe on this database, with changes: each replaces a text that occurs once."""
    parts = conninfo_to_dict(database)
    uri = f"postgresql://{parts['user']}@{parts['host']}:{parts['port']}/{parts['dbname']}"
    code = RECIPES[name].replace(DSN, repr(uri))
    assert uri in code
    for old, new in changes.items():
        assert code.count(old) == 1, old
        code = code.replace(old, new)
    return code


def constant(name: str, wanted: str) -> Any:
    """The value of a constant in a recipe."""
    for statement in ast.parse(RECIPES[name]).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == wanted:
            return ast.literal_eval(statement.value)
    raise AssertionError(f"{name} has no constant {wanted}")


def waiting(database: str, lock: str) -> int:
    key = LockKey.from_name(lock)
    return len(lock_waiters(database, key.key1, key.key2))


async def leader_of(database: str, lock: str) -> pgelect.LeaderRecord:
    found = await get_leader(database, LockKey.from_name(lock))
    assert found is not None
    return found


# Fenced writes


async def make_guarded_ledger(database: str) -> None:
    async with await psycopg.AsyncConnection.connect(database) as conn:
        await pgelect.install(conn)
        await conn.execute(f"SELECT setval('pgelect.token_seq', {TOKENS_FROM})".encode())
        await conn.execute("CREATE TABLE ledger (entry text NOT NULL)")
        await pgelect.guard_table(conn, "ledger", LockKey.from_name("ledger"))


@pytest.mark.parametrize(
    ("recipe", "driver"),
    [("sqlalchemy", "asyncpg"), ("sqlalchemy", "psycopg"), ("asyncpg", "asyncpg"), ("blocking", "psycopg")],
)
def test_a_stale_token_is_refused_and_nothing_is_written(
    recipe: str, driver: str, database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(make_guarded_ledger(database))
    code = program(recipe, database).replace("postgresql+asyncpg", f"postgresql+{driver}")
    exec(compile(code, recipe, "exec"), {"__name__": "__main__"})
    said = next(block.output for block in BLOCKS if block.marker == f"{RECIPE}{recipe}")
    assert capsys.readouterr().out == said == "refused: PGE01\n"
    assert query(database, "SELECT entry FROM ledger") == [("in time",)]
    assert query(database, "SELECT token > 2 ^ 32, terms FROM pgelect.token") == [(True, 2)]


# A table of work


def test_work_is_done_once_though_one_leader_hangs_in_the_middle_and_the_next_is_killed_there(
    database: str, worker: Callable[..., Worker]
) -> None:
    amounts = [1, 2, 3, 4, 5, 6]
    query(database, constant("work table", "TABLES"))
    query(database, "INSERT INTO job (amount) SELECT unnest(%s::bigint[])", amounts)

    def starting(amount: int, middle: str) -> Worker:
        changed = {"await asyncio.sleep(0.01)": f"await {middle}() if amount == {amount} else None"}
        return worker("-c", program("work table", database, **changed, **{"async def slow": f"{MIDDLE}slow"}))

    def done() -> list[int]:
        return [amount for (amount,) in query(database, "SELECT amount FROM job WHERE state = 'completed' ORDER BY id")]

    deaf = starting(3, "be_deaf")
    deaf.wait_line("in the middle")
    assert done() == [1, 2]
    killed = starting(5, "hang")
    eventually_sync(lambda: waiting(database, "jobs") == 1)
    terminate(database, asyncio.run(leader_of(database, "jobs")).pid)
    killed.wait_line("in the middle")
    assert done() == [1, 2, 3, 4]

    deaf.tell("go on with what another has done meanwhile")
    deaf.wait_line("cancelled")
    eventually_sync(lambda: waiting(database, "jobs") == 1, message="the first one waits for its next term")
    assert query(database, "SELECT total FROM balance") == [(2 * sum(amounts[:4]),)]

    killed.kill()
    eventually_sync(lambda: done() == amounts)
    assert query(database, "SELECT total FROM balance") == [(2 * sum(amounts),)]
    terms = [token for (token,) in query(database, "SELECT token FROM job ORDER BY id")]
    assert [len(list(jobs)) for _, jobs in groupby(terms)] == [2, 2, 2]
    assert terms == sorted(terms)


# One connection upstream


class Feed:
    """A feed that sends ticks to whoever is connected, and writes down who comes and goes."""

    def __init__(self) -> None:
        self.url = ""
        self.events: list[str] = []
        self._tick = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_get("/prices", self._serve)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"ws://127.0.0.1:{runner.addresses[0][1]}/prices"
        try:
            yield
        finally:
            await runner.cleanup()

    async def _serve(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self.events.append("opened")
        sending = asyncio.create_task(self._send(socket))
        async for _ in socket:
            pass
        self.events.append("closed" if socket.close_code == WSCloseCode.OK else "broken off")
        sending.cancel()
        return socket

    async def _send(self, socket: web.WebSocketResponse) -> None:
        with suppress(ClientConnectionResetError):
            while True:
                self._tick += 1
                await socket.send_json(self._tick)
                await asyncio.sleep(0.01)


async def test_the_feed_is_held_by_one_process_and_closed_before_the_next_one_connects(
    database: str, worker: Callable[..., Worker]
) -> None:
    def ticks() -> list[int]:
        return [tick for (tick,) in query(database, "SELECT tick FROM price ORDER BY id")]

    async def more() -> None:
        seen = len(ticks())
        await eventually(lambda: len(ticks()) > seen + 2, message="more ticks")

    query(database, "CREATE TABLE price (id int GENERATED ALWAYS AS IDENTITY, tick int NOT NULL)")
    feed = Feed()
    async with feed.open():
        code = program("upstream", database, **{'"ws://localhost:8080/prices"': repr(feed.url), "_s=30.0": "_s=0.1"})
        first = worker("-c", code)
        await more()
        second = worker("-c", code)
        await eventually(lambda: waiting(database, "feed") == 1)
        await request_step_down(database, LockKey.from_name("feed"))
        await eventually(lambda: len(feed.events) == 3)
        assert feed.events == ["opened", "closed", "opened"]
        await more()

        await eventually(lambda: waiting(database, "feed") == 1, message="the first one is a candidate again")
        second.kill()
        await eventually(lambda: len(feed.events) == 5)
        assert sorted(feed.events[3:]) == ["broken off", "opened"]
        await more()
        first.kill()
        await eventually(lambda: not sessions(database))
    assert all(one < next_one for one, next_one in pairwise(ticks()))


# Migrations


def test_one_of_many_migrates_the_others_wait_and_a_crash_in_the_middle_is_resumed(
    database: str, worker: Callable[..., Worker]
) -> None:
    alter = constant("migrations", "STEPS")[1]
    killed = worker("-c", program("migrations", database, **{alter: f"SELECT pg_sleep(600); {alter}"}))
    sleepers = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
    eventually_sync(lambda: query(database, sleepers) == [(1,)], message="the first one is in the middle of step 2")
    booted = [worker("-W", "error", "-c", program("migrations", database)) for _ in range(3)]
    eventually_sync(lambda: waiting(database, "migrations") == 3)
    assert [process.lines for process in (killed, *booted)] == [["made version 1"], [], [], []]

    killed.kill()
    assert [(process.wait(), process.errors) for process in booted] == [(0, [])] * 3
    assert sorted(len(process.lines) for process in booted) == [1, 1, 3]
    ready = "the schema is ready"
    for process in booted:
        assert process.lines in ([ready], ["made version 2", "made version 3", ready])
    assert query(database, sleepers) == [(0,)], "nothing of the dead one may go on"
    rows = query(database, "SELECT version, dense_rank() OVER (ORDER BY token) FROM migration ORDER BY version")
    assert rows == [(1, 1), (2, 2), (3, 2)]

    late = worker("-W", "error", "-c", program("migrations", database))
    assert (late.wait(), late.lines) == (0, [ready])
    assert query(database, "INSERT INTO account (id, owner) VALUES (1, 'somebody') RETURNING id") == [(1,)]


# Partitions of a queue


async def test_each_partition_is_handled_in_order_though_members_are_lost_in_the_middle(
    database: str, worker: Callable[..., Worker]
) -> None:
    partitions = ["orders-0", "orders-1", "orders-2", "orders-3"]
    query(database, constant("partitions", "TABLES"))
    put = constant("partitions", "PUT").encode()

    async def produce() -> None:
        async with await psycopg.AsyncConnection.connect(database, autocommit=True) as conn:
            for _ in range(5):
                for partition in partitions:
                    await conn.execute(put, (partition, "an order"))

    def effects(partition: str) -> list[tuple[int, int]]:
        found = query(database, "SELECT position, token FROM effect WHERE partition = %s ORDER BY id", partition)
        return [(position, token) for position, token in found]

    def starting(place: str, middle: str) -> Worker:
        changed = {place: middle + place, "async def put": f"{MIDDLE}put"}
        return worker("-c", program("partitions", database, **changed))

    await produce()
    between = "if message is None:"
    deaf = starting(between, f"if message and message[0] == 5 and partition == 'orders-2': await be_deaf()\n{' ' * 16}")
    deaf.wait_line("in the middle")
    await eventually(lambda: len(sessions(database)) == 1, message="the lock for the tables is gone")
    (session,) = sessions(database)
    within = "await conn.execute(DONE"
    killed = starting(within, f"await hang() if message[0] == 8 else None\n{' ' * 24}")
    async with asyncio.TaskGroup() as producers:
        for _ in range(3):
            producers.create_task(produce())
    await eventually(lambda: len(sessions(database)) == 2)
    terminate(database, session.pid)
    await eventually(lambda: killed.lines == ["in the middle"] * 4)

    deaf.tell("go on with what another is in the middle of")
    deaf.wait_line("cancelled")
    await eventually(lambda: len(sessions(database)) == 2, message="the first one is a member again")
    killed.kill()
    await eventually(lambda: query(database, "SELECT count(*) FROM message") == [(0,)])
    for partition in partitions:
        handled = effects(partition)
        assert [position for position, _ in handled] == list(range(1, 21))
        terms = [token for _, token in handled]
        assert terms == sorted(terms)
    assert [len(list(effect)) for _, effect in groupby(token for _, token in effects("orders-2"))] == [5, 2, 13]


# Beside an old lock


def test_the_new_program_begins_when_the_old_one_has_ended_and_keeps_it_out(
    database: str, worker: Callable[..., Worker]
) -> None:
    trying = "SELECT pg_try_advisory_lock(7001)"
    tried = "SELECT pid FROM pg_stat_activity WHERE query = 'SELECT pg_try_advisory_lock($1)'"
    with psycopg.connect(database, autocommit=True) as old:
        assert old.execute(trying).fetchone() == (True,)
        new = worker("-c", program("old lock", database))
        eventually_sync(lambda: query(database, tried), message="the new one leads, and tries the old lock")
        assert new.lines == []
    new.wait_line("working, with token 1")
    assert query(database, trying) == [(False,)]
    new.kill()
    eventually_sync(lambda: query(database, trying) == [(True,)])
