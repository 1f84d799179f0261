"""A name is the same lock for everybody: on the server, in every process, and beside locks of another shape.

Holds off keys of 32 bits, unsigned keys that the server refuses or that overlap (metaspace2020/metaspace#1034,
binded/advisory-lock#5), and keys from hash(), which differ from process to process (onyx-dot-app/onyx#10048): every
worker then locks a key of its own, and all of them lead.
"""

import json
import tokenize
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import psycopg
import pytest

import pgelect
from pgelect import LockKey
from tests.support.electors import Elector
from tests.support.processes import Worker
from tests.support.server import lock_holders, lock_waiters, query, sessions
from tests.support.waiting import eventually, eventually_sync

PACKAGE = Path(pgelect.__file__).parent
ROOT = PACKAGE.parent
HELD = "SELECT pid, classid::int8, objid::int8, objsubid FROM pg_locks WHERE locktype = 'advisory' ORDER BY objsubid"
EDGES = [(-(2**31), -(2**31)), (-1, -1), (2**31 - 1, -1), (0, 0), (0, 1)]
NAMES = ["scheduler", "job-1", "job-8", "größe/日本"]  # the top bit of neither, one or both halves
PROGRAM = """
import asyncio, json, sys
from pgelect import LeaderLock

async def main():
    dsn, name = json.loads(sys.stdin.readline())
    async with LeaderLock(dsn, name=name, identity=sys.argv[1]) as lock:
        print(lock.key.key1, lock.key.key2, hash(name))
        await lock.wait_for_leadership()
        print("leads")
        await asyncio.Event().wait()

asyncio.run(main())
"""


def as_bigint(key: LockKey) -> int:
    """The one 64-bit key that has the same bits as the pair."""
    unsigned = key.classid << 32 | key.objid
    return unsigned - 2**64 if unsigned >= 2**63 else unsigned


@pytest.mark.parametrize("pair", EDGES)
async def test_the_pair_is_what_the_server_shows_at_every_edge(database: str, pair: tuple[int, int]) -> None:
    async with Elector(database, pair) as a:
        await a.leads()
        key, (session,) = a.lock.key, sessions(database)
        assert query(database, HELD) == [(session.pid, key.classid, key.objid, 2)]
        assert query(database, "SELECT key1, key2 FROM pgelect.token") == [pair]


async def test_each_name_is_a_lock_of_its_own_with_the_keys_it_says(database: str) -> None:
    async with AsyncExitStack() as stack:
        electors = [await stack.enter_async_context(Elector(database, name)) for name in NAMES]
        for elector in electors:
            await elector.leads()
        shown = {(classid, objid, objsubid) for _, classid, objid, objsubid in query(database, HELD)}
        assert shown == {(elector.lock.key.classid, elector.lock.key.objid, 2) for elector in electors}
        rows = dict(query(database, "SELECT name, ARRAY[key1, key2] FROM pgelect.token"))
        assert rows == {elector.lock.key.name: [elector.lock.key.key1, elector.lock.key.key2] for elector in electors}


@pytest.mark.parametrize("pair", EDGES)
async def test_a_lock_on_one_64_bit_key_of_the_same_bits_is_another_lock(database: str, pair: tuple[int, int]) -> None:
    """Somebody else in the database may use the other kind of advisory lock: neither excludes the other."""
    with psycopg.connect(database, autocommit=True) as stranger:
        stranger.execute("SELECT pg_advisory_lock(%s::int8)", (as_bigint(LockKey(*pair)),))
        async with Elector(database, pair) as a:
            await a.leads()
            await a.proved(2)  # and the proof is not satisfied with the lock of the stranger, nor disturbed by it
            (pid,) = lock_holders(database, *pair)
            bits = (a.lock.key.classid, a.lock.key.objid)
            assert query(database, HELD) == [(stranger.info.backend_pid, *bits, 1), (pid, *bits, 2)]
            query(database, "SELECT pg_terminate_backend(%s)", pid)
            await a.leads(above=a.tokens("acquired")[0])
    await eventually(lambda: not query(database, HELD))


async def test_the_lock_of_another_kind_proves_nothing(database: str, key: tuple[int, int]) -> None:
    """Of the very session that leads: the pair is freed behind its back and the 64-bit key of the same bits is held."""
    made: list[psycopg.AsyncConnection[object]] = []

    async def connect() -> psycopg.AsyncConnection[object]:
        made.append(await psycopg.AsyncConnection.connect(database, autocommit=True))
        return made[-1]

    async with Elector("", key, connect_fn=connect, lease_s=10.0, health_interval_s=0.5) as a:
        token = (await a.leads()).token
        swap = f"SELECT pg_advisory_unlock_all(), pg_advisory_lock({as_bigint(a.lock.key)})"
        await made[0].execute(swap.encode())
        await a.has_lost(token)
        await a.leads(above=token)


async def test_the_same_keys_in_two_databases_are_two_locks(
    database: str, key: tuple[int, int], last_of_all: ExitStack
) -> None:
    other = f"{psycopg.conninfo.conninfo_to_dict(database)['dbname']}_b"
    query(database, f"CREATE DATABASE {other} TEMPLATE template0")
    last_of_all.callback(query, database, f"DROP DATABASE {other} WITH (FORCE)")
    async with Elector(database, key) as a, Elector(f"{database} dbname={other}", key) as b:
        await a.leads()
        await b.leads()


def test_processes_with_different_hash_seeds_wait_for_one_another(database: str) -> None:
    name = "größe/日本"
    with ExitStack() as stack:
        workers = [
            stack.enter_context(
                Worker("-c", PROGRAM, seed, env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}, cwd=str(ROOT))
            )
            for seed in ("0", "1", "random")
        ]
        for worker in workers:
            worker.tell(json.dumps([database, name]))
        told = [worker.wait_line(r"^-?\d+ ", 30).split() for worker in workers]
        assert {(int(key1), int(key2)) for key1, key2, _ in told} == {(-294074678, 1981071559)}
        assert len({hashed for _, _, hashed in told}) == 3, "the processes do not differ in what this is about"
        key = LockKey.from_name(name)
        eventually_sync(lambda: len(lock_waiters(database, key.key1, key.key2)) == 2, message="two wait")
        assert len(lock_holders(database, key.key1, key.key2)) == 1
        eventually_sync(lambda: sum("leads" in worker.lines for worker in workers) == 1, message="one leads")


def _calls_of_hash() -> Iterator[str]:
    for path in PACKAGE.rglob("*.py"):
        # Tokens and not ast: on Python 3.11 that can fail with "AST constructor recursion depth mismatch".
        with tokenize.open(path) as source:
            found = list(tokenize.generate_tokens(source.readline))
        for before, name, after in zip(found, found[1:], found[2:], strict=False):
            if name.string == "hash" and after.string == "(" and before.string not in {".", "def"}:
                yield f"{path.name}:{name.start[0]}"


def test_nothing_of_the_package_calls_hash() -> None:
    assert list(_calls_of_hash()) == []
