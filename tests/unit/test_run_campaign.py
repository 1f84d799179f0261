"""What ``pgelect run`` does when its command was ended and leadership has gone on."""

import asyncio
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from pgelect import LeaderLock, Term
from pgelect.cli.run_campaign import Campaign, Plan
from pgelect.cli.run_command import Command
from pgelect.testing import LocalElection, local_election

PLAN = Plan(command=("work",), grace_s=1.0, restart=False, once=False, wait_s=None, attended=False)


class Kept:
    """A command that its keeper ends when it is told to: by its own deadline, or because it was asked."""

    made: list["Kept"] = []  # noqa: RUF012 -- one test at a time

    def __init__(self) -> None:
        self.pid = 1000 + len(self.made)
        self.ended = asyncio.Event()
        self.was_asked = self.exited_by_itself = False
        self.made.append(self)

    async def gone(self) -> int:
        await self.ended.wait()
        return -signal.SIGKILL

    def stop(self, _: float) -> None:
        self.was_asked = True
        self.ended.set()

    def trust_until(self, _: float) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def election(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalElection]:
    async def start(*_: Any, **__: Any) -> Kept:
        return Kept()

    monkeypatch.setattr(Command, "start", start)
    Kept.made.clear()
    with local_election() as made:
        yield made


async def test_a_command_whose_keeper_had_not_heard_of_us_in_time_is_started_again_in_the_same_term(
    election: LocalElection,
) -> None:
    """Regression: stopped for a little less than its lease, a run went on to lead, and worked no more.

    The keeper counts from what it was told last, which is a moment older than the last proof.
    """
    lock, terms = LeaderLock(name="job"), list[Term]()
    lock.on_acquired(terms.append)
    running = asyncio.create_task(Campaign(lock, lock._settings, PLAN, as_json=True).run())
    await election.settle()
    assert [command.pid for command in Kept.made] == [1000]
    Kept.made[0].ended.set()  # by its keeper: nobody has asked, and it did not exit by itself
    await election.settle()
    assert [command.pid for command in Kept.made] == [1000, 1001]
    assert lock.is_leader
    assert len(terms) == 1
    election.end_session(lock)  # asked now, for the term is over: it belongs to the next one
    await election.settle()
    assert Kept.made[1].was_asked
    await election.advance(10)
    assert len(Kept.made) == 3
    assert len(terms) == 2
    signal.raise_signal(signal.SIGTERM)
    await election.settle()
    await election.advance(1)
    assert await asyncio.wait_for(running, 10) == 128 + signal.SIGTERM
    assert Kept.made[2].was_asked
