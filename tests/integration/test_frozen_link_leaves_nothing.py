"""What a dead link leaves behind in the process: nothing, and at once, although the link stays dead.

A fault like psycopg#1371: a query on a half-open link outlived its timeout, its task stayed cancelling for ever, and so
did each one after it.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import psutil
import pytest

from pgelect import FixedInterval, LeaderLock, LockState
from pgelect.testing import Postgres
from tests.support.locks import Key, Story
from tests.support.looks import Looks, now
from tests.support.loops import loop_factories
from tests.support.proxy import BreakableProxy, Direction
from tests.support.server import lock_holders, sessions
from tests.support.waiting import eventually

ROUNDS = 4
LEASE_S = 1.0
SETTINGS: dict[str, Any] = {"lease_s": LEASE_S, "health_interval_s": 0.1, "health_timeout_s": 0.3}
WAYS: list[tuple[Direction, float | None]] = [("both", None), ("up", 30.0), ("down", None), ("both", 30.0)]
LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def sockets_to(proxies: list[BreakableProxy]) -> int:
    """How many sockets of this process lead to these proxies; their own ends do not count."""
    ports = [(proxy.port,) for proxy in proxies]
    return len([one for one in psutil.Process().net_connections("tcp") if one.raddr[1:] in ports])


async def tasks_at_rest() -> int:
    """How many tasks there are once the number has been the same for a while."""
    seen = [0]
    while len(seen) < 6:
        count = len(asyncio.all_tasks())
        seen = [*seen, count] if count == seen[-1] else [count]
        await asyncio.sleep(0.01)
    return seen[-1]


async def lose_one_link_after_another(
    server: Postgres, database: str, key: Key, direction: Direction, grace_s: float | None
) -> None:
    """Each link stays dead to the end; the elector goes on by the next one."""
    with ExitStack() as stack:
        proxies = [stack.enter_context(BreakableProxy("127.0.0.1", server.port)) for _ in range(ROUNDS + 1)]
        dead: list[BreakableProxy] = []
        lock = LeaderLock(
            lambda: proxies[len(dead)].dsn(database), *key, **SETTINGS, retry_strategy=FixedInterval(0.1),
            reconnect_grace_s=grace_s,
        )  # fmt: skip
        story, looks = Story(lock), Looks(lambda: lock.is_leader)

        def times_it_led() -> int:
            return [after for _, after in story.states].count(LockState.LEADER)

        with looks:
            async with lock:
                await eventually(lambda: times_it_led() == 1)
                tasks, threads = await tasks_at_rest(), threading.active_count()
                descriptors = psutil.Process().num_fds()
                for proxy in proxies[:ROUNDS]:
                    broken_at = now()
                    dead.append(proxy)
                    proxy.freeze(direction)
                    await eventually(lambda: times_it_led() == len(dead) + 1, message="it leads again")
                    believed_until = max(span.last for span in looks.spans if span.first < broken_at)
                    assert believed_until < broken_at + LEASE_S
                    await eventually(lambda: len(asyncio.all_tasks()) <= tasks, 1.0, "no task of the dead link is left")
                    await eventually(lambda: sockets_to(dead) == 0, 1.0, "nor its socket")
                    assert threading.active_count() == threads
                    await eventually(lambda: [one.pid for one in sessions(database)] == lock_holders(database, *key))
                assert story.is_paired()
                assert len(story.told) == (1 if grace_s else 2 * ROUNDS + 1)
                for proxy in dead:
                    proxy.cut()
                await eventually(lambda: psutil.Process().num_fds() <= descriptors, message="as many descriptors")


@pytest.mark.parametrize("loop_factory", loop_factories())
@pytest.mark.parametrize("way", WAYS)
def test_links_that_die_one_after_another_leave_no_task_socket_or_thread(
    server: Postgres, database: str, key: Key, way: tuple[Direction, float | None], loop_factory: LoopFactory
) -> None:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(lose_one_link_after_another(server, database, key, *way))
    assert lock_holders(database, *key) == []
