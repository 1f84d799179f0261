"""Who led, and how each term ended: what is written down, and what follows from the rest."""

import asyncio
import time
from datetime import timedelta
from itertools import pairwise

import psycopg

from pgelect import LockKey, schema_sql
from pgelect.observe import TermEnding, TermRecord, get_history
from tests.support.electors import Elector
from tests.support.locks import token_row
from tests.support.puppets import Puppet
from tests.support.server import lock_holders, query, terminate
from tests.support.waiting import POLL_S, eventually, scaled

Key = tuple[int, int]


def endings(terms: list[TermRecord]) -> list[tuple[int, str | None]]:
    return [(term.term, term.ending) for term in terms]


async def written_down(dsn: str, token: int) -> None:
    found = "SELECT 1 FROM pgelect.history WHERE token = %s"
    await eventually(lambda: query(dsn, found, token), message="the leader has written its term down")


async def told(dsn: str, key: Key, *expected: tuple[int, str | None]) -> list[TermRecord]:
    """Wait until the history has these endings."""
    deadline = time.monotonic() + scaled(10)
    while endings(seen := await get_history(dsn, key)) != list(expected):
        assert time.monotonic() < deadline, f"{endings(seen)} did not become {expected}"
        await asyncio.sleep(POLL_S)
    return seen


async def freed(dsn: str, key: Key) -> None:
    await eventually(lambda: lock_holders(dsn, *key) == [], message="the server freed the lock")


# What real leaders leave behind


async def test_terms_of_real_leaders_are_told_with_their_holders_and_endings(any_database: str, key: Key) -> None:
    settings = {"lease_s": 10.0, "metadata": {"version": "1"}}
    async with Elector(any_database, key, identity="one", **settings) as a:
        first = (await a.leads()).token
        await a.lock.step_down(cooldown_s=0)
        second = (await a.leads(above=first)).token
        await written_down(any_database, second)
        terminate(any_database, lock_holders(any_database, *key)[0])
        third = (await a.leads(above=second)).token
        await a.has_lost(second)
        terms = await told(any_database, key, (3, None), (2, "lost"), (1, "released"))
    assert [term.token for term in terms] == [third, second, first]
    assert {(term.holder, term.metadata["version"], term.name) for term in terms} == {("one", "1", None)}
    assert terms[1].reason
    assert [term.reason for term in (terms[0], terms[2])] == [None, None]
    for later, earlier in pairwise(terms):
        assert earlier.ended_at is not None
        assert earlier.began_at <= earlier.ended_at <= later.began_at
    after = await get_history(any_database, key)
    assert after[0].ending is TermEnding.RELEASED
    assert after[0].ended_at is not None
    assert after[1:] == terms[1:]


async def test_a_leader_that_died_is_superseded_by_the_next(any_database: str, key: Key) -> None:
    query(any_database, schema_sql())
    with Puppet(any_database, LockKey(*key), holder="dead") as puppet:
        token = puppet.begin()
        puppet.die()
    async with Elector(any_database, key, lease_s=10.0) as a:
        term = await a.leads(above=token)
        terms = await told(any_database, key, (2, None), (1, "superseded"))
        assert terms[1].ended_at == terms[0].began_at == term.acquired_at
        assert terms[1].holder == "dead"


# Each ending


async def test_a_term_that_lasts_has_no_ending_and_one_that_was_given_up_is_released_at_once(
    here: str, key: Key
) -> None:
    """The row says so before anybody could write it into the history."""
    with Puppet(here, LockKey(*key)) as puppet:
        puppet.begin()
        (term,) = await get_history(here, key)
        assert (term.ending, term.ended_at) == (None, None)
        puppet.release()
        assert query(here, "SELECT ending FROM pgelect.history") == [(None,)]
        (term,) = await get_history(here, key)
        assert term.ending is TermEnding.RELEASED
        assert [(term.ended_at,)] == query(here, "SELECT released_at FROM pgelect.token")


async def test_a_term_whose_session_is_gone_is_over_and_nobody_knows_how(here: str, key: Key) -> None:
    with Puppet(here, LockKey(*key)) as puppet:
        puppet.begin()
        puppet.die()
    await freed(here, key)
    (term,) = await get_history(here, key)
    assert (term.ending, term.ended_at) == (TermEnding.UNKNOWN, None)


async def test_a_loss_that_is_reported_afterwards_takes_the_place_of_superseded(here: str, key: Key) -> None:
    lock = LockKey(*key)
    with Puppet(here, lock) as old, Puppet(here, lock) as new:
        first = old.begin()
        old.die()
        new.begin()
        assert endings(await get_history(here, key)) == [(2, None), (1, "superseded")]
        new.report_lost(first, "no answer from the server within 1 s")
        terms = await get_history(here, key)
        assert endings(terms) == [(2, None), (1, "lost")]
        assert terms[1].reason == "no answer from the server within 1 s"
        assert terms[1].ended_at is not None
        assert terms[1].ended_at <= terms[0].began_at


async def test_a_loss_that_is_reported_of_a_term_that_was_released_is_not_believed(here: str, key: Key) -> None:
    with Puppet(here, LockKey(*key)) as puppet:
        first = puppet.begin()
        puppet.release()
        puppet.begin()
        puppet.report_lost(first, "a stale report")
        assert endings(await get_history(here, key)) == [(2, None), (1, "released")]


async def test_terms_of_leaders_that_could_not_write_are_a_gap_and_the_last_one_is_told_all_the_same(
    here: str, key: Key
) -> None:
    lock = LockKey(*key)
    with Puppet(here, lock) as first, Puppet(here, lock, silent=True, holder="silent", n=1) as silent:
        first.begin()
        first.die()
        silent.begin()
        silent.release()
        token = silent.begin()
        terms = await get_history(here, key)
        assert endings(terms) == [(3, None), (1, "unknown")], "the second one left nothing"
        assert (terms[0].token, terms[0].holder, terms[0].metadata) == (token, "silent", {"n": 1})
        silent.release()
        assert endings(await get_history(here, key)) == [(3, "released"), (1, "unknown")]
        silent.begin()
        silent.die()
        await freed(here, key)
        assert endings(await get_history(here, key)) == [(4, "unknown"), (1, "unknown")]


# How much


async def test_only_as_many_as_asked_for_the_newest_first(here: str, key: Key) -> None:
    with Puppet(here, LockKey(*key)) as puppet:
        for _ in range(4):
            puppet.begin()
            puppet.release()
        puppet.begin()
        assert endings(await get_history(here, key, limit=3)) == [(5, None), (4, "released"), (3, "released")]
        assert endings(await get_history(here, key, limit=1)) == [(5, None)]
        assert len(await get_history(here, key, limit=2**40)) == 5


async def test_the_table_prunes_itself_to_a_thousand_terms_a_lock(here: str, key: Key) -> None:
    other = LockKey(key[0], key[1] ^ 1)
    with Puppet(here, other) as puppet:
        puppet.begin()
    fill = (
        "INSERT INTO pgelect.history (key1, key2, token, holder, metadata, term, began_at, ended_at, ending) "
        "SELECT %s, %s, n - 2000, 'x', '{}', n, now(), now(), 'released' FROM generate_series(1, 1500) AS n"
    )
    query(here, fill, *key)
    with Puppet(here, LockKey(*key)) as puppet:
        for _ in range(16):
            puppet.begin()
            puppet.release()
    count = "SELECT count(*) FROM pgelect.history WHERE key1 = %s AND key2 = %s"
    assert query(here, count, *key) == [(1000,)]
    assert query(here, count, other.key1, other.key2) == [(1,)]
    terms = await get_history(here, key, limit=1100)
    assert [term.term for term in terms[:3]] == [16, 15, 14]
    assert len(terms) == 1000


async def test_it_is_read_while_leaders_write(here: str, key: Key) -> None:
    with Puppet(here, LockKey(*key)) as puppet:

        async def lead() -> None:
            for _ in range(50):
                await asyncio.to_thread(puppet.begin)
                await asyncio.to_thread(puppet.release)

        leading = asyncio.create_task(lead())
        seen: list[list[TermRecord]] = []
        async with await psycopg.AsyncConnection.connect(here, autocommit=True) as conn:
            while not leading.done():
                seen.append(await get_history(conn, key))
        await leading
    for terms in seen:
        numbers = [term.term for term in terms]
        assert numbers == sorted(set(numbers), reverse=True)
        # Between a mint and its announcement nobody knows yet of the term before it.
        assert terms == [] or terms[0].ending in {None, TermEnding.RELEASED}
        assert {term.ending for term in terms[2:]} <= {TermEnding.RELEASED}
    assert token_row(here, key)[1] == 50
    assert timedelta(0) <= seen[-1][0].began_at - seen[-1][-1].began_at
