"""Callbacks that behave: of any shape, in order, in pairs, and after the lock's own state has changed."""

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pgelect import LeaderLock, LockState, Term
from tests.support.locks import Key, Story, leading, make_lock, queueing
from tests.support.server import lock_holders, lock_waiters, query, terminate
from tests.support.waiting import eventually, scaled

HOOKS = ["on_acquired", "on_released", "on_lost", "on_acquire_failed", "on_state_change", "on_error"]


class Listener:
    """Callables of every shape that append what they are called with to `heard`."""

    def __init__(self, heard: list[tuple[Any, ...]]) -> None:
        self.heard = heard

    def __call__(self, term: Term) -> None:
        self.heard.append((term,))

    def method(self, term: Term) -> None:
        self.heard.append((term,))

    async def async_method(self, term: Term) -> None:
        await asyncio.sleep(0)
        self.heard.append((term,))


class AsyncListener(Listener):
    """A callable object whose call is a coroutine."""

    async def __call__(self, term: Term) -> None:  # type: ignore[override] # the very point: it is awaited
        await asyncio.sleep(0)
        self.heard.append((term,))


def _record(heard: list[tuple[Any, ...]], *arguments: Any) -> None:
    heard.append(arguments)


async def _record_later(heard: list[tuple[Any, ...]], *arguments: Any) -> None:
    await asyncio.sleep(0)
    heard.append(arguments)


def _two(heard: list[tuple[Any, ...]], term: Term) -> None:
    heard.append((term,))


async def _two_later(heard: list[tuple[Any, ...]], term: Term) -> None:
    await asyncio.sleep(0)
    heard.append((term,))


def _nothing_later(heard: list[tuple[Any, ...]]) -> Callable[[], Awaitable[None]]:
    async def later() -> None:
        await asyncio.sleep(0)
        heard.append(())

    return later


WITH_THE_TERM: dict[str, Callable[[list[tuple[Any, ...]]], Callable[..., Any]]] = {
    "partial": lambda heard: functools.partial(_two, heard),
    "partial with any arguments": lambda heard: functools.partial(_record, heard),
    "async partial": lambda heard: functools.partial(_two_later, heard),
    "async partial with any arguments": lambda heard: functools.partial(_record_later, heard),
    "bound method": lambda heard: Listener(heard).method,
    "async bound method": lambda heard: Listener(heard).async_method,
    "object": Listener,
    "async object": AsyncListener,
    "lambda": lambda heard: lambda term: heard.append((term,)),
    "lambda with a default": lambda heard: lambda term, into=heard: into.append((term,)),
    "lambda that returns an awaitable": lambda heard: lambda term: _two_later(heard, term),
}
WITHOUT: dict[str, Callable[[list[tuple[Any, ...]]], Callable[..., Any]]] = {
    "function": lambda heard: lambda: heard.append(()),
    "lambda with only a default": lambda heard: lambda into=heard: into.append(()),
    "partial that is complete": lambda heard: functools.partial(heard.append, ()),
    "async function": _nothing_later,
    "keyword-only with a default": lambda heard: lambda *, into=heard: into.append(()),
}


@asynccontextmanager
async def _running(lock: LeaderLock) -> AsyncIterator[Term]:
    async with lock:
        yield await lock.wait_for_leadership(scaled(10))


@pytest.mark.parametrize("shape", WITH_THE_TERM.values(), ids=WITH_THE_TERM.keys())
async def test_any_callable_is_called_with_the_term(
    database: str, key: Key, shape: Callable[[list[tuple[Any, ...]]], Callable[..., Any]]
) -> None:
    heard: list[tuple[Any, ...]] = []
    lock, callback = make_lock(database, key), shape(heard)
    assert lock.on_acquired(callback) is callback
    assert lock.on_released(callback) is callback
    async with lock:
        term = await lock.wait_for_leadership(scaled(10))
        await eventually(lambda: heard)  # an async on_acquired ends with its term
    assert heard == [(term,), (term,)]


@pytest.mark.parametrize("shape", WITHOUT.values(), ids=WITHOUT.keys())
async def test_a_callable_without_arguments_is_called_without(
    database: str, key: Key, shape: Callable[[list[tuple[Any, ...]]], Callable[..., Any]]
) -> None:
    heard: list[tuple[Any, ...]] = []
    lock = make_lock(database, key)
    for hook in HOOKS:
        getattr(lock, hook)(shape(heard))
    async with lock:
        await lock.wait_for_leadership(scaled(10))
        await eventually(lambda: len(heard) == len(["follower", "acquiring", "leader", "acquired"]))
    assert heard == [()] * len(["follower", "acquiring", "leader", "acquired", "releasing", "stopped", "released"])


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("wrong", [None, 42, "name", lambda a, b, c: None, lambda *, must: None])
def test_what_cannot_be_called_is_refused_when_it_is_registered(key: Key, hook: str, wrong: object) -> None:
    lock = LeaderLock("", *key)
    with pytest.raises(TypeError, match=hook):
        getattr(lock, hook)(wrong)


async def test_decorators_leave_the_function_as_it_is(database: str, key: Key) -> None:
    lock = make_lock(database, key)
    heard: list[str] = []

    @lock.on_acquired
    @lock.on_released
    def both() -> None:
        heard.append("both")

    @lock.on_acquired
    async def acquired(term: Term) -> None:
        heard.append(f"acquired {term.token}")

    both()
    assert heard == ["both"]
    async with _running(lock) as term:
        await eventually(lambda: len(heard) == 3)
    assert heard == ["both", "both", f"acquired {term.token}", "both"]


async def test_several_run_one_after_another_in_the_order_of_their_registration(database: str, key: Key) -> None:
    lock = make_lock(database, key)
    heard: list[str] = []

    def teller(what: str, delay_s: float) -> Callable[[], Awaitable[None]]:
        async def tell() -> None:
            heard.append(f"{what} begins")
            await asyncio.sleep(delay_s)
            heard.append(f"{what} ends")

        return tell

    lock.on_acquired(teller("slow", 0.05))
    lock.on_acquired(teller("quick", 0.0))
    lock.on_acquired(lambda: heard.append("plain"))
    async with _running(lock):
        await eventually(lambda: len(heard) == 5)
    assert heard == ["slow begins", "slow ends", "quick begins", "quick ends", "plain"]


async def test_state_and_leadership_have_changed_before_they_run(database: str, key: Key) -> None:
    lock = make_lock(database, key)
    seen: list[tuple[str, bool, bool, LockState, int]] = []

    def look(what: str) -> Callable[[Term], None]:
        return lambda term: seen.append(
            (what, lock.is_leader, term.is_current, lock.state, len(lock_holders(database, *key)))
        )

    lock.on_acquired(look("acquired"))
    lock.on_released(look("released"))
    lock.on_lost(look("lost"))
    async with _running(lock):
        await lock.step_down(cooldown_s=0.3)
        await lock.wait_for_leadership(scaled(10))
        await eventually(lambda: len(seen) == 3)
        terminate(database, lock_holders(database, *key)[0])
        await eventually(lambda: len(seen) >= 4)
    assert seen[:3] == [
        ("acquired", True, True, LockState.LEADER, 1),
        ("released", False, False, LockState.FOLLOWER, 0),
        ("acquired", True, True, LockState.LEADER, 1),
    ]
    assert seen[3][:3] == ("lost", False, False)


async def test_changes_of_state_form_a_chain(database: str, key: Key) -> None:
    lock = make_lock(database, key)
    story = Story(lock)
    async with _running(lock):
        await lock.step_down(cooldown_s=0.0)
        await lock.wait_for_leadership(scaled(10))
        terminate(database, lock_holders(database, *key)[0])
        await story.tells("acquired", "released", "acquired", "lost", "acquired")
    befores, afters = zip(*story.states, strict=True)
    assert befores == (LockState.STOPPED, *afters[:-1])
    assert afters[-1] is LockState.STOPPED
    assert all(before is not after for before, after in story.states)


async def _loses(lock: LeaderLock) -> None:
    await eventually(lambda: not lock.is_leader)


async def test_every_beginning_has_exactly_one_end(database: str, key: Key) -> None:
    locks = [make_lock(database, key) for _ in range(3)]
    stories = [Story(lock) for lock in locks]
    for lock in locks:
        await lock.start()
    try:
        for round_ in range(12):
            (leader,) = await eventually(lambda: [lock for lock in locks if lock.is_leader])
            if round_ % 3:
                assert await leader.step_down(cooldown_s=0.0)
            else:
                (pid,) = lock_holders(database, *key)
                terminate(database, pid)
                await _loses(leader)
    finally:
        for lock in locks:
            await lock.shutdown()
    assert all(story.is_paired() for story in stories)
    assert all(len(story.told) % 2 == 0 for story in stories)
    tokens = [token for story in stories for token in story.tokens[::2]]
    assert len(tokens) == len(set(tokens)) >= 12
    assert sum(story.told.count("lost") for story in stories) == 4


async def test_a_failed_attempt_is_told_once_for_each_wait(database: str, key: Key) -> None:
    follower = make_lock(database, key)
    story = Story(follower)
    async with leading(database, key):
        await follower.start()
        await eventually(lambda: lock_waiters(database, *key))
        first = query(database, "SELECT clock_timestamp()")
        await eventually(  # well into the next slice
            lambda: query(database, "SELECT clock_timestamp() - %s > '1.2 s'", first[0][0])[0][0]
        )
        assert story.failures == [None]
        assert story.errors == []
    await story.tells("acquired")
    await follower.shutdown()


async def test_another_process_that_leads_is_no_error(database: str, key: Key) -> None:
    async with leading(database, key), queueing(database, key) as follower:
        story = Story(follower)
        await follower.shutdown()
        assert story.errors == []
        assert story.told == []
