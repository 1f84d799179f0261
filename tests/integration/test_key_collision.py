"""Two different names meet on one pair of keys: the second one is refused, and neither leads in the other's name."""

import psycopg
import pytest

from pgelect import KeyCollisionError, LockKey, LockState, install
from tests.support.electors import Elector, one_leads
from tests.support.server import lock_holders, lock_waiters, query, sessions
from tests.support.waiting import eventually

Key = tuple[int, int]


@pytest.fixture(autouse=True)
def names_meet(monkeypatch: pytest.MonkeyPatch, key: Key) -> None:
    """Every name maps to the same pair: a real collision of 64 bits cannot be had."""
    monkeypatch.setattr(LockKey, "from_name", classmethod(lambda cls, name: cls(*key, name)))


def rows(database: str) -> list[tuple[object, ...]]:
    return query(database, "SELECT name, token, terms FROM pgelect.token")


async def test_a_second_name_is_refused_while_the_first_leads(database: str, key: Key) -> None:
    async with Elector(database, "billing") as first:
        term = await first.leads()
        (pid,) = lock_holders(database, *key)
        second = Elector(database, "shipping")
        with pytest.raises(KeyCollisionError, match="Choose another name") as refused:
            await second.lock.start()
        assert (refused.value.name, refused.value.other_name) == ("shipping", "billing")
        assert (refused.value.key.key1, refused.value.key.key2) == key
        assert second.lock.state is LockState.STOPPED
        assert second.terms == []
        assert lock_holders(database, *key) == [pid]
        await eventually(lambda: [one.pid for one in sessions(database)] == [pid], message="nothing of it is left")
        assert term.is_current
        assert rows(database) == [("billing", term.token, 1)]


async def test_a_second_name_is_refused_when_nobody_leads(database: str, key: Key) -> None:
    """What the first one has minted stays its own: a term in another's name would fence nothing."""
    async with Elector(database, "billing") as first:
        term = await first.leads()
    with pytest.raises(KeyCollisionError):
        await Elector(database, "shipping").lock.start()
    await eventually(lambda: lock_holders(database, *key) == [] == sessions(database), message="nothing is left")
    assert rows(database) == [("billing", term.token, 1)]
    async with Elector(database, "billing") as again:
        await again.leads(above=term.token)


@pytest.mark.parametrize("acquire", ["queue", "poll"])
async def test_of_two_names_that_wait_before_either_ever_led_only_one_ever_leads(
    database: str, key: Key, acquire: str
) -> None:
    """The other could not know at its start: there was no row. It is not stopped by what came later, but told."""
    async with await psycopg.AsyncConnection.connect(database) as conn:
        await install(conn)
    async with Elector(database, key, fencing=False) as blocker:  # keeps both waiting, and writes no row
        await eventually(lambda: blocker.is_leader)
        async with Elector(database, "billing") as billing, Elector(database, "shipping", acquire=acquire) as shipping:
            await eventually(lambda: lock_waiters(database, *key), message="the first waits in the queue")
            await blocker.lock.shutdown()
            leader = await one_leads(billing, shipping)
            token = leader.lock.token
            loser = shipping if leader is billing else billing
            await loser.hears(KeyCollisionError, "billing")
            await leader.lock.shutdown()
            errors = len(loser.errors)
            await eventually(lambda: len(loser.errors) > errors + 2, message="it goes on being refused")
            assert loser.terms == []
            assert loser.looks.spans == []
            assert rows(database) == [(leader.lock.key.name, token, 1)]
            assert lock_holders(database, *key) == []


async def test_names_and_bare_numbers_on_one_pair_take_turns(database: str, key: Key) -> None:
    """Numbers have no name that could collide; whoever uses them has chosen them."""
    async with Elector(database, "billing") as named:
        term = await named.leads()
        async with Elector(database, key) as numbered:
            await eventually(lambda: lock_waiters(database, *key), message="it waits in the queue")
            assert await named.lock.step_down()
            successor = await numbered.leads(above=term.token)
            assert rows(database) == [("billing", successor.token, 2)]
            assert await numbered.lock.step_down(cooldown_s=3600)  # nobody waits just now: it must not come back first
            await named.leads(above=successor.token)
