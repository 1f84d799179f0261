"""Tokens grow over every kind of end and beginning that a lock can have, and no release resets them.

Holds off a fence that starts again at 1 because an orderly release deleted the state (a fault like
KKloudTarus/synapse-ce#406).
"""

import asyncio
import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

import pgelect
from pgelect import LockState
from pgelect.testing import Postgres
from tests.support.databases import fresh_database
from tests.support.electors import Elector
from tests.support.locks import program
from tests.support.processes import Worker
from tests.support.server import lock_holders, query, terminate
from tests.support.waiting import eventually, eventually_sync

Key = tuple[int, int]
PROGRAM = """
import asyncio, sys
from pgelect import LeaderLock

async def main():
    async with LeaderLock(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])) as lock:
        print("token", (await lock.wait_for_leadership()).token)
        if sys.argv[4] != "ends":
            await asyncio.Event().wait()

asyncio.run(main())
"""
ROW = "SELECT token, terms FROM pgelect.token"


@pytest.fixture
def own_database(own_server: Postgres, last_of_all: ExitStack) -> str:
    return last_of_all.enter_context(fresh_database(own_server))


async def _terms_of_one_run(database: str, key: Key) -> list[int]:
    """Ten terms given up, then three that are lost."""
    token = 0
    async with Elector(database, key, lease_s=10.0) as a:
        for n in range(13):
            token = (await a.leads(above=max(a.tokens("acquired"), default=0))).token
            if n < 10:
                assert await a.lock.step_down(cooldown_s=0.0)
            else:
                terminate(database, lock_holders(database, *key)[0])
                await a.has_lost(token)
        await a.leads(above=token)
    assert len(a.terms) == 28
    return a.tokens("acquired")


async def _a_term_without_a_token(database: str, key: Key) -> list[int]:
    async with Elector(database, key, fencing=False) as a:
        await eventually(lambda: a.is_leader)
    return []


async def _a_lock_of_one_term(database: str, key: Key) -> list[int]:
    async with Elector(database, key, auto_reacquire=False) as a:
        await a.leads()
        await a.lock.step_down()
        await eventually(lambda: a.lock.state is LockState.STOPPED)
    return a.tokens("acquired")


async def _a_lock_that_is_started_three_times(database: str, key: Key) -> list[int]:
    a = Elector(database, key)
    for _ in range(3):
        await a.lock.start()
        await eventually(lambda: a.lock.token in a.tokens("acquired"))
        await a.lock.shutdown()
    return a.tokens("acquired")


def test_over_every_end_of_a_term_a_process_or_the_server(
    own_server: Postgres, own_database: str, key: Key, worker: Callable[..., Worker]
) -> None:
    tokens: list[int] = []

    def run_process(how: str) -> None:
        child = program(worker, PROGRAM, own_database, *key, how)
        tokens.append(int(child.wait_line("^token ", 30).split()[1]))
        if how == "ends":
            assert child.wait() == 0
        elif how == "is killed":
            child.kill()
        else:
            own_server.restart("fast" if how == "loses its server" else "immediate")
            child.kill()
        eventually_sync(lambda: lock_holders(own_database, *key) == [], message="the lock is free")

    for how in ("ends", "is killed", "loses its server"):
        run_process(how)
    for part in (
        _terms_of_one_run,
        _a_term_without_a_token,
        _a_lock_of_one_term,
        _a_lock_that_is_started_three_times,
    ):
        tokens += asyncio.run(part(own_database, key))
        assert tokens == sorted(set(tokens)), part
    run_process("loses its server in a crash")
    run_process("ends")
    assert tokens == sorted(set(tokens))
    assert len(tokens) == 5 + 14 + 1 + 3
    assert query(own_database, ROW) == [(tokens[-1], len(tokens))]


async def test_the_row_is_there_at_every_moment_of_many_releases(database: str, key: Key) -> None:
    """No release deletes it, not even for an instant, so no look at it can find a lock that never was."""
    async with Elector(database, key, lease_s=10.0) as a:
        token = (await a.leads()).token
        seen: list[list[tuple[int, int]]] = []
        looking = asyncio.Event()

        def look() -> None:
            while not looking.is_set():
                seen.append([(row[0], row[1]) for row in query(database, ROW)])

        looks = asyncio.create_task(asyncio.to_thread(look))
        for _ in range(10):
            assert await a.lock.step_down(cooldown_s=0.0)
            token = (await a.leads(above=token)).token
        looking.set()
        await looks
        assert len(seen) > 10
        assert all(len(rows) == 1 for rows in seen)
        assert seen == sorted(seen)


@pytest.mark.parametrize("lost", ["DELETE FROM pgelect.token", "TRUNCATE pgelect.token"])
async def test_not_even_the_loss_of_the_row_lets_a_token_come_again(database: str, key: Key, lost: str) -> None:
    """A mistake of an administrator's: the sequence still knows what was given out."""
    async with Elector(database, key, lease_s=10.0) as a:
        token = (await a.leads()).token
        for _ in range(3):
            await a.lock.step_down(cooldown_s=0.0)
            token = (await a.leads(above=token)).token
        query(database, lost)
        await a.lock.step_down(cooldown_s=0.0)
        assert (await a.leads(above=token)).token > token


async def test_not_even_a_sequence_that_was_set_back_lets_a_token_come_again(database: str, key: Key) -> None:
    """As after a restore of it alone: the row still knows what was given out."""
    async with Elector(database, key, lease_s=10.0) as a:
        token = (await a.leads()).token
        for _ in range(3):
            query(database, "ALTER SEQUENCE pgelect.token_seq RESTART")
            await a.lock.step_down(cooldown_s=0.0)
            assert await eventually(lambda: a.lock.token) == token + 1
            token += 1


def test_no_statement_of_the_package_deletes_or_resets() -> None:
    package = Path(pgelect.__file__).parent / "_postgres"
    said = "\n".join(path.read_text(encoding="utf-8") for path in (*package.glob("*.py"), *package.glob("*.sql")))
    assert "UPDATE pgelect.token" in said
    found = re.findall(r"DELETE FROM \S+|TRUNCATE \w|DROP (?:TABLE|SEQUENCE)|RESTART|setval", said)
    assert found == ["DELETE FROM pgelect.history"]  # which prunes itself, and no token comes from it
