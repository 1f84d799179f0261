"""Several hosts in the DSN, or several addresses of a name: whatever is wrong with the first, the good one is found."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgelect import LockState, NotPrimaryError, SessionLostError
from pgelect._postgres.connect import additions
from pgelect._postgres.link import Deadline
from tests.support.electors import Elector
from tests.support.proxy import BreakableProxy
from tests.support.replication import TIMELINE, Host, Pair, hosts, replicated
from tests.support.server import lock_holders, lock_waiters, query, sessions, terminate
from tests.support.waiting import eventually_sync

Key = tuple[int, int]
CONNECT_TIMEOUT_S = 2  # the least that libpq has
FAR_FROM_FOREVER_S = 15  # for one timeout and a connection after it: without a timeout it would be minutes
PASSWORD = "open-sesame-4712"
LONG: dict[str, Any] = {"lease_s": 30.0, "health_interval_s": 0.2}  # a lease that is never what ends a term
PRIMARY = "primary" if pq.version() >= 140000 else "read-write"


@pytest.fixture
def own_pair() -> Iterator[Pair]:
    """One that the test may do anything to."""
    with replicated() as pair:
        yield pair


@pytest.fixture
def broken(request: pytest.FixtureRequest, pair: Pair, last_of_all: ExitStack) -> Host:
    """A host that is no use, in the way that the parameter says."""
    proxy = last_of_all.enter_context(BreakableProxy("127.0.0.1", pair.primary.port))
    if request.param == "in recovery":
        return pair.standby
    if request.param == "refused":
        proxy.close()  # nobody listens there any more
    elif request.param == "reset":
        proxy.refuse()
    elif request.param == "frozen":
        proxy.freeze()  # accepts, acknowledges, and never answers
    return proxy


async def leads_on_the_primary(elector: Elector, pair: Pair, key: Key) -> None:
    await elector.leads(timeout_s=FAR_FROM_FOREVER_S)
    (holder,) = lock_holders(pair.primary.dsn(), *key)
    assert holder in [one.pid for one in sessions(pair.primary.dsn())]
    assert lock_holders(pair.standby.dsn(), *key) == lock_waiters(pair.standby.dsn(), *key) == []


@pytest.mark.parametrize("broken", ["refused", "reset", "frozen", "in recovery"], indirect=True)
async def test_a_first_host_that_is_no_use_does_not_hide_the_second(pair: Pair, broken: Host, key: Key) -> None:
    """A fault like psycopg#602: the second host was never tried, or only after minutes."""
    dsn = hosts(broken, pair.primary, connect_timeout=CONNECT_TIMEOUT_S)
    async with Elector(dsn, key, **LONG) as a:
        await leads_on_the_primary(a, pair, key)
        assert a.errors == [], "one attempt was enough"
        terminate(pair.primary.dsn(), lock_holders(pair.primary.dsn(), *key)[0])
        (token,) = a.tokens("acquired")
        await a.leads(above=token, timeout_s=FAR_FROM_FOREVER_S)
        assert len(lock_holders(pair.primary.dsn(), *key)) == 1


async def test_a_first_host_that_does_not_answer_is_given_up_by_a_timeout_of_our_own(
    pair: Pair, last_of_all: ExitStack, key: Key
) -> None:
    """The user set none, and the system's is minutes."""
    proxy = last_of_all.enter_context(BreakableProxy("127.0.0.1", pair.primary.port))
    proxy.freeze()
    async with Elector(hosts(proxy, pair.primary), key, **LONG) as a:
        await a.leads(timeout_s=FAR_FROM_FOREVER_S)
        assert a.errors == [], "one attempt was enough"
        assert len(lock_holders(pair.primary.dsn(), *key)) == 1


async def test_a_first_host_that_is_starting_up_does_not_hide_the_second(own_pair: Pair, key: Key) -> None:
    pair, late = own_pair, own_pair.standby
    await asyncio.to_thread(late.stop, "immediate")
    late.configure(restore_command="while [ ! -e may_start ]; do sleep 0.05; done; false")
    starting = asyncio.create_task(asyncio.to_thread(late.start))
    try:
        async with Elector(late.dsn(), (1, 1)) as waiting, Elector(hosts(late, pair.primary), key, **LONG) as a:
            await waiting.hears(SessionLostError, "starting up")
            await a.leads()
            assert a.errors == []
            assert not starting.done()
            assert len(lock_holders(pair.primary.dsn(), *key)) == 1
    finally:
        (late.data_dir / "may_start").touch()
        await starting


async def test_a_first_host_with_another_password_does_not_hide_the_second(own_pair: Pair, key: Key) -> None:
    """libpq itself would not go on to the next host after that."""
    pair = own_pair
    query(pair.primary.dsn(), f"CREATE ROLE guest SUPERUSER LOGIN PASSWORD '{PASSWORD}-other'")
    pair.caught_up()
    rules = pair.standby.data_dir / "pg_hba.conf"
    rules.write_text(f"host all guest 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
    pair.standby.reload()
    await asyncio.to_thread(pair.hold_back)
    dsn = hosts(pair.standby, pair.primary, user="guest", password=PASSWORD)
    async with Elector(make_conninfo(pair.standby.dsn(), user="guest", password=PASSWORD), (1, 1)) as refused:
        error = await refused.hears(SessionLostError, "password authentication failed")
        assert PASSWORD not in str(error)
    async with Elector(dsn, key, **LONG) as a:
        await leads_on_the_primary(a, pair, key)
        assert a.errors == []


async def test_when_no_host_is_any_use_each_is_named_and_no_password(
    pair: Pair, last_of_all: ExitStack, key: Key
) -> None:
    gone = [last_of_all.enter_context(BreakableProxy("127.0.0.1", pair.primary.port)) for _ in range(2)]
    for proxy in gone:
        proxy.close()
    async with Elector(hosts(*gone, pair.standby, password=PASSWORD), key) as a:
        error = await a.hears(SessionLostError)
        ports = [*(proxy.port for proxy in gone), pair.standby.port]
        assert all(str(port) in str(error) for port in ports)
        assert "standby" in str(error)
        assert PASSWORD not in str(error)
        assert a.lock.state is LockState.FOLLOWER
        assert lock_holders(pair.standby.dsn(), *key) == []


async def test_a_primary_that_freezes_under_its_leader_is_left_for_the_next_host(pair: Pair, key: Key) -> None:
    """The machine hangs, and is replaced: its address still accepts connections."""
    with BreakableProxy("127.0.0.1", pair.primary.port) as proxy:
        dsn = hosts(proxy, pair.standby, connect_timeout=CONNECT_TIMEOUT_S)
        async with Elector(dsn, key) as a:
            token = (await a.leads()).token
            await asyncio.to_thread(pair.caught_up)
            proxy.freeze()
            await asyncio.to_thread(pair.fail_over)
            successor = await a.leads(above=token)
            assert successor.token // TIMELINE == token // TIMELINE + 1
            assert len(lock_holders(pair.primary.dsn(), *key)) == 1
            a.check_pairs()


# Names


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the name db.invalid resolves to; may be changed."""
    answers: list[str] = []
    resolve = socket.getaddrinfo

    def resolved(host: str, *args: Any, **kwargs: Any) -> Any:
        if host != "db.invalid":
            return resolve(host, *args, **kwargs)
        return [found for answer in answers for found in resolve(answer, *args, **kwargs)]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    return answers


@pytest.fixture
def same_port(own_pair: Pair) -> Iterator[Pair]:
    """The standby listens on 127.0.0.2, on the port of the primary, as two addresses of one name do."""
    standby = own_pair.standby
    standby.configure(listen_addresses="127.0.0.2", port=str(own_pair.primary.port))
    standby.port = own_pair.primary.port
    standby.restart()
    yield own_pair
    eventually_sync(lambda: not sessions(standby.dsn(host="127.0.0.2")), 2.0, "no session of pgelect is left")
    standby.close()


async def test_a_name_that_is_moved_to_the_new_primary_is_followed(
    same_port: Pair, addresses: list[str], key: Key
) -> None:
    """A fault like ruby-pg#558: the address was looked up once and kept."""
    pair = same_port
    addresses[:] = ["127.0.0.1"]
    dsn = make_conninfo(pair.primary.dsn(), host="db.invalid")
    async with Elector(dsn, key, **LONG) as a:
        token = (await a.leads()).token
        await asyncio.to_thread(pair.primary.stop, "immediate")
        await a.hears(SessionLostError, "127.0.0.1")
        addresses[:] = ["127.0.0.2"]
        await a.hears(NotPrimaryError)
        on_standby = pair.standby.dsn(host="127.0.0.2")
        assert lock_holders(on_standby, *key) == []
        query(on_standby, "SELECT pg_promote(true, 60)")
        successor = await a.leads(above=token)
        assert successor.token > TIMELINE
        assert len(lock_holders(on_standby, *key)) == 1


@pytest.mark.parametrize("order", ["the primary first", "the standby first"])
async def test_of_all_addresses_of_a_name_the_primary_is_found(
    same_port: Pair, addresses: list[str], key: Key, order: str
) -> None:
    """One name for the whole cluster, as in round-robin DNS: the order of its addresses is nobody's choice."""
    addresses[:] = ["127.0.0.1", "127.0.0.2"] if order == "the primary first" else ["127.0.0.2", "127.0.0.1"]
    async with Elector(make_conninfo(same_port.primary.dsn(), host="db.invalid"), key, **LONG) as a:
        await a.leads()
        assert len(lock_holders(same_port.primary.dsn(), *key)) == 1


# What the user has set


@pytest.mark.parametrize(
    ("wanted", "is_found"),
    [
        (None, True),
        (PRIMARY, True),
        ("read-write", True),
        ("any", False),
        ("standby", False),
        ("prefer-standby", False),
    ],
)
async def test_target_session_attrs_is_what_the_user_says(
    pair: Pair, key: Key, wanted: str | None, is_found: bool
) -> None:
    """Even where that leads to a standby: there it is refused and the reason told, and it never leads."""
    given = {} if wanted is None else {"target_session_attrs": wanted}
    async with Elector(hosts(pair.standby, pair.primary, **given), key, **LONG) as a:
        if is_found:
            await leads_on_the_primary(a, pair, key)
            return
        await a.hears(NotPrimaryError, str(pair.standby.port))
        tried = len(a.errors) + 3
        while len(a.errors) < tried:
            assert lock_holders(pair.standby.dsn(), *key) == lock_waiters(pair.standby.dsn(), *key) == []
            await asyncio.sleep(0.02)
        assert a.terms == []
        assert lock_holders(pair.primary.dsn(), *key) == []


async def test_target_session_attrs_of_the_environment_is_kept_too(
    pair: Pair, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGTARGETSESSIONATTRS", "any")
    async with Elector(hosts(pair.standby, pair.primary), key, **LONG) as a:
        await a.hears(NotPrimaryError, str(pair.standby.port))
        assert a.terms == []


async def test_hosts_in_random_order_lead_to_the_primary(pair: Pair, key: Key) -> None:
    dsn = hosts(pair.standby, pair.primary, pair.standby, load_balance_hosts="random")
    for _ in range(5):
        async with Elector(dsn, key, **LONG) as a:
            await leads_on_the_primary(a, pair, key)


def added(dsn: str, *, within_s: float = 30.0) -> dict[str, Any]:
    return additions(conninfo_to_dict(dsn), 15.0, Deadline.after(within_s))


def test_only_what_the_user_has_not_set_is_added(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGHOST", "PGSERVICE", "PGCONNECT_TIMEOUT", "PGTARGETSESSIONATTRS"):
        monkeypatch.delenv(name, raising=False)
    one, two = pair.primary.dsn(), hosts(pair.standby, pair.primary)
    assert "target_session_attrs" not in added(one), "the standby alone shall be named as such"
    assert added(two)["target_session_attrs"] == PRIMARY
    assert added("hostaddr=127.0.0.1,127.0.0.1")["target_session_attrs"] == PRIMARY
    assert added("postgresql://a,b/app")["target_session_attrs"] == PRIMARY
    assert "target_session_attrs" not in added("postgresql://a,b/app?target_session_attrs=any")
    assert added(one)["connect_timeout"] == 5
    assert added(hosts(*[pair.primary] * 10))["connect_timeout"] == 2, "the last one shall have its turn"
    assert "connect_timeout" not in added("host=a,b connect_timeout=60")
    monkeypatch.setenv("PGHOST", "a,b")
    assert added("dbname=app")["target_session_attrs"] == PRIMARY
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "60")
    monkeypatch.setenv("PGTARGETSESSIONATTRS", "any")
    assert {"connect_timeout", "target_session_attrs"}.isdisjoint(added("dbname=app"))


def test_a_service_file_is_left_to_say_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it sets cannot be seen, and what is given explicitly would override it."""
    assert added("service=app host=a,b") == {}
    monkeypatch.setenv("PGSERVICE", "app")
    assert added("host=a,b") == {}
