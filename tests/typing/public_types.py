"""The types of the public surface, as a user's type checker sees them. Checked by mypy with the tests; never run.

A misuse that must be an error has an ignore on its line: strict mypy complains as soon as it is no error any more.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime
from functools import partial
from typing import Any, assert_type

import tenacity
from psycopg import AsyncConnection, connect
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool

import pgelect
from pgelect import (
    Backend,
    Bound,
    Bounds,
    ChangeKind,
    DecorrelatedJitter,
    ExponentialBackoff,
    FixedInterval,
    GroupState,
    Health,
    LeaderGroup,
    LeaderLock,
    LeaderRecord,
    LeadershipChange,
    LockKey,
    LockState,
    RetryContext,
    RetryStrategy,
    Term,
    TermEnding,
    TermRecord,
    sync,
)
from pgelect.errors import (
    ConnectionError,  # noqa: A004 -- the public name
    FenceBusyError,
    KeyCollisionError,
    LockError,
    NotLeaderError,
    PgElectError,
    PoolerError,
    SchemaError,
    SessionLostError,
    ShutdownError,
    StaleTokenError,
    UnsupportedServerError,
)
from pgelect.retry import as_strategy

# Making a lock


async def fetched_dsn() -> str:
    return "host=db"


async def connected() -> AsyncConnection[DictRow]:
    return await AsyncConnection.connect("", row_factory=dict_row)


def constructor() -> None:
    assert_type(LeaderLock(name="jobs"), LeaderLock)
    assert_type(LeaderLock("host=db", 5001, 1), LeaderLock)
    LeaderLock(lambda: "host=db", name="jobs")
    LeaderLock(fetched_dsn, name="jobs")
    LeaderLock(
        dsn="host=db",
        key1=5001,
        key2=1,
        identity="pod-7",
        metadata={"zone": ["a"]},
        health_interval_s=1,
        health_timeout_s=None,
        lease_s=5,
        reconnect_grace_s=3.0,
        acquire="poll",
        retry_strategy=FixedInterval(1.0),
        takeover_delay_s=0,
        drain_timeout_s=5,
        auto_reacquire=False,
        fencing=True,
        shutdown_event=asyncio.Event(),
        connect_fn=connected,
        allow_pooler=False,
    )
    LeaderLock(name="jobs", acquire="wait")  # type: ignore[arg-type]  # neither "queue" nor "poll"
    LeaderLock(name="jobs", lease_s="5")  # type: ignore[arg-type]  # seconds are numbers
    LeaderLock(name="jobs", connect_fn=fetched_dsn)  # type: ignore[arg-type]  # not a connection
    LeaderLock(name="jobs", health_interval=1)  # type: ignore[call-arg]  # without its unit


# Groups


def groups() -> None:
    named = LeaderGroup("host=db", names=["a", "b"], group="orders", weight=2, max_share=3)
    assert_type(named, LeaderGroup[str])
    paired = LeaderGroup(keys=[(1, 2)], rebalance_interval_s=1)
    assert_type(paired, LeaderGroup[tuple[int, int]])
    assert_type(named.leading, Mapping[str, Term])
    assert_type(paired.partitions, tuple[tuple[int, int], ...])
    assert_type(named.state, GroupState)
    assert_type(named.health(), Health)
    LeaderGroup(names=["a"], keys=[(1, 2)])  # type: ignore[call-overload]  # either
    LeaderGroup()  # type: ignore[call-overload]  # neither
    LeaderGroup(names=["a"], max_share="3")  # type: ignore[call-overload]  # a number
    named.is_leader((1, 2))  # type: ignore[arg-type]  # its partitions are names
    named.add("c", "d")


async def leading_partitions(group: LeaderGroup[str], conn: AsyncConnection[DictRow]) -> None:
    async def work(partition: str, term: Term) -> int:
        return len(partition) + term.token

    assert_type(await group.lead(work), None)
    assert_type(await group.step_down("a"), bool)
    async with group.fence(conn, "a") as term:
        assert_type(term, Term)

    async def of_pairs(partition: tuple[int, int], term: Term) -> None: ...

    await group.lead(of_pairs)  # type: ignore[arg-type]  # its partitions are names


def blocking() -> None:
    with sync.LeaderLock("host=db", name="jobs") as lock:
        assert_type(lock.lead(lambda term: term.token), int | None)
    group = sync.LeaderGroup("host=db", names=["a", "b"], max_share=3)
    assert_type(group, sync.LeaderGroup[str])
    assert_type(sync.LeaderGroup(keys=[(1, 2)]).partitions, tuple[tuple[int, int], ...])
    assert_type(group.leading, Mapping[str, sync.Term])
    sync.LeaderGroup(names=["a"], shutdown_event=None)  # type: ignore[call-overload]  # asyncio's

    def work(partition: str, term: sync.Term) -> int:
        return len(partition) + term.token

    group.lead(work, max_workers=4)
    group.lead(lambda: None)  # type: ignore[arg-type,misc]  # it gets a partition and a term
    with connect("host=db") as conn, group.fence(conn, "a") as term:
        assert_type(term, sync.Term)


# Reading a lock


def reading(lock: LeaderLock) -> None:
    assert_type(lock.state, LockState)
    assert_type(lock.is_leader, bool)
    assert_type(lock.is_leader_confirmed_within(1), bool)
    assert_type(lock.term, Term | None)
    assert_type(lock.token, int | None)
    assert_type(lock.record, LeaderRecord | None)
    assert_type(lock.key, LockKey)
    assert_type(lock.identity, str)
    assert_type(lock.trust_left_s, float)
    assert_type(lock.health(), Health)
    assert_type(lock.health().healthy, bool)
    assert_type(lock.bounds(), Bounds)
    assert_type(lock.bounds().failover_crash, Bound)
    assert_type(lock.bounds().failover_crash.seconds, float)
    assert_type(lock.bounds().failover_crash.reason, str)
    lock.is_leader = True  # type: ignore[misc]  # nobody makes himself a leader


def settings(lock: LeaderLock) -> None:
    assert_type(LeaderLock.from_env("jobs", lease_s=3.0), LeaderLock)
    assert_type(lock.from_env("jobs"), LeaderLock)
    lock.reconfigure(lease_s=30, health_interval_s=10.0, health_timeout_s=None, retry_strategy=FixedInterval(1.0))
    lock.reconfigure(identity="b")  # type: ignore[call-arg]  # who it is does not change
    lock.reconfigure(lease_s="30")  # type: ignore[arg-type]


async def onlooking(conn: AsyncConnection[Any]) -> None:
    assert_type(await pgelect.get_leader("host=db", "jobs"), LeaderRecord | None)
    assert_type(await pgelect.get_leader(conn, (1, 2)), LeaderRecord | None)
    assert_type(await pgelect.list_leaders(conn), list[LeaderRecord])
    history = await pgelect.get_history(conn, LockKey(1, 2), limit=3)
    assert_type(history, list[TermRecord])
    assert_type(history[0].ending, TermEnding | None)
    assert_type(await pgelect.request_step_down(conn, "jobs", token=7), int | None)
    assert_type(await pgelect.schema_version(conn), int | None)
    async for change in pgelect.observe("host=db", "jobs"):
        assert_type(change, LeadershipChange)
        assert_type(change.kind, ChangeKind)


def values(term: Term, record: LeaderRecord, key: LockKey) -> None:
    assert_type(term.token, int)
    assert_type(term.key, LockKey)
    assert_type(term.identity, str)
    assert_type(term.acquired_at, datetime)
    assert_type(term.metadata, Mapping[str, Any])
    assert_type(term.is_current, bool)
    assert_type(record.released_at, datetime | None)
    assert_type(record.name, str | None)
    assert_type(record.backend, Backend)
    assert_type(key.name, str | None)
    assert_type(LockKey.from_name("jobs"), LockKey)
    assert_type(key.classid, int)
    term.token = 5  # type: ignore[misc]  # frozen


# Living with it


async def life(lock: LeaderLock) -> None:
    async with lock as entered:
        assert_type(entered, LeaderLock)
        assert_type(await lock.wait_for_leadership(), Term)
        assert_type(await lock.wait_for_leadership(timeout_s=5), Term)
        assert_type(await lock.step_down(), bool)
        assert_type(await lock.step_down(drain_timeout_s=1, cooldown_s=None), bool)
        await lock.step_down(5)  # type: ignore[call-arg]  # five of what?
    await lock.start()
    await lock.shutdown(timeout_s=5)
    await lock.run()
    async with asyncio.TaskGroup() as group:
        group.create_task(lock.run())


# Leading


async def count(term: Term) -> int:
    return term.token


async def nothing(term: Term) -> None:
    await term.ended()


async def without_term() -> int:
    return 1


async def leading(lock: LeaderLock) -> None:
    assert_type(await lock.lead(count), int | None)
    assert_type(await lock.lead(count, repeat=True), int | None)
    await lock.lead(nothing)
    await lock.lead(without_term)  # type: ignore[arg-type]  # a duty gets its term
    await lock.lead(lambda term: term.token)  # type: ignore[arg-type,return-value]  # a duty is async
    async for term in lock.terms():
        assert_type(term, Term)


def add(one: int, *, two: str = "") -> float:
    return one + len(two)


async def add_later(one: int, *, two: str = "") -> float:
    return add(one, two=two)


async def leaders_only(lock: LeaderLock) -> None:
    guarded = lock.leader_only(add)
    assert_type(guarded(1, two="x"), float | None)
    guarded("1")  # type: ignore[arg-type]  # it keeps its parameters

    guarded_later = lock.leader_only(add_later)
    coroutine: Coroutine[Any, Any, float | None] = guarded_later(1)
    assert_type(await coroutine, float | None)
    assert_type(await guarded_later(1, two="x"), float | None)
    await guarded_later(two=1)  # type: ignore[arg-type,call-arg]  # it keeps its parameters

    @lock.leader_only
    async def decorated(table: str) -> list[int]:
        return [len(table)]

    assert_type(await decorated("jobs"), list[int] | None)


# Fencing


async def fencing(lock: LeaderLock, conn: AsyncConnection[DictRow], pool: AsyncConnectionPool) -> None:
    async with lock.fence(conn) as term:
        assert_type(term, Term)
    async with pool.connection() as pooled, lock.fence(pooled) as term:
        assert_type(term.token, int)
    await lock.check_fence(conn)
    await pgelect.install(conn)
    await pgelect.guard_table(conn, "public.jobs", LockKey(1, 2))
    await pgelect.unguard_table(conn, "public.jobs")
    assert_type(pgelect.schema_sql(), str)
    await pgelect.guard_table(conn, "public.jobs", "jobs")  # type: ignore[arg-type]  # a key, not a name


# Callbacks: a decorator gives the function back as it is


class Listener:
    """Any callable may be a callback."""

    def __call__(self) -> None: ...

    def heard(self, what: object) -> None: ...


def callbacks(lock: LeaderLock) -> None:
    @lock.on_acquired
    async def begin(term: Term) -> int:
        return term.token

    same: Callable[[Term], Coroutine[Any, Any, int]] = begin
    begin("term")  # type: ignore[arg-type,unused-coroutine]  # it keeps its parameters
    lock.on_lost(same)

    @lock.on_state_change
    def changed(before: LockState, after: LockState) -> int:
        return len(before) + len(after)

    assert_type(changed(LockState.LEADER, LockState.FOLLOWER), int)
    changed(1, 2)  # type: ignore[arg-type]  # it keeps its parameters

    assert_type(lock.on_released(Listener()), Listener)
    for register in (lock.on_acquired, lock.on_released, lock.on_lost, lock.on_acquire_failed, lock.on_error):
        register(print)
        register(partial(print, "told"))
        register(Listener().heard)
    lock.on_error(5)  # type: ignore[type-var]  # a callback can be called


# Retry strategies


class Own:
    """A strategy of a user's own, by its shape alone."""

    def next_delay_s(self, ctx: RetryContext) -> float | None:
        assert_type(ctx.attempt, int)
        assert_type(ctx.elapsed_s, float)
        assert_type(ctx.previous_delay_s, float | None)
        assert_type(ctx.error, Exception | None)
        return None if ctx.attempt > 3 else 1.0


class Wrong:
    """No strategy: it answers with text."""

    def next_delay_s(self, ctx: RetryContext) -> str:
        return str(ctx.attempt)


def strategies() -> None:
    own: RetryStrategy = Own()
    wrong: RetryStrategy = Wrong()  # type: ignore[assignment]  # it answers with text
    for strategy in (ExponentialBackoff(base_s=1, max_s=30, multiplier=2), FixedInterval(1), DecorrelatedJitter(), own):
        LeaderLock(name="jobs", retry_strategy=strategy)
    LeaderLock(name="jobs", retry_strategy=wrong)
    LeaderLock(name="jobs", retry_strategy=tenacity.wait_fixed(1))
    LeaderLock(name="jobs", retry_strategy=tenacity.wait_fixed(1) + tenacity.wait_random(0, 1))
    LeaderLock(name="jobs", retry_strategy=(tenacity.wait_fixed(1), tenacity.stop_after_attempt(3)))
    LeaderLock(name="jobs", retry_strategy=tenacity.AsyncRetrying(wait=tenacity.wait_fixed(1)))
    LeaderLock(name="jobs", retry_strategy=tenacity.Retrying())
    LeaderLock(name="jobs", retry_strategy=lambda state: float(state.attempt_number))
    LeaderLock(name="jobs", retry_strategy=5.0)  # type: ignore[arg-type]  # seconds are no strategy
    assert_type(as_strategy(tenacity.wait_fixed(1)), RetryStrategy)


# Exceptions and their fields


def exceptions(error: PgElectError) -> None:
    match error:
        case ConnectionError():
            assert_type(error.attempts, int)
            assert_type(error.last_error, Exception | None)
        case SessionLostError():
            assert_type(error.reason, str)
        case LockError():
            assert_type(error.key, LockKey)
        case FenceBusyError():
            assert_type(error.blockers, tuple[int, ...])
        case ShutdownError():
            assert_type(error.timeout_s, float)
        case StaleTokenError():
            assert_type(error.token, int)
        case NotLeaderError():
            assert_type(error.state, LockState | GroupState)
        case PoolerError():
            assert_type(error.mode, str)
        case SchemaError():
            assert_type(error.sql, str)
        case KeyCollisionError():
            assert_type(error.other_name, str)
        case UnsupportedServerError():
            assert_type(error.server_version, int)
        case _:
            assert_type(error, PgElectError)
