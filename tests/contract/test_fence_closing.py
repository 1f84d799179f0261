"""Writers that come one after another without end: a token that has to give way lets no more of them in.

Holds off a next term, or a clean release, that is kept away for good by transactions which overlap: a lock for share
does not queue behind whoever waits to change the row.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pgelect._engine.session import Session
from pgelect.errors import FenceBusyError, SessionLostError, StaleTokenError
from tests.contract.client import LEVELS, SNAPSHOTS, Client
from tests.contract.election import WITHIN_S, Election, soon
from tests.support.waiting import POLL_S

WRITERS = 6
HOLD_S = 0.06

every_snapshot = pytest.mark.parametrize("isolation", SNAPSHOTS)


class Swarm:
    """Writers under one token until they hear that it is stale. None commits before another one has been let in."""

    def __init__(self, election: Election, token: int) -> None:
        self._election = election
        self._token = token
        self.committed = 0
        self.ended = 0
        self.refused = 0
        self._inside = 0

    async def write(self, nth: int) -> None:
        await asyncio.sleep(HOLD_S * nth / WRITERS)
        client = await self._election.client()
        while True:
            try:
                await client.begin()
                await client.check(self._token)
                await self._write_inside(client, nth)
                await client.commit()
                self.committed += 1
            except StaleTokenError:
                self.refused += 1
                return
            except SessionLostError:
                self.ended += 1
                client = await self._election.client()

    async def _write_inside(self, client: Client, nth: int) -> None:
        self._inside += 1
        try:
            await asyncio.sleep(HOLD_S)
            await client.write(nth)
            while self._inside == 1 and not self.refused:
                await asyncio.sleep(POLL_S)
                await client.peek()  # it may have been ended
        finally:
            self._inside -= 1


@asynccontextmanager
async def swarm(election: Election, token: int) -> AsyncIterator[Swarm]:
    """Inside the block they write; at its end each of them has been refused."""
    it = Swarm(election, token)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        for nth in range(WRITERS):
            group.create_task(it.write(nth))

        async def at_work() -> bool:
            return it.committed >= WRITERS

        await soon(at_work, "all of them write")
        yield it
    assert it.refused == WRITERS


async def minted(session: Session) -> int:
    """The next token, tried for again and again as an elector does."""
    while True:
        try:
            return (await session.mint(WITHIN_S)).token
        except FenceBusyError:
            continue


async def is_closed(election: Election, token: int) -> None:
    """Wait until a transaction that begins now is not let in any more."""

    async def refused() -> bool:
        try:
            client = await election.checked(token)
        except StaleTokenError:
            return True
        await client.close()
        return False

    await soon(refused, "newcomers are refused")


async def stuck(election: Election) -> tuple[int, Session, Client]:
    """The token of a term that is over, the session that is to mint, and a writer that it has to wait for."""
    await election.weaken()
    old, successor = await election.deposed()
    writer = await election.checked(old)
    await writer.write(1)
    return old, successor, writer


@pytest.mark.parametrize("may_end", [True, False])
async def test_writers_that_overlap_without_end_do_not_keep_the_next_token_away(
    election: Election, may_end: bool
) -> None:
    if not may_end:
        await election.weaken()
    old, successor = await election.deposed()
    async with swarm(election, old) as writers:
        new = (await successor.mint(WITHIN_S)).token  # at the first try: they are short
    assert new > old
    assert writers.ended <= (WRITERS if may_end else 0)
    await election.write_fenced(new, 9)
    tokens = [token for token, _ in await election.ledger()]
    assert tokens == [old] * writers.committed + [new]


async def test_a_mint_that_waited_in_vain_lets_nobody_in_any_more(election: Election) -> None:
    old, successor, writer = await stuck(election)
    mint = asyncio.create_task(minted(successor))
    await is_closed(election, old)
    for isolation in LEVELS:
        with pytest.raises(StaleTokenError):
            await election.checked(old, isolation)
    assert not mint.done()
    await writer.commit()  # it was in before, and is waited for
    new = await mint
    await election.write_fenced(new, 2)
    assert await election.ledger() == [(old, 1), (new, 2)]


@every_snapshot
async def test_only_a_snapshot_from_before_still_gets_in_and_is_waited_for(election: Election, isolation: str) -> None:
    """There are no more of these than there are open transactions; and the row holds off the mint for them, too."""
    old, successor, writer = await stuck(election)
    early = await election.client()
    await early.begin(isolation)
    assert await early.peek() == old
    mint = asyncio.create_task(minted(successor))
    await is_closed(election, old)
    await early.check(old)
    await early.write(2)
    await writer.commit()
    await election.is_blocked(await election.holder())
    assert not mint.done()
    await early.commit()
    assert await mint > old
    await early.begin(isolation)
    with pytest.raises(StaleTokenError):
        await early.check(old)
    assert await election.ledger() == [(old, 1), (old, 2)]


async def test_a_token_that_was_closed_does_not_shut_those_that_follow(election: Election) -> None:
    """After the next token the closed one is of no weight: nothing has to open it again."""
    old, successor, writer = await stuck(election)
    with pytest.raises(FenceBusyError):
        await successor.mint(WITHIN_S)
    await writer.commit()
    for value in range(3):
        new = (await successor.mint(WITHIN_S)).token
        await election.write_fenced(new, value)
    tokens = [token for token, _ in await election.ledger()]
    assert tokens == sorted(set(tokens))
    assert tokens[0] == old


# The release


async def test_a_release_marks_its_term_though_writers_overlap_without_end(election: Election) -> None:
    session, grant = await election.leading()
    async with swarm(election, grant.token):
        assert await session.unlock(grant.token, WITHIN_S) is True
    assert (await election.last_row()).released
    await election.is_free()


async def test_a_release_that_cannot_mark_its_term_frees_the_lock_and_lets_nobody_in_any_more(
    election: Election,
) -> None:
    session, grant = await election.leading()
    writer = await election.checked(grant.token)
    assert await session.unlock(grant.token, WITHIN_S) is True
    await election.is_free()
    assert not (await election.last_row()).released
    with pytest.raises(StaleTokenError):
        await election.checked(grant.token)
    await writer.write(1)
    await writer.commit()
    successor = await election.holding("b")
    successor_grant = await successor.mint(WITHIN_S)
    assert not successor_grant.predecessor_clean
    await election.write_fenced(successor_grant.token, 2)
    assert await election.ledger() == [(grant.token, 1), (successor_grant.token, 2)]
