"""observe(): each change of leadership is told, pushed by the server or found by a look, and no gap is kept silent."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing

import psutil
import psycopg
import pytest

from pgelect import LockKey, SchemaError, SessionLostError, schema_sql
from pgelect._postgres import watching
from pgelect.observe import ChangeKind, LeadershipChange, get_leader, observe
from pgelect.testing import Postgres
from tests.support.electors import Elector
from tests.support.observers import Observer
from tests.support.pgbouncer import PgBouncer
from tests.support.proxy import BreakableProxy
from tests.support.puppets import Puppet
from tests.support.replication import Pair
from tests.support.roles import READER, Roles
from tests.support.server import lock_holders, query, sessions, terminate
from tests.support.waiting import eventually

Key = tuple[int, int]
NEVER = 3600.0  # looks so rare that what is told in time was pushed
OBSERVERS = "pgelect observer"


@pytest.fixture
def here(database: str) -> str:
    """A database with the schema."""
    query(database, schema_sql())
    return database


async def none_observe(dsn: str) -> None:
    await eventually(lambda: not sessions(dsn, OBSERVERS), 5.0, "the observer's session has ended")


# What is told


async def test_the_terms_of_real_leaders_are_pushed_as_they_begin_and_end(any_database: str, key: Key) -> None:
    query(any_database, schema_sql())
    async with Observer(any_database, key, look_every_s=NEVER) as seen:
        assert (seen.changes[0].record, seen.changes[0].key) == (None, LockKey(*key))
        async with Elector(any_database, key, lease_s=10.0, identity="one") as a:
            first = (await a.leads()).token
            change = await seen.sees("began", first)
            assert change.record is not None
            assert (change.record.holder, change.record.alive, change.missed_terms) == ("one", True, 0)
            assert change.previous is None
            await a.lock.step_down(cooldown_s=0)
            second = (await a.leads(above=first)).token
            change = await seen.sees("began", second)
            assert change.previous is not None
            assert change.previous.token == first
        change = await seen.sees("released", second)
        assert change.record is not None
        assert change.record.released_at is not None
        assert set(seen.kinds) <= {"present", "began", "released"}
        assert sum(1 + change.missed_terms for change in seen.changes if change.kind is ChangeKind.BEGAN) == 2
    await none_observe(any_database)


async def test_a_leader_that_died_unannounced_is_found_by_a_look(here: str, key: Key) -> None:
    with Puppet(here, LockKey(*key)) as puppet:
        token = puppet.begin()
        async with Observer(here, key, look_every_s=0.1) as seen:
            assert seen.told == [("present", token)]
            puppet.die()
            change = await seen.sees("lost", token)
            assert change.record is not None
            assert (change.record.alive, change.record.released_at) == (False, None)
            assert seen.kinds == ["present", "lost"]


async def test_a_silent_leader_is_found_by_a_look_as_well(here: str, key: Key) -> None:
    with Puppet(here, LockKey(*key), silent=True) as puppet:
        async with Observer(here, key, look_every_s=0.1) as seen:
            token = puppet.begin()
            await seen.sees("began", token)
            puppet.release()
            await seen.sees("released", token)


async def test_terms_that_came_and_went_between_two_looks_are_counted(here: str, key: Key) -> None:
    with Puppet(here, LockKey(*key), silent=True) as puppet:
        async with Observer(here, key, look_every_s=NEVER) as seen:
            for _ in range(4):
                puppet.begin()
                puppet.release()
            puppet.notify("began")
            change = await seen.sees("began", puppet.token)
            assert change.missed_terms == 3
            await seen.sees("released", puppet.token)
            assert seen.kinds == ["present", "began", "released"]


async def test_the_same_term_with_another_session_is_resumed(here: str, key: Key) -> None:
    with Puppet(here, LockKey(*key)) as puppet, psycopg.connect(here, autocommit=True) as successor:
        token = puppet.begin()
        async with Observer(here, key, look_every_s=0.1) as seen:
            puppet.die()
            await seen.sees("lost", token)
            successor.execute("SELECT pg_advisory_lock(%s::int, %s::int)", key)
            successor.execute(
                "UPDATE pgelect.token SET (backend_pid, backend_start) = (SELECT pid, backend_start "
                "FROM pg_stat_activity WHERE pid = pg_backend_pid())"
            )
            change = await seen.sees("resumed", token)
            assert change.record is not None
            assert (change.record.alive, change.record.pid) == (True, successor.info.backend_pid)


async def test_without_a_key_all_locks_are_watched_and_new_ones_too(here: str) -> None:
    named, numbered, later = LockKey.from_name("名前 b"), LockKey(-1, -2), LockKey.from_name("later")
    with Puppet(here, named) as one, Puppet(here, numbered) as two, Puppet(here, later) as three:
        async with Observer(here, look_every_s=NEVER) as none:
            assert [(change.key, change.record) for change in none.changes] == [(None, None)]
            one.begin()
            await none.sees("began", one.token)
        two.begin()
        async with Observer(here, look_every_s=NEVER) as seen:
            await seen.sees("present", two.token)
            assert {change.key for change in seen.changes} == {named, numbered}
            assert {change.key.name for change in seen.changes if change.key} == {"名前 b", None}
            three.begin()
            change = await seen.sees("began", three.token)
            assert (change.key, change.key and change.key.name) == (later, "later")
            two.release()
            assert (await seen.sees("released", two.token)).key == numbered


async def test_other_locks_and_nonsense_on_the_channel_change_nothing(here: str, key: Key) -> None:
    """Anybody may notify: what counts is what is read afterwards."""
    other = LockKey(key[0], key[1] ^ 1)
    with Puppet(here, LockKey(*key)) as puppet, Puppet(here, other) as neighbour:
        token = puppet.begin()
        async with Observer(here, key, look_every_s=NEVER) as seen:
            neighbour.begin()
            for nonsense in ("", "{", "[]", "null", '{"key1":1}', f'{{"key1":{key[0]},"key2":"x","event":"began"}}'):
                query(here, "SELECT pg_notify('pgelect', %s)", nonsense)
            lie = f'{{"key1":{key[0]},"key2":{key[1]},"token":{token + 7},"event":"released"}}'
            query(here, "SELECT pg_notify('pgelect', %s || repeat(' ', n)) FROM generate_series(1, 3000) AS n", lie)
            puppet.release()
            await seen.sees("released", token)
            assert seen.kinds == ["present", "released"]


# Blindness


async def test_a_connection_that_is_killed_is_made_anew_and_the_gap_is_told(here: str, key: Key) -> None:
    with Puppet(here, LockKey(*key), silent=True) as puppet:
        first = puppet.begin()
        async with Observer(here, key, look_every_s=NEVER) as seen:
            puppet.release()
            puppet.begin()
            puppet.release()
            third = puppet.begin()
            terminate(here, sessions(here, OBSERVERS)[0].pid)
            blind = await seen.sees("blind")
            assert isinstance(blind.error, SessionLostError)
            assert (blind.record, blind.previous and blind.previous.token) == (None, first)
            back = await seen.sees("back", third)
            assert (back.missed_terms, back.previous and back.previous.token) == (2, first)
            change = await seen.sees("began", third)
            assert change.missed_terms == 1
            puppet.release()
            puppet.notify("released")
            await seen.sees("released", third)
            assert seen.kinds == ["present", "blind", "back", "began", "released"]


async def test_an_observer_of_all_locks_tells_of_each_what_changed_in_the_gap(here: str) -> None:
    locks = [LockKey(1, n) for n in range(3)]
    with Puppet(here, locks[0]) as same, Puppet(here, locks[1]) as ended, Puppet(here, locks[2], silent=True) as new:
        same.begin()
        ended.begin()
        async with Observer(here, look_every_s=NEVER) as seen:
            await seen.sees("present", ended.token)
            query(here, "UPDATE pgelect.token SET released_at = now() WHERE token = %s", ended.token)
            new.begin()
            terminate(here, sessions(here, OBSERVERS)[0].pid)
            blind, back = await seen.sees("blind"), await seen.sees("back")
            assert (blind.key, back.key, back.record, back.missed_terms) == (None, None, None, 1)
            await eventually(lambda: len(seen.changes) == 6)
            after = {(change.kind.value, change.key) for change in seen.changes[4:]}
            assert after == {("released", locks[1]), ("began", locks[2])}


async def test_a_server_that_restarts_is_waited_for_as_long_as_it_takes(own_server: Postgres, key: Key) -> None:
    dsn = own_server.dsn()
    query(dsn, schema_sql())
    with Puppet(dsn, LockKey(*key)) as puppet:
        token = puppet.begin()
        async with Observer(dsn, key, look_every_s=NEVER) as seen:
            await asyncio.to_thread(own_server.stop)
            await seen.sees("blind")
            await asyncio.to_thread(own_server.start)
            back = await seen.sees("back", token, 30.0)
            assert back.missed_terms == 0
            await seen.sees("lost", token)
            assert seen.kinds == ["present", "blind", "back", "lost"]


@pytest.mark.parametrize("direction", ["both", "down"])
async def test_a_frozen_link_is_noticed_within_a_bounded_time_and_left(
    here: str, key: Key, proxy: BreakableProxy, monkeypatch: pytest.MonkeyPatch, direction: str
) -> None:
    monkeypatch.setattr(watching, "ANSWER_WITHIN_S", 0.3)
    with Puppet(here, LockKey(*key)) as puppet:
        token = puppet.begin()
        async with Observer(proxy.dsn(here), key, look_every_s=0.2) as seen:
            proxy.freeze("down" if direction == "down" else "both")
            blind = await seen.sees("blind")
            assert "no answer from the server within 0.3 s" in str(blind.error)
            proxy.thaw()
            await seen.sees("back", token)
            await eventually(lambda: len(sessions(here, OBSERVERS)) == 1, message="the first session has ended")


async def test_a_right_that_is_taken_is_told_and_one_that_is_given_again_is_used(roles: Roles, key: Key) -> None:
    reader = roles.make("reader")
    roles.run(schema_sql())
    roles.run(READER, app_reader=reader.name)
    with Puppet(roles.database, LockKey(*key)) as puppet:
        async with Observer(reader.dsn, key, look_every_s=0.1) as seen:
            roles.run(f"REVOKE SELECT ON pgelect.leaders FROM {reader.name}")
            assert isinstance((await seen.sees("blind")).error, SchemaError)
            token = puppet.begin()
            roles.run(READER, app_reader=reader.name)
            await seen.sees("back", token)
            await seen.sees("began", token)


async def test_what_cannot_be_watched_at_the_start_is_said_at_once(database: str, key: Key) -> None:
    """A script wants to know; only later losses are waited out."""
    for dsn, kind in ((database, SchemaError), ("host=127.0.0.1 port=1", SessionLostError)):
        iteration = observe(dsn, key)
        with pytest.raises(kind):
            await anext(iteration)
        with pytest.raises(StopAsyncIteration):
            await anext(iteration)
    await eventually(lambda: sessions(database, "%") == [], message="no session is left")


async def test_a_session_that_a_role_lets_idle_for_a_moment_only_is_kept(roles: Roles, key: Key) -> None:
    """Regression: with the role's own idle_session_timeout an observer would be blind every few seconds."""
    reader = roles.make("reader")
    roles.run(schema_sql())
    roles.run(READER, app_reader=reader.name)
    for setting in ("idle_session_timeout = '200ms'", "statement_timeout = '300ms'"):
        roles.run(f"ALTER ROLE {reader.name} SET {setting}")
    with Puppet(roles.database, LockKey(*key)) as puppet:
        async with Observer(reader.dsn, key, look_every_s=NEVER) as seen:
            await asyncio.sleep(0.5)  # longer than the role's
            puppet.begin()
            await seen.sees("began", puppet.token)
            assert "blind" not in seen.kinds


# Where one cannot listen


async def test_on_a_standby_it_looks_and_after_the_promotion_it_listens(pair: Pair, key: Key) -> None:
    primary, standby = pair.primary.dsn(), pair.standby.dsn()
    query(primary, schema_sql())
    with Puppet(primary, LockKey(*key)) as puppet:
        token = puppet.begin()
        await asyncio.to_thread(pair.caught_up)
        async with Observer(standby, key, look_every_s=0.1) as seen:
            assert seen.told == [("present", token)]
            assert seen.changes[0].record is not None
            assert seen.changes[0].record.alive is None
            await asyncio.to_thread(pair.fail_over)
            await seen.sees("lost", token, 30.0)
            with Puppet(standby, LockKey(*key)) as new:
                new.begin()
                await seen.sees("began", new.token)
            assert "blind" not in seen.kinds


async def test_through_a_pooler_it_looks_and_leaves_nothing_in_the_pools_sessions(
    here: str, key: Key, pgbouncer: Callable[..., PgBouncer]
) -> None:
    pooler = pgbouncer("transaction", pool_size=1)
    dsn = pooler.through(here)
    with Puppet(here, LockKey(*key)) as puppet:
        async with Observer(dsn, key, look_every_s=0.1) as seen:
            token = puppet.begin()
            await seen.sees("began", token)
            assert query(dsn, "SELECT count(*) FROM pg_listening_channels()") == [(0,)]
            kept = "SELECT current_setting('application_name'), current_setting('idle_session_timeout')"
            assert query(dsn, kept) == [("", "0")]


# The end


@pytest.mark.parametrize("how", ["cancel", "aclose", "break", "cancel while blind"])
async def test_whoever_leaves_leaves_no_session_task_or_descriptor(
    here: str, key: Key, how: str, proxy: BreakableProxy
) -> None:
    process = psutil.Process()
    await get_leader(here, key)  # what a first connection loads is there
    before = process.num_fds()
    dsn = proxy.dsn(here)
    if how == "break":
        async for change in observe(dsn, key):
            assert change.kind is ChangeKind.PRESENT
            break
    elif how == "aclose":
        iteration = observe(dsn, key)
        await anext(iteration)
        await iteration.aclose()
    else:
        async with Observer(dsn, key) as seen:
            if how == "cancel while blind":
                proxy.refuse()
                terminate(here, sessions(here, OBSERVERS)[0].pid)
                await seen.sees("blind")
                await asyncio.sleep(0.3)  # some attempts
    await none_observe(here)
    await eventually(
        lambda: len([one for one in process.net_connections("tcp") if one.raddr[1:] == (proxy.port,)]) == 0
    )
    await eventually(lambda: proxy.connections == 0)
    await eventually(lambda: process.num_fds() <= before)


async def test_who_takes_long_for_a_change_misses_none(here: str, key: Key) -> None:
    """It is pulled: what happens meanwhile is waiting, at least as a number."""
    told: list[LeadershipChange] = []
    with Puppet(here, LockKey(*key)) as puppet:
        async with aclosing(observe(here, key)) as changes:
            async for change in changes:
                told.append(change)
                if change.kind is ChangeKind.PRESENT:
                    for _ in range(3):
                        puppet.begin()
                        puppet.release()
                    puppet.begin()
                elif change.kind is ChangeKind.BEGAN:
                    break
    assert [(change.kind.value, change.missed_terms) for change in told] == [("present", 0), ("began", 3)]


async def test_many_observers_of_one_leader_see_the_same(here: str, key: Key) -> None:
    observers = [Observer(here, key, look_every_s=NEVER) for _ in range(10)]
    for one in observers:
        await one.__aenter__()
    try:
        with Puppet(here, LockKey(*key)) as puppet:
            puppet.begin()
            for one in observers:
                await one.sees("began", puppet.token)
            puppet.release()
            for one in observers:
                await one.sees("released", puppet.token)
    finally:
        for one in observers:
            await one.close()
    assert lock_holders(here, *key) == []
