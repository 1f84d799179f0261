"""Other threads than the lock's: they may read it at any time, and whatever else they call changes nothing.

The lock has one event loop. What it says of itself is true in every thread; what needs the loop is refused elsewhere.
"""

import asyncio
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import TracebackType
from typing import Any, Self

import pytest

from pgelect import LeaderLock, LockState, NotLeaderError, Term
from pgelect._engine.runner import Runner
from tests.support.locks import SHORT_LEASE, Key, Story, ThreadedLock, is_free, leading, make_lock, program, state_of
from tests.support.looks import Looks, now
from tests.support.loops import loop_factories
from tests.support.processes import Worker
from tests.support.proxy import BreakableProxy
from tests.support.server import lock_holders, lock_waiters, sessions, terminate
from tests.support.waiting import eventually, eventually_sync, scaled

LoopFactory = Callable[[], asyncio.AbstractEventLoop]
READERS = 3


# Reading while everything changes


@contextmanager
def threads_that_switch_often() -> Iterator[None]:
    """Thousands of times a second, so that what can be torn is."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class Reader:
    """A thread that reads all that a lock says of itself, again and again, and sees whether it fits together."""

    def __init__(self, lock: LeaderLock) -> None:
        self.reads = 0
        self.terms: list[Term] = []  # in the order in which they were first seen
        self.states: set[LockState] = set()
        self.error: BaseException | None = None
        self._lock = lock
        self._record_token = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join(scaled(10))
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            while not self._end.is_set():
                self._read()
                self.reads += 1
        except BaseException as error:  # noqa: BLE001 - raised in the test's thread instead
            self.error = error

    def _read(self) -> None:
        lock = self._lock
        earlier, term, later = lock.token, lock.term, lock.token
        if term is not None:
            # tokens only grow, so what was read in between belongs in between
            assert earlier is None or earlier <= term.token, (earlier, term)
            assert later is None or term.token <= later, (term, later)
            assert (term.key, term.identity) == (lock.key, lock.identity)
            if not self.terms or self.terms[-1] is not term:
                self.terms.append(term)
            if not term.is_current:  # there is no grace here: what is over does not come back
                assert lock.term is not term, "a term that is over was given as the present one"
        for past in self.terms[:-1][-3:]:
            assert not past.is_current, "a term that another one of this process has followed"
        state, shown = lock.state, repr(lock)
        assert type(state) is LockState
        self.states.add(state)
        assert any(shown.endswith(f"{each.value}>") for each in LockState), shown
        record = lock.record
        if record is not None:
            assert record.token >= self._record_token, "the row as last seen went back"
            assert record.holder == lock.identity, "it is alone here"
            self._record_token = record.token
        assert type(lock.is_leader) is bool
        assert type(lock.is_leader_confirmed_within(0.05)) is bool
        assert lock.bounds().failover_crash.seconds > 0


@pytest.mark.parametrize("loop_factory", loop_factories())
def test_everything_can_be_read_from_any_thread_while_everything_changes(
    database: str, key: Key, proxy: BreakableProxy, loop_factory: LoopFactory
) -> None:
    """Holds off a read that fails, or that mixes two terms: the token of one with the trust of another."""
    lock = make_lock(proxy.dsn(database), key, health_interval_s=0.01)
    story = Story(lock)

    async def seen_by(readers: list[Reader], term: Term) -> None:
        def by_all() -> bool:
            return all(term in reader.terms for reader in readers)

        await eventually(by_all, message="each thread has seen the term while it lasted")

    async def change(readers: list[Reader]) -> None:
        for _ in range(2):
            async with lock:
                for number in range(6):
                    term = await lock.wait_for_leadership(scaled(10))
                    await seen_by(readers, term)
                    if number % 3 == 0:
                        await lock.step_down(cooldown_s=0.0)
                    elif number % 3 == 1:
                        terminate(database, lock_holders(database, *key)[0])
                    else:
                        proxy.cut()
                    async with asyncio.timeout(scaled(10)):
                        await term.ended()
        await eventually(lambda: not sessions(database))

    with threads_that_switch_often(), Reader(lock) as one, Reader(lock) as two, Reader(lock) as three:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(change([one, two, three]))
        assert lock.state is LockState.STOPPED
        assert (lock.is_leader, lock.term, lock.token) == (False, None, None)
    assert story.is_paired()
    for reader in (one, two, three):
        assert reader.reads > 100
        assert len(reader.terms) == 12
        assert {LockState.STOPPED, LockState.FOLLOWER, LockState.LEADER} <= reader.states
        assert all(first.token < second.token for first, second in pairwise(reader.terms))


async def test_a_thread_sees_leadership_end_while_the_loop_is_blocked(database: str, key: Key) -> None:
    """Nothing has to run in the loop for it, and it is over before another leads."""
    lock = make_lock(database, key, **SHORT_LEASE)
    async with lock:
        term = await lock.wait_for_leadership(scaled(10))
        with (
            ThreadedLock(database, key, **SHORT_LEASE) as other,
            Looks(lambda: lock.is_leader) as leads,
            Looks(lambda: lock.token is not None) as has_token,
            Looks(lambda: term.is_current) as current,
            Looks(lambda: lock.is_leader_confirmed_within(3600.0)) as confirmed,
        ):
            looks = (leads, has_token, current, confirmed)
            await eventually(lambda: all(each.spans for each in looks) and lock_waiters(database, *key))
            blocked_at = now()
            assert other.leads.wait(scaled(10)), "the loop of the lock stands still meanwhile"
            led_at = now()
            for each in looks:
                assert len(each.spans) == 1
                assert blocked_at < each.last_true_at < led_at
                assert each.last_true_at < blocked_at + SHORT_LEASE["lease_s"]
            assert state_of(lock) is LockState.LEADER, "nothing ran: it is only not trusted any more"
            assert not lock.is_leader


async def test_a_function_for_leaders_only_can_be_called_in_any_thread(database: str, key: Key) -> None:
    lock = make_lock(database, key)
    work = lock.leader_only(threading.get_ident)
    assert await asyncio.to_thread(work) is None
    async with lock:
        await lock.wait_for_leadership(scaled(10))
        assert await asyncio.to_thread(work) not in {None, threading.get_ident()}
    assert await asyncio.to_thread(work) is None


# Calling


async def _run(lock: LeaderLock, _: Term) -> None:
    await lock.run()


async def _enter(lock: LeaderLock, _: Term) -> None:
    async with lock:
        pytest.fail("it was entered in another thread")


async def _ended(_: LeaderLock, term: Term) -> None:
    await asyncio.wait_for(term.ended(), 2.0)


async def _start(lock: LeaderLock, _: Term) -> None:
    await lock.start()


async def _shutdown(lock: LeaderLock, _: Term) -> None:
    await lock.shutdown()


async def _step_down(lock: LeaderLock, _: Term) -> None:
    await lock.step_down()


async def _wait(lock: LeaderLock, _: Term) -> None:
    await lock.wait_for_leadership()


async def _lead(lock: LeaderLock, _: Term) -> None:
    await lock.lead(lambda _: pytest.fail("a duty began in another thread"))


async def _terms(lock: LeaderLock, _: Term) -> None:
    lock.terms()


Use = Callable[[LeaderLock, Term], Awaitable[None]]
USES = [_run, _enter, _ended, _start, _shutdown, _step_down, _wait, _lead, _terms]


async def _error_of(use: Callable[[], object]) -> BaseException | None:
    """What it raised in a thread of its own."""
    heard: list[BaseException | None] = []

    def elsewhere() -> None:
        try:
            use()
        except BaseException as error:  # noqa: BLE001 - looked at by the caller
            heard.append(error)
        else:
            heard.append(None)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    await eventually(lambda: not thread.is_alive())
    return heard[0]


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__.strip("_"))
async def test_a_call_from_another_thread_is_a_clear_error_and_changes_nothing(
    database: str, key: Key, use: Use
) -> None:
    async with leading(database, key, health_interval_s=2.0) as lock:
        story = Story(lock)
        term = lock.term
        assert term is not None
        before = lock._runner.snapshot
        error = await _error_of(lambda: asyncio.run(use(lock, term)))  # type: ignore[arg-type]  # a coroutine
        assert type(error) is RuntimeError, error
        assert "another event loop" in str(error) or "runs already" in str(error)
        assert (lock.term, lock._runner.snapshot.state) == (term, before.state)
        assert lock._runner.snapshot.trusted_until >= before.trusted_until
        assert len(lock_holders(database, *key)) == 1
        assert story.states == []

        ended = asyncio.create_task(term.ended())  # all of it still works where it belongs
        assert await lock.step_down(cooldown_s=0.0)
        await asyncio.wait_for(ended, 1.0)
        await lock.wait_for_leadership(scaled(10))


async def test_a_call_from_a_thread_without_any_loop_is_a_clear_error(database: str, key: Key) -> None:
    async with leading(database, key) as lock:
        error = await _error_of(lock.terms)
        assert type(error) is RuntimeError
        assert "another event loop" in str(error)
        assert lock.is_leader


async def test_a_thread_can_hand_its_call_to_the_loop(database: str, key: Key) -> None:
    """As the error of a call from another thread says."""
    lock, loop = make_lock(database, key), asyncio.get_running_loop()

    def work() -> tuple[Term, bool]:
        def call(coroutine: Any) -> Any:
            return asyncio.run_coroutine_threadsafe(coroutine, loop).result(scaled(10))

        call(lock.start())
        term = call(lock.wait_for_leadership())
        stepped_down = call(lock.step_down(cooldown_s=0.0))
        call(lock.wait_for_leadership())
        call(lock.shutdown())
        return term, stepped_down

    term, stepped_down = await asyncio.to_thread(work)
    assert stepped_down
    assert not term.is_current
    assert lock.state is LockState.STOPPED
    await is_free(database, key)


def test_of_several_threads_that_start_a_lock_at_once_one_runs_it(database: str, key: Key) -> None:
    """Holds off two tasks that own one machine: each would think that the session is its own."""
    for _ in range(8):
        lock = make_lock(database, key)
        gate, errors, led = threading.Barrier(READERS), list[RuntimeError](), list[int]()

        async def own(lock: LeaderLock = lock, led: list[int] = led) -> None:
            async with lock:
                led.append((await lock.wait_for_leadership(scaled(10))).token)
                assert len(lock_holders(database, *key)) == 1
                await asyncio.sleep(0.05)  # the others try meanwhile

        def start(
            gate: threading.Barrier = gate, errors: list[RuntimeError] = errors, own: Callable[[], Any] = own
        ) -> None:
            gate.wait()
            try:
                asyncio.run(own())
            except RuntimeError as error:
                errors.append(error)

        with threads_that_switch_often():
            threads = [threading.Thread(target=start) for _ in range(READERS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert len(led) + len(errors) == READERS
        assert len(led) == 1, errors
        assert lock.state is LockState.STOPPED
        assert lock_holders(database, *key) == []


def test_a_thread_that_starts_a_lock_while_another_is_about_to_is_refused(
    database: str, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: both had seen that it did not run yet; one of them then waited for ever."""
    lock = make_lock(database, key)
    claim, first = Runner.claim, threading.Event()
    outcomes: list[str] = []

    def slowly(runner: Runner) -> None:
        first.set()
        time.sleep(0.1)
        claim(runner)

    async def own() -> None:
        async with lock:
            await asyncio.sleep(0.3)  # the other one tries meanwhile

    def start() -> None:
        try:
            asyncio.run(own())
            outcomes.append("ran")
        except RuntimeError:
            outcomes.append("refused")

    monkeypatch.setattr(Runner, "claim", slowly)
    threads = [threading.Thread(target=start, daemon=True) for _ in range(2)]
    threads[0].start()
    assert first.wait(scaled(10))
    threads[1].start()
    for thread in threads:
        thread.join(scaled(10))
    assert outcomes == ["refused", "ran"]
    assert lock.state is LockState.STOPPED


# One loop after the other


def test_a_stopped_lock_answers_in_any_loop(database: str, key: Key) -> None:
    lock = make_lock(database, key)

    async def lead() -> None:
        async with lock:
            await lock.wait_for_leadership(scaled(10))

    async def ask() -> None:
        await lock.shutdown()
        assert not await lock.step_down()
        with pytest.raises(NotLeaderError):
            await lock.wait_for_leadership(1.0)
        assert [term async for term in lock.terms()] == []

    asyncio.run(lead())
    asyncio.run(ask())


DROPPED_LOOP = """
import asyncio, sys
from pgelect import LeaderLock

lock = LeaderLock(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), lease_s=60.0)
work = lock.leader_only(lambda: "worked")

async def begin():
    await lock.start()
    return await lock.wait_for_leadership()

def say(when):
    print(when, lock.is_leader, term.is_current, work(), flush=True)

loop = asyncio.new_event_loop()
term = loop.run_until_complete(begin())
loop.close()  # without a shutdown
say("dropped")

async def again():
    sys.stdin.readline()
    await lock.start()
    say("started")
    await lock.wait_for_leadership()
    say("leading")
    await lock.shutdown()
    say("stopped")

asyncio.run(again())
"""


def test_a_term_whose_loop_was_dropped_is_over_when_its_lock_starts_anew(
    database: str, key: Key, worker: Callable[..., Worker]
) -> None:
    """The new start drops the old session, and another leads from then on, long before the old lease is over.

    A function that was decorated for leaders only before that follows the lock into its next loop.
    """
    child = program(worker, DROPPED_LOOP, database, *key)
    child.wait_line("^dropped True True worked")
    (pid,) = lock_holders(database, *key)
    with ThreadedLock(database, key) as other:
        eventually_sync(lambda: lock_waiters(database, *key), message="another waits")
        child.tell("go on")
        child.wait_line("^started False False None")
        assert other.leads.wait(scaled(10))
        assert lock_holders(database, *key) != [pid]
    child.wait_line("^leading True False worked")
    child.wait_line("^stopped False False None")
    assert child.wait() == 0
