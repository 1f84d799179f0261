"""pgelect.sync on a real server: the same election for programs that block, whatever they do with their threads."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from pgelect import (
    ConfigurationError,
    ConnectionError,  # noqa: A004 -- ours
    LockState,
    NotLeaderError,
    ShutdownError,
    StaleTokenError,
)
from pgelect._sync_term import Turn
from pgelect.sync import LeaderLock, Term, check_token, fenced
from tests.support.locks import QUICK, SHORT_LEASE, Key
from tests.support.server import lock_holders, query, sessions, terminate
from tests.support.waiting import eventually_sync, scaled


def make(dsn: str, key: Key, **settings: Any) -> LeaderLock:
    return LeaderLock(dsn, *key, **{**QUICK, **settings})


@contextmanager
def leading(dsn: str, key: Key, **settings: Any) -> Iterator[LeaderLock]:
    with make(dsn, key, **settings) as lock:
        lock.wait_for_leadership(scaled(10))
        yield lock


def threads_of_locks() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("pgelect")]


@contextmanager
def beside(function: Any, *arguments: Any) -> Iterator[threading.Thread]:
    """Run that in another thread, and see it end."""
    thread = threading.Thread(target=function, args=arguments)
    thread.start()
    try:
        yield thread
    finally:
        thread.join(scaled(10))
        assert not thread.is_alive()


# Life


def test_a_block_leads_and_leaves_nothing_behind(database: str, key: Key) -> None:
    with make(database, key) as lock:
        term = lock.wait_for_leadership(scaled(10))
        assert lock.is_leader
        assert lock.term is term
        assert (term.token, term.is_current, term.ended.is_set()) == (lock.token, True, False)
        assert len(lock_holders(database, *key)) == 1
        assert lock.health().ready
        assert lock.record is not None
        assert lock.record.holder == lock.identity
        assert lock.trust_left_s > 0
        assert lock.is_leader_confirmed_within(5.0)
        assert lock.bounds().overlap_lease.seconds == 0
    assert term.ended.is_set()
    assert not term.is_current
    assert lock.state is LockState.STOPPED
    assert lock_holders(database, *key) == []
    eventually_sync(lambda: not sessions(database), message="no session is left")
    assert threads_of_locks() == []


def test_a_shutdown_that_was_interrupted_can_be_called_again(
    database: str, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    lock = make(database, key)
    lock.start()
    term = lock.wait_for_leadership(scaled(10))
    with monkeypatch.context() as patched:
        patched.setattr(lock, "_ends", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lock.shutdown()
    assert lock.is_leader
    lock.shutdown()
    assert term.ended.is_set()
    assert threads_of_locks() == []


def test_it_can_be_started_again(database: str, key: Key) -> None:
    lock = make(database, key)
    tokens = []
    for _ in range(2):
        lock.start()
        tokens.append(lock.wait_for_leadership(scaled(10)).token)
        with pytest.raises(RuntimeError, match="runs already"):
            lock.start()
        assert lock.is_leader, "the second start changed nothing"
        lock.shutdown()
        lock.shutdown()
    assert tokens[0] < tokens[1]
    assert threads_of_locks() == []


def test_a_start_that_gives_up_leaves_no_thread(key: Key) -> None:
    lock = make("host=127.0.0.1 port=1", key, retry_strategy=lambda context: None)
    with pytest.raises(ConnectionError, match="gave up"):
        lock.start()
    assert threads_of_locks() == []
    assert lock.state is LockState.STOPPED


def test_what_needs_a_running_lock_says_so(database: str, key: Key) -> None:
    lock = make(database, key)
    for call in (lock.wait_for_leadership, lock.step_down, lambda: lock.lead(print), lambda: next(lock.terms())):
        with pytest.raises(NotLeaderError, match="call start"):
            call()
    lock.shutdown()
    assert lock.term is None
    assert lock.token is None


def test_a_wait_has_a_limit(database: str, key: Key) -> None:
    with leading(database, key), make(database, key) as other, pytest.raises(TimeoutError):
        other.wait_for_leadership(0.05)


def test_a_program_that_blocks_its_thread_leads_on(database: str, key: Key) -> None:
    """Holds off a lease that ends because the program was busy: in pure Python, or asleep."""
    with leading(database, key, **SHORT_LEASE) as lock:
        token, until = lock.token, time.monotonic() + 1.5
        while time.monotonic() < until:
            sum(range(1000))
        assert lock.is_leader
        time.sleep(1.2)
        assert lock.is_leader
        assert lock.token == token


async def test_it_works_in_a_program_that_runs_an_event_loop(database: str, key: Key) -> None:
    with leading(database, key) as lock:
        await asyncio.sleep(0)
        assert lock.is_leader
    assert lock_holders(database, *key) == []


def test_it_is_made_from_the_environment_and_reconfigured(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGELECT_DSN", database)
    monkeypatch.setenv("PGELECT_LEASE_S", "9")
    with LeaderLock.from_env("nightly") as lock:
        lock.wait_for_leadership(scaled(10))
        lock.reconfigure(lease_s=6.0, health_interval_s=0.5)
        with pytest.raises(ValueError, match="lease_s"):
            lock.reconfigure(lease_s=-1)
        eventually_sync(lambda: query(database, "SELECT lease_s FROM pgelect.token") == [(6.0,)], 5.0)


# Work


def test_the_duty_runs_in_the_thread_that_leads(database: str, key: Key) -> None:
    with make(database, key) as lock:
        assert lock.lead(lambda term: (term.token, threading.current_thread())) == (
            lock.token,
            threading.current_thread(),
        )
        assert lock.is_leader, "one that returns ends nothing"


def test_a_duty_that_raises_ends_the_term(database: str, key: Key) -> None:
    with make(database, key) as lock:

        def fail(_: Term) -> None:
            raise LookupError("no work")

        with pytest.raises(LookupError, match="no work"):
            lock.lead(fail)
        eventually_sync(lambda: query(database, "SELECT released_at IS NOT NULL FROM pgelect.token") == [(True,)])


def test_a_lost_term_is_seen_by_the_duty_which_runs_anew_in_the_next(database: str, key: Key) -> None:
    tokens = []

    def duty(term: Term) -> str | None:
        tokens.append(term.token)
        if len(tokens) > 1:
            return "done"
        terminate(database, *lock_holders(database, *key))
        assert term.ended.wait(scaled(10))
        assert not term.is_current
        return None

    with make(database, key) as lock:
        assert lock.lead(duty) == "done"
    assert tokens == sorted(set(tokens))
    assert len(tokens) == 2


def test_a_release_waits_for_the_duty(database: str, key: Key) -> None:
    begun, told = threading.Event(), []

    def duty(term: Term) -> None:
        begun.set()
        term.ended.wait(scaled(10))
        told.append((lock.is_leader, len(lock_holders(database, *key))))

    with make(database, key) as lock:
        with beside(lock.lead, duty) as worker:
            assert begun.wait(scaled(10))
            lock.shutdown()
            assert told == [(False, 1)], "it did not lead any more, and still held the lock"
            assert lock_holders(database, *key) == []
        assert not worker.is_alive(), "lead() has returned"


def test_a_duty_that_does_not_return_is_told_of_and_keeps_no_lock(database: str, key: Key) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def duty(_: Term) -> None:
        begun.set()
        go_on.wait(scaled(30))

    lock = make(database, key)
    lock.start()
    with beside(lock.lead, duty):
        assert begun.wait(scaled(10))
        with pytest.raises(ShutdownError, match="duty"):
            lock.shutdown(timeout_s=0.2)
        eventually_sync(lambda: lock_holders(database, *key) == [])
        go_on.set()
    eventually_sync(lambda: threads_of_locks() == [], message="the loop's thread ends with the last work")


@pytest.mark.parametrize("call", ["step_down", "shutdown"])
def test_a_duty_may_end_its_own_term(database: str, key: Key, call: str) -> None:
    """Holds off a duty that waits for a release that waits for the duty."""
    calls = []

    def duty(term: Term) -> str:
        calls.append(term.token)
        if len(calls) == 1:
            lock.step_down(cooldown_s=0) if call == "step_down" else lock.shutdown()
            assert term.ended.wait(scaled(10))
            assert not lock.is_leader
            return "too late"
        return "done"

    with make(database, key, drain_timeout_s=60.0) as lock:
        assert lock.lead(duty) == ("done" if call == "step_down" else None)
    assert query(database, "SELECT released_at IS NOT NULL FROM pgelect.token") == [(True,)]
    assert len(calls) == (2 if call == "step_down" else 1)


@pytest.mark.parametrize("before", [True, False])
def test_a_signal_handler_may_shut_down_just_before_and_just_after_the_duty(
    database: str, key: Key, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    """The thread has its turn then, and the drain waits for it."""
    seen: list[object] = []

    @contextmanager
    def working(_: object) -> Iterator[None]:
        if not before:
            yield
        lock.shutdown()
        seen.append("shut down")
        if before:
            yield

    monkeypatch.setattr(Turn, "working", working)
    with make(database, key) as lock:
        lock.lead(lambda term: seen.append(term.ended.is_set()))
    assert seen == (["shut down", True] if before else [False, "shut down"])


def test_terms_come_one_after_another(database: str, key: Key) -> None:
    tokens = []
    with make(database, key, drain_timeout_s=60.0) as lock:
        for term in lock.terms():
            tokens.append(term.token)
            if len(tokens) == 3:
                lock.shutdown()
            else:
                lock.step_down(cooldown_s=0)
    assert tokens == sorted(set(tokens))
    assert len(tokens) == 3
    assert query(database, "SELECT released_at IS NOT NULL FROM pgelect.token") == [(True,)]


def test_a_loop_over_terms_may_be_left(database: str, key: Key) -> None:
    with make(database, key) as lock:
        for term in lock.terms():
            assert term.is_current
            break
        assert lock.is_leader
        assert lock.step_down(cooldown_s=3600), "nobody holds it up"
    assert query(database, "SELECT released_at IS NOT NULL FROM pgelect.token") == [(True,)]


def test_leader_only(database: str, key: Key) -> None:
    with leading(database, key) as lock:
        double = lock.leader_only(lambda number: number * 2)
        assert double(4) == 8
        lock.step_down(cooldown_s=3600)
        assert double(4) is None


# Callbacks


def test_callbacks_run_in_order_in_a_thread_of_their_own(database: str, key: Key) -> None:
    heard: list[Any] = []
    lock = make(database, key)
    lock.on_acquired(lambda term: heard.append(("acquired", term, threading.current_thread())))
    lock.on_released(lambda term: heard.append(("released", term, threading.current_thread())))
    with lock:
        term = lock.wait_for_leadership(scaled(10))
        lock.step_down(cooldown_s=3600)
    [(_, first, there), (_, second, also_there)] = heard
    assert first is second is term
    assert there is also_there
    assert there is not threading.current_thread()
    assert [what for what, *_ in heard] == ["acquired", "released"]


def test_an_async_callback_is_refused(database: str, key: Key) -> None:
    async def later() -> None: ...

    with pytest.raises(TypeError, match="plain function"):
        make(database, key).on_acquired(later)


def test_a_slow_callback_holds_up_no_proof(database: str, key: Key) -> None:
    go_on = threading.Event()
    lock = make(database, key, **SHORT_LEASE)
    lock.on_state_change(lambda: go_on.wait(scaled(30)))
    with lock:
        lock.wait_for_leadership(scaled(10))
        time.sleep(1.2)
        assert lock.is_leader
        go_on.set()


@pytest.mark.parametrize("error", [LookupError("no"), SystemExit(3)])
def test_an_on_acquired_that_raises_ends_the_term(database: str, key: Key, error: BaseException) -> None:
    heard: list[Exception] = []
    lock = make(database, key)
    lock.on_error(heard.append)

    @lock.on_acquired
    def fail() -> None:
        raise error

    with lock:
        eventually_sync(lambda: query(database, "SELECT count(*) FROM pgelect.token WHERE released_at IS NOT NULL"))
        eventually_sync(lambda: heard != [])
    assert error in {heard[0], heard[0].__cause__}


@pytest.mark.parametrize("call", ["step_down", "shutdown"])
def test_a_callback_may_end_its_own_term(database: str, key: Key, call: str) -> None:
    returned = threading.Event()
    lock = make(database, key, drain_timeout_s=60.0)

    @lock.on_acquired
    def leave() -> None:
        lock.step_down(cooldown_s=3600) if call == "step_down" else lock.shutdown()
        returned.set()

    with lock:
        assert returned.wait(scaled(10))
        eventually_sync(lambda: lock_holders(database, *key) == [])
    assert query(database, "SELECT released_at IS NOT NULL FROM pgelect.token") == [(True,)]


# Fencing


def test_writes_are_fenced_on_a_blocking_connection(database: str, key: Key) -> None:
    query(database, "CREATE TABLE ledger (token bigint)")
    with leading(database, key) as lock, psycopg.connect(database) as conn:
        with lock.fence(conn) as term:
            conn.execute("INSERT INTO ledger VALUES (%s)", [term.token])
        with conn.transaction():
            lock.check_fence(conn)
            conn.execute("INSERT INTO ledger VALUES (%s)", [term.token])
        with fenced(conn, lock.key, term.token):
            conn.execute("INSERT INTO ledger VALUES (%s)", [term.token])
        lock.step_down(cooldown_s=0)
        lock.wait_for_leadership(scaled(10))
        with pytest.raises(StaleTokenError), fenced(conn, lock.key, term.token):
            conn.execute("INSERT INTO ledger VALUES (0)")
        conn.rollback()
        lock.step_down(cooldown_s=3600)
        with pytest.raises(NotLeaderError), lock.fence(conn):
            pytest.fail("it does not lead")
    assert query(database, "SELECT token FROM ledger") == [(term.token,)] * 3


def test_a_check_that_would_protect_nothing_is_refused(database: str, key: Key) -> None:
    with leading(database, key) as lock, psycopg.connect(database, autocommit=True) as conn:
        with pytest.raises(ConfigurationError, match="autocommit"):
            check_token(conn, lock.key, lock.token or 0)
        with lock.fence(conn):
            check_token(conn, lock.key, lock.token or 0)


def test_what_only_asyncio_has_is_refused(database: str, key: Key) -> None:
    with pytest.raises(TypeError, match="shutdown_event"):
        make(database, key, shutdown_event=asyncio.Event())
