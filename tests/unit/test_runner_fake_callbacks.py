"""Callbacks on a fake server: an on_acquired that fails or takes long, and callbacks that end their own lock."""

import asyncio
from itertools import pairwise

from pgelect import LockState, Term
from pgelect.testing import FakeServer
from tests.support.fake_locks import Elector
from tests.support.waiting import eventually


async def test_a_long_on_acquired_does_not_stop_the_proofs() -> None:
    server = FakeServer()
    a = Elector(server)
    ended = asyncio.Event()

    @a.lock.on_acquired
    async def work(term: Term) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with a.lock:
        await a.leads()
        before = server.statements
        await eventually(lambda: server.statements > before + 3, message="proofs go on")
        assert a.lock.is_leader
    assert ended.is_set()


async def test_an_on_acquired_that_raises_frees_the_lock_and_the_next_attempt_backs_off() -> None:
    server = FakeServer()
    a = Elector(server)
    loop = asyncio.get_running_loop()
    tried_at: list[float] = []
    error = ValueError("the work cannot begin")

    @a.lock.on_acquired
    def fail() -> None:
        tried_at.append(loop.time())
        if len(tried_at) < 4:
            raise error

    async with a.lock:
        await eventually(lambda: len(tried_at) == 4, message="it is tried again and again")
        assert a.errors == [error] * 3
        await a.leads(above=3)
    assert a.terms == [*((what, token) for token in (1, 2, 3) for what in ("acquired", "released")), *a.terms[-2:]]
    assert all(later - earlier >= 0.05 for earlier, later in pairwise(tried_at))


async def test_another_takes_over_from_one_whose_on_acquired_raises() -> None:
    server = FakeServer()
    a, b = Elector(server, "a"), Elector(server, "b")

    @a.lock.on_acquired
    def fail() -> None:
        raise ValueError("the work cannot begin")

    async with a.lock, b.lock:
        await b.leads()


async def test_a_callback_may_step_down_or_shut_down_its_own_lock() -> None:
    server = FakeServer()
    a = Elector(server)
    answers: list[object] = []

    @a.lock.on_acquired
    async def give_up(term: Term) -> None:
        if term.token == 1:
            answers.append(await a.lock.step_down(cooldown_s=0.05))
        else:
            await a.lock.shutdown()

    await a.lock.start()
    await eventually(lambda: a.lock.state is LockState.STOPPED, message="the second term shuts the lock down")
    await a.lock.shutdown()
    assert a.terms == [("acquired", 1), ("released", 1), ("acquired", 2), ("released", 2)]
    assert server.sessions() == ()
